"""De-duplication of lines in tool output (not in the paper; from the published program's idea).

Tool output repeats itself in part: the same file read twice, a listing with one line more. Texts
are cut into chunks at lines that their own content picks, so that an insertion moves only the
chunks around it. A chunk that stands in an earlier tool result of the same body is replaced by one
line that points there.

Only the text of tools is touched, and only against earlier messages, never within one. It is a pure
function of the body: the next turn repeats it and gets the same bytes. Chunks average some 15
lines.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from laar.context.notes import lines_note

__all__ = ["chunks", "shorten"]

MODULUS = 13
MIN_LINES = 3
MAX_LINES = 40
MIN_CHUNK_CHARS = 40
MIN_TEXT_CHARS = 200


def chunks(text: str) -> list[str]:
    """Cuts a text after lines picked by their hash; the parts joined are the text."""
    lines = text.splitlines(keepends=True)
    parts: list[list[str]] = [[]]
    for line in lines:
        parts[-1].append(line)
        size = len(parts[-1])
        picked = xxhash.xxh32_intdigest(line.strip().encode()) % MODULUS == 0
        if (picked and size >= MIN_LINES) or size >= MAX_LINES:
            parts.append([])
    if len(parts) > 1 and len(parts[-1]) < MIN_LINES:
        tail = parts.pop()
        parts[-1] += tail
    return ["".join(part) for part in parts]


def shorten(texts: Sequence[str]) -> list[str]:
    """Tool results in the order of the conversation, with repeated chunks replaced.

    A chunk is replaced when it is in an earlier text in full, is long enough, and the note is
    shorter.
    """
    seen: set[int] = set()
    out: list[str] = []
    for text in texts:
        if len(text) < MIN_TEXT_CHARS:
            out.append(text)
            continue
        parts = chunks(text)
        kept: list[str] = []
        fresh: set[int] = set()
        for part in parts:
            body = part.strip("\r\n")
            key = xxhash.xxh3_64_intdigest(body.encode())
            note = lines_note(body)
            if key in seen and len(parts) > 1 and len(body) >= max(MIN_CHUNK_CHARS, len(note) + 1):
                kept.append(part.replace(body, note, 1))
            else:
                fresh.add(key)
                kept.append(part)
        seen |= fresh
        out.append("".join(kept))
    return out

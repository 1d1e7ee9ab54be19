"""Read recorded sessions, to send them as a closed loop: requests wait for the previous answer.

Each line is a JSON object, and a session's lines are in order: `session` (a string or a whole
number), `input_length`, `output_length`, `hash_ids` (one per 512 prompt tokens), and when the
request is due:

- `think_s`, the pause after the previous answer; or else
- `t_s` (seconds) or `timestamp` (milliseconds), when it was sent. The pause after the previous
  answer is kept if `api_s` gives the duration of that answer; otherwise the pause after the
  previous request is kept.

A time that is null is treated as missing.

Equal ids mean the same prompt only within a session, as in the agent traces of kv-cache-tester. In
a file with `timestamp`s, the format of Mooncake and GORGO, they do so across sessions, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import xxhash

from laar.errors import SettingError
from laar_lab.sim.fleet import Prompt, Turn
from laar_lab.trace import (
    MAX_LENGTH_S,
    TRACE_BLOCK_TOKENS,
    Entry,
    Lengths,
    check_block,
    entries,
    lengths,
    number,
    session_of,
)

MAX_REQUESTS = 1 << 20
"""Maximum number of requests in a file. Sessions may be interleaved, so the whole file is kept in
memory, at a kilobyte or two per request."""

_MOST_OUTPUT_TOKENS = 4000  # of an answer before it is divided


@dataclass(frozen=True, slots=True)
class _Line:
    lengths: Lengths
    after_answer_s: float
    after_request_s: float

    def divided(self, prompt: int, answer: int) -> _Line:
        """Return the request with its lengths divided."""
        prompt_tokens = max(1, self.lengths.prompt_tokens // prompt)
        output_tokens = max(1, min(self.lengths.output_tokens, _MOST_OUTPUT_TOKENS) // answer)
        shorter = replace(self.lengths, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        return replace(self, lengths=shorter)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One session.

    Args:
        name: session id in the file.
        block_tokens: number of prompt tokens per id.
        salt: offset added to the ids.
        lines: the session's requests.
    """

    name: str
    block_tokens: int
    salt: int
    lines: tuple[_Line, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def cut(self, most: int) -> Recorded:
        """Return this session with at most its first `most` requests."""
        return replace(self, lines=self.lines[:most])

    def turns(self, *, speed: float = 1.0, max_pause_s: float = math.inf) -> Iterator[Turn]:
        """Yield the session's requests, building each prompt only when it is needed.

        Args:
            speed: divisor of the pauses.
            max_pause_s: longest pause, after the division.
        """
        for line in self.lines:
            yield Turn(
                prompt=self._prompt(line),
                after_answer_s=min(line.after_answer_s / speed, max_pause_s),
                after_request_s=min(line.after_request_s / speed, max_pause_s),
            )

    def _prompt(self, line: _Line) -> Prompt:
        return line.lengths.prompt(self.block_tokens, self.salt)


def has_sessions(path: Path) -> bool:
    """Return whether the file's first line names a session.

    Raises:
        SettingError: the file can't be read, or the line is not a JSON object.
    """
    return any(session_of(entry) is not None for _, entry in islice(entries(path), 1))


def read_sessions(path: Path, *, block_tokens: int = TRACE_BLOCK_TOKENS) -> list[Recorded]:
    """Return the sessions, in the order of their first lines.

    Raises:
        SettingError: the file can't be read or has too many lines, or a line is invalid; the
            message names the line and field.
    """
    check_block(block_tokens)
    lines: dict[str, list[_Line]] = {}
    salts: dict[str, int] = {}
    last: dict[str, tuple[float, float]] = {}
    for count, (where, entry) in enumerate(entries(path), 1):
        if count > MAX_REQUESTS:
            raise SettingError(f"{where}: more than {MAX_REQUESTS} requests; cut the file")
        name = session_of(entry)
        if name is None:
            raise SettingError(
                f"{where}: `session` must be a string or a whole number; a closed loop needs it"
            )
        sent_s = _sent_s(entry, where)
        after = _pauses(entry, where, sent_s, last.get(name))
        api_s = math.nan if entry.get("api_s") is None else number(entry, "api_s", where)
        last[name] = (sent_s, api_s)
        lines.setdefault(name, []).append(_Line(lengths(entry, where), *after))
        salts.setdefault(name, _salt(name) if entry.get("timestamp") is None else 0)
    return [Recorded(name, block_tokens, salts[name], tuple(of)) for name, of in lines.items()]


def _sent_s(entry: Entry, where: str) -> float:
    if entry.get("timestamp") is not None:
        return number(entry, "timestamp", where) / 1e3
    return math.nan if entry.get("t_s") is None else number(entry, "t_s", where)


def _pauses(
    entry: Entry, where: str, sent_s: float, before: tuple[float, float] | None
) -> tuple[float, float]:
    """Return the pauses in seconds after the previous answer and after the previous request."""
    if before is None:
        return 0.0, 0.0
    if entry.get("think_s") is not None:
        return number(entry, "think_s", where, most=MAX_LENGTH_S), 0.0
    gap_s = sent_s - before[0]
    if not 0 <= gap_s <= MAX_LENGTH_S:
        raise SettingError(
            f"{where}: needs `think_s`, or a `t_s` or `timestamp` that is no earlier than "
            "the previous one and at most a year later"
        )
    if math.isnan(before[1]):
        return 0.0, gap_s
    return max(0.0, gap_s - before[1]), 0.0


def _salt(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))

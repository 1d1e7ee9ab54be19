"""Real text, split into chunks as for retrieval.

All sources exist on any machine that runs the benchmarks: laar's docs, Python's language reference,
descriptions and licences of the installed distributions.
"""

from __future__ import annotations

import pydoc_data.topics
import random
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

CHUNK_CHARS = 1000
OVERLAP_CHARS = 100
SEPARATORS = ("\n\n", "\n", " ")
"""Separators in order of preference: as in recursive splitters, the first one found is used."""

_DOCS = Path(__file__).parents[2] / "docs"


@cache
def corpora() -> dict[str, list[str]]:
    """Return the texts by corpus, in a fixed order."""
    installed = sorted(distributions(), key=lambda each: each.metadata["Name"].casefold())
    readmes = [each.metadata["Description"] for each in installed if "Description" in each.metadata]
    licences = [
        file.read_text()
        for each in installed
        for file in each.files or ()
        if file.name.upper().startswith(("LICEN", "COPYING")) and file.suffix != ".py"
    ]
    return {
        "pages": [page.read_text("utf-8") for page in sorted(_DOCS.rglob("*.md"))],
        "reference": [text for _, text in sorted(pydoc_data.topics.topics.items())],
        "readmes": [text for text in readmes if len(text) > CHUNK_CHARS],
        "licences": licences,
    }


def split(text: str, separators: Sequence[str] = SEPARATORS) -> list[str]:
    """Split a text into chunks of up to `CHUNK_CHARS`, which may overlap."""
    fits = next((i for i, one in enumerate(separators) if one in text), None)
    if len(text) <= CHUNK_CHARS or fits is None:
        return [text[i : i + CHUNK_CHARS].strip() for i in range(0, len(text), CHUNK_CHARS)]
    separator = separators[fits]
    chunks: list[str] = []
    window: list[str] = []
    for piece in text.split(separator):
        if len(piece) > CHUNK_CHARS:
            chunks += [separator.join(window)] if window else []
            chunks += split(piece, separators[fits + 1 :])
            window = []
            continue
        if window and len(separator.join([*window, piece])) > CHUNK_CHARS:
            chunks.append(separator.join(window))
            while window and len(separator.join(window)) > OVERLAP_CHARS:
                window.pop(0)
        window.append(piece)
    chunks += [separator.join(window)] if window else []
    return [chunk.strip() for chunk in chunks if chunk.strip()]


@cache
def _pieces(corpus: str) -> list[str]:
    found = [chunk for text in corpora()[corpus] for chunk in split(text)]
    return [chunk for chunk in dict.fromkeys(found) if len(chunk) >= _LEAST_CHARS]


def chunks(corpus: str, count: int, rng: random.Random) -> list[str]:
    """Return distinct chunks of a corpus, drawn in runs of neighbors."""
    different = _pieces(corpus)
    drawn: dict[str, None] = {}
    while len(drawn) < min(count, len(different)):
        start = rng.randrange(len(different))
        drawn |= dict.fromkeys(different[start : start + _RUN])
    return list(drawn)[:count]


_LEAST_CHARS = 200
"""Minimum length of a chunk; shorter ones are headings left over by the splitter."""

_RUN = 5
"""Neighbouring chunks drawn together: retrieval often returns several from one text."""

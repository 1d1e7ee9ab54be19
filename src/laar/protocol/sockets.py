"""WebSockets, whose messages the picker does not see: what their openings say about them.

Browsers' and agents' clients name the model in the query (OpenAI's realtime API, Azure), in a
header, or in a header that holds a JSON object (Codex: ``x-codex-turn-metadata``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl

import orjson

from laar.protocol.paths import model_of
from laar.protocol.sessions import SESSION_MEMBERS_OF_HEADERS, name_of

_MAX_CHARS = 8192
"""Longest query or header that is parsed."""

_MODEL = ("model", "deployment")


def socket_names(path: str, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the model and the session that the opening of a WebSocket names; empty if none.

    A session in a header of its own takes precedence; it is not returned here.
    """
    fields = list(_fields(path, headers))

    def first(*names: str) -> str:
        return next((text for name, text in fields if name in names and text), "")

    return model_of(path) or first(*_MODEL), name_of(first(*SESSION_MEMBERS_OF_HEADERS))


def _fields(path: str, headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield names and values from the query, the headers, and the objects that headers hold."""
    query = path.partition("?")[2]
    if len(query) <= _MAX_CHARS:
        yield from parse_qsl(query)
    for name, value in headers.items():
        if name == "model" or name.endswith("-model"):
            yield "model", name_of(value)
        elif value.startswith("{") and len(value) <= _MAX_CHARS:
            try:
                found = orjson.loads(value)
            except orjson.JSONDecodeError:
                continue
            for key, inner in found.items():
                if isinstance(inner, str):
                    yield key, inner

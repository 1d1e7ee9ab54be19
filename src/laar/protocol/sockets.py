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


def socket_names(path: str, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the model and the session that the opening of a WebSocket names; empty if none.

    The path and its query come first. If headers name different models, none is known: one of them
    may be a fallback, or another service's. A session in a header of its own takes precedence; it
    is not returned here.
    """
    query, said = path.partition("?")[2], list(_fields(headers))
    asked = parse_qsl(query) if len(query) <= _MAX_CHARS else []
    models = {text for name, text in said if name == "model" and text}
    model = model_of(path) or _first(asked, "model", "deployment")
    model = model or (models.pop() if len(models) == 1 else "")
    return model, name_of(_first(asked + said, *SESSION_MEMBERS_OF_HEADERS))


def _first(fields: list[tuple[str, str]], *names: str) -> str:
    return next((text for name, text in fields if name in names and text), "")


def _fields(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield names and values from headers, and from the objects that they hold."""
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

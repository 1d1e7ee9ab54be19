"""Stabilize prefixes of a body: sort tools, and move some system prompt lines to the end.

The order of tools means nothing to a model. A tool with `cache_control` keeps its position, and the
others stay on the same side of it. The route's settings specify the lines to move after the user's
last text; `laar context advise` suggests them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import not_
from typing import Any

import orjson

from laar.context.bodies import Text, prompt_texts
from laar.context.formats.jsonspans import Literal, Path, raw_values, splice
from laar.context.settings import ContextSettings

_MARK = "cache_control"


def steadied(
    body: bytes, parsed: dict[str, Any], api: str, settings: ContextSettings
) -> tuple[bytes, dict[str, Any], str]:
    """Return a body with tools sorted and lines removed, that body parsed, and the removed lines.

    `with_last` appends the lines. If nothing changes, body and `parsed` are the given objects.

    Raises:
        Refused: the body cannot be changed safely.
    """
    edits = _sorted_tools(body, parsed) if settings.sort_tools else {}
    taken: list[str] = []
    if settings.last_lines:
        texts = prompt_texts(parsed, api)
        for text in texts if _last(texts) is not None else ():
            lines = text.value.splitlines(keepends=True) if text.role == "system" else []
            is_last = [line.lstrip().startswith(settings.last_lines) for line in lines]
            if any(is_last) and not all(is_last):
                edits[text.path] = "".join(compress(lines, map(not_, is_last)))
                taken += compress(lines, is_last)
    if not edits:
        return body, parsed, ""
    made = splice(body, edits)
    return made, orjson.loads(made), "\n".join([line.strip() for line in taken])


def with_last(body: bytes, api: str, lines: str) -> bytes:
    """Return a body with lines appended to the user's last text.

    Raises:
        Refused: the body cannot be changed safely.
    """
    text = _last(prompt_texts(orjson.loads(body), api))
    assert text is not None  # `steadied` removes lines only from such bodies
    return splice(body, {text.path: f"{text.value}\n\n{lines}"})


def _last(texts: Sequence[Text]) -> Text | None:
    return next((text for text in reversed(texts) if text.role == "user"), None)


def _sorted_tools(body: bytes, parsed: dict[str, Any]) -> dict[Path, str]:
    """Return the edits that sort the tools by name, without re-rendering them."""
    tools = parsed.get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return {}
    flat = [
        {**tool, **own} if isinstance(own := tool.get("function"), dict) else tool for tool in tools
    ]
    named = [(tool.get("name"), tool.get("type")) for tool in flat]
    names = [next((name for name in own if isinstance(name, str)), "") for own in named]
    paths: list[Path] = [("tools", at) for at in range(len(tools))]
    written = raw_values(body, paths) if len(tools) > 1 else []
    order: list[int] = []
    for at, tool in enumerate([*flat, {_MARK: None}] if written else ()):
        if _MARK in tool:
            order += sorted(range(len(order), at), key=lambda n: (names[n], written[n]))
            order.append(at)
    return {paths[at]: Literal(written[n]) for at, n in enumerate(order[:-1]) if n != at}

"""Extract the texts of a prompt from a request body, with roles and preceding content.

Supports bodies of Chat (`messages`), Anthropic (`system`, `messages`), Responses (`instructions`,
`input`) and completions (`prompt`). A text is *fresh* if it belongs to
the last turn, after the assistant's last answer. Only fresh text may be reordered. Older text must
be sent as it was when it was fresh; otherwise the conversation loses its cached prefix. Messages
with `cache_control` and content that is not text are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import orjson

from laar.context.blocks import DOCUMENT_BLOCKS, SkippedText
from laar.context.formats.jsonspans import Path, raw_values
from laar.context.settings import Reason

Role: TypeAlias = Literal["user", "system", "tool"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "tool": "tool",
    "function": "tool",
}


class Text(NamedTuple):
    """A string of the prompt.

    Args:
        path: its path in the body.
        fresh: the text belongs to the last turn.
        parts: the text is the raw JSON of a message's content blocks.
    """

    path: Path
    value: str
    role: Role
    fresh: bool
    parts: bool = False


def prompt_texts(body: dict[str, object], api: str, raw: bytes | None = None) -> list[Text]:
    """Return all strings that may hold documents, in prompt order.

    Raise `SkippedText` if `api` is not ``chat``, ``messages``, ``responses`` or ``completions``.

    Args:
        body: the body, parsed.
        api: the API of the body.
        raw: the body as received. With it, content whose blocks are documents is also returned as
            one text, before the texts of its blocks.
    """
    texts = _texts(body, api)
    paths = [text.path for text in texts if text.parts]
    if raw is None or not paths:
        return [text for text in texts if not text.parts]
    values = dict(zip(paths, raw_values(raw, paths), strict=True))
    return [text._replace(value=values[text.path]) if text.parts else text for text in texts]


def _texts(body: dict[str, object], api: str) -> list[Text]:
    if api == "completions":
        return _prompts(body.get("prompt"))
    if api not in ("chat", "messages", "responses"):
        raise SkippedText(Reason.UNSUPPORTED_API)
    key = "input" if api == "responses" else "messages"
    said, system = body.get(key), _SYSTEM[key]
    first_turn = not (isinstance(said, list) and None in map(_role, said))
    texts: list[Text] = []
    if api != "chat":  # the system prompt is outside the messages
        texts += _content((system,), body.get(system), "system", first_turn)
    texts += _messages(key, said)
    return texts


_SYSTEM = {"messages": "system", "input": "instructions"}
"""The field with the system prompt, by the field with the messages."""


def _prompts(prompt: object) -> list[Text]:
    """Return the texts of a prompt, or of a batch of independent prompts."""
    if isinstance(prompt, str):
        return [Text(("prompt",), prompt, "user", True)]
    return [
        Text(("prompt", i), text, "user", True)
        for i, text in enumerate(prompt if isinstance(prompt, list) else ())
        if isinstance(text, str)
    ]


def said_before(body: dict[str, object], path: Path) -> bytes:
    """Return the parts of the prompt that precede the string at `path`, for hashing.

    If two prompts differ here, they share no cached prefix beyond this point.
    """
    before: list[object] = [body.get("tools")]
    if path[0] == "prompt":
        return orjson.dumps(before)
    if path[0] in _SYSTEM:
        before.append(body.get(_SYSTEM[str(path[0])]))
    at: object = body
    for step in path:
        if isinstance(at, list) and isinstance(step, int):
            before.append(at[:step])
            at = at[step]
        elif isinstance(at, dict):
            before.append(at.get("role"))
            at = at.get(step)
    return orjson.dumps(before)


def _messages(key: str, messages: object) -> Iterator[Text]:
    if isinstance(messages, str):  # the input of a response
        yield Text((key,), messages, "user", True)
    if not isinstance(messages, list):
        return
    roles = list(map(_role, messages))
    last = len(roles)  # start of the last turn: after the last answer followed by a message
    while last and roles[last - 1] is None:
        last -= 1
    while last and roles[last - 1] is not None:
        last -= 1
    for i, (message, role) in enumerate(zip(messages, roles, strict=True)):
        if role is None or "cache_control" in message:
            continue
        for field in ("content", "output"):
            value = message.get(field)
            if value is not None:
                yield from _content((key, i, field), value, role, i >= last)


def _content(path: Path, value: object, role: Role, fresh: bool) -> Iterator[Text]:
    """Yield the texts of a message's content; none if any part has `cache_control`."""
    if isinstance(value, str):
        yield Text(path, value, role, fresh)
        return
    if not isinstance(value, list):
        return
    if any(isinstance(part, dict) and "cache_control" in part for part in value):
        return
    if _has_documents(value, role):
        yield Text(path, "", role, fresh, parts=True)
    for i, part in enumerate(value):
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind in _TEXTS and isinstance(part.get("text"), str):
            yield Text((*path, i, "text"), part["text"], role, fresh)
        elif kind == "tool_result" and len(path) < _DEEPEST:
            at = (*path, i, "content")
            yield from _content(at, part.get("content"), "tool", fresh)


def _has_documents(parts: Sequence[object], role: Role) -> bool:
    """Return whether the content has several blocks that may be documents."""
    if len(parts) > _MOST_PARTS:
        return False
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    if sum(map(kinds.count, DOCUMENT_BLOCKS)) > 1:
        return True
    return role == "tool" and len(parts) > 1 and all(kind in _TEXTS for kind in kinds)


_MOST_PARTS = 1024

_TEXTS = ("text", "input_text", "output_text")  # not a set: the value looked up may be unhashable
_DEEPEST = 5


def _role(message: object) -> Role | None:
    """Return the role of a message; None for the model's messages, which are never changed."""
    if not isinstance(message, dict):
        return None
    role = message.get("role")
    if isinstance(role, str):
        return _ROLES.get(role)
    kind = message.get("type")
    return "tool" if isinstance(kind, str) and kind.endswith("_output") else None

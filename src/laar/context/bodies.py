"""Which strings of a request body are prompt text, whose they are, and what comes before them.

Chat (`messages`), Responses (`instructions`, `input`) and legacy completions (`prompt`) bodies. A
string is *fresh* when it came with the last turn: after the last answer of the assistant. Only
fresh text may be ordered anew; older text must come out as it did in its own turn, or the
conversation's own prefix in the cache is lost. Messages with cache marks, and all that is not text,
are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import orjson

from laar.context.blocks import Refused
from laar.context.formats.jsonspans import Path
from laar.context.settings import Reason, Role

__all__ = ["Text", "prompt_texts", "said_before"]

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
        path: where it is in the body.
        value: what it reads as.
        role: who says it.
        fresh: it belongs to the last turn.
    """

    path: Path
    value: str
    role: Role
    fresh: bool


def prompt_texts(body: dict[str, object], api: str) -> list[Text]:
    """All strings that may hold documents, in prompt order.

    Raises:
        Refused: `api` is none of ``chat``, ``responses``, ``completions``.
    """
    if api == "completions":
        prompt = body.get("prompt")
        return [Text(("prompt",), prompt, "user", True)] if isinstance(prompt, str) else []
    if api == "chat":
        return list(_messages("messages", body.get("messages")))
    if api != "responses":
        raise Refused(Reason.UNSUPPORTED_API)
    given = body.get("input")
    texts: list[Text] = []
    instructions = body.get("instructions")
    if isinstance(instructions, str):
        first_turn = not (isinstance(given, list) and any(map(_is_answer, given)))
        texts.append(Text(("instructions",), instructions, "system", first_turn))
    if isinstance(given, str):
        texts.append(Text(("input",), given, "user", True))
    texts += _messages("input", given)
    return texts


def said_before(body: dict[str, object], path: Path) -> bytes:
    """What the engine reads before the string at `path`, in a form fit for hashing.

    Two prompts that differ here share no cached prefix beyond this point, whatever follows.
    """
    before: list[object] = [body.get("tools")]
    if path[0] == "input":
        before.append(body.get("instructions"))
    if len(path) > 1:
        list_, at = body[str(path[0])], path[1]
        assert isinstance(list_, list)
        assert isinstance(at, int)
        before.append(list_[:at])
        message = list_[at]
        before.append(message.get("role"))
        if len(path) > 3:
            before.append(message["content"][: path[3]])
    return orjson.dumps(before)


def _messages(key: str, messages: object) -> Iterator[Text]:
    if not isinstance(messages, list):
        return
    first, last = _last_turn(messages)
    for i, message in enumerate(messages):
        role = _role(message)
        if role is None or "cache_control" in message:
            continue
        fresh = first <= i < last
        for field in ("content", "output"):
            value = message.get(field)
            if isinstance(value, str):
                yield Text((key, i, field), value, role, fresh)
            elif isinstance(value, list) and field == "content":
                for part, text in _parts(value):
                    yield Text((key, i, field, part, "text"), text, role, fresh)


def _parts(parts: Sequence[object]) -> list[tuple[int, str]]:
    """The text parts of a message; none if any part carries a cache mark."""
    if any(isinstance(part, dict) and "cache_control" in part for part in parts):
        return []
    return [
        (i, part["text"])
        for i, part in enumerate(parts)
        if isinstance(part, dict)
        and part.get("type") in {"text", "input_text"}
        and isinstance(part.get("text"), str)
    ]


def _role(message: object) -> Role | None:
    """Whose message it is; None for what is never touched."""
    if not isinstance(message, dict):
        return None
    role = message.get("role")
    if isinstance(role, str):
        return _ROLES.get(role)
    kind = message.get("type")
    return "tool" if isinstance(kind, str) and kind.endswith("_output") else None


def _is_answer(message: object) -> bool:
    """Whether the model wrote it: an answer, a call of a tool, its reasoning."""
    return _role(message) is None


def _last_turn(messages: Sequence[object]) -> tuple[int, int]:
    """First and past-the-last index of the turn to be answered; not of an answer begun."""
    last = len(messages)
    while last and _is_answer(messages[last - 1]):
        last -= 1
    first = last
    while first and not _is_answer(messages[first - 1]):
        first -= 1
    return first, last

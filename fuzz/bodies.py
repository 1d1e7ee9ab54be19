"""Bodies against Python's JSON: the same model is read, and nothing but the model is changed."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack, nullcontext
from typing import Any
from unittest.mock import patch

from fuzz.choices import Choices, json_text
from laar.context.hook import ContextHook
from laar.errors import RequestError
from laar.protocol import jsonscan, openai, prompt
from laar.protocol.jsonscan import member_spans
from laar.protocol.openai import try_read
from laar.protocol.splice import splice_model
from laar.request import Api

__all__ = ["bodies", "context", "members"]

_APIS = tuple(Api)
_ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
_NAMES = ("served", "m", 'a"b', "\u00e9\u65e5")
_FEW_PARTS, _FEW_SPANS, _FEW_CONTAINERS, _FEW_BYTES = 40, 20, 3, 50


def _pairs(text: bytes) -> object:
    """What Python reads, repeated keys and their order included; numbers as they are written."""
    return json.loads(
        text, object_pairs_hook=list, parse_constant=str, parse_float=str, parse_int=str
    )


def _body(choices: Choices) -> bytes:
    encoding = _ENCODINGS[choices.number(len(_ENCODINGS))]
    text = choices.rest() if choices.number(8) == 7 else json_text(choices)
    if encoding == "utf-8":
        return text
    return text.decode("utf-8", "surrogateescape").encode(encoding, "replace")


def bodies(data: bytes) -> None:
    """Reading and splicing one body."""
    choices = Choices(data)
    api = _APIS[choices.number(len(_APIS))]
    name = _NAMES[choices.number(len(_NAMES))]
    limits = _small_limits if choices.number(4) == 3 else nullcontext
    body = _body(choices)
    with limits():
        _check(api, body, name)


def _small_limits() -> ExitStack:
    """Treat bodies as if they were too large to be built, until the result is closed."""
    stack = ExitStack()
    stack.enter_context(patch.object(openai, "ASIDE_BYTES", 0))
    small: dict[str, Any] = {
        "SHORT_BYTES": 0,
        "_MAX_CONTAINERS": _FEW_CONTAINERS,
        "MAX_PARTS": _FEW_PARTS,
    }
    stack.enter_context(patch.multiple(jsonscan, MAX_AT_ONCE_BYTES=_FEW_BYTES, **small))
    stack.enter_context(patch.multiple(openai, MAX_AT_ONCE_BYTES=_FEW_BYTES, SHORT_BYTES=0))
    stack.enter_context(patch.object(prompt, "MAX_SPANS", _FEW_SPANS))
    return stack


def _check(api: Api, body: bytes, name: str) -> None:
    read = try_read(api, body)
    try:
        pairs = _pairs(body)
        document = json.loads(body.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError):
        return  # the engine refuses it too, goes deeper than this reference, or takes UTF-16
    if not isinstance(document, dict):
        assert isinstance(read, RequestError) or not read.model
        return
    model = document.get("model")
    if isinstance(read, RequestError):
        assert not isinstance(model, str | None), "a body that engines take is refused"
        return
    if api is Api.OPAQUE:
        if not read.model:
            return
    else:
        assert isinstance(model, str | None)
    assert read.model == (model or "").encode("utf-8", "replace").decode()
    for text in (*read.spans, read.question, read.salt):
        text.encode()
    spliced = splice_model(body, name, read.model_span)
    assert isinstance(pairs, list)
    assert _pairs(spliced) == _with(pairs, "model", name)
    if isinstance(model, str):
        _check_bytes(body, spliced, model, name)


def _with(pairs: list[tuple[str, object]], key: str, value: object) -> list[tuple[str, object]]:
    at = max((i for i, (k, _) in enumerate(pairs) if k == key), default=None)
    if at is None:
        return [*pairs, (key, value)]
    return [*pairs[:at], (key, value), *pairs[at + 1 :]]


def _check_bytes(body: bytes, spliced: bytes, model: str, name: str) -> None:
    """The bytes that differ are one string, and that string is the model."""
    start = next((i for i, (a, b) in enumerate(zip(body, spliced, strict=False)) if a != b), 0)
    end = 0
    most = min(len(body), len(spliced)) - start
    while end < most and body[-1 - end] == spliced[-1 - end]:
        end += 1
    longest = 12 * max(len(model), len(name), 1) * 4 + 8
    assert len(body) - start - end <= longest
    assert len(spliced) - start - end <= longest


def members(data: bytes) -> None:
    """The model's span against the members that Python reads."""
    choices = Choices(data)
    text = json_text(choices) if choices.number(4) else choices.rest()
    spans = member_spans(text)
    try:
        document = json.loads(text.decode())
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        assert spans is None
        return
    assert spans is not None
    assert ("model" in spans) == ("model" in document)
    if "model" in document:
        start, end = spans["model"]
        assert repr(json.loads(text[start:end])) == repr(document["model"])


def context(data: bytes) -> None:
    """The context hook: off it forwards the very body, on it leaves JSON that has all members."""
    choices = Choices(data)
    hook = ContextHook()
    for turn in range(2):
        body = _documents(choices) if choices.number(2) else _body(choices)
        for mode in ("observe", "on"):
            result = hook.apply(
                body,
                api="chat",
                tenant="t",
                now=float(turn),
                mode=mode,
            )
            assert result.reason.value != "error"
            if mode == "observe":
                assert result.body is body
            elif result.body is not body:
                before, after = json.loads(body), json.loads(result.body)
                assert list(before) == list(after)
                assert {k: v for k, v in before.items() if k != "messages"} == {
                    k: v for k, v in after.items() if k != "messages"
                }
            hook.commit(result, float(turn))


def _documents(choices: Choices) -> bytes:
    rng = random.Random(choices.number(256))
    form = choices.number(3)
    texts = [f"document {rng.randrange(6)} " + "word " * rng.randrange(40) for _ in range(5)]
    if form == 0:
        text = "".join(f'<doc id="{i}">{t}</doc>' for i, t in enumerate(texts))
    elif form == 1:
        text = "\n".join(f"[{i}] {t}" for i, t in enumerate(texts))
    else:
        text = json.dumps([{"id": i, "text": t} for i, t in enumerate(texts)])
    text += choices.some(20).decode("latin-1")
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()

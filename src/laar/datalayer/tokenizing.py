"""Token ids of prompts, as an engine would make them; beside the requests, never in their way.

`LocalTokenizer` reads a model's ``tokenizer.json`` with the `tokenizers` library and fills in its
chat template as ``transformers`` does. It blocks and is meant for a thread; the library lets other
threads run meanwhile. A conversation is tokenized from a little before its new part on: the new
tokens are joined to the known ones where both agree for some tokens in a row.

`ask_engine` asks an engine for those of a chat, with ``POST /tokenize`` of vLLM and SGLang.

A prompt whose tokens can't be known here (images, a template in the request, token ids that the
client made) is None. Wrong ids do no harm: they are compared with the engine's events before use.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np
import orjson

from laar.core.membership import EndpointSpec
from laar.core.request import Api
from laar.datalayer.fetching import options_for
from laar.datalayer.scrape import read_capped
from laar.errors import SettingError, install
from laar.prefix.blocks import Chain
from laar.prefix.tokens import TokenIds

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

MAX_KEPT_CHARS = 16_000_000
"""Characters of tokenized prompts that are kept to continue from: 40 conversations of 400 kB;
about 60 MB with their tokens. The oldest are dropped, and their next turn is then tokenized as
a whole."""

MAX_ANSWER_BYTES = 32 << 20
"""Longest answer of ``/tokenize``: a million ids take about 7 MB."""

_OVERLAP_CHARS = 512  # tokenized again before the place where a prompt is new,
_AGREEING = 8  # and tokens in a row that must come out the same


@dataclass(slots=True)
class _Done:
    text: str
    ids: array[int]
    starts: array[int]
    ends: array[int]


class LocalTokenizer:
    """One model's tokenizer.

    Args:
        path: its ``tokenizer.json``, or the directory of the model with that file and, for chats,
            ``tokenizer_config.json`` or ``chat_template.jinja``.

    Raises:
        SettingError: a file is missing or can't be read, or the extra `tokenizers` is.
    """

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise SettingError(f"needs the extra `tokenizers`; {install('tokenizers')}") from None
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the library raises no narrower one
            raise SettingError(f"{file} can't be used: {error}; give the model's own") from None
        self._specials: dict[str, str] = {}
        self._template = self._chat_template(file.parent)
        self._head, self._tail = self._added()
        self._done: OrderedDict[tuple[int, bool], _Done] = OrderedDict()
        self._kept_chars = 0

    def ids(self, api: Api, document: Mapping[str, Any], chain: Chain) -> TokenIds | None:
        """Token ids of a request's prompt; None where they can't be known.

        Args:
            api: the body's format.
            document: the body.
            chain: the prompt as the text index has it, by which earlier turns are found.
        """
        if api is Api.COMPLETIONS:
            prompt = document.get("prompt")
            if isinstance(prompt, list) and len(prompt) == 1:
                prompt = prompt[0]
            if not isinstance(prompt, str):
                return None
            special = document.get("add_special_tokens") is not False
            found = self._encode(prompt, chain, special=special)
            return np.array([*self._head, *found, *self._tail] if special else found, np.uint32)
        if api is not Api.CHAT or self._template is None:
            return None
        text = self._rendered(self._template, document)
        return None if text is None else np.array(self._encode(text, chain), np.uint32)

    def _encode(self, text: str, chain: Chain, *, special: bool = False) -> array[int]:
        """Encode as the library does, from where the prompt leaves the one that it continues."""
        before = next(
            (
                self._done[key, special]
                for key in reversed(chain.hashes)
                if (key, special) in self._done
            ),
            None,
        )
        done = (self._joined(before, text) if before is not None else None) or self._whole(text)
        if len(chain):
            key = chain.hashes[-1], special
            old = self._done.pop(key, None)
            self._kept_chars += len(text) - (len(old.text) if old is not None else 0)
            self._done[key] = done
            while self._kept_chars > MAX_KEPT_CHARS:
                self._kept_chars -= len(self._done.popitem(last=False)[1].text)
        return done.ids

    def _whole(self, text: str, start: int = 0) -> _Done:
        encoded = self._tokenizer.encode(text[start:], add_special_tokens=False)
        places = np.array(encoded.offsets, np.int64).reshape(-1, 2) + start
        return _Done(
            text,
            array("I", encoded.ids),
            array("I", places[:, 0].tolist()),
            array("I", places[:, 1].tolist()),
        )

    def _joined(self, before: _Done, text: str) -> _Done | None:
        """Return the earlier tokens as far as they hold, then new ones; None if they disagree."""
        common = _common_chars(before.text, text)
        at = bisect_right(before.ends, common - 2 * _OVERLAP_CHARS)
        while at and before.starts[at] < before.ends[at - 1]:  # within a character
            at -= 1
        if not at:
            return None
        fresh = self._whole(text, before.ends[at - 1])
        for new in range(len(fresh.ids) - _AGREEING):
            start = fresh.starts[new]
            if start < before.ends[at - 1] + _OVERLAP_CHARS:
                continue
            old = bisect_right(before.ends, start)
            stop, until = new + _AGREEING, old + _AGREEING
            if until >= len(before.ids) or before.ends[until] > common:
                return None
            if (
                fresh.ids[new:stop] == before.ids[old:until]
                and fresh.ends[new:stop] == before.ends[old:until]
            ):
                return _Done(
                    text,
                    before.ids[:old] + fresh.ids[new:],
                    before.starts[:old] + fresh.starts[new:],
                    before.ends[:old] + fresh.ends[new:],
                )
        return None

    def _added(self) -> tuple[Sequence[int], Sequence[int]]:
        """Special tokens that go before and behind a prompt that is no chat."""
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        head = next((at for at in range(len(full)) if full[at : at + len(plain)] == plain), 0)
        return full[:head], full[head + len(plain) :]

    # -- chats ---------------------------------------------------------------------------------

    def _chat_template(self, directory: Path) -> Template | None:
        config = _read_json(directory / "tokenizer_config.json")
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = config.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                self._specials[name] = token
        source, alone = config.get("chat_template"), directory / "chat_template.jinja"
        if alone.is_file():
            source = alone.read_text(encoding="utf-8")
        if not isinstance(source, str):
            return None
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            return environment.from_string(source)
        except TemplateError as error:
            raise SettingError(f"{directory}: the chat template can't be read: {error}") from None

    def _rendered(self, template: Template, document: Mapping[str, Any]) -> str | None:
        messages = _plain_messages(document.get("messages"))
        if (
            messages is None
            or document.get("chat_template")
            or document.get("continue_final_message")
        ):
            return None
        more = document.get("chat_template_kwargs")
        try:
            return template.render(
                **{
                    **self._specials,
                    **(more if isinstance(more, dict) else {}),
                    "messages": messages,
                    "tools": document.get("tools") or None,
                    "documents": document.get("documents"),
                    "add_generation_prompt": document.get("add_generation_prompt") is not False,
                }
            )
        except Exception:  # noqa: BLE001 - a model's template and a client's messages: anything
            return None


def ids_given(api: Api, document: Mapping[str, Any]) -> TokenIds | None:
    """Token ids of a prompt that came as such; None for any other."""
    prompt = document.get("prompt", document.get("token_ids"))
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if api is not Api.COMPLETIONS or not isinstance(prompt, list):
        return None
    if not prompt or not all(type(each) is int and 0 <= each < 1 << 32 for each in prompt):
        return None
    return np.array(prompt, np.uint32)


async def ask_engine(
    session: aiohttp.ClientSession, spec: EndpointSpec, chat: Mapping[str, Any], model: str
) -> TokenIds:
    """Return the token ids of a chat's prompt, from an engine.

    Raises:
        ValueError: the answer is none.
        ClientError, OSError, TimeoutError: it does not answer.
    """
    async with session.post(
        spec.url("/tokenize"),
        data=orjson.dumps({**chat, "model": model}),
        allow_redirects=False,
        **options_for(spec),
    ) as answer:
        body = await read_capped(answer, MAX_ANSWER_BYTES)
        if answer.status != 200:
            raise ValueError(f"POST /tokenize is answered with {answer.status}")
    try:
        return np.array(orjson.loads(body)["tokens"], np.uint32).reshape(-1)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, OverflowError):
        raise ValueError("POST /tokenize: the answer has no token ids") from None


def _plain_messages(given: Any) -> list[dict[str, Any]] | None:
    """Return messages of texts alone, as a template takes them; None if there are others."""
    if not isinstance(given, list):
        return None
    messages: list[dict[str, Any]] = []
    for message in given:
        if not isinstance(message, dict):
            return None
        content = message.get("content")
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            if len(content) != 1 or len(texts) != 1:  # engines differ in how they join parts
                return None
            content = texts[0]
        if content is not None and not isinstance(content, str):
            return None
        message = {**message, "content": content}
        if isinstance(message.get("tool_calls"), list):
            message["tool_calls"] = [_call(each) for each in message["tool_calls"]]
        messages.append(message)
    return messages


def _call(call: Any) -> Any:
    """Return a tool call with its arguments as an object, as engines give it to templates."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    except ValueError:
        return call


def _common_chars(one: str, other: str) -> int:
    least, beyond = 0, min(len(one), len(other)) + 1
    while beyond - least > 1:
        middle = (least + beyond) >> 1
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            beyond = middle
    return least


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} can't be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise ValueError(message)

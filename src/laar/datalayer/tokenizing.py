"""Token ids of prompts, as an engine would make them; beside the requests, never in their way.

`LocalTokenizer` reads a model's ``tokenizer.json`` with the `tokenizers` library and fills in its
chat template as ``transformers`` does. It blocks and is meant for a thread; the library lets other
threads run meanwhile.

`ask_engine` asks an engine for those of a chat, with ``POST /tokenize`` of vLLM and SGLang.

A prompt whose tokens can't be known here (images, a template in the request, token ids that the
client made) is None. Wrong ids do no harm: they are compared with the engine's events before use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from laar.prefix.tokens import TokenIds

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

MAX_ANSWER_BYTES = 32 << 20
"""Longest answer of ``/tokenize``: a million ids take about 7 MB."""


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

    def ids(self, api: Api, document: Mapping[str, Any]) -> TokenIds | None:
        """Return the token ids of a request's prompt; None where they can't be known.

        Args:
            api: the body's format.
            document: the body.
        """
        if api is Api.COMPLETIONS:
            prompt = document.get("prompt")
            if isinstance(prompt, list) and len(prompt) == 1:
                prompt = prompt[0]
            if not isinstance(prompt, str):
                return None
            special = document.get("add_special_tokens") is not False
            return self._encode(prompt, special=special)
        if api is not Api.CHAT or self._template is None:
            return None
        text = self._rendered(self._template, document)
        return None if text is None else self._encode(text, special=False)

    def _encode(self, text: str, *, special: bool) -> TokenIds:
        return np.array(self._tokenizer.encode(text, add_special_tokens=special).ids, np.uint32)

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

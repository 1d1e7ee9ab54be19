"""Parse request bodies of the APIs that vLLM serves into a common form, `Ask`.

Unknown fields are ignored, as in vLLM. A chat is rendered by one of `templates`, by default the
plain one, so that parts that a picker has to take into account (tools, roles) change the prompt.
Requests that can't be served correctly get a 400: those for several answers (`n` above 1), and
those with images unless the endpoint has a model's template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import orjson
import xxhash
from pydantic import BaseModel, Field, ValidationError

from laar_lab.sim.endpoint.errors import ApiError
from laar_lab.sim.endpoint.templates import Turn, render
from laar_lab.sim.endpoint.tokenizer import VOCABULARY, TokenIds, token_ids
from laar_lab.tokens import ASCII_PER_TOKEN, count_tokens

_Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Limit = Annotated[int, Field(ge=1)]
_TokenId = Annotated[int, Field(ge=0, lt=VOCABULARY)]
_Text = str | list[str] | list[_TokenId] | list[list[_TokenId]]

PLAIN = "plain"

IMAGE_TOKENS = 600
"""Tokens per image: about 0.5 megapixels in Qwen2.5-VL's patches of 28 by 28 pixels."""

COMPLETION_TOKENS = 16
"""Answer length of a completion without a limit: OpenAI's default, which vLLM keeps."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The engine's prompt: a text or token ids, and the number of tokens.

    `question` is the users' part of the text, which the answer refers to.
    """

    text: str
    question: str
    tokens: int
    given_ids: TokenIds | None = None

    @classmethod
    def of_text(cls, text: str, question: str) -> Prompt:
        """Return a prompt that the endpoint has yet to tokenize."""
        return cls(text, question, count_tokens(text))

    @classmethod
    def of_ids(cls, numbers: Sequence[int]) -> Prompt:
        """Return a prompt tokenized by the client; its text is unknown."""
        return cls("", "", len(numbers), np.array(numbers, dtype=np.uint32))

    def ids(self, answer: str = "") -> TokenIds:
        """Return the prompt's token ids, followed by those of an answer if the text is known."""
        return token_ids(self.text + answer) if self.given_ids is None else self.given_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A generation request, independent of its API.

    `deadline_ms` is the requested time to the first token in real milliseconds.
    """

    prompt: Prompt
    max_tokens: int | None
    max_tokens_field: str
    fixed_length: bool
    priority: int
    deadline_ms: float | None
    salt: str


class _StreamOptions(BaseModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(BaseModel):
    """Fields common to all generation APIs."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Literal[1] | None = None
    ignore_eos: bool = False
    priority: _Int64 = 0
    cache_salt: str | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None

    def to_prompt(self, template: str = PLAIN) -> Prompt:
        """Return the prompt as rendered with this template."""
        raise NotImplementedError

    def limit(self) -> tuple[int | None, str]:
        """Return the limit on the answer's tokens, and the field that sets it."""
        raise NotImplementedError

    def ask(self, template: str = PLAIN) -> Ask:
        """Return the request in the common form."""
        limit, field = self.limit()
        deadline = (self.vllm_xargs or {}).get("ttft_deadline_ms")
        return Ask(
            prompt=self.to_prompt(template),
            max_tokens=limit,
            max_tokens_field=field,
            fixed_length=self.ignore_eos,
            priority=self.priority,
            deadline_ms=deadline if isinstance(deadline, int | float) and deadline > 0 else None,
            salt=self.cache_salt or "",
        )


class _Part(BaseModel):
    type: str = "text"
    text: str | None = None
    name: str | None = None
    input: object = None
    content: str | list[_Part] | None = None
    image_url: object = None


class _Message(BaseModel):
    role: str = "user"
    content: str | list[_Part] | None = None
    tool_calls: list[Any] | None = None


class ChatBody(GenerationBody):
    """Body of ``/v1/chat/completions``."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[Any] | None = None
    max_tokens: _Limit | None = None
    max_completion_tokens: _Limit | None = None

    def to_prompt(self, template: str = PLAIN) -> Prompt:
        """Return all messages and tools."""
        return _chat(template, self.messages, tools=self.tools)

    def limit(self) -> tuple[int | None, str]:
        """Return the limit; the newer field wins."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"


class CompletionBody(GenerationBody):
    """Body of ``/v1/completions``: one prompt, as text or token ids."""

    prompt: _Text
    max_tokens: _Limit | None = None

    def to_prompt(self, template: str = PLAIN) -> Prompt:
        """Return the single prompt.

        Raises:
            ApiError: there are several prompts.
        """
        prompts = _prompts(self.prompt)
        if len(prompts) != 1:
            raise ApiError(400, "this endpoint accepts one prompt per request", param="prompt")
        return prompts[0]

    def limit(self) -> tuple[int | None, str]:
        """Return `max_tokens`, 16 by default."""
        return self.max_tokens or COMPLETION_TOKENS, "max_tokens"


class ResponsesBody(GenerationBody):
    """Body of ``/v1/responses``."""

    input: str | list[_Message]
    instructions: str | None = None
    tools: list[Any] | None = None
    max_output_tokens: _Limit | None = None
    previous_response_id: str | None = None
    store: bool = True

    def to_prompt(self, template: str = PLAIN) -> Prompt:
        """Return the prompt; instructions become a system message, a plain input a user message."""
        turns = [_Message(content=self.input)] if isinstance(self.input, str) else self.input
        return _chat(template, turns, system=self.instructions, tools=self.tools)

    def continuing(self, earlier: str, template: str = PLAIN) -> Prompt:
        """Return the prompt as the continuation of a stored exchange."""
        own = self.to_prompt(template)
        return Prompt.of_text(earlier + own.text, own.question)

    def limit(self) -> tuple[int | None, str]:
        """Return `max_output_tokens`."""
        return self.max_output_tokens, "max_output_tokens"


_ATTRIBUTION = "x-anthropic-billing-header"


def _without_attribution(text: str) -> str:
    """Remove a line that changes with each request and would defeat the prefix cache.

    vLLM removes it only from texts in a list of parts.
    """
    return text.partition("\n")[2] if text.startswith(_ATTRIBUTION) else text


class MessagesBody(GenerationBody):
    """Body of Anthropic's ``/v1/messages``, text only."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    system: str | list[_Part] | None = None
    tools: list[Any] | None = None
    max_tokens: _Limit

    def to_prompt(self, template: str = PLAIN) -> Prompt:
        """Return the system text followed by all messages."""
        system = self.system
        if isinstance(system, str):
            system = _without_attribution(system)
        elif system:
            system = [_Part(text=_without_attribution(part.text or "")) for part in system]
        return _chat(template, self.messages, system=system, tools=self.tools)

    def limit(self) -> tuple[int | None, str]:
        """Return `max_tokens`, which this API requires."""
        return self.max_tokens, "max_tokens"


class EmbeddingBody(BaseModel):
    """Body of ``/v1/embeddings``."""

    model: str | None = None
    input: _Text
    encoding_format: Literal["float", "base64"] = "float"

    def prompts(self) -> list[Prompt]:
        """Return one prompt per requested vector."""
        return _prompts(self.input)


class TokenizeBody(BaseModel):
    """Body of ``/tokenize``, with a prompt or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[_Message] | None = None
    tools: list[Any] | None = None

    def ids(self, template: str = PLAIN) -> TokenIds:
        """Return the token ids that the same prompt would have."""
        if not self.messages:
            return token_ids(self.prompt or "")
        return _chat(template, self.messages, tools=self.tools).ids()


_Body = TypeVar("_Body", bound=BaseModel)


def read_body(kind: type[_Body], raw: bytes) -> _Body:
    """Parse and validate a body.

    Raises:
        ApiError: 400, with the error but without the prompt's text.
    """
    try:
        return kind.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError:
        raise ApiError(400, "the body is not valid JSON") from None
    except ValidationError as fault:
        first = fault.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or None
        raise ApiError(400, f"{where}: {first['msg']}", param=where) from None


def _prompts(value: _Text) -> list[Prompt]:
    """Return the prompts of a value; a list of plain ids is a single prompt, even if empty."""
    if isinstance(value, str):
        return [Prompt.of_text(value, value)]
    several: list[Prompt] = []
    numbers: list[int] = []
    for item in value:
        if isinstance(item, str):
            several.append(Prompt.of_text(item, item))
        elif isinstance(item, list):
            several.append(Prompt.of_ids(item))
        else:
            numbers.append(item)
    return several or [Prompt.of_ids(numbers)]


def _chat(
    template: str,
    messages: Sequence[_Message],
    *,
    system: str | list[_Part] | None = None,
    tools: Sequence[Any] | None = None,
) -> Prompt:
    sees = template != PLAIN
    turns = [Turn("system", _flat(system, sees))] if system else []
    for each in messages:
        calls = each.tool_calls if sees and each.tool_calls else ()
        turns.append(Turn(each.role, _flat(each.content, sees), calls))
    users = [turn.text for turn in turns if turn.role == "user"]
    return Prompt.of_text(render(template, turns, tools or ()), "\n\n".join(users))


def _flat(content: str | list[_Part] | None, sees: bool) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part_text(part, sees) for part in content)


def _part_text(part: _Part, sees: bool) -> str:
    if part.type == "tool_use":
        return orjson.dumps({"name": part.name, "arguments": part.input}).decode()
    if part.type == "tool_result":
        return _flat(part.content, sees)
    if part.text is None and sees and part.image_url is not None:
        digest = xxhash.xxh3_64_hexdigest(orjson.dumps(part.image_url))
        return f"{digest:>{ASCII_PER_TOKEN * 3}}" * (IMAGE_TOKENS // 3)
    if part.text is None:
        raise ApiError(400, "this model accepts text only", param="messages")
    return part.text

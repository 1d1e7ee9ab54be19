"""Render a chat into the engine's prompt: a plain template, and four models' templates.

Written from descriptions published by their makers (Qwen3 and Mistral's common library, both
Apache-2.0; OpenAI's harmony guide, Apache-2.0; Meta's prompt format page): the order of the parts
and the marks between them are as described there; the instructions around tools are laar's own and
about as long.

Templates put tools and reasoning in different places, which matters to a picker:

* ``qwen3``: tools after the system text, in the same message; reasoning before the user's last
  message is omitted.
* ``llama3.1``: a system message with two dates; tools in the first user message.
* ``mistral``: the system text first, tools before the last user message.
* ``gpt-oss``: a separate system message, then the system text and the tools, as types, in a
  developer message.
* ``plain``: tools as JSON after the system text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

SYSTEM = frozenset(("system", "developer"))


class Turn(NamedTuple):
    """A message: its role, its text, and its tool calls."""

    role: str
    text: str
    calls: Sequence[Any] = ()


def render(template: str, turns: Sequence[Turn], tools: Sequence[Any]) -> str:
    """Return the prompt, up to where the answer begins.

    Args:
        template: one of `TEMPLATES`.
        turns: the messages.
        tools: the tools, as in the body.
    """
    return "".join(TEMPLATES[template](turns, tools))


def _plain(turns: Sequence[Turn], tools: Sequence[Any]) -> Iterator[str]:
    shown = f"<|tools|>\n{_json(tools)}\n" if tools else ""
    for turn in turns:
        if turn.role not in SYSTEM:
            yield shown
            shown = ""
        yield f"<|{turn.role}|>\n{turn.text}\n"
    yield shown
    yield "<|assistant|>\n"


_CALLING = (
    "For every call write one line of JSON with the name of the function and an object of its "
    "arguments between the marks of a call, and nothing else in that line. "
)
"""About as long as the templates' instructions around tools; Qwen's are three times as long."""


def _qwen3(turns: Sequence[Turn], tools: Sequence[Any]) -> Iterator[str]:
    system, rest = _parted(turns)
    if system or tools:
        listed = "".join(f"\n{_json(tool)}" for tool in tools)
        shown = f"# Tools\n\n{_CALLING}<tools>{listed}\n</tools>\n\n{_CALLING * 2}"
        parts = "\n\n".join([system] * bool(system) + [shown] * bool(tools))
        yield f"<|im_start|>system\n{parts}<|im_end|>\n"
    last = _last_user(rest)
    for at, turn in enumerate(rest):
        text = turn.text
        if turn.role == "assistant" and at < last:
            text = text.rpartition("</think>")[2].lstrip("\n")
        calls = "".join(f"\n<tool_call>\n{_json(call)}\n</tool_call>" for call in turn.calls)
        if turn.role == "tool":
            yield f"<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n"
        else:
            yield f"<|im_start|>{turn.role}\n{text}{calls}<|im_end|>\n"
    yield "<|im_start|>assistant\n"


def _llama(turns: Sequence[Turn], tools: Sequence[Any]) -> Iterator[str]:
    system, rest = _parted(turns)
    yield "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
    yield "Environment: ipython\n" * bool(tools)
    yield f"Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n{system}<|eot_id|>"
    for turn in rest:
        role = {"tool": "ipython"}.get(turn.role, turn.role)
        yield f"<|start_header_id|>{role}<|end_header_id|>\n\n"
        if tools and turn.role == "user":
            yield _CALLING * 2
            yield "".join(f"{_json(tool, indent=True)}\n\n" for tool in tools)
            tools = ()
        yield f"{turn.text}{''.join(map(_json, turn.calls))}<|eot_id|>"
    yield "<|start_header_id|>assistant<|end_header_id|>\n\n"


def _mistral(turns: Sequence[Turn], tools: Sequence[Any]) -> Iterator[str]:
    system, rest = _parted(turns)
    yield f"<s>[SYSTEM_PROMPT] {system}[/SYSTEM_PROMPT]" if system else "<s>"
    last = _last_user(rest)
    for at, turn in enumerate(rest):
        if at == last and tools:
            yield f"[AVAILABLE_TOOLS] {_json(tools)}[/AVAILABLE_TOOLS]"
        if turn.role == "user":
            yield f"[INST] {turn.text}[/INST]"
        elif turn.role == "tool":
            yield f"[TOOL_RESULTS] {turn.text}[/TOOL_RESULTS]"
        elif turn.calls:
            yield f"[TOOL_CALLS] {_json(turn.calls)}</s>"
        else:
            yield f" {turn.text}</s>"


def _harmony(turns: Sequence[Turn], tools: Sequence[Any]) -> Iterator[str]:
    system, rest = _parted(turns)
    yield "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    yield "Knowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: medium\n\n"
    yield "# Valid channels: analysis, commentary, final.<|end|>"
    if system or tools:
        yield f"<|start|>developer<|message|># Instructions\n\n{system}\n\n"
        if tools:
            yield "# Tools\n\n## functions\n\nnamespace functions {\n\n"
            yield from map(_typed, tools)
            yield "} // namespace functions"
        yield "<|end|>"
    for turn in rest:
        for call in turn.calls:
            function = call.get("function", call)
            yield f"<|start|>assistant<|channel|>commentary to=functions.{function.get('name')}"
            yield f" <|constrain|>json<|message|>{function.get('arguments')}<|call|>"
        if turn.role == "tool":
            yield "<|start|>functions.tool to=assistant<|channel|>commentary"
            yield f"<|message|>{turn.text}<|end|>"
        elif turn.text and turn.role == "assistant":
            yield f"<|start|>assistant<|channel|>final<|message|>{turn.text}<|end|>"
        elif turn.text:
            yield f"<|start|>{turn.role}<|message|>{turn.text}<|end|>"
    yield "<|start|>assistant"


def _typed(tool: Any) -> str:
    """Return a tool as a TypeScript type."""
    function = tool.get("function", tool)
    schema = function.get("parameters") or function.get("input_schema") or {}
    lines = [f"// {function.get('description', '')}", f"type {function.get('name')} = (_: {{"]
    for name, one in schema.get("properties", {}).items():
        lines += [f"// {one.get('description', '')}", f"{name}?: {one.get('type')},"]
    return "\n".join([*lines, "}) => any;\n\n"])


TEMPLATES: dict[str, Callable[[Sequence[Turn], Sequence[Any]], Iterator[str]]] = {
    "plain": _plain,
    "qwen3": _qwen3,
    "llama3.1": _llama,
    "mistral": _mistral,
    "gpt-oss": _harmony,
}


def _parted(turns: Sequence[Turn]) -> tuple[str, Sequence[Turn]]:
    """Return the system text before the first other message, and the messages after it."""
    first = next((at for at, turn in enumerate(turns) if turn.role not in SYSTEM), len(turns))
    return "\n\n".join(turn.text for turn in turns[:first]), turns[first:]


def _last_user(turns: Sequence[Turn]) -> int:
    return max((at for at, turn in enumerate(turns) if turn.role == "user"), default=0)


def _json(value: Any, *, indent: bool = False) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()

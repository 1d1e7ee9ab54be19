"""Probes that reveal an engine's chat template: pairs of chats that differ in one word.

The token ids of two of these chats first differ where that word was rendered; if they do not
differ, it was left out. That works with any engine and tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from laar.prefix.templates import Template
from laar.prefix.tokens import TokenIds

_LEAST_WEIGHT, _MOST_WEIGHT = 0.05, 5.0
_PROSE = (
    "Read the files that the user names before you answer, and say which of them you have read. "
    "Where two of them disagree, tell the user so and ask which one is right. "
)


def _probe(changed: str = "", *, tools: int = 1, texts: int = 1) -> dict[str, Any]:
    def word(name: str) -> str:
        return "zulu" if name == changed else name

    listed = [
        {
            "type": "function",
            "function": {
                "name": f"read_lines_{number}",
                "description": f"Read some {word('bravo')} lines of a text file. {_PROSE * 3}",
                "parameters": {
                    "type": "object",
                    "properties": {
                        f"line_{n}": {"type": "string", "description": _PROSE[:120]}
                        for n in range(4)
                    },
                    "required": ["line_0"],
                },
            },
        }
        for number in range(tools)
    ]
    thought = f"<think>\nSome {word('golf')} thoughts.\n</think>\n\nSome answer."
    messages = [
        {"role": "system", "content": f"The {word('alfa')} rules. {_PROSE * texts}"},
        {"role": "user", "content": f"The {word('delta')} question."},
        {"role": "assistant", "content": thought},
        {"role": "user", "content": f"The {word('hotel')} question."},
    ]
    return {"messages": messages, "tools": listed}


PROBES: tuple[dict[str, Any], ...] = (
    _probe(),
    *map(_probe, ("alfa", "bravo", "delta", "golf")),
    _probe(tools=5),
    _probe(texts=20),
)
"""Chats to tokenize, in the order in which `template_of` expects their token ids."""


def template_of(ids: Sequence[TokenIds]) -> Template:
    """Return the template under which `PROBES` have these token ids."""
    base, *changed = ids
    system, tools, first, thought = (_place(base, other) for other in changed[:4])
    tokens = [len(other) - len(base) for other in changed[4:]]
    sizes = [len(orjson.dumps(probe)) - len(orjson.dumps(PROBES[0])) for probe in PROBES[5:]]
    weight = tokens[0] / sizes[0] / max(tokens[1] / sizes[1], 1e-3)
    return Template(
        tools_first=tools < system,
        tools_last=first < tools < len(base),
        system_last=first < system < len(base),
        keeps_thoughts=thought < len(base),
        tools_weight=min(max(weight, _LEAST_WEIGHT), _MOST_WEIGHT),
    )


def _place(one: TokenIds, other: TokenIds) -> int:
    """Return the index of the first token that differs; the number of tokens if none does."""
    common = min(len(one), len(other))
    unlike = np.flatnonzero(one[:common] != other[:common])
    return int(unlike[0]) if len(unlike) else len(one)

"""Where a model's chat template puts tools, the system prompt and earlier reasoning.

Two prompts share a prefix up to where the *rendered* texts differ. Most templates render tools
after the system prompt (Qwen, Llama, gpt-oss), some before it (Hermes), and Mistral's before the
last user message. Engines reveal it (`laar.prefix.probing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from laar.prefix.lengths import MESSAGE

TOOLS = f"{MESSAGE}tools\x1f"
"""Prefix of the tools among a prompt's texts."""
_USER, _ASSISTANT = f"{MESSAGE}user\x1f", f"{MESSAGE}assistant\x1f"
_SYSTEM = (f"{MESSAGE}system\x1f", f"{MESSAGE}developer\x1f")
_THOUGHT = "</think>"


class Template(NamedTuple):
    """The order in which a template renders a prompt's parts.

    Args:
        tools_first: tools come before the system prompt.
        tools_last: tools come before the user's last message.
        system_last: the system prompt comes before the user's last message.
        keeps_thoughts: reasoning stays in answers before the user's last message.
        tools_weight: tokens per byte of tools, relative to other text.
    """

    tools_first: bool = False
    tools_last: bool = False
    system_last: bool = False
    keeps_thoughts: bool = False
    tools_weight: float = 1.0

    def arranged(self, spans: Sequence[str]) -> Sequence[str]:
        """Return a prompt's texts in the template's order, without those that it leaves out."""
        if TOOLS not in spans and not self.system_last:
            for role, text in pairwise(spans):
                if role == _ASSISTANT and _THOUGHT in text:
                    break
            else:
                return spans
        tools: list[str] = []
        rest = list(spans)
        if TOOLS in rest:
            at = rest.index(TOOLS)
            tools, rest[at : at + 2] = rest[at : at + 2], []
        marks = [at for at, text in enumerate(rest) if text[:1] == MESSAGE]
        head = next((at for at in marks if rest[at] not in _SYSTEM), len(rest))
        last = max((at for at in marks if rest[at] == _USER), default=head)
        if not self.keeps_thoughts:
            for at in marks:
                if at < last and rest[at] == _ASSISTANT and _THOUGHT in rest[at + 1]:
                    rest[at + 1] = rest[at + 1].rpartition(_THOUGHT)[2].lstrip("\n")
        parts = [(self.tools_last, tools), (self.system_last, rest[:head])]
        if not self.tools_first:
            parts.reverse()
        early = [text for is_late, texts in parts if not is_late for text in texts]
        late = [text for is_late, texts in parts if is_late for text in texts]
        return [*early, *rest[head:last], *late, *rest[last:]]

    def by_tokens(
        self, shares: npt.NDArray[np.float64], spans: Sequence[str], total_bytes: int
    ) -> npt.NDArray[np.float64]:
        """Convert shares of an arranged prompt's bytes to shares of its tokens."""
        more = self.tools_weight - 1.0
        if not more or TOOLS not in spans:
            return shares
        at = spans.index(TOOLS)
        start, size = (
            len("".join(texts).encode("utf-8", "surrogatepass")) / total_bytes
            for texts in (spans[:at], spans[at : at + 2])
        )
        return (shares + more * np.clip(shares - start, 0.0, size)) / (1.0 + more * size)


_USUAL = Template()


def template_for(name: str, models: Sequence[str], known: Mapping[str, Template]) -> Template:
    """Return a model's template, or what the templates of `models` share; the usual if unknown."""
    named = (name,) if name in known or name in models else models
    first = known.get(named[0])
    if len(named) > 1 and len({of and of[:-1] for of in map(known.get, named)}) > 1:
        first = None
    return first or _USUAL

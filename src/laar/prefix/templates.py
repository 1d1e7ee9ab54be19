"""Where a model's chat template puts tools, the system prompt and earlier reasoning.

Two prompts share a prefix up to where the *rendered* texts differ. Most templates render tools
after the system prompt (Qwen, Llama, gpt-oss), some before it (Hermes), and Mistral's before the
last user message. `Templates` knows what engines revealed about their models. For other models, it
compares the cached tokens that answers report with those that each arrangement predicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from laar.latest import Latest
from laar.prefix.blocks import Chain
from laar.prefix.lengths import MESSAGE

TOOLS = f"{MESSAGE}tools\x1f"
"""Prefix of the tools among a prompt's texts."""
_USER, _ASSISTANT = f"{MESSAGE}user\x1f", f"{MESSAGE}assistant\x1f"
_SYSTEM = (f"{MESSAGE}system\x1f", f"{MESSAGE}developer\x1f")
_THOUGHT = "</think>"

MAX_SEEN = 20_000
"""Maximum number of hashes remembered to compare arrangements (3 MB); the oldest are dropped."""

_EVERY = 8  # distance in blocks between remembered hashes
_ENOUGH = 32  # answers needed on which the arrangements disagreed
_DISAGREE = 0.1  # difference of expected cached shares above which arrangements disagree


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


_POSSIBLE = (
    Template(),
    Template(tools_first=True),
    Template(tools_last=True),
    Template(tools_last=True, system_last=True),
)


class Templates:
    """The templates of all models.

    Attributes:
        known: templates by model, as revealed by engines; they are not learned.
    """

    def __init__(self) -> None:
        self.known: dict[str, Template] = {}
        self._learned: dict[str, Template] = {}
        self._errors: dict[str, npt.NDArray[np.float64]] = {}
        self._compared = Counter[str]()
        self._seen: Latest[int, None] = Latest(MAX_SEEN)

    def of(self, name: str, models: Sequence[str]) -> Template:
        """Return the template of a model, or what `models` share, weights aside; else a default."""
        named = [self.known.get(m) or self._learned.get(m) for m in self._named(name, models)]
        shared = {template and template[:-1] for template in named}
        return (named[0] if len(shared) == 1 else None) or _POSSIBLE[0]

    def to_learn(self, name: str, models: Sequence[str]) -> Sequence[Template]:
        """Return the arrangements to compare; empty if the template is known."""
        named = self._named(name, models)
        known = all(m in self.known or self._compared[m] >= _ENOUGH for m in named)
        return () if known else _POSSIBLE

    def _named(self, name: str, models: Sequence[str]) -> Sequence[str]:
        return (name,) if name in self.known or name in models else models

    def learn(self, model: str, slot: int, chain: Chain, share: float | None) -> None:
        """Compare the share of a prompt that was cached with what each arrangement expects.

        Args:
            model: the model that answered.
            slot: its endpoint.
            chain: the prompt, with its hashes in each arrangement that `to_learn` returned.
            share: cached share, in 0..1; None if not reported.
        """
        seen = self._seen
        keys = [[hash((slot, block)) for block in other[::_EVERY]] for other in chain.others]
        if share is not None and model not in self.known and all(keys):
            held = [next((n for n, k in enumerate(own) if k not in seen), len(own)) for own in keys]
            expected = np.array([chain.fraction(min(n * _EVERY, len(chain))) for n in held])
            if np.ptp(expected) > _DISAGREE:
                errors = self._errors.setdefault(model, np.zeros(len(_POSSIBLE)))
                errors += np.abs(expected - share)
                self._compared[model] += 1
                self._learned[model] = _POSSIBLE[int(np.argmin(errors))]
        for own in keys:
            for key in own:
                seen[key] = None

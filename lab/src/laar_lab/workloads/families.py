"""Sessions of agents that start groups of sub-agents and wait for all of them.

The sizes are those of llm-d's corpus of agents' sessions: about half of all requests come in
groups, whose median is 7 and whose p90 is 51. The lengths are invented. A group's members begin
with the same text: the sub-agents' system prompt, which all groups share, and the group's brief.
Each then takes a few turns of its own, and the session goes on when the last one has ended.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from laar_lab.sim.fleet import BLOCK_TOKENS, Prompt, Turn, spread

_TAPE_BITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """The shape of groups of sub-agents, in tokens and seconds.

    Args:
        share: share of all requests that come from sub-agents.
        size_log: mean and standard deviation of the logarithm of a group's size.
        max_size: size at which groups are cut.
        mean_turns: mean number of turns of a member.
        system_tokens: length of the text that all groups begin with.
        brief_tokens: length of the text that a group's members share besides.
        own_log: mean and standard deviation of the logarithm of a member's own first text.
        growth_log: the same for the text that a turn adds to the previous answer.
        output_log: the same for the length of answers.
        pause_s: mean pause before a member's next turn.
    """

    share: float = 0.6
    size_log: tuple[float, float] = (math.log(7.0), 1.55)
    max_size: int = 64
    mean_turns: float = 3.0
    system_tokens: int = 8_000
    brief_tokens: int = 8_000
    own_log: tuple[float, float] = (7.3, 0.8)
    growth_log: tuple[float, float] = (7.3, 0.9)
    output_log: tuple[float, float] = (5.3, 0.7)
    pause_s: float = 3.0

    @property
    def mean_size(self) -> float:
        """Mean size of a group, by a fixed sample."""
        rng = Random(0)
        return sum(self._size(rng) for _ in range(4000)) / 4000

    def _size(self, rng: Random) -> int:
        return max(1, min(round(rng.lognormvariate(*self.size_log)), self.max_size))

    def chance(self) -> float:
        """Return the chance that a session's turn is followed by a group."""
        each = self.mean_size * self.mean_turns
        return self.share / (1.0 - self.share) / each

    def group(self, rng: Random, number: int) -> list[list[Turn]]:
        """Draw a group: the turns of each member."""
        shared = spread(1 << 60, self.system_tokens // BLOCK_TOKENS)
        base = (1 << 61) + (number << 34)
        shared += spread(base, self.brief_tokens // BLOCK_TOKENS)
        return [
            list(self._member(rng, shared, base + ((member + 1) << _TAPE_BITS)))
            for member in range(self._size(rng))
        ]

    def _member(self, rng: Random, shared: array[int], base: int) -> Iterator[Turn]:
        tokens = self.system_tokens + self.brief_tokens + round(rng.lognormvariate(*self.own_log))
        first, again = True, 1.0 - 1.0 / self.mean_turns
        while first or rng.random() < again:
            output = max(1, round(rng.lognormvariate(*self.output_log)))
            short = (tokens + output) // BLOCK_TOKENS - len(shared)
            yield Turn(
                prompt=Prompt(
                    prompt_tokens=tokens,
                    output_tokens=output,
                    blocks=shared + spread(base, short),
                ),
                after_answer_s=0.0 if first else rng.expovariate(1.0 / self.pause_s),
            )
            tokens += output + round(rng.lognormvariate(*self.growth_log))
            first = False

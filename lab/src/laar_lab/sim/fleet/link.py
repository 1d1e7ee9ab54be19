"""The network path between picker and endpoint: round trips with jitter and slow spells.

Jitter is log-normal. A spell is a period in which the whole path is slow, as GORGO observed at its
Seoul endpoint (456 ms on average, about 850 ms at its peak, about 5 % of the time).

Every path draws its spells from a separate generator, and each request comes with its own standard
normal draw. Both are therefore independent of the policy, so that policies are compared on the same
network.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from laar.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """Parameters of a path.

    Args:
        rtt_s: median round trip outside spells.
        jitter: standard deviation of the logarithm of a round trip.
        spell_rtt_s: median round trip during a spell.
        spell_share: share of the time that spells take, in [0, 1).
        spell_s: mean duration of a spell.
    """

    rtt_s: float = 0.0005
    jitter: float = 0.0
    spell_rtt_s: float = 0.0
    spell_share: float = 0.0
    spell_s: float = 20.0

    def __post_init__(self) -> None:
        if self.rtt_s < 0 or self.jitter < 0 or self.spell_rtt_s < 0 or self.spell_s <= 0:
            raise SettingError("a link's times and jitter must not be negative")
        if not 0 <= self.spell_share < 1:
            raise SettingError(f"spell_share is {self.spell_share}; it must be in [0, 1)")


class Link:
    """A path in one run; calls must be in chronological order."""

    def __init__(self, profile: LinkProfile, rng: random.Random) -> None:
        self._profile = profile
        self._rng = rng
        self._slow = False
        self._until = 0.0 if profile.spell_share else math.inf
        if profile.spell_share:
            self._slow = rng.random() >= profile.spell_share  # `_turn` toggles it
            self._turn()

    def rtt_s(self, now: float, normal: float) -> float:
        """Return the round trip of a message sent now; `normal` is its jitter draw."""
        while now >= self._until:
            self._turn()
        base = self._profile.spell_rtt_s if self._slow else self._profile.rtt_s
        return base * math.exp(self._profile.jitter * normal)

    def _turn(self) -> None:
        self._slow = not self._slow
        share, mean = self._profile.spell_share, self._profile.spell_s
        if not self._slow:
            mean *= (1.0 - share) / share
        self._until += self._rng.expovariate(1.0 / mean)


def generator(seed: int, concern: str) -> random.Random:
    """Return the random generator for one concern of a run."""
    return random.Random(f"{seed}/{concern}")

"""The network path between picker and endpoint: round trips with jitter and slow spells.

A request's body takes more round trips, as in TCP's slow start: ten segments in the first, and
twice as many in each later one. A connection that is not open takes one more, or two with TLS.
`Link` counts these itself, rather than with the functions of the picker that it tests.

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

_WINDOW_BYTES = 10 * 1448  # TCP's initial window (RFC 6928)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """Parameters of a path.

    Args:
        rtt_s: median round trip outside spells.
        jitter: standard deviation of the logarithm of a round trip.
        spell_rtt_s: median round trip during a spell.
        spell_share: share of the time that spells take, in [0, 1).
        spell_s: mean duration of a spell.
        tls: whether connections use TLS.
        idle_s: seconds after which an idle connection is closed.
    """

    rtt_s: float = 0.0005
    jitter: float = 0.0
    spell_rtt_s: float = 0.0
    spell_share: float = 0.0
    spell_s: float = 20.0
    tls: bool = False
    idle_s: float = 4.0

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
        self._free: list[float] = []  # since when each open connection has been idle, ascending
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

    def upload_rounds(self, now: float, size: int) -> int:
        """Return the round trips before the last for a request of `size` bytes sent now."""
        rounds, sent, window = 0, _WINDOW_BYTES, _WINDOW_BYTES
        while sent < size:
            rounds, window = rounds + 1, 2 * window
            sent += window
        if self._free and now - self._free.pop() < self._profile.idle_s:  # the latest, like Envoy
            return rounds
        self._free.clear()
        return rounds + 1 + self._profile.tls

    def freed(self, now: float) -> None:
        """Keep a connection open whose answer has ended."""
        self._free.append(now)

    def _turn(self) -> None:
        self._slow = not self._slow
        share, mean = self._profile.spell_share, self._profile.spell_s
        if not self._slow:
            mean *= (1.0 - share) / share
        self._until += self._rng.expovariate(1.0 / mean)


def generator(seed: int, concern: str) -> random.Random:
    """Return the random generator for one concern of a run."""
    return random.Random(f"{seed}/{concern}")

"""Pulling the cached part of a prompt from another endpoint instead of computing it.

llm-d's sidecar pulls the KV of a prompt's prefix from the endpoint that a header names, out of that
endpoint's host memory; the source's GPU is not involved, but its bandwidth is shared. So a pull
takes the wait for earlier pulls at the source, plus a start, plus the time per token. If a pull
fails, the engine computes the prompt as usual; then the source seems slow, and is avoided for a
while. The cost decides whether a pull is worth its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from laar.core.endpoints import EndpointTable, Floats, Slots

if TYPE_CHECKING:
    from laar.core.interfaces import View

_START_S = 0.025
"""Seconds before the first block arrives: llm-d reports 35 ms for 2,000 tokens, and 235 ms for
48,000."""

BLOCK_TOKENS = 256
"""The largest block of laar's index: fewer tokens are no difference between two endpoints."""

SURE = 0.9
"""Minimum probability that a source answers."""

_LINGER_S = 10.0
"""Seconds after a pull for which a source that drains is kept, for the conversations it had."""

_ENOUGH, _LOOKS = 8, 64
"""Sources among which the soonest is sought, and how many are looked at to find them."""

_GAIN = 0.2
_LEAST, _MOST = 0.05, 50.0
"""Bounds on the learned factor of a source's seconds per pull."""
_FORGET_S = 300.0
"""Time constant with which that factor returns to 1, since a source that seems slow is avoided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """A pull that a decision asks for.

    Args:
        slot: slot of the source.
        address: its address.
        tokens: prompt tokens to pull.
        seconds: how long that should take, with the wait at the source.
        saved_s: the cost in seconds that it saves.
    """

    slot: int
    address: str
    tokens: float
    seconds: float
    saved_s: float


@dataclass(slots=True, kw_only=True)
class Pulls:
    """The best pull for each candidate, as scorers see it; arrays over the candidates.

    Args:
        sources: slot of the source; -1 if there is none.
        tokens: prompt tokens that the source has cached and the candidate does not.
        seconds: seconds of the pull, with the wait at the source.
        saved_s: the cost in seconds that it saves; not above 0 if computing is cheaper. Set by a
            scorer that computes costs.
    """

    sources: Slots
    tokens: Floats
    seconds: Floats
    saved_s: Floats | None = None

    def at(self, positions: Slots) -> Pulls:
        """Return the pulls of some of the candidates."""
        some = self.sources[positions], self.tokens[positions], self.seconds[positions]
        return replace(self, sources=some[0], tokens=some[1], seconds=some[2], saved_s=None)

    def chosen(self, view: View, at: int) -> Pull | None:
        """Return the pull for the candidate at `at`; None if it computes its prompt itself."""
        if self.saved_s is None or self.saved_s[at] <= 0.0:
            return None
        slot = int(self.sources[at])
        return Pull(
            slot=slot,
            address=view.table.spec(slot).address,
            tokens=float(self.tokens[at]),
            seconds=float(self.seconds[at]),
            saved_s=float(self.saved_s[at]),
        )


class Sources:
    """The endpoints from which others pull: when each has time for a pull, and its speed.

    Args:
        table: the endpoints.
    """

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._free_at: dict[int, float] = {}
        self._paces: dict[int, tuple[float, float]] = {}  # the learned factor, and when

    def offers(
        self,
        slots: Slots,
        groups: Slots,
        sources: Slots,
        tokens: Floats,
        computed: Callable[[int], float],
        tokens_per_s: float,
        now: float,
    ) -> Pulls | None:
        """Return the best pull for each candidate; None if there is none for any.

        The source is the soonest of those that have within a block of the most cached.

        Args:
            slots: the candidates.
            groups: the group within which each may pull (`EndpointTable.pull_group`); -1 for none.
            sources: the slots to pull from.
            tokens: tokens of the prompt that each slot has cached, or will have.
            computed: returns how many of them the source in a slot has computed.
            tokens_per_s: rate of a pull until the source's is learned.
            now: the current time.
        """
        table, none = self._table, np.zeros(len(slots))
        held_tokens, shown_tokens = tokens[slots], tokens[sources]
        found = Pulls(sources=np.full(len(slots), -1), tokens=none, seconds=none.copy())
        of, load = table.pull_group[sources], table.in_flight[sources]
        if table.draining:  # the last choice, so that the drain ends
            load[np.isin(sources, table.draining)] = math.inf
        for group in np.unique(groups[groups >= 0]).tolist():
            of_group = groups == group
            least = held_tokens[of_group].min() + BLOCK_TOKENS
            some = ((of == group) & (shown_tokens > least - BLOCK_TOKENS)).nonzero()[0]
            if shown_tokens[some].max(initial=0.0) <= least:
                continue
            free_at = [self._free_at.get(slot, now) for slot in sources[some].tolist()]
            longest = -shown_tokens[some] // BLOCK_TOKENS
            last = np.isinf(load[some])
            order = np.lexsort((load[some], np.maximum(free_at, now), last, longest))
            near, most = list[tuple[float, int]](), least
            for at in some[order][:_LOOKS].tolist():
                if len(near) < _ENOUGH and shown_tokens.item(at) >= most - BLOCK_TOKENS:
                    near.append((computed(sources.item(at)), at))
                    most = max(most, near[-1][0])
                    near = [has for has in near if has[0] >= most - BLOCK_TOKENS]
            if most <= least:
                continue
            full_s = _START_S + most / tokens_per_s
            times = ((*self._times(sources.item(at), now), at, ready) for ready, at in near)
            wait_s, pace, source, ready = min(
                times, key=lambda of: (load[of[2]] == math.inf, of[0] + of[1] * full_s, load[of[2]])
            )
            missing = ready - held_tokens
            to = of_group & (missing > BLOCK_TOKENS)
            found.sources[to], found.tokens[to] = sources[source], missing[to]
            found.seconds[to] = wait_s + pace * (_START_S + missing[to] / tokens_per_s)
        return found if np.count_nonzero(found.tokens) else None

    def has_drained(self, slot: int, now: float) -> bool:
        """Return whether nothing runs at an endpoint that drains, and nothing is pulled from it."""
        used_at = self._free_at.get(slot, -math.inf)
        return self._table.in_flight.item(slot) <= 0.0 and now - used_at > _LINGER_S

    def begin(self, pull: Pull, now: float) -> None:
        """Count a pull at its source, whose pulls share its bandwidth."""
        self._free_at[pull.slot] = now + pull.seconds - _START_S

    def learn(self, pull: Pull, ratio: float, weight: float, now: float) -> None:
        """Learn from a pull that took `ratio` times as long as expected, unless its source left.

        Args:
            pull: the pull.
            ratio: actual seconds / expected seconds; infinite if it failed.
            weight: expected share of the time that is spent on the pull, in 0..1.
            now: the current time.
        """
        spec = self._table.by_slot.get(pull.slot)
        if spec is None or spec.address != pull.address:
            return
        _, pace = self._times(pull.slot, now)
        seen = min(_MOST, max(_LEAST, pace * ratio))
        self._paces[pull.slot] = pace + _GAIN * weight * (seen - pace), now

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self._free_at.pop(slot, None)
        self._paces.pop(slot, None)

    def _times(self, slot: int, now: float) -> tuple[float, float]:
        """Return the wait at a source, and the factor of its seconds: by default, others' mean."""
        wait_s = max(0.0, self._free_at.get(slot, now) - now)
        known = [self._paces[slot]] if slot in self._paces else [*self._paces.values()]
        if not known:
            return wait_s, 1.0
        faded = (1.0 + (pace - 1.0) * math.exp((at - now) / _FORGET_S) for pace, at in known)
        return wait_s, sum(faded) / len(known)

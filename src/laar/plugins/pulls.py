"""Pulling the cached part of a prompt from another endpoint instead of computing it.

llm-d's sidecar pulls the KV of a prompt's prefix from the endpoint that a header names, out of that
endpoint's host memory; the source's GPU is not involved, but its bandwidth is shared. So a pull
takes the wait for earlier pulls at the source, plus a start, plus the time per token. If a pull
fails, the engine computes the prompt as usual; then the source seems slow, and is avoided for a
while. The cost decides whether a pull is worth its time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from laar.core.candidates import Group
from laar.core.cost import Price
from laar.core.decision import Completion, Decision
from laar.core.interfaces import View
from laar.core.plugin import Answering, Core, Meter, Part, Plugin, Pricing, Sample
from laar.fleet.endpoints import Floats, Slots
from laar.health.lateness import is_spoiled
from laar.plugins.apart import ApartSettings, Prefillers, may_be_apart
from laar.plugins.modes import Usable
from laar.prefix.match import PrefixMatch
from laar.units import duration

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

KV_SOURCE = "x-kv-cache-source-host-port"
"""llm-d's header for the address of the source."""

_METER = Meter(
    "laar_kv_pulls_total",
    "counter",
    ("model",),
    "Requests for which an endpoint pulls KV from another one instead of computing it.",
)

_FOUND = 0.9
"""Share of the tokens believed cached that must be found for a pull to have succeeded."""

_GAIN = 0.2
_LEAST, _MOST = 0.05, 50.0
"""Bounds on the learned factor of a source's seconds per pull."""
_FORGET_S = 300.0
"""Time constant with which that factor returns to 1, since a source that seems slow is avoided."""


@dataclass(slots=True, kw_only=True)
class Pull(Part):
    """A pull that a decision asks for.

    Args:
        slot: slot of the source.
        address: its address.
        elsewhere_tokens: prompt tokens to pull.
        seconds: how long that should take, with the wait at the source.
        saved_s: the cost in seconds that it saves.
        held_tokens: tokens that the endpoint had cached before.
    """

    alike = True  # all attempts name the same source
    teaches = False

    slot: int
    address: str
    elsewhere_tokens: float
    seconds: float
    saved_s: float
    held_tokens: float

    @property
    def shared(self) -> Mapping[str, str]:
        """The source."""
        return {"source": self.address}


@dataclass(slots=True, kw_only=True)
class Offers(Part):
    """The best pull for each candidate; arrays over the candidates.

    Args:
        sources: slot of the source; -1 if there is none.
        tokens: prompt tokens that the source has cached and the candidate does not.
        seconds: seconds of the pull, with the wait at the source.
        saved_s: the cost in seconds that it saves; not above 0 if computing is cheaper. Set once
            the candidates are priced.
    """

    sources: Slots
    tokens: Floats
    seconds: Floats
    saved_s: Floats | None = None

    def at(self, positions: Slots) -> Self:
        """Return the offers for some of the candidates."""
        some = self.sources[positions], self.tokens[positions], self.seconds[positions]
        return replace(self, sources=some[0], tokens=some[1], seconds=some[2], saved_s=None)


@dataclass(slots=True)
class _From(Part):
    """The endpoints to pull from, even if they are saturated or drain."""

    slots: Slots


class Pulls(Plugin):
    """The endpoints from which others pull: when each has time for a pull, and its speed."""

    name = "pulls"
    term = "transfer_s"
    sends = (KV_SOURCE,)
    meters = (_METER,)

    def __init__(self) -> None:
        self._free_at: dict[int, float] = {}
        self._paces: dict[int, tuple[float, float]] = {}  # the learned factor, and when
        self._counts: Counter[str] = Counter()  # pulls by model
        self._settings = ApartSettings()

    @staticmethod
    def of(decision: Decision) -> Pull | None:
        """Return what a decision pulls; None if nothing."""
        return Pull.among(decision.parts)

    def join(self, core: Core) -> None:
        """Keep the core."""
        self._core, self._table = core, core.table

    def use(self, settings: Mapping[type, Any]) -> None:
        """Use new settings."""
        self._settings = settings.get(ApartSettings, self._settings)

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part where two endpoints can pull from each other."""
        sources = able[self._table.pull_group[able] >= 0]
        if len(sources) < 2:
            return None
        sources, answers = answering("source", sources)
        sources = sources[answers >= SURE]
        return _From(sources) if len(sources) else None

    def prescore(
        self, view: View, part: _From, group: Group, match: PrefixMatch | None
    ) -> Offers | None:
        """Return what the candidates may pull; what is being pulled to them is not cached yet.

        A request whose header would not reach a sidecar pulls nothing.
        """
        prefixes, table, slots = self._core.prefixes, self._table, view.slots
        apart = Prefillers.among(group.parts) is not None and may_be_apart(view.request)
        if prefixes is None or match is None or apart:
            return None
        groups, tokens = table.pull_group[slots], match.tokens[table.model_id]
        if alone := Usable.own_prefixes(group):
            groups[np.isin(view.model_id, alone)] = -1
        if group.on_trial:
            groups[-1] = -1
        shares = match.shares.copy()
        for slot in prefixes.index.pulling(view.now):
            if shares.item(slot) * tokens.item(slot) > BLOCK_TOKENS:
                shares[slot] = prefixes.without_pulls(slot, match.chain, shares.item(slot))
                at = np.flatnonzero((slots == slot) & ~np.isin(view.model_id, alone))
                view.cached_tokens[at] -= (match.shares - shares).item(slot) * view.tokens[at]

        def computed(slot: int) -> float:
            return prefixes.computed(slot, match.chain, shares.item(slot)) * tokens.item(slot)

        rate = self._settings.transfer_tokens_per_s
        held = shares * tokens
        found = self.offers(slots, groups, part.slots, held, computed, rate, view.now)
        return found if may_be_apart(view.request) else None

    def price(self, view: View, part: Offers, pricing: Pricing) -> tuple[Price, Floats]:
        """Return the lower price for each candidate, and the seconds of its pull; 0 without one.

        A pull comes before the prefill of the rest, and delays no other request: the engine
        continues with them. The pulled text evicts as much from the cache as computed text.
        """
        alone = pricing.price
        pulled = pricing.again(cached_tokens=view.cached_tokens + part.tokens, after_s=part.seconds)
        part.saved_s = np.where(part.tokens > 0.0, alone.total_s - pulled.total_s, 0.0)
        taken = part.saved_s > 0.0
        priced = (np.where(taken, a, b) for a, b in zip(pulled, alone, strict=True))
        return Price._make(priced), np.where(taken, part.seconds, 0.0)

    def select(self, view: View, part: Offers, at: int) -> Pull | None:
        """Return the pull for the candidate at `at`; None if it computes its prompt itself."""
        if part.saved_s is None or part.saved_s[at] <= 0.0:
            return None
        slot = int(part.sources[at])
        return Pull(
            slot=slot,
            address=view.table.spec(slot).address,
            elsewhere_tokens=float(part.tokens[at]),
            seconds=float(part.seconds[at]),
            saved_s=float(part.saved_s[at]),
            held_tokens=float(view.held_tokens[at]),
        )

    def reserve(self, decision: Decision, now: float) -> None:
        """Count a pull at its source, whose pulls share its bandwidth."""
        pull: Any = decision.parts[self]
        self._free_at[pull.slot] = now + pull.seconds - _START_S
        self._counts[decision.model] += 1
        view, prefixes, receipt = decision.view, self._core.prefixes, decision.flight.receipt
        if prefixes is not None and receipt is not None and view is not None and view.terms:
            prefill_s = view.terms.all_ttft_s.item(decision.position)
            prefixes.index.pulled(receipt, decision.now + prefill_s)

    def complete(self, decision: Decision, end: Completion) -> None:
        """Learn from an answer whether a pull succeeded, and how long it took."""
        pull: Any = decision.parts[self]
        view, flight, now = decision.view, decision.flight, decision.now + end.latency_s
        if view is None or view.terms is None or flight.receipt is None:
            return
        if flight.began and is_spoiled(end.ttft_s or end.latency_s, flight.began.late_s):
            return
        if decision.request.shadow and not flight.served:
            return  # it may have gone to another endpoint
        if flight.slot != decision.slot or not (end.ok or end.cause == "hidden"):
            return
        tokens, reported = end.prompt_tokens or decision.tokens, end.cached_tokens
        believed = (pull.held_tokens + pull.elsewhere_tokens) / max(decision.tokens, 1.0)
        if reported is not None and reported < _FOUND * min(believed, 1.0) * tokens:
            self.learn(pull, math.inf, 1.0, now)
        elif end.ttft_s is not None and decision.request.first_token_seen:
            expected_s = view.terms.all_ttft_s.item(decision.position)
            ratio = 1.0 + (end.ttft_s - expected_s) / pull.seconds
            self.learn(pull, ratio, pull.seconds / expected_s, now)

    def headers(self, decision: Decision) -> Iterable[tuple[str, str]]:
        """Name the source to the sidecar."""
        pull: Any = decision.parts[self]
        return ((KV_SOURCE, pull.address),)

    def record(self, decision: Decision) -> Mapping[str, object]:
        """Return the source, and how much is pulled."""
        pull: Any = decision.parts[self]
        return {"pulled_from": pull.address, "pulled_tokens": pull.elsewhere_tokens}

    def sentence(self, decision: Decision) -> str:
        """Say what is pulled, and what that saves."""
        pull: Any = decision.parts[self]
        return (
            f"It pulls {pull.elsewhere_tokens:.0f} tokens of the prompt from {pull.address} in "
            f"{duration(pull.seconds)}, which costs {duration(pull.saved_s)} less than to compute "
            "them."
        )

    def samples(self) -> Iterable[Sample]:
        """Count the pulls."""
        return ((_METER, (model,), float(count)) for model, count in self._counts.items())

    def offers(
        self,
        slots: Slots,
        groups: Slots,
        sources: Slots,
        tokens: Floats,
        computed: Callable[[int], float],
        tokens_per_s: float,
        now: float,
    ) -> Offers | None:
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
        found = Offers(sources=np.full(len(slots), -1), tokens=none, seconds=none.copy())
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

    def holds(self, slot: int, now: float) -> bool:
        """Return whether something was pulled from an endpoint recently."""
        return now - self._free_at.get(slot, -math.inf) <= _LINGER_S

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

    def leave(self, slot: int) -> None:
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

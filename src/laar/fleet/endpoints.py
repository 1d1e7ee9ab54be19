"""The endpoint table: the state of each endpoint, as numpy columns indexed by slot.

Request-path work that grows with the number of endpoints is done on whole columns. A removed
endpoint keeps its slot until the last of its requests has ended, so a late release never touches a
new endpoint, and for a minute, so one that returns finds all that was learned about it.

Unknown is not zero: a missing reading is NaN, and every reading has a time. The filters and the
cost, not the table, decide what a missing or stale reading means.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laar.fleet.away import AwayNames
from laar.fleet.membership import (
    FETCH,
    PREFILL,
    TASK_LABEL,
    EndpointSpec,
    Membership,
    Served,
)
from laar.fleet.names import Names
from laar.fleet.roundtrip import STALE_AFTER_S, WINDOW, distance_of
from laar.fleet.witness import Page
from laar.health.lateness import Lateness
from laar.prefix.match import Grid

Slots = NDArray[np.intp]
"""Slot numbers of some endpoints; ascending for candidates, except one on trial, which is last."""
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
"""One boolean per endpoint: true for those to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The values of one scrape of an endpoint's metrics page; NaN where one is missing.

    `waiting` and `running` count requests, `kv_usage` is a share in 0..1, `capacity_tokens` the
    size of the KV cache. `adapters` are those of running requests, `max_adapters` how many may run
    concurrently. `restarted` is true when counters ran backwards since the last scrape: the engine
    restarted, and its cache is empty. `started_s` is its start time by its own clock. `refused`
    counts the requests it refused since the last scrape because its queue was full. `asleep` is 1
    for an engine that sleeps. `has_tiers` is true if the engine has fetched cached tokens from
    memory behind its KV cache, or has some there; `host_tokens` is that memory's size. `grid` tells
    where the engine keeps recurrent states; None if its model has none. `work` is the sum of
    counters that any work increments.
    """

    waiting: float = math.nan
    running: float = math.nan
    kv_usage: float = math.nan
    capacity_tokens: float = math.nan
    prefix_queries_tokens: float = math.nan
    prefix_hits_tokens: float = math.nan
    adapters: frozenset[str] = frozenset()
    max_adapters: float = math.nan
    restarted: bool = False
    started_s: float = math.nan
    refused: float = 0.0
    asleep: float = 0.0
    has_tiers: bool = False
    host_tokens: float = math.nan
    grid: Grid | None = None
    work: float = math.nan


RETURNS_S = 60.0
"""Seconds for which a removed endpoint keeps its slot. Sources that are wrong are so briefly."""
_FIRST_CAPACITY = 16
COUNTED = ("in_flight", "queued_tokens", "queued_uncached_tokens", "prefill_tokens")
"""The counters that are summed over all pickers."""
_GAUGES = ("waiting", "running", "kv_usage")
_READ = (*_GAUGES, "capacity_tokens", "asleep", "has_tiers")
_UNKNOWN = (
    *("rtt_s", "rtt_jitter_s", "rtt_at", "answered_at"),
    *("waiting", "running", "kv_usage", "capacity_tokens", "read_at"),
)
_COUNTERS = (*COUNTED, "visiting", "chosen", "failures", "asleep", "has_tiers")
_FIRST_VALUES = {
    **dict.fromkeys(_UNKNOWN, math.nan),
    **dict.fromkeys(_COUNTERS, 0.0),
    "model_id": -1,
    "kv_group": -1,
    "pull_group": -1,
    "window_tokens": math.inf,
    "opening_rounds": 1.0,
    "generates": True,
    "takes": True,
    "prefills": False,
    "fetches": False,
}
"""Values of a free slot's columns, and initially of its next endpoint's. The last nine are derived
from its spec."""


class EndpointTable(Names):
    """Endpoints by slot.

    Columns are arrays indexed by slot, longer than the number of endpoints. `rtt_s`,
    `rtt_jitter_s`, `rtt_at`, `waiting`, `running`, `kv_usage`, `capacity_tokens` and `read_at` are
    NaN until known; `asleep` is from the last reading. `queued_tokens` counts prompt tokens of
    incomplete requests, `queued_uncached_tokens` those believed not cached, and `prefill_tokens`
    those of them whose answers have not begun. `in_flight` counts requests, one with several
    answers several times, `visiting` this picker's requests that are only prefilled there, for
    another endpoint, and `failures` consecutive failed probes (infinite after a refused
    connection). `decisions` counts this picker's decisions, and `chosen` is the number of the
    latest one for the endpoint, or 0.
    `has_tiers` is 1 if it has memory behind its cache. `model_id` indexes `models`, the distinct
    first names. The `COUNTED` columns are the rows of `counted`; `elsewhere` is the part of them
    that other pickers have in flight, 0 for a lone picker.

    Not thread-safe: one event loop, or one simulation, owns it.
    """

    rtt_s: Floats
    rtt_jitter_s: Floats
    rtt_at: Floats
    answered_at: Floats
    """When it last ended an answer, which leaves a connection open, by slot; NaN if never."""
    waiting: Floats
    running: Floats
    kv_usage: Floats
    capacity_tokens: Floats
    read_at: Floats
    queued_tokens: Floats
    queued_uncached_tokens: Floats
    prefill_tokens: Floats
    in_flight: Floats
    visiting: Floats
    chosen: Floats
    failures: Floats
    asleep: Floats
    has_tiers: Floats
    model_id: Slots
    kv_group: Slots
    """Number of the endpoint's KV group (model and region), by slot; KV moves only within one."""
    pull_group: Slots
    """The same for endpoints that pull from each other; -1 for the others."""
    window_tokens: Floats
    """Context window by slot; infinite if unknown."""
    opening_rounds: Floats
    """Round trips to open a connection to the endpoint, by slot: one for TCP and one for TLS."""
    generates: Mask
    """Whether the endpoint generates text, by slot."""
    takes: Mask
    """Whether the endpoint accepts clients' requests, by slot."""
    prefills: Mask
    """Whether the endpoint prefills prompts for others, by slot."""
    fetches: Mask
    """Whether the endpoint can fetch KV of prompts prefilled elsewhere, by slot."""

    def __init__(self) -> None:
        self.capacity = 0
        """Length of the columns; every slot is less than this."""
        self._free: list[int] = []
        self.by_slot: Mapping[int, EndpointSpec] = {}
        """The endpoints by slot, ascending; replaced by a new object on every change."""
        self._slot_of: dict[str, int] = {}
        self._pages: dict[int, Page] = {}
        self._samples_s: dict[int, deque[float]] = {}
        self._left: dict[str, tuple[float, EndpointSpec | None]] = {}
        """When endpoints with a slot were removed, and what they were, in that order."""
        self._now = -math.inf
        self._members = Membership()
        self._variants: Mapping[str, Sequence[str]] = {}
        self.index({}, self._members.aliases, self._variants)
        self.away = AwayNames(self)
        """The models that had endpoints, and have none now."""
        self.lateness = Lateness()
        self.counted: Floats = np.zeros((len(COUNTED), 0))
        self.elsewhere: Floats = np.zeros((len(COUNTED), 0))
        self.unseen: Floats | None = None
        """Requests by slot that other pickers have probably sent but that are not counted yet;
        None for a lone picker."""
        self.windowed = False
        """Whether any endpoint's window is known."""
        self._own_windows: dict[str, dict[int, float]] = {}  # by name and slot
        self.active: Slots = np.empty(0, np.intp)
        self.draining: list[int] = []
        """Slots of active endpoints that drain."""
        self.drained: set[str] = set()
        """Endpoints that were left out once they were idle, until they drain no more."""
        self.decisions = 0
        self.readings = 0
        """Number of readings, round trips and failures, to detect changes."""
        self.version = 0
        """Number of changes to the set of endpoints or to their specs."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after `version` has changed."""
        self.on_free: Callable[[int], None] = lambda _slot: None
        """Called when a slot is freed, before it can be reused."""
        self.on_grow: list[Callable[[int], object]] = []
        """Called with the new length of the columns."""
        self.on_count: Callable[[int, bool], None] | None = None
        """Called when this picker adds to a slot's counters (True) or takes from them (False)."""
        self._grow()

    # -- membership ----------------------------------------------------------------------------

    def replace(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        """Replace all endpoints of `source` with `specs`; if sources overlap, the first wins."""
        self._members.sources[source] = {spec.address: spec for spec in specs}
        self._merge()

    def served(self, reports: Mapping[str, Served]) -> None:
        """Set the names that endpoints themselves report, by address, until they are removed."""
        known = self._members.served
        news = {a: said for a, said in reports.items() if self.named(a) and known.get(a) != said}
        if news:
            known.update(news)
            self._merge()

    def ranked(self, address: str, ranks: int) -> None:
        """Create one endpoint for each data-parallel rank at an address."""
        self._members.ranks[address] = ranks
        self._merge()

    def withhold(self, address: str, name: str, *, lacks: bool) -> bool:
        """Withhold or restore a model, but never the first; return whether it is withheld."""
        withheld = self._members.withheld
        (withheld.add if lacks else withheld.discard)((address, name))
        self._merge()
        return (address, name) in self._members.withheld

    def leave_out(self, key: str) -> None:
        """Remove an endpoint that has drained, although its source still lists it."""
        self.drained.add(key)
        self._merge()

    def use_aliases(self, aliases: Mapping[str, Sequence[str]]) -> None:
        """Set the aliases of models, which endpoints may not use for adapters."""
        self._members.aliases = aliases
        self._merge()
        self._reindex()

    def use_variants(self, variants: Mapping[str, Sequence[str]]) -> None:
        """Set the names of the models' variants."""
        self._variants = variants
        self._reindex()

    def _merge(self) -> None:
        wanted = self._members.specs()
        self.drained = {key for key in self.drained if key in wanted and wanted[key].drains}
        for key in self.drained:
            del wanted[key]
        if wanted == {spec.key: spec for spec in self.specs()}:
            return
        self.away.note(spec for spec in self.specs() if wanted.get(spec.key) != spec)
        for key, slot in list(self._slot_of.items()):
            if key not in wanted:
                self._left.setdefault(key, (self._now, self.by_slot.get(slot)))
                self._free_if_idle(key, slot)
            elif key in self._left and not _is_same(self._left.pop(key)[1], wanted[key]):
                self._free_if_idle(key, slot)
        self.by_slot = dict(sorted((self._take(key), spec) for key, spec in wanted.items()))
        self._reindex()
        self.version += 1
        self.on_change()

    def _take(self, key: str) -> int:
        """Return the endpoint's slot, or a free one for a new endpoint."""
        if key not in self._slot_of:
            for left in list(self._left) if not self._free else ():
                self._left[left] = -math.inf, None
                self._free_if_idle(left, self._slot_of[left])
            if not self._free:
                self._grow()
            self._slot_of[key] = heapq.heappop(self._free)
        return self._slot_of[key]

    def _free_if_idle(self, key: str, slot: int) -> None:
        left_at, _ = self._left.get(key, (-math.inf, None))
        if self.in_flight[slot] <= 0 and not self._now - left_at < RETURNS_S:
            self._left.pop(key, None)
            del self._slot_of[key]
            heapq.heappush(self._free, slot)
            for name, value in _FIRST_VALUES.items():
                getattr(self, name)[slot] = value
            self.elsewhere[:, slot] = 0.0
            self._pages.pop(slot, None)
            self._samples_s.pop(slot, None)
            self.on_free(slot)

    def _passed(self, now: float) -> None:
        """Free the slots of endpoints that were removed a while ago."""
        self._now = max(self._now, now)
        for key in list(self._left):
            if self._now - self._left[key][0] < RETURNS_S:
                break
            self._free_if_idle(key, self._slot_of[key])

    def _grow(self) -> None:
        size = max(_FIRST_CAPACITY, 2 * self.capacity)
        before = self.capacity
        for name, value in _FIRST_VALUES.items():
            grown = np.full(size, value)
            if before:
                grown[:before] = getattr(self, name)
            setattr(self, name, grown)
        more = ((0, 0), (0, size - before))
        self.counted, self.elsewhere = np.pad(self.counted, more), np.pad(self.elsewhere, more)
        if self.unseen is not None:
            self.unseen = np.pad(self.unseen, more[1])
        for name, row in zip(COUNTED, self.counted, strict=True):
            setattr(self, name, row)
        self._free = list(range(before, size))  # ascending, hence a valid heap
        self.capacity = size
        for grow in self.on_grow:
            grow(size)

    def _reindex(self) -> None:
        specs = self.by_slot
        self.index(specs, self._members.aliases, self._variants)
        ids = {name: at for at, name in enumerate(self.models)}
        groups: dict[tuple[str, str], int] = {}
        self.model_id.fill(-1)
        self._own_windows = {}
        for slot, spec in specs.items():
            self.kv_group[slot] = groups.setdefault((spec.models[0], spec.region), len(groups))
            self.window_tokens[slot] = spec.max_model_len or math.inf
            for name in (*spec.windows, *(self.aliases if spec.windows else ())):
                sent = self.sent_name(spec, name)
                if sent in spec.windows:
                    own = self._own_windows.setdefault(name, {})
                    own[slot] = spec.windows[sent] or math.inf
            self.opening_rounds[slot] = 1.0 + spec.way.tls
            self.model_id[slot] = ids[spec.models[0]]
            self.generates[slot] = spec.labels.get(TASK_LABEL, "generate") == "generate" and (
                spec.generates or TASK_LABEL in spec.labels
            )
            self.takes[slot] = spec.takes_requests
            self.pull_group[slot] = self.kv_group[slot] if spec.pulls else -1
            self.prefills[slot] = spec.role in PREFILL and not spec.drains
            self.fetches[slot] = spec.role in FETCH
        self.draining = [slot for slot, spec in specs.items() if spec.drains]
        self.active = np.array(list(specs), np.intp)
        known = np.isfinite(self.window_tokens[self.active]).any()
        self.windowed = bool(known) or bool(self._own_windows)

    # -- looking up ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.active)

    def spec(self, slot: int) -> EndpointSpec:
        """Return the endpoint in an active slot."""
        return self.by_slot[slot]

    def windows(self, slots: Slots, name: str) -> Floats:
        """Return the windows of some endpoints in tokens, for requests to a name."""
        found = self.window_tokens[slots]
        if own := self._own_windows.get(name):
            found = np.array([own.get(s, w) for s, w in zip(slots.tolist(), found, strict=True)])
        return found

    def address(self, slot: int) -> str:
        """Return the key of a slot's endpoint, even while it is leaving; empty for a free slot."""
        if slot in self.by_slot:
            return self.by_slot[slot].key
        return next((a for a, known in self._slot_of.items() if known == slot), "")

    def cache_tokens(self) -> float:
        """Return the total cache size, with the mean for unknown ones; NaN if none is known."""
        known = self.capacity_tokens[self.active]
        known = known[~np.isnan(known)]
        return float(known.mean()) * len(self.active) if len(known) else math.nan

    def alike(self, slot: int) -> Slots:
        """Return the slots of the endpoints with the same model as this one, itself included."""
        return np.flatnonzero(self.model_id == self.model_id[slot])

    def specs(self) -> Sequence[EndpointSpec]:
        """Return all endpoints, in slot order."""
        return tuple(self.by_slot.values())

    def slot(self, key: str) -> int:
        """Return the slot of the endpoint with this key, or -1 if it is not present."""
        slot = self._slot_of.get(key, -1)
        return slot if slot in self.by_slot else -1

    # -- readings ------------------------------------------------------------------------------

    def read(self, key: str, reading: Reading, now: float) -> int:
        """Store a scrape; return the slot, or -1 if the endpoint has been removed meanwhile.

        Load that nothing confirms is left out of the gauges (`laar.fleet.witness`).
        """
        slot = self.slot(key)
        self._passed(now)
        if slot >= 0:
            for name in _READ:
                getattr(self, name)[slot] = getattr(reading, name)
            shown = [getattr(reading, name) for name in (*_GAUGES, "work")]
            at = shown, self.in_flight.item(slot), self.chosen.item(slot), now
            page = self._pages.get(slot)
            if page is None:
                self._pages[slot] = Page(*at)
            else:
                for name, value in zip(_GAUGES, page.read(*at), strict=True):
                    getattr(self, name)[slot] = value
            self.read_at[slot] = now
            self.readings += 1
            if self.failures[slot] == math.inf and self.by_slot[slot].has_own_page:
                self.failures[slot] = 0.0
        return slot

    def ignored(self, slot: int) -> Sequence[float]:
        """Return how much `waiting`, `running` and `kv_usage` show that nothing confirms."""
        page = self._pages.get(slot)
        return page.idle if page and page.idle else (0.0, 0.0, 0.0)

    def round_trip(self, address: str, rtt_s: float | None, now: float) -> None:
        """Store a probe's round trip: NaN if the endpoint answered, but its time says nothing.

        None if it failed, infinity if the connection was refused.
        """
        self._passed(now)
        for slot in self.named(address):
            self.readings += 1
            if rtt_s is None or rtt_s == math.inf:
                self.failures[slot] += rtt_s or 1.0
                continue
            self.failures[slot] = 0
            samples_s = self._samples_s.get(slot)
            if samples_s is None or not now - self.rtt_at[slot] < STALE_AFTER_S:
                samples_s = self._samples_s[slot] = deque(maxlen=WINDOW)
            if 0.0 < rtt_s < math.inf:
                samples_s.append(rtt_s)
            self.rtt_s[slot], self.rtt_jitter_s[slot] = distance_of(samples_s)
            self.rtt_at[slot] = now

    # -- counting ------------------------------------------------------------------------------

    def reserve(
        self,
        slot: int,
        tokens: float,
        uncached_tokens: float,
        answers: int = 1,
        *,
        answering: bool = False,
    ) -> None:
        """Count a request when it is decided or moves; `answering` means its prefill is over."""
        self.in_flight[slot] += answers
        self.queued_tokens[slot] += tokens
        self.queued_uncached_tokens[slot] += uncached_tokens
        if not answering:
            self.prefill_tokens[slot] += uncached_tokens
        if self.on_count is not None:
            self.on_count(slot, True)

    def visit(self, slot: int, tokens: float, uncached_tokens: float) -> None:
        """Count a prompt that is prefilled here for another endpoint."""
        self.visiting[slot] += 1
        self.reserve(slot, tokens, uncached_tokens)

    def leave(self, slot: int, tokens: float, uncached_tokens: float) -> None:
        """Remove a prompt that `visit` counted."""
        self.visiting[slot] = max(0.0, self.visiting[slot] - 1)
        self.release_prefill(slot, uncached_tokens)
        self.release(slot, tokens, uncached_tokens)

    def release_prefill(self, slot: int, prefill_tokens: float) -> None:
        """Remove a request's prompt from the prefill work: its answer has begun, or never will."""
        left = self.prefill_tokens.item(slot) - prefill_tokens
        self.prefill_tokens[slot] = left if left > 0.5 else 0.0
        if self.on_count is not None:
            self.on_count(slot, False)

    def release(
        self,
        slot: int,
        tokens: float,
        uncached_tokens: float,
        answers: int = 1,
        *,
        answering: bool = True,
    ) -> None:
        """Remove a request from the counters; also its prefill if it is not `answering`."""
        if not answering:
            self.release_prefill(slot, uncached_tokens)
        in_flight = self.in_flight.item(slot) - answers
        if in_flight > 0.0:
            self.in_flight[slot] = in_flight
            self.queued_tokens[slot] -= tokens
            self.queued_uncached_tokens[slot] -= uncached_tokens
        else:  # float sums drift; set an idle endpoint's to exactly 0
            self.counted[:, slot] = 0.0
            if slot not in self.by_slot:
                self._free_if_idle(self.address(slot), slot)
        if self.on_count is not None:
            self.on_count(slot, False)

    def own(self, slots: Slots) -> Floats:
        """Return this picker's counts at some slots, a row for each of `COUNTED`."""
        counted: Floats = self.counted.take(slots, axis=1)
        counted -= self.elsewhere.take(slots, axis=1)
        counted *= counted[0] >= 0.5  # float sums drift
        return np.maximum(counted, 0.0, out=counted)

    def count_elsewhere(self, slot: int, load: Sequence[float]) -> None:
        """Set the total load of all other pickers at a slot, in the order of `COUNTED`.

        Also call it for an endpoint that is leaving: its slot is freed once nothing is in flight.
        """
        counted, elsewhere = self.counted, self.elsewhere
        idle = counted.item(0, slot) + load[0] - elsewhere.item(0, slot) < 0.5
        for row in range(len(COUNTED)):
            left = counted.item(row, slot) + load[row] - elsewhere.item(row, slot)
            counted[row, slot] = 0.0 if idle else max(0.0, left)
            elsewhere[row, slot] = load[row]
        if idle and slot not in self.by_slot and (address := self.address(slot)):
            self._free_if_idle(address, slot)

    def slot_counted(self, key: str) -> int:
        """Return the slot of an endpoint that is present or has requests in flight, else -1."""
        return self._slot_of.get(key, -1)


def _is_same(left: EndpointSpec | None, spec: EndpointSpec) -> bool:
    """Return whether a removed endpoint has returned, rather than another at its address."""
    return left is not None and (left.models[0], left.engine, left.labels, left.way) == (
        spec.models[0],
        spec.engine,
        spec.labels,
        spec.way,
    )

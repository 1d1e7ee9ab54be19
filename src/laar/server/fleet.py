"""The endpoints of a running picker: connects collectors with the table and Envoy's file."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from laar.core.filters import MAX_FAILURES, MAX_KV_USAGE
from laar.datalayer.interface import GONE
from laar.datalayer.probe import TIMEOUT_S
from laar.datalayer.served_names import FIRST_PODS_S, OwnNames
from laar.datalayer.visits import occurs
from laar.envoy.endpoints_file import EnvoyFile
from laar.faults import Fault
from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec, Served

if TYPE_CHECKING:
    from laar.prefix.tokens import Stored
    from laar.server.picker import Picker

GATHER_S = 0.5
"""Seconds between updates of model names: each takes time proportional to the fleet's size, and at
startup 200 endpoints a second report names."""

_REFUSES = "its endpoints are full: most requests for it are refused"
_HOLDS = "its endpoints are full: requests for it wait at the picker"
_HELD_S = 1.0
"""Seconds of the longest wait at the picker for room, above which the page tells of it."""

_LOG = logging.getLogger(__name__)


class FleetState:
    """Applies reports of endpoint sources, scrapes, probes and KV events.

    Args:
        picker: owns the table, the prefix beliefs and the rules.
        on_change: called after the endpoints have changed and Envoy's file is written.
    """

    def __init__(self, picker: Picker, *, on_change: Callable[[], None] = lambda: None) -> None:
        self._picker = picker
        self._table = table = picker.table
        self._beliefs = picker.prefixes
        self.problem = picker.problems.report  # these three are part of the collectors' sink
        self.objectives = picker.rules.replace_priorities
        self.rewrites = picker.rules.replace_rewrites
        eds_file = picker.settings.envoy.eds_file  # None if Envoy gets endpoints elsewhere
        self._file = None if eds_file is None else EnvoyFile(eds_file, picker.problems)
        self._on_change = on_change
        self._changed = asyncio.Event()
        table.on_change = self._changed.set  # Envoy's file has the names that endpoints report
        self._own = OwnNames()
        self._wanted: dict[str, Sequence[EndpointSpec]] = {}
        self._used: dict[str, Sequence[EndpointSpec]] = {}
        self._reports: dict[str, Served] = {}  # not applied yet
        self._published: dict[str, Mapping[str, str]] = {}  # labels about KV events, by address
        self._gathering: asyncio.TimerHandle | None = None

    def replace(self, source: str, specs: Sequence[EndpointSpec]) -> None:
        """Replace the endpoints of `source`.

        A new endpoint is used once Envoy knows it: for an unknown address, Envoy sends the request
        to any endpoint, whatever its model. An endpoint without a model is used once it has
        reported one.
        """
        self._own.replace(source, specs)
        if self._own.waits(source):
            asyncio.get_running_loop().call_later(FIRST_PODS_S, self._wait_no_longer, source)
        self._take(source)

    def has_all_of(self, sources: Set[str]) -> bool:
        """Return whether all these sources have reported and their endpoints are published."""
        return sources <= self._wanted.keys() and not self._changed.is_set()

    def nameless(self) -> list[EndpointSpec]:
        """Return the endpoints whose models only they can report."""
        return [spec for spec in self._own.nameless() if not self._table.named(spec.address)]

    def _wait_no_longer(self, source: str) -> None:
        if self._own.waits(source):
            self._own.wait_no_longer(source)
            self._take(source)

    def _take(self, source: str) -> None:
        wanted = self._own.named(source, self._picker.director.settings.aliases)
        self._table.away.note(spec for spec in wanted if not self._table.named(spec.address))
        self._wanted[source] = wanted
        self._use(source)
        self._changed.set()

    def _use(self, source: str) -> None:
        """Update the table with a source's usable endpoints."""
        specs = self._wanted[source]
        if self._file is not None:
            specs = [spec for spec in specs if spec.address in self._file.known]
            stand_ins = self._stand_ins(source, specs)
            stay = {spec.address for spec in stand_ins}
            specs = [spec for spec in specs if spec.address not in stay] + stand_ins
        self._used[source] = specs
        before, version = self._table.specs(), self._table.version
        self._table.replace(source, specs)
        if self._table.version != version:
            known = {spec.address for spec in before}
            own = self._own.reports(source).items()
            self._table.served({a: served for a, served in own if a not in known})
            self._forget_who_left(before)
            _LOG.info("%d endpoints, after a change from %s", len(self._table), source)

    def _stand_ins(self, source: str, known: Sequence[EndpointSpec]) -> list[EndpointSpec]:
        """Return the removed or draining endpoints whose successors Envoy does not know yet.

        Without them, requests would be refused while the only endpoints of a model are replaced.
        """
        wanted = [spec for spec in chain(*self._wanted.values()) if not spec.drains]
        stay, used = {spec.address for spec in wanted}, self._used.get(source, ())
        removed = [spec for spec in used if not (spec.drains or spec.address in stay)]
        if not removed:  # comparing the models of thousands of endpoints takes milliseconds
            return removed
        others = (used for other, used in self._used.items() if other != source)
        able = (spec for spec in chain(known, *others) if not spec.drains)
        coming = _names(wanted) - _names(able)
        return [spec for spec in removed if coming & _names([spec])]

    def _forget_who_left(self, before: Sequence[EndpointSpec]) -> None:
        stayed = {spec.key for spec in self._table.specs()}
        for spec in before:
            if spec.key not in stayed:
                if not self._table.named(spec.address):  # not just other ranks
                    self._reports.pop(spec.address, None)
                    self._published.pop(spec.address, None)
                    self.problem(Fault.KV_EVENTS, GONE, spec.address)
                self.problem(Fault.LOAD, GONE, spec.key)
                self._picker.context.forget(spec.address)
                self._lose(self._table.slot_counted(spec.key))

    def ranked(self, address: str, ranks: int) -> None:
        """Set the number of data-parallel ranks at an address; each becomes an endpoint."""
        if ranks == len(self._table.named(address)):
            return  # the usual case; a change of the table costs milliseconds
        before, version = self._table.specs(), self._table.version
        self._table.ranked(address, ranks)
        if self._table.version != version:
            self._forget_who_left(before)
            _LOG.info("%s: %d data-parallel ranks", address, ranks)

    def publishes(self, address: str, labels: Mapping[str, str]) -> None:
        """Record where an engine says that it publishes KV events; its labels take precedence."""
        if self._table.named(address):
            self._published[address] = labels

    def publishing(self) -> list[EndpointSpec]:
        """Return the endpoints, with the labels that tell where they publish KV events."""
        specs, found = self._table.specs(), self._published
        return [
            replace(spec, labels={**found[spec.address], **spec.labels})
            if spec.address in found
            else spec
            for spec in specs
        ]

    def stored(self, key: str, event: Stored) -> None:
        """Record blocks that entered the endpoint's cache."""
        slot = self._table.slot(key)
        if slot >= 0:
            self._beliefs.blocks_held.stored(slot, self._table.spec(slot).models[0], event)

    def removed(
        self,
        key: str,
        block_hashes: Sequence[int | bytes],
        tier: int = 0,
        *,
        is_state: bool = False,
    ) -> None:
        """Record blocks, or states after them, removed from the cache or slower memory."""
        slot = self._table.slot(key)
        if slot >= 0:
            self._beliefs.blocks_held.removed(slot, block_hashes, tier, is_state=is_state)

    def cleared(self, key: str, *, past: bool = False, at_s: float = math.nan) -> None:
        """Forget the content of the endpoint's cache; if `past`, what it held until `at_s`."""
        slot = self._table.slot(key)
        if slot >= 0:
            self._beliefs.emptied(slot, self._table.spec(slot).models[0], past=past, at_s=at_s)
            if not past:
                self._picker.context.forget(self._table.spec(slot).address)

    def lost(self, key: str) -> None:
        """Forget the blocks known from the endpoint's events because some events were lost.

        The text index is kept, since misses correct it.
        """
        self._lose(self._table.slot(key))

    def _lose(self, slot: int) -> None:
        if slot >= 0:
            self._beliefs.blocks_held.lost(slot)

    def full(self, now: float) -> dict[str, str]:
        """Return what there is to say of models whose clients wait or are refused, for no room."""
        picker = self._picker
        found = dict.fromkeys(picker.metrics.full.models(time.time()), _REFUSES)
        held = picker.admission.queue.items() if picker.admission else iter(())
        first = next(held, None)  # which waits longest
        if first and first.is_ready and not first.for_context and now - first.arrival_s >= _HELD_S:
            found.setdefault(first.request.model, _HOLDS)
        return found

    async def run(self) -> None:
        """Publish every change until cancelled."""
        self._changed.set()  # an error may have ended an earlier call before it was published
        while True:
            await occurs(self._changed, self._file.again_s if self._file else None)
            await self.publish()

    async def publish(self) -> None:
        """Write the endpoints to Envoy's file, then report the change."""
        self._changed.clear()
        if self._file is not None:
            sources = reversed(self._wanted.values())  # if they overlap, the first wins
            wanted = {spec.address: spec for spec in chain(*sources)}
            used = {spec.address: spec for spec in chain(*self._used.values())}
            named = {spec.address: spec for spec in self._table.specs()}
            listed = {
                address: named.get(address, spec) for address, spec in (used | wanted).items()
            }
            if await self._file.write(listed):
                for source in self._wanted:
                    self._use(source)
                if not used.keys() <= wanted.keys():
                    self._changed.set()  # the next write removes stand-ins from the file
        self._on_change()

    def round_trip(self, address: str, rtt_s: float | None, now: float) -> None:
        """Record a probe of an endpoint, unless this picker was too late to see its answer."""
        table = self._table
        if rtt_s is None and table.lateness.spoils(TIMEOUT_S, now):
            return
        table.round_trip(address, rtt_s, now)
        for slot in table.named(address) if rtt_s == math.inf else ():
            self._picker.health.died(slot, now)
        for slot in table.draining:
            spec, is_gone = table.spec(slot), table.failures[slot] >= MAX_FAILURES
            if spec.address == address and (is_gone or spec.metrics_url == ""):  # it has no page
                self._leave_out_idle(slot, now)

    def _leave_out_idle(self, slot: int, now: float) -> None:
        """Remove a draining endpoint, if nothing of this picker's needs it any more."""
        spec, before = self._table.spec(slot), self._table.specs()
        if not self._picker.director.holds(slot, now):
            self._table.leave_out(spec.key)
            self._forget_who_left(before)
            _LOG.info("%s has drained and may be stopped", spec.key)

    def reading(self, key: str, reading: Reading, now: float) -> None:
        """Record the values of a metrics page, or of one rank on it."""
        slot = self._table.slot(key)
        if slot >= 0:
            # An engine that falls asleep discards its cache.
            is_empty = reading.restarted or reading.asleep > self._table.asleep[slot]
            self._table.read(key, reading, now)
            self._report_ignored(key, *self._table.ignored(slot))
            if is_empty:
                self._beliefs.restarted(slot, reading.started_s)
            if not reading.has_tiers:  # tokens found there are counted separately
                counted = reading.prefix_queries_tokens, reading.prefix_hits_tokens
                self._beliefs.found.count(slot, *counted)
            self._beliefs.states.use(slot, reading.grid)
            # The host's memory also keeps what the cache evicts; its size may be NaN.
            self._beliefs.set_capacity(slot, max(reading.capacity_tokens, reading.host_tokens))
            if is_empty:
                self._picker.context.forget(self._table.spec(slot).address)
            self._picker.reading(key, reading)
            # Its own page, read since it drains, shows the requests of all pickers.
            if slot in self._table.draining and reading.waiting + reading.running <= 0.0:
                self._leave_out_idle(slot, now)

    def _report_ignored(self, key: str, waiting: float, running: float, kv_usage: float) -> None:
        problem, requests = None, waiting + running
        if requests > 0.0 or kv_usage > MAX_KV_USAGE:
            cache = f" and {kv_usage:.0%} of its cache in use" if kv_usage else ""
            problem = f"its page shows {requests:.0f} requests{cache}, but nothing moves: ignored"
        self.problem(Fault.LOAD, problem, key)

    def served(self, address: str, served: Served) -> None:
        """Record the model names that an endpoint lists, immediately or with the next update."""
        self._reports[address] = served
        if self._gathering is None:
            self._take_reports()

    def _take_reports(self) -> None:
        self._gathering = None
        if self._reports:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self._take_reports)
            reports, self._reports = self._reports, {}
            for source in self._own.take(reports):
                if not self._own.waits(source):
                    self._take(source)
            self._table.served(reports)


def _names(specs: Iterable[EndpointSpec]) -> set[tuple[str, str, str]]:
    """Return the models that the endpoints serve, each with a role and a pool."""
    return {(m, s.role, pool) for s in specs for m in s.models for pool in s.pools or ("",)}

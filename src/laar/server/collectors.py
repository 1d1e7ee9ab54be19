"""The collectors of a running picker: sources of endpoints, scrapes, probes and KV events."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import ClientSession

from laar.core.attempts import ENDPOINT
from laar.core.director import Director
from laar.core.filters import MAX_FAILURES, STALE_S, awake
from laar.datalayer.asking import TIMEOUT_S, Asking, ask, keep_asking
from laar.datalayer.dns import Resolver
from laar.datalayer.endpoints_file import EndpointsFile
from laar.datalayer.probe import Prober
from laar.datalayer.scrape import Scraper
from laar.datalayer.served_names import ServedNames
from laar.datalayer.visits import until_look_s
from laar.errors import SettingError, install
from laar.faults import Fault
from laar.fleet.endpoints import Slots
from laar.fleet.membership import EVENTS_LABEL, EndpointSpec
from laar.fleet.roundtrip import STALE_AFTER_S
from laar.health import GOOD, Kind
from laar.server.fleet import FleetState
from laar.server.tasks import Tasks
from laar.settings import Settings
from laar.telemetry.page_model import SLOW_PACE

if TYPE_CHECKING:
    from laar.datalayer.kubernetes.collector import KubernetesEndpoints

_AT_REST = 5.0
"""Factor by which visit intervals grow while a picker is idle; otherwise many idle sidecars would
keep the engines busy serving pages."""
_COMPARE_AGAIN_S = 5.0  # a comparison sends three probes of a few tokens
_MAX_COMPARED = 256  # limits comparisons to fifty a second
_SLOWER = f"requests take over {SLOW_PACE:g} times as long as at the endpoints with its model"
_LOOK_S = 1.0
"""Seconds between checks for a KV events label, until the events can be read."""


class Collectors:
    """Creates and runs the collectors that the settings require.

    They pass what they find to `fleet`, and read pages less often while the picker `is_at_rest`.
    """

    def __init__(
        self,
        settings: Settings,
        director: Director,
        fleet: FleetState,
        *,
        clock: Callable[[], float],
        is_at_rest: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._director = director
        self._table, self._health = director.table, director.health
        self._fleet = fleet
        self._clock = clock
        self._is_at_rest = is_at_rest
        self._common: dict[str, Any] = {"clock": clock, "rng": director.chooser.rng}
        self.names = ServedNames(
            lambda: [*self._targets(), *fleet.nameless()], fleet, **self._common
        )
        self._file: EndpointsFile | None = None
        self._clusters: dict[str, KubernetesEndpoints] = {}
        self._told: dict[Fault, dict[str, str]] = {}
        self.resolver = Resolver(fleet, self._works)

    def _works(self, address: str) -> bool:
        """Return whether an endpoint answers, as far as probes and requests show."""
        table, now, slots = self._table, self._clock(), self._table.named(address)
        states = (self._health.state(slot, now) for slot in slots)
        return any(table.failures[slots] < MAX_FAILURES) and "failing" not in states

    def declare(self, endpoints: Sequence[EndpointSpec]) -> None:
        """Use the endpoints listed in the settings."""
        self.resolver.replace("settings", endpoints)

    def prepare(self) -> None:
        """Read the endpoints file, and find the API servers of the clusters.

        Raises:
            SettingError: the endpoints file cannot be used, or laar is not in a cluster's pod.
        """
        settings = self._settings
        self.declare(settings.listed())
        if settings.endpoints_file is not None:
            must_exist(settings.endpoints_file)
            self._file = EndpointsFile(settings.endpoints_file, self.resolver)
            self._file.load()
        names: Counter[str] = Counter()
        for index, source in enumerate(settings.kubernetes):
            from laar.datalayer.kubernetes.collector import KubernetesEndpoints

            try:
                cluster = KubernetesEndpoints(source.access(), self._fleet, source)
            except SettingError as fault:
                raise SettingError(str(fault), setting=f"kubernetes[{index}]") from None
            # Sources with different ports or clusters can have the same labels or pool.
            names[cluster.source] += 1
            if (nth := names[cluster.source]) > 1:
                cluster.source += f" ({nth})"
            self._clusters[cluster.source] = cluster

    def start(self, tasks: Tasks) -> None:
        """Start all collectors; call `prepare` first."""
        tasks.spawn("resolve", self.resolver.run)
        tasks.spawn("kv-events", self._read_kv_events)
        if self._file is not None:
            tasks.spawn("endpoints file", self._file.run)
        for name, cluster in self._clusters.items():
            tasks.spawn(name, cluster.run)
        self._start_visits(tasks)
        self._health.questions.are_asked = True
        tasks.spawn("ask", partial(keep_asking, self._to_ask))
        tasks.spawn("compare", partial(keep_asking, self._to_compare, most=_MAX_COMPARED))

    async def _read_kv_events(self) -> None:
        """Read KV events once an endpoint publishes them; report if the package is missing."""
        while True:
            labeled = [spec.address for spec in self._targets() if EVENTS_LABEL in spec.labels]
            known = any(EVENTS_LABEL in spec.labels for spec in self._fleet.publishing())
            if known and find_spec("zmq"):  # from the extra `kv-events`, which few fleets need
                from laar.datalayer.kv_events import KvEvents

                await KvEvents(self._fleet.publishing, self._fleet).run()
            problem = labeled and (
                f"{len(labeled)} endpoints have the label {EVENTS_LABEL} (such as {labeled[0]}), "
                f"and the packages that read KV events are not installed; {install('kv-events')}"
            )
            self._fleet.problem(Fault.KV_EVENTS, problem or None)
            await asyncio.sleep(until_look_s(_LOOK_S))

    def have_listed(self) -> bool:
        """Return whether every cluster has listed its endpoints at least once."""
        return self._fleet.has_all_of(self._clusters.keys())

    def _start_visits(self, tasks: Tasks) -> None:
        readings, common = self._settings.readings, self._common
        scrape_s = partial(self.interval_s, readings.scrape_interval_s, STALE_S)
        probe_s = partial(self.interval_s, readings.probe_interval_s, STALE_AFTER_S)
        for visits in (
            Scraper(self._targets, self._fleet, interval_s=scrape_s, **common),
            self.names,
            Prober(
                self._targets,
                self._fleet,
                interval_s=probe_s,
                answered_at=self._answered_at,
                **common,
            ),
        ):
            tasks.spawn(visits.kind, visits.run)

    def with_route(self, route: str, name: str) -> frozenset[str] | None:
        """Return the endpoints that may serve an API route, if the name leaves a choice."""
        aliases = self._director.settings.aliases
        is_virtual = not name or name in aliases
        return self.names.with_route(route, aliases.get(name, ())) if is_virtual else None

    def interval_s(self, set_s: float, stale_s: float) -> float:
        """Return the seconds between visits to an endpoint: as configured, or more while idle.

        It is not lengthened beyond half of `stale_s`, so that idleness makes no reading stale.
        """
        factor = _AT_REST if self._is_at_rest() else 1.0
        return max(set_s, min(factor * set_s, stale_s / 2))

    def _answered_at(self, spec: EndpointSpec) -> float:
        table = self._table
        times = (table.answered_at.item(slot) for slot in table.named(spec.address))
        return max((at for at in times if not math.isnan(at)), default=-math.inf)

    def _targets(self) -> Sequence[EndpointSpec]:
        """Return one endpoint per address, since its ranks share pages and connections."""
        return [spec for spec in self._table.specs() if not spec.rank]

    def _report_suspects(self) -> None:
        """Report what requests fail with, besides endpoints."""
        found = {
            f"{name} {'' if name == 'client' else value}".strip(): (
                f"requests with it fail ({one.failed} of {one.attempts}), at any endpoint, and "
                "others do not"
            )
            for (name, value), one in self._health.suspects.culprits.items()
            if name != ENDPOINT
        }
        self._tell(Fault.SUSPECT, found)

    def _report_plugins(self) -> None:
        """Report what plug-ins found."""
        own = (Fault.ENDPOINT, Fault.SUSPECT, Fault.PACE, Fault.FULL)
        found: dict[Fault, dict[str, str]] = {of: {} for of in self._told if of not in own}
        for fault, name, text in chain.from_iterable(self._director.plugins.each("problems")):
            found.setdefault(fault, {})[name] = text
        for fault, of_fault in found.items():
            self._tell(fault, of_fault)

    def _tell(self, fault: Fault, found: dict[str, str]) -> None:
        """Report what was found, by name, and clear what no longer is."""
        told = self._told.get(fault, {})
        for name in told.keys() | found.keys():
            is_gone = fault not in (Fault.SUSPECT, Fault.FULL) and self._table.slot(name) < 0
            if found.get(name) != told.get(name):
                self._fleet.problem(fault, found.get(name, "" if is_gone else None), name)
        self._told[fault] = found

    def _report_out(self, running: Slots, now: float) -> None:
        """Report endpoints that have stopped receiving requests, or receive them again."""
        table, health = self._table, self._health
        out, told = {}, self._told.get(Fault.ENDPOINT, {})
        for slot in filter(running.__contains__, health.records.outliers):
            key, state = table.spec(slot).key, health.state(slot, now)
            if state == "failing" or (state == "on trial" and key in told):
                out[key] = f"takes no requests: {health.fault(slot)}"
        self._tell(Fault.ENDPOINT, out)
        paces = self._director.engines.paces.relative()
        slow = (table.spec(slot).key for slot in running.tolist() if paces[slot] >= SLOW_PACE)
        self._tell(Fault.PACE, dict.fromkeys(slow, _SLOWER))
        self._tell(Fault.FULL, self._fleet.full(now))

    def _to_ask(self, most: int) -> list[Asking]:
        table, questions, now = self._table, self._health.questions, self._clock()
        running = table.active[awake(table, table.active, now)]
        self._report_out(running, now)
        self._report_suspects()
        self._report_plugins()
        due: list[Asking] = []
        for slot in questions.due(now, most):
            if slot in running:
                due.append(partial(self._ask, table.spec(slot)))
            else:  # asleep, or removed while requests were in flight; it may return
                questions.answered(slot, None, now, None)
        return due

    def _to_compare(self, most: int) -> list[Asking]:
        doubts = self._health.questions.doubts
        return [partial(self._compare, *doubts.pop()) for _ in range(min(most, len(doubts)))]

    async def _compare(self, slot: int, name: str, session: ClientSession) -> None:
        """Withhold a model from an endpoint that fails requests for it while another answers them.

        Unless the endpoint refuses with 400, 404 or 422, it must answer for its main model:
        otherwise it is down, or requires a client's key. It is compared with the endpoint that last
        answered for the model, since others may fail too.
        """
        table, own, lacks = self._table, self._table.by_slot.get(slot), False
        known = self._health.records.endpoints

        def proved_at(at: int) -> float:
            return known[at].proved_at.get(name, 0.0) if at in known else 0.0

        while own is not None:
            listed = table.by_slot.items()
            others = [at for at, s in listed if name in s.models and s.address != own.address]
            self._director.chooser.rng.shuffle(others)
            other = table.by_slot.get(max(others, key=proved_at, default=slot), own)
            specs = replace(own, models=(name,)), replace(other, models=(name,)), own
            asked = await asyncio.gather(*(ask(session, spec) for spec in specs))
            found, control, main = (each.verdict for each in asked)
            refuses = asked[0].reply is not None and asked[0].reply.status in (400, 404, 422)
            fails = refuses or (main == GOOD and found not in (GOOD, Kind.FULL))
            answers = lacks or control == GOOD
            lacks = table.withhold(own.address, name, lacks=fails and answers and bool(others))
            problem = "gets no requests for this model: it fails them, but another endpoint answers"
            self._fleet.problem(Fault.ENDPOINT, problem if lacks else None, f"{own.address} {name}")
            if not lacks:
                break
            await asyncio.sleep(_COMPARE_AGAIN_S)

    async def _ask(self, spec: EndpointSpec, session: ClientSession) -> None:
        asked = await ask(session, spec)
        table, now = self._table, self._clock()
        slot = table.slot_counted(spec.key)
        if slot < 0:
            return
        failed = asked.failed
        if failed is Kind.HANG and table.lateness.spoils(TIMEOUT_S, now):
            failed = None
        elif failed is None and asked.reply is None and not table.takes[slot]:
            # Perhaps only the picker can't reach it. Count it as failed anyway: trying a prefiller
            # costs a client its answer, since Envoy's retries all use the same prefiller.
            failed = Kind.STATUS
        self._health.questions.answered(slot, asked.reply, now, failed, refused=asked.refused)


def must_exist(endpoints_file: Path) -> None:
    """Raise `SettingError`, which names the setting and a fix, if a file does not exist."""
    if not endpoints_file.is_file():
        raise SettingError(
            f"{endpoints_file} is not a file; `laar init --endpoint URL` writes one from running "
            "engines",
            setting="endpoints_file",
        )

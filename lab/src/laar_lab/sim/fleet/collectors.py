"""Collectors of a virtual fleet, whose scrapes, probes and events are delayed as in production.

Unlike the product's, their intervals have no jitter; random phases spread the readings instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from laar.core.director import Director
from laar.fleet.endpoints import Reading
from laar.prefix.match import Grid
from laar_lab.sim.engine import KvEvent, Load
from laar_lab.sim.fleet.clock import VirtualClock
from laar_lab.sim.fleet.kv_events import follow
from laar_lab.sim.fleet.link import Link, generator
from laar_lab.sim.fleet.site import EngineHost, Site


class Collectors:
    """Scrapes and probes every endpoint in the background of a run, and follows its KV events.

    It starts as if it had been running: everything has been read once, and later readings are
    spread out.

    Args:
        clock: clock of the run.
        sites: the endpoints.
        hosts: their engines, by name.
        links: the network paths to them, by name.
        directors: directors to which each reading is passed.
        reads_states: whether a page tells the picker where the engine keeps states.
        follows_events: whether the picker follows KV events, which the engines must report.
        scrape_interval_s: seconds between two scrapes of an engine.
        probe_interval_s: seconds between two round-trip probes.
        seed: seed of the run.
    """

    def __init__(
        self,
        clock: VirtualClock,
        sites: Sequence[Site],
        hosts: Mapping[str, EngineHost],
        links: Mapping[str, Link],
        directors: Sequence[Director],
        *,
        reads_states: bool,
        follows_events: bool,
        scrape_interval_s: float,
        probe_interval_s: float,
        seed: int,
    ) -> None:
        self._clock = clock
        self._sites = {site.name: site for site in sites}
        self._hosts = hosts
        self._links = links
        self._directors = directors
        self._reads_states = reads_states
        self._scrape_s = scrape_interval_s
        self._probe_s = probe_interval_s
        self._starts = dict.fromkeys(self._sites, 0)
        self._probes = {name: generator(seed, f"probe {name}") for name in self._sites}
        self.on_reading: list[Callable[[], None]] = []
        """Called after each reading."""
        phases = generator(seed, "phases")
        for name in self._sites:
            self._read(name, self._hosts[name].load())
            self._measured(name, self._round_trip_s(name))
            self._clock.later(phases.random() * scrape_interval_s, self._scrape, name)
            self._clock.later(phases.random() * probe_interval_s, self._probe, name)
            if follows_events:
                self._follow(name, (KvEvent("cleared"),))
                self._hosts[name].on_events = partial(self._publish, name)

    def _round_trip_s(self, name: str) -> float:
        return self._links[name].rtt_s(self._clock.now, self._probes[name].gauss(0.0, 1.0))

    def _scrape(self, name: str) -> None:
        """Render the page half a round trip from now, and read it after another half."""
        now, half = self._clock.now, 0.5 * self._round_trip_s(name)
        self._clock.later(now + half, self._page, name, half)
        self._clock.later(now + self._scrape_s, self._scrape, name)

    def _publish(self, name: str, events: Sequence[KvEvent]) -> None:
        half = 0.5 * self._round_trip_s(name)
        self._clock.later(self._clock.now + half, self._follow, name, events)

    def _follow(self, name: str, events: Sequence[KvEvent]) -> None:
        for director in self._directors:
            if director.table.slot(name) >= 0:
                follow(director, name, self._sites[name].engine.settings, events)

    def _page(self, name: str, half: float) -> None:
        if not self._hosts[name].down:
            self._clock.later(self._clock.now + half, self._read, name, self._hosts[name].load())

    def _read(self, name: str, load: Load) -> None:
        settings = self._sites[name].engine.settings
        reading = Reading(
            waiting=load.waiting,
            running=load.running,
            kv_usage=load.kv_usage,
            capacity_tokens=settings.num_blocks * settings.block_size,
        )
        grid = None
        if self._reads_states and settings.state_groups:
            grid = Grid(settings.block_size, settings.block_size)
        starts, before = self._hosts[name].starts, self._starts[name]
        self._starts[name] = starts
        for director in self._directors:
            slot = director.table.read(name, reading, self._clock.now)
            if slot < 0:
                continue
            if starts > before:
                director.engines.restarted(slot)
            # vLLM's KV in use grows with each step; `load` counts a prompt's KV at admission.
            director.health.read(slot, self._hosts[name].worked_s, 0.0, self._clock.now)
            if director.prefixes is not None:
                if starts > before:
                    director.prefixes.restarted(slot)
                director.prefixes.set_capacity(slot, reading.capacity_tokens)
                director.prefixes.states.use(slot, grid)
            is_idle = slot in director.table.draining and load.waiting + load.running <= 0.0
            if is_idle and not director.holds(slot, self._clock.now):
                director.table.leave_out(name)
        for on_reading in self.on_reading:
            on_reading()

    def _probe(self, name: str) -> None:
        now, rtt_s = self._clock.now, self._round_trip_s(name)
        self._clock.later(now + rtt_s, self._measured, name, rtt_s)
        self._clock.later(now + self._probe_s, self._probe, name)

    def _measured(self, name: str, rtt_s: float) -> None:
        answered_s = None if self._hosts[name].down else rtt_s
        for director in self._directors:
            director.table.round_trip(name, answered_s, self._clock.now)

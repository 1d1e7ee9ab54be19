"""The picker as an object: built from its settings, without ports, tasks or sockets.

`laar serve` runs it (`laar.server.runner`), `laar explain` uses it for a single decision, and tests
inspect it. Construction is synchronous; `apply` changes the settings that need no restart.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING

from laar.accuracy.capability import CapabilityModel
from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.core.interfaces import PartFailure
from laar.core.policy import Policy
from laar.faults import Fault
from laar.fleet.endpoints import EndpointTable, Reading
from laar.flow.admission import Admission, Waited
from laar.health import Health
from laar.policies import build_plugins, build_policies
from laar.policies.guarding import BrokenPromiseError
from laar.prefix.beliefs import PrefixBeliefs
from laar.protocol.rules import GatewayRules
from laar.protocol.sampling import Sampler
from laar.protocol.stream import HeldBytes
from laar.server.context_hooks import ContextHooks
from laar.server.learning import Learning
from laar.settings import Settings
from laar.settings.routing import Routing
from laar.settings.section import part
from laar.sharing.settings import SharingSettings
from laar.telemetry.metrics import Metrics
from laar.telemetry.observability import Observability
from laar.telemetry.pools import PoolMetrics
from laar.telemetry.problems import Problems

if TYPE_CHECKING:
    from laar.server.reload import SettingsReloader
    from laar.server.sharing.sharer import Sharer
    from laar.server.sharing.store import Store

_REST_AFTER_S = 10.0
"""Seconds with no decisions and nothing in flight after which a picker is idle."""


class Picker:
    """Everything that makes decisions, learns from them or reports them.

    Args:
        seed: seed of all random draws; None means a random seed.
        snapshot: file for snapshots of learned state if the settings name neither a store nor a
            file; None disables snapshots.

    Raises:
        SettingError: an artifact, an export or a store in the settings cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        snapshot: Path | None = None,
    ) -> None:
        self.settings = settings
        self.problems = Problems()
        self.clock = clock
        self.rng = rng = random.Random(seed)
        self._faulty: set[str] = set()
        self.table = EndpointTable()
        self.learning = Learning(settings.accuracy, clock)
        self.prefix_key = rng.randbytes(16)
        self.prefixes = PrefixBeliefs(key=self.prefix_key, max_bytes=settings.prefix.max_bytes)
        self.health = Health(settings.health.breaker, rng=rng)
        self.doubt_names: Callable[[str], None] = lambda _address: None
        """Schedules a refresh of the models of an endpoint, or of all if the address is empty."""
        self.with_route: Callable[[str, str], frozenset[str] | None] = lambda _route, _name: None
        """Returns the endpoints that may serve an API route, if the name leaves a choice."""
        self.director = self._director()
        self.director.engines.reassess(self.learning.assessor.capability.speed)
        self.admission: Admission | None = None
        flow = settings.flow
        if flow.enabled or flow.admission.max_hold_s:
            self.admission = Admission(self.director, flow.admission, by_load=flow.enabled)
            self.admission.epoch_s = time.time() - clock()
        self.sharer = self._sharer(snapshot)
        self.rules = GatewayRules(rng)
        self.held = HeldBytes(0)
        self.metrics = Metrics()
        self.pools = PoolMetrics(
            self.director, flow.admission, admission=self.admission, clock=clock
        )
        self.observability = Observability(
            self.director,
            self.learning.reports,
            self.metrics,
            self.problems,
            clock=clock,
            about=self._about,
            log=settings.decisions.log,
        )
        self._watch()
        self.context = ContextHooks(
            settings,
            clock=clock,
            problems=self.problems,
            faults=self.director.degraded,
            sharing=None if self.sharer is None else self.sharer.sharing,
        )
        self.sampler = Sampler(0.0, every_s=0.0, rng=rng)
        self._apply_bodies(settings)
        self.reloader: SettingsReloader | None = None
        """Watches the settings files while the picker serves."""

    def apply(
        self,
        settings: Settings,
        capability: CapabilityModel,
        policies: Mapping[str, Policy] | None,
    ) -> None:
        """Apply new settings. Synchronous: no request sees a partial change.

        Args:
            settings: the new settings, without changes to those that need a restart.
            capability: their artifact.
            policies: their policies; None if `routing` is unchanged. They keep their state unless
                the parameters of a policy have changed.
        """
        before, self.settings = self.settings, settings
        self.context.apply_settings(settings)
        if policies is None:
            policies = self.director.chooser.policies
        else:
            if _parameters(before.routing) == _parameters(settings.routing):
                kept = self.director.chooser.policies
                policies = {name: kept.get(name, fresh) for name, fresh in policies.items()}
            for name in self._faulty:
                self.problems.report(Fault.DEGRADED, None, name)
            self._faulty.clear()
        self.director.use(settings.routing.director, policies)
        self.director.plugins.use(*settings.routing.of_plugins)
        if capability.digest != self.learning.assessor.capability.digest:
            self.learning.assessor.use(capability)
            self.director.engines.reassess(capability.speed)
        self.check_artifact()
        self.health.settings = settings.health.breaker
        self._apply_bodies(settings)
        self.pools.settings = settings.flow.admission
        if self.admission is not None:
            self.admission.use(settings.flow.admission)

    def check_artifact(self) -> None:
        """Report an artifact that does not fit the served models and adapters."""
        adapters = (spec.adapters for spec in self.table.specs())
        served = [*self.table.models, *sorted(set().union(*adapters))]
        artifact = self.settings.accuracy.capability
        fault = self.learning.fault_of_artifact(artifact, served)
        self.problems.report(Fault.ARTIFACT, fault)

    def waited(self, outcome: Waited) -> None:
        """Record the outcome of a wait in flow control."""
        self.metrics.held_s.observe(outcome.waited_s)
        self.pools.waited(outcome)

    def reading(self, key: str, reading: Reading) -> None:
        """Record a reading of an endpoint's metrics page; called after the table is updated."""
        self.observability.page.read(key, reading)
        slot = self.table.slot(key)
        if reading.restarted and slot >= 0:
            self.health.died(slot, self.clock())
            self.director.plugins.ask("restarted", slot)
            self.director.engines.restarted(slot)
        self.health.read(slot, reading.kv_usage, reading.refused, self.clock())
        self.director.plugins.ask("read", slot, reading)
        beliefs = self.prefixes
        # Without a capacity, the cached content is a guess. Orders are kept by address.
        if self.context.in_use is not None and not math.isnan(reading.capacity_tokens):
            address = self.table.spec(slot).address
            self.context.forget(address, min(map(beliefs.oldest_at, self.table.named(address))))

    def _about(self) -> dict[str, object]:
        """Return what the live page shows of parts other than the director."""
        routing, gate = self.settings.routing, self.admission
        return {
            "policy": routing.director.policy,
            "enforced": routing.enforcement.share,
            "calibrated": self.learning.calibrated(self.table.models),
            "sharing": self.sharer.shown() if self.sharer else None,
            "waiting_turns": len(gate.waiting_contexts()) if gate else 0,
            "holds": gate.bearing.ended if gate else {},
            "hold_s": gate.hold_s(self.clock()) if gate else {},
            "waiting": gate.queue.waiting if gate else 0,
            "drained": sorted(self.table.drained),
        }

    # -- parts ---------------------------------------------------------------------------------

    def _director(self) -> Director:
        routing = self.settings.routing
        director = Director(
            self.table,
            build_policies(routing.weights, routing.given, routing.policies),
            routing.director,
            rng=self.rng,
            plugins=build_plugins(routing.plugins),
            new_id=partial(secrets.token_hex, 16),
            assessor=self.learning.assessor,
            prefixes=self.prefixes,
            health=self.health,
            on_fault=self._part_failed,
        )
        director.plugins.use(*routing.of_plugins)
        return director

    def _sharer(self, snapshot: Path | None) -> Sharer | None:
        """Return a sharer for the store, or else for a snapshot file; None if neither is set."""
        share = self.settings.share
        snapshot = share.snapshot_file or snapshot
        if share.url is None and snapshot is None:
            return None
        from laar.server.sharing.sharer import Sharer, new_origin, secret_of
        from laar.sharing.sharing import Sharing

        origin, secret = new_origin(), secret_of(share)
        store: Store | None = None
        if share.url is not None:
            from laar.server.sharing.store import Store

            store = Store(share, part(SharingSettings, share), origin=origin, secret=secret)
        sharing = Sharing(
            self.director,
            part(SharingSettings, share),
            origin=origin,
            key=secret or self.prefix_key,
            wall_clock=time.time,
            online=self.learning.online,
            reports=self.learning.reports if store is not None else None,
        )
        if store is not None:
            tag, prefixes = sharing.tag, sharing.prefixes
            self.director.new_id = lambda: tag + secrets.token_hex(16)
            if self.admission is not None and prefixes is not None:
                self.admission.on_turn, prefixes.on_turn = prefixes.turn, self.admission.heard
        return Sharer(
            sharing,
            store,
            snapshot_file=snapshot,
            has_secret=secret is not None,
            clock=self.clock,
            problems=self.problems,
        )

    def _apply_bodies(self, settings: Settings) -> None:
        bodies = settings.bodies
        self.held.limit_bytes = bodies.max_held_bytes
        self.health.reads = bodies.sample_answers > 0
        self.sampler.share, self.sampler.every_s = bodies.sample_answers, bodies.sample_every_s

    def is_at_rest(self) -> bool:
        """Return whether nothing is in flight and no decision was made recently."""
        idle_s = self.clock() - self.observability.memory.decided_at
        return not self.metrics.streams_open and idle_s > _REST_AFTER_S

    # -- from the director ---------------------------------------------------------------------

    def _watch(self) -> None:
        """Register the observers of decisions and completions; they are called in this order."""
        watch, memory = self.director.watch, self.observability.memory
        watch(settled=self._doubt_names)
        watch(self.learning.decided, self.learning.settled)
        watch(self.pools.decided)
        watch(self.metrics.decided)
        watch(memory.decided, memory.settled)
        watch(self.observability.history.decided)

    def _doubt_names(self, decision: Decision, end: Completion) -> None:
        spec = self.table.by_slot.get(decision.flight.slot)
        if end.status == HTTPStatus.NOT_FOUND and spec is not None:
            self.doubt_names(spec.address)
            if self.table.weights(decision.request.model):  # an adapter may have moved
                self.doubt_names("")

    def _part_failed(self, failure: PartFailure) -> None:
        """Report the part and line of an error, but not its text, which may contain a prompt."""
        error = failure.error
        what = type(error).__name__
        if isinstance(error, BrokenPromiseError):
            what = str(error)
        elif error.__traceback__ is not None:
            *_, last = walk_tb(error.__traceback__)
            what += f" at {last[0].f_code.co_filename}:{last[1]}"
        name = getattr(failure.extension, "name", type(failure.extension).__name__)
        self._faulty.add(part := f"{failure.part} {name}")  # bounded by the number of parts
        problem = f"failed, and the decision was made without it: {what}"
        self.problems.report(Fault.DEGRADED, problem, part)


def _parameters(routing: Routing) -> tuple[object, ...]:
    return routing.weights, routing.baselines, routing.policies

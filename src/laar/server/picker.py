"""The picker as an object: built from its settings, without ports, tasks or sockets.

`laar serve` runs it (`laar.server.runner`), `laar explain` asks it one question, and tests look
into it. Building is synchronous; afterwards `apply` changes the settings that may change at once.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Mapping

from laar.accuracy.capability import CapabilityModel
from laar.core.beliefs import BYTES_PER_TOKEN, PrefixBeliefs
from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.core.endpoints import EndpointTable, Reading
from laar.core.interfaces import NoPrefixes, Prefixes
from laar.core.policy import Policy
from laar.core.shadow import EnforcedShare
from laar.flow.admission import Admission
from laar.health import Health
from laar.policies import build_policies
from laar.protocol.sampling import Sampler
from laar.protocol.stream import HeldBytes
from laar.server.admin.observability import Observability
from laar.server.admin.tuner import TunerKeeper
from laar.server.cluster_rules import ClusterRules
from laar.server.context_hooks import ContextHooks
from laar.server.learning import Learning
from laar.settings import Settings
from laar.telemetry.context import ContextMetrics
from laar.telemetry.flow import FlowMetrics
from laar.telemetry.health import HealthMetrics
from laar.telemetry.learning import LearningMetrics
from laar.telemetry.metrics import Metrics
from laar.telemetry.problems import Problems

__all__ = ["Picker"]


class Picker:
    """Everything that decides, and everything that learns from it or reports it.

    Args:
        settings: of the picker.
        problems: gets the faults of the parts; None for a log of its own.
        seed: of every random draw; None for chance.
        clock: monotonic seconds.

    Raises:
        SettingError: an artifact or an export that the settings name cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        problems: Problems | None = None,
        *,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.problems = problems if problems is not None else Problems()
        self.clock = clock
        self.rng = rng = random.Random(seed)
        self.metrics = Metrics(problems=self.problems)
        self.held = HeldBytes(settings.bodies.max_held_bytes)
        self.metrics.held_body_bytes = lambda: self.held.now_bytes
        self.table = EndpointTable()
        self.learning = Learning(
            settings.accuracy, clock=clock, wall_clock=time.time, problems=self.problems
        )
        self.prefixes: Prefixes = (
            PrefixBeliefs(key=rng.randbytes(16), max_bytes=settings.prefix.max_bytes)
            if settings.prefix.enabled
            else NoPrefixes()
        )
        self.tuner = (
            TunerKeeper(settings.tuner, settings.routing.weights.tunable(), problems=self.problems)
            if settings.tuner.enabled
            else None
        )
        self.health = Health(settings.health.breaker, rng=rng)
        self.director = self._director()
        self.metrics.director = self.director
        self.rules = ClusterRules(rng)
        self._add_learning_metrics()
        self.observability = Observability(
            settings,
            self.director,
            self.metrics,
            self.learning.reports,
            self.rules,
            clock=clock,
            rng=rng,
            problems=self.problems,
        )
        self.context = ContextHooks(
            settings, clock=clock, rng=rng, degraded=self.director.degraded, problems=self.problems
        )
        self.admission: Admission | None = None
        self.flow_metrics: FlowMetrics | None = None
        if settings.flow.enabled:
            self.admission = Admission(self.director, settings.flow.admission)
            self.flow_metrics = FlowMetrics(self.admission)
            self.metrics.add(self.flow_metrics)
        self.metrics.add(ContextMetrics(self.context.tallies))
        self.enforced = EnforcedShare(settings.routing.enforcement.share)
        self.sampler = Sampler(
            settings.bodies.sample_answers, every_s=settings.bodies.sample_every_s, rng=rng
        )
        self.enforced = EnforcedShare(settings.routing.enforcement.share)
        self._apply_bodies(settings)

    def explain(self, body: bytes, headers: Mapping[str, str]) -> dict[str, object]:
        """The record of the decision on a request as it would fall now; reserves nothing.

        Args:
            body: of the request.
            headers: of the request, in lower case; a missing ``:path`` is inferred from the body.

        Raises:
            RequestError: the request would be refused.
        """
        return self.observability.explainer.explain(body, headers)

    def apply(self, settings: Settings, capability: CapabilityModel | None = None) -> None:
        """Applies new settings. Synchronous: no request sees a partial change.

        Args:
            settings: of the picker; those that need a restart are unchanged.
            capability: another artifact; None keeps the present one.
        """
        before, self.settings = self.settings, settings
        self.context.apply_settings(settings)
        self.director.use(settings.routing.director, self._policies(before))
        if capability is not None:
            self.learning.use(capability)
        self.health.settings = settings.health.breaker
        self.enforced.share = settings.routing.enforcement.share
        self._apply_bodies(settings)
        self.enforced.share = settings.routing.enforcement.share
        if self.admission is not None:
            self.admission.use(settings.flow.admission)
        self.observability.apply(settings)

    def reading(self, address: str, reading: Reading) -> None:
        """Takes the numbers of an endpoint's metrics page, once the table has them."""
        self.observability.hit_rates.read(address, reading)
        if self.context.in_use is not None:  # sums up all endpoints for each one's reading
            tokens = self.table.cache_tokens()
            self.context.set_capacity(None if math.isnan(tokens) else tokens * BYTES_PER_TOKEN)

    # -- parts ---------------------------------------------------------------------------------

    def _director(self) -> Director:
        routing = self.settings.routing
        return Director(
            self.table,
            build_policies(routing.weights, routing.baselines),
            routing.director,
            rng=self.rng,
            new_id=lambda: secrets.token_hex(16),
            assessor=self.learning.assessor,
            prefixes=self.prefixes,
            tuner=self.tuner.tuner if self.tuner else None,
            health=self.health,
            on_decided=self._decided,
            on_settled=self._settled,
        )

    def _add_learning_metrics(self) -> None:
        learning = self.learning
        self.metrics.add(HealthMetrics(self.health, self.table, clock=self.clock))
        self.metrics.add(
            LearningMetrics(
                learning.reports, learning.online, learning.latency, learning.assessor.task_names
            )
        )

    def _policies(self, before: Settings) -> dict[str, Policy]:
        """The policies by name; those whose settings are unchanged keep their state."""
        policies = dict(self.director.policies)
        old, new = before.routing, self.settings.routing
        changed = {
            name
            for name in old.baselines.keys() | new.baselines.keys()
            if old.baselines.get(name) != new.baselines.get(name)
        }
        if new.weights != old.weights:
            changed.add("laar")
        if changed:
            fresh = build_policies(new.weights, new.baselines)
            policies |= {name: fresh[name] for name in changed}
        return policies

    def _apply_bodies(self, settings: Settings) -> None:
        bodies = settings.bodies
        self.held.limit_bytes = bodies.max_held_bytes
        self.health.reads = bodies.sample_answers > 0
        self.sampler.share, self.sampler.every_s = bodies.sample_answers, bodies.sample_every_s

    # -- from the director ---------------------------------------------------------------------

    def _decided(self, decision: Decision) -> None:
        self.metrics.decided(decision)
        self.learning.decided(decision)
        self.observability.decided(decision)

    def _settled(self, decision: Decision, end: Completion) -> None:
        self.metrics.settled(decision, end)
        self.learning.settled(decision, end)
        self.observability.settled(decision, end)

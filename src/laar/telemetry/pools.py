"""A pool's shortage of capacity, for autoscalers: seconds of waiting work, late first tokens.

Work waits at endpoints (unread prompts, at the endpoint's learned prefill speed) and in flow
control. Both are in seconds of one engine: the sum over a pool, divided by the number of its
endpoints, is how long the engines are busy when a new request arrives.

A request is counted as late at its decision, so the signal rises before answers are late.
Objectives are those of flow control, even while it is off. Policies without a cost predict no TTFT.

A pool's name is its endpoints' `laar.dev/pool` label, or empty. For requests to a virtual name, the
model is the chosen one, or empty while they are held. Names of removed endpoints are kept, because
requests held for them signal that an endpoint should be started again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from laar.core.decision import Decision
from laar.core.director import Director
from laar.fleet.membership import POOL_LABEL
from laar.flow.queue import CANCELLED
from laar.flow.settings import FlowSettings
from laar.policies.laar.pricing import backlog_of

if TYPE_CHECKING:
    from laar.flow.admission import Admission, Waited

MAX_POOLS = 1024
"""Maximum number of pairs of pool and model, whose names come and go with endpoints."""

_Pool = tuple[str, str]


@dataclass(eq=False, repr=False)
class PoolMetrics:
    """Counts decisions; computes the other values at each scrape.

    Args:
        director: source of the endpoints and engines.
        settings: flow control settings, for the TTFT objectives.
        admission: flow control; None if it is off.
    """

    director: Director
    settings: FlowSettings
    clock: Callable[[], float]
    admission: Admission | None = None

    def __post_init__(self) -> None:
        self._requests: Counter[_Pool] = Counter()
        self._late: Counter[_Pool] = Counter()
        self._seen: set[_Pool] = set()

    def decided(self, decision: Decision) -> None:
        """Count a decision."""
        expected = self._expected(decision)
        if expected is None or decision.request.shadow:
            return
        ttft_s, objective_s = expected
        self._count(decision, self._requests)
        if ttft_s > objective_s:
            self._count(decision, self._late)

    def waited(self, outcome: Waited) -> None:
        """Count a held request as late if the wait, not known at the decision, makes it late."""
        decision = outcome.verdict
        if isinstance(decision, Decision):
            expected = self._expected(decision)
            if expected is not None and expected[0] <= expected[1] < expected[0] + outcome.waited_s:
                self._count(decision, self._late)

    def requests(self) -> Counter[_Pool]:
        """Return the number of requests with an expected TTFT, plus requests shed."""
        found = self._requests.copy()
        found.update(self._shed())
        return found

    def expected_late(self) -> dict[_Pool, int]:
        """Return the number of requests whose first token is expected late, plus requests shed."""
        late, shed = self._late, self._shed()
        return {pool: late[pool] + shed[pool] for pool in self.requests()}

    def _shed(self) -> Counter[_Pool]:
        """Return the number of requests shed for lack of capacity, immediately or after a wait."""
        if self.admission is None:
            return Counter()
        sheds = self.admission.queue.sheds.items()
        return Counter({("", ""): sum(n for why, n in sheds if why != CANCELLED)})

    def _expected(self, decision: Decision) -> tuple[float, float] | None:
        """Return the expected TTFT and its objective, in seconds."""
        view, at = decision.view, decision.position
        if view is None or view.terms is None or view.terms.ttft_s is None:
            return None
        alone_s = float(np.minimum.reduce(view.terms.prefill_s))
        request, settings = decision.request, self.settings
        if request.ttft_objective_s is None and not request.objective:  # the usual case
            objective_s = settings.objective_base_s + settings.objective_factor * alone_s
        else:
            objective_s = settings.objective_of(request, alone_s)
        return view.terms.ttft_s.item(at), objective_s

    def _count(self, decision: Decision, counts: Counter[_Pool]) -> None:
        spec = self.director.table.by_slot.get(decision.slot)
        if spec is None or spec.address != decision.address:  # the endpoint was removed
            return
        pool = spec.labels.get(POOL_LABEL, ""), decision.model
        if pool in self._requests or len(self._requests) < MAX_POOLS:
            counts[pool] += 1

    def work_s(self) -> dict[_Pool, float]:
        """Return the seconds of engine time that waiting prompts need."""
        table, engines, now = self.director.table, self.director.engines, self.clock()
        slots = table.active.copy()
        found: dict[_Pool, float] = {}
        if len(slots):
            c = engines.reads(slots)
            seconds = c * backlog_of(engines.traffic, slots, now).seconds_ahead(now, c)
            for slot, ahead_s in zip(slots.tolist(), seconds.tolist(), strict=True):
                spec = table.spec(slot)
                pool = spec.labels.get(POOL_LABEL, ""), spec.models[0]
                found[pool] = found.get(pool, 0.0) + ahead_s
        if len(self._seen) < MAX_POOLS:
            self._seen.update(found)
        known = {pool for pools, _ in self._seen.union(found) for pool in pools.split(",")}
        models = {model for _, model in self._seen.union(found)}
        for (name, model), held_s in self.admission.work_s().items() if self.admission else ():
            pool = name if name in known else "", model if model in models else ""
            found[pool] = found.get(pool, 0.0) + held_s
        return found

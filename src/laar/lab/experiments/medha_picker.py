"""Medha at the picker: the order of laar's own queue, engines left as vLLM ships them.

The load of `laar.lab.workloads.overload`, behind the product's director and flow control on a
virtual clock: a minute at 1.2 times what the fleet carries; then what waits is served or shed. The
same requests meet the queue in slack order, in order of arrival, and no queue at all. Order of
arrival is also shown with the rules for long prompts that slack order comes with (which endpoints
take them, and that a short one need not wait behind one that has no endpoint): how much those do,
and how much the order.

What the fleet carries is measured: thousands of requests all at once, by the time they take.
First tokens are seen of every answer, as in the gateway shape, and in one row of those alone that
the native shape reads by default: one in a hundred, and one a second.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from laar.core.cost import CostWeights
from laar.core.decision import Completion, Decision, DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointSpec, EndpointTable, Reading
from laar.core.request import Api, Request
from laar.errors import RequestError
from laar.flow.admission import Admission, FlowSettings
from laar.flow.item import Limits
from laar.lab.claims import Claim, Evidence, Seen
from laar.lab.experiment import FIRST_SEED, Experiment, Scope
from laar.lab.report import Report, Table, Value
from laar.lab.statistics import estimate
from laar.lab.sweep import sweep
from laar.lab.workloads.overload import (
    CLASSES,
    LOAD,
    MODEL,
    PROBE_POLICY,
    QUADRATIC_TOKENS,
    Ask,
    asks,
    assessor,
    overload,
    sites,
    weight,
)
from laar.policies import build_policies
from laar.protocol.sampling import Sampler
from laar.settings.reading import Bodies, Readings
from laar.sim.engine import Job
from laar.sim.fleet import EngineHost, VirtualClock

__all__ = ["EXPERIMENTS", "carried_per_s", "serve"]

_MINUTE_S = 60.0
_BODIES = Bodies()
_READ_EVERY_S = Readings().scrape_interval_s
_SAMPLED = "slack, 1 in 100 read"
_ROUTES = ("slack", _SAMPLED, "arrival, kept apart", "arrival", "no queue")
PROBE_REQUESTS = 3000
"""Enough for the last answers, when few are left and some endpoints are done, to count little."""
_NONE_IS_LONG = 1 << 30
_CHARS = 4


@dataclass(slots=True, kw_only=True)
class _Asked:
    """One request of the load, and what became of it."""

    ask: Ask
    request: Request
    ttft_s: float = math.inf
    shed: str = ""


@dataclass(slots=True, kw_only=True)
class Served:
    """One run: shares within the objective, and the rest of the picture.

    Args:
        within: share of all requests.
        by_class: the same by class.
        shed: share refused.
        longest_wait_s: of those served.
        left: requests that were never answered; 0 unless something leaks.
    """

    within: float
    by_class: dict[str, float]
    shed: float
    longest_wait_s: float
    left: int


def _asked(load: Sequence[Ask], policy: str = "") -> list[_Asked]:
    return [
        _Asked(
            ask=ask,
            request=Request(
                id=str(ask.number),
                api=Api.CHAT,
                model=MODEL,
                chars=_CHARS * ask.prompt_tokens,
                body_bytes=_CHARS * ask.prompt_tokens,
                tenant=ask.tenant,
                policy=policy,
                ttft_objective_s=ask.objective_s,
            ),
        )
        for ask in load
    ]


@dataclass(slots=True)
class _Fleet:
    """The director, flow control in front of it, and engines, on one clock."""

    route: str
    seed: int
    clock: VirtualClock = field(init=False)
    hosts: dict[str, EngineHost] = field(init=False)
    director: Director = field(init=False)
    admission: Admission = field(init=False)
    sampler: Sampler = field(init=False)
    waiting: dict[object, _Asked] = field(init=False)
    open: int = field(init=False)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.hosts = {site.name: EngineHost(self.clock, site.engine) for site in sites()}
        table = EndpointTable()
        table.replace("lab", [EndpointSpec(address=name, models=(MODEL,)) for name in self.hosts])
        self.director = Director(
            table,
            build_policies(CostWeights()),
            DirectorSettings(quadratic_tokens=QUADRATIC_TOKENS),
            rng=random.Random(f"{self.seed}/ties"),
            assessor=assessor(),
        )
        plain = self.route == "arrival"  # an order of arrival that knows nothing of lengths
        self.admission = Admission(
            self.director,
            FlowSettings(
                limits=Limits(order="lars" if self.route in ("slack", _SAMPLED) else "fcfs"),
                long_tokens=_NONE_IS_LONG if plain else FlowSettings().long_tokens,
            ),
        )
        self.sampler = Sampler(
            _BODIES.sample_answers if self.route == _SAMPLED else 1.0,
            every_s=_BODIES.sample_every_s,
            rng=random.Random(f"{self.seed}/read"),
        )
        self.waiting = {}
        self.open = 0

    def run(self, load: list[_Asked]) -> None:
        """Serves the load to its end."""
        self.open = len(load)
        for one in load:
            self.clock.at(one.ask.at_s, self._arrive, one)
        self.clock.later(0.0, self._read)
        self.clock.run()

    def _arrive(self, one: _Asked) -> None:
        one.request.first_token_seen = self.sampler.draw(self.clock.now)
        if self.route == "no queue":
            self._send(one, self.director.decide(one.request, self.clock.now))
            return
        try:
            answer = self.admission.ask(one.request, self.clock.now)
        except RequestError as error:
            self._refuse(one, error)
            return
        if isinstance(answer, Decision):
            self._send(one, answer)
        else:
            self.waiting[answer] = one
            self._dispatch()

    def _dispatch(self) -> None:
        for outcome in self.admission.dispatch(self.clock.now):
            one = self.waiting.pop(outcome.ticket)
            if isinstance(outcome.verdict, Decision):
                self._send(one, outcome.verdict)
            elif isinstance(outcome.verdict, RequestError):
                self._refuse(one, outcome.verdict)
            else:
                raise outcome.verdict

    def _refuse(self, one: _Asked, error: RequestError) -> None:
        one.shed = error.reason
        self.open -= 1

    def _send(self, one: _Asked, decision: Decision) -> None:
        def first(_cached_tokens: int) -> None:
            one.ttft_s = self.clock.now - one.ask.at_s
            if one.request.first_token_seen:
                self.director.answering(decision)
                self.admission.answering(decision, self.clock.now)
                self._dispatch()

        def end(_refusal: RequestError | None) -> None:
            done = Completion(status=200, cause="complete", latency_s=self.clock.now - one.ask.at_s)
            self.director.settle(decision, done)
            self.admission.ended(decision)
            self.open -= 1
            self._dispatch()

        job = Job(
            id=one.request.id,
            arrival_s=self.clock.now,
            prompt_tokens=one.ask.prompt_tokens,
            output_tokens=one.ask.output_tokens,
        )
        self.hosts[decision.address].submit(job, first, end)

    def _read(self) -> None:
        """Scrapes every endpoint, and looks at who may go."""
        now = self.clock.now
        for name, host in self.hosts.items():
            load = host.load()
            reading = Reading(waiting=load.waiting, running=load.running, kv_usage=load.kv_usage)
            self.director.table.read(name, reading, now)
        self._dispatch()
        self.clock.later(now + _READ_EVERY_S, self._read)


@lru_cache(maxsize=4)
def carried_per_s(requests: int = PROBE_REQUESTS) -> float:
    """What the fleet carries, by `weight`: so many requests all at once, by the time they take."""
    load = asks(math.inf, requests, FIRST_SEED)
    fleet = _Fleet("no queue", FIRST_SEED)
    fleet.run(_asked(load, PROBE_POLICY))
    return sum(map(weight, load)) / fleet.clock.now


def serve(route: str, seed: int, duration_s: float) -> Served:
    """One minute of overload by one route."""
    load = _asked(overload(carried_per_s(), duration_s, seed))
    fleet = _Fleet(route, seed)
    fleet.run(load)
    within = [one.ttft_s <= one.ask.objective_s for one in load]
    return Served(
        within=sum(within) / len(load),
        by_class={
            kind: sum(ok for ok, one in zip(within, load, strict=True) if one.ask.kind == kind)
            / max(1, sum(one.ask.kind == kind for one in load))
            for kind in CLASSES
        },
        shed=sum(bool(one.shed) for one in load) / len(load),
        longest_wait_s=max(one.ttft_s for one in load if one.ttft_s < math.inf),
        left=fleet.open + fleet.admission.queue.waiting + len(fleet.admission.prefills),
    )


def run_picker(scope: Scope) -> Report:
    """The same minutes by every route."""
    duration_s = 20.0 if scope.quick else _MINUTE_S
    cases = [(route, seed, duration_s) for route in _ROUTES for seed in scope.seeds]
    found = sweep(serve, cases, label="medha-picker")
    runs: dict[str, list[Served]] = {}
    for (route, _, _), one in zip(cases, found, strict=True):
        runs.setdefault(route, []).append(one)
    rows: list[tuple[Value, ...]] = [
        (
            route,
            estimate([one.within for one in runs[route]]),
            *(estimate([one.by_class[kind] for one in runs[route]]) for kind in CLASSES),
            estimate([one.shed for one in runs[route]]),
            estimate([one.longest_wait_s for one in runs[route]]),
        )
        for route in _ROUTES
    ]
    return Report(
        tables=[
            Table(
                title=f"{duration_s:.0f} s at {LOAD} times capacity, {len(sites())} endpoints",
                columns=("queue", "within", *CLASSES, "shed", "longest TTFT, s"),
                rows=rows,
                digits=3,
            )
        ],
        evidence=_evidence(runs),
    )


def _evidence(runs: dict[str, list[Served]]) -> Evidence:
    def within(ours: str, theirs: str) -> Seen:
        return Seen([one.within for one in runs[ours]], [one.within for one in runs[theirs]])

    return {
        "slack": {"": within("slack", "arrival")},
        "order-alone": {"": within("slack", "arrival, kept apart")},
        "goodput-kept": {
            kind: Seen(
                [one.by_class[kind] for one in runs["slack"]],
                [one.by_class[kind] for one in runs["arrival"]],
            )
            for kind in CLASSES
        },
        "sampled": {"": within(_SAMPLED, "slack")},
        "sampled-no-queue": {"": within(_SAMPLED, "no queue")},
        "nothing-left": {
            route: Seen([float(one.left) for one in runs[route]]) for route in _ROUTES
        },
    }


_WITHIN = "share within the objective"
CLAIMS = (
    Claim(
        name="slack",
        says="Slack order serves 25 % more within their objective than order of arrival",
        metric=f"{_WITHIN}, slack by arrival",
        effect="ratio",
        direction="above",
        bound=1.25,
        seeds=10,
    ),
    Claim(
        name="order-alone",
        says="It does so by its order alone, with like rules for long prompts",
        metric=f"{_WITHIN}, slack by arrival with long prompts kept apart",
        effect="ratio",
        direction="above",
        bound=1.25,
        seeds=10,
        why="All of the gain is that long and short prompts are kept apart.",
    ),
    Claim(
        name="goodput-kept",
        says="Each class keeps 90 % of its goodput in order of arrival",
        metric=f"{_WITHIN} of the class, slack by arrival",
        effect="ratio",
        direction="above",
        bound=0.9,
        seeds=10,
    ),
    Claim(
        name="sampled",
        says="With 1 answer in 100 read it serves 95 % of what it does with all read",
        metric=f"{_WITHIN}, sampled by all read",
        effect="ratio",
        direction="above",
        bound=0.95,
        seeds=10,
    ),
    Claim(
        name="sampled-no-queue",
        says="And no less than no queue, but for 1 %",
        metric=f"{_WITHIN}, sampled by no queue",
        effect="ratio",
        direction="above",
        bound=0.99,
        seeds=10,
    ),
    Claim(
        name="nothing-left",
        says="Every request is answered and nothing leaks",
        metric="requests left",
        effect="every",
        direction="below",
        bound=0.0,
        seeds=10,
    ),
)

EXPERIMENTS = (
    Experiment(
        name="medha-picker",
        minutes=0.06,
        claim="Slack order in the picker's queue helps engines that know nothing of it",
        source="Medha 4.1; laar's own set-up",
        run=run_picker,
        claims=CLAIMS,
    ),
)

"""A day of operation: mixed traffic, crashes, a deployment and scaling, in operators' metrics.

Each of 24 hours is compressed into a minute at that hour's rate (`laar_lab.workloads.day`), after
an initial hour that fills the caches and is not counted. Endpoints are added and removed by a
timetable that follows the load and is the same for every rule. Four endpoints crash, and from
mid-morning on all are replaced one by one. Outages are not compressed: a crashed engine is down for
30 s, which is half an hour of the day. So this day has far more trouble than a real one.

Every rule runs in the same picker, which names two fallbacks to Envoy, learns health from outcomes
and notices restarted engines. Only the choice of endpoint differs.

*Endpoints needed* comes from separate runs of the busiest hour, without incidents: the smallest
number of endpoints with a p95 TTFT of at most `OBJECTIVE_S`. It is found by binary search, on the
assumption that an additional endpoint does no harm.
"""

from __future__ import annotations

from itertools import product

from laar.accuracy.assessment import PlainAssessor
from laar.core.decision import DirectorSettings
from laar.errors import RequestError, SettingError
from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.policy_text import parse_policy
from laar_lab.report import Report
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    Operation,
    Turn,
    VirtualFleet,
    generator,
    request_of,
)
from laar_lab.suite import fleets
from laar_lab.suite.case import Numbers
from laar_lab.sweep import grid
from laar_lab.tally import Tally
from laar_lab.workloads.day import Day, Visit, visits

OURS = "laar"
RIVALS = ("llm-d", "llm-d-guide:prefill_tokens_per_s=0", "smg", "lmetric", "least-loaded")
_ENGINE = "llama-3-8b-a100"

_TIMETABLE = {0: 6, 7: 8, 9: 10, 19: 8, 22: 6}
"""Number of endpoints listed from each hour on."""
_CRASHES = (2.5, 8.5, 15.5, 20.5)
_DEPLOYMENT = 9.5
"""Hour at which the deployment begins, with ten endpoints listed."""
_DOWN_SHARE, _GRACE_SHARE = 1 / 2, 1 / 3
"""Shares of a minute: a crashed engine is back after 30 s, a removed engine has 20 s to finish."""

_BUSIEST = 11
_FEWEST_ENDPOINTS, _MOST_ENDPOINTS = 4, 20
OBJECTIVE_S = 1.5
"""Objective for the p95 TTFT of the busiest hour, in seconds."""

_QUICK_HOUR_S = 3.0
_QUICK_RIVALS = ("smg", "least-loaded")


class _Clients:
    """Sends the visits of a day and counts their results."""

    def __init__(self, fleet: VirtualFleet, day: Day, seed: int) -> None:
        self._fleet, self._day = fleet, day
        self._visits = visits(day, generator(seed, "load day"))
        self._sent = 0
        self.all = Tally()

    def begin(self) -> None:
        """Schedule the next visit."""
        visit = next(self._visits, None)
        if visit is not None:
            self._fleet.clock.at(visit.at_s, self._come, visit)

    def _come(self, visit: Visit) -> None:
        self.begin()
        self._next(visit)

    def _next(self, visit: Visit) -> None:
        turn = next(visit.turns, None)
        if turn is None:
            return
        due_s = self._fleet.clock.now + turn.after_answer_s
        if due_s < self._day.ends_s:
            self._fleet.clock.at(due_s, self._ask, visit, turn)

    def _ask(self, visit: Visit, turn: Turn) -> None:
        at_s = self._fleet.clock.now
        arrival = Arrival(at_s=at_s, prompt=turn.prompt, session=visit.session, kind=visit.kind)
        self._sent += 1

        def ended(exchange: Exchange) -> None:
            if self._day.hour(at_s) >= 0:
                self.all.add(arrival, exchange)
            self._next(visit)

        def refused(_error: RequestError) -> None:
            self._next(visit)

        self._fleet.enqueue(request_of(self._sent, arrival), turn.prompt, ended, refused)


def _fleet(policy: str, seed: int, endpoints: int) -> tuple[VirtualFleet, list[str]]:
    name, parameters = parse_policy(policy)
    sites = fleets.of_one(_ENGINE, endpoints)
    settings = FleetSettings(
        policy=name,
        parameters=parameters,
        fallbacks=DirectorSettings().fallbacks,
    )
    fleet = VirtualFleet(sites, settings, seed=seed, assessor=PlainAssessor())
    return fleet, [site.name for site in sites]


def _day(hour_s: float, policy: str, seed: int) -> Numbers:
    """Run the day under a rule."""
    day = Day(hour_s=hour_s)
    fleet, names = _fleet(policy, seed, max(_TIMETABLE.values()) + 1)
    operation = Operation(fleet, names, _TIMETABLE[0], generator(seed, "operation"))
    grace_s = _GRACE_SHARE * day.hour_s
    for hour, listed in _TIMETABLE.items():
        operation.scale(day.hour_s * (hour + 1), listed, grace_s)
    for crash_at in _CRASHES:
        operation.crash(day.hour_s * (crash_at + 1), _DOWN_SHARE * day.hour_s)
    operation.deploy(day.hour_s * (_DEPLOYMENT + 1), grace_s)
    clients = _Clients(fleet, day, seed)
    clients.begin()
    fleet.clock.run()
    numbers = clients.all.numbers()
    numbers["engine_s"] = sum(fleet.host(name).busy_s for name in names)
    return numbers


def _needed(hour_s: float, policy: str, seed: int) -> Numbers:
    """Return the fewest endpoints that meet the objective in the busiest hour."""
    day = Day(hour_s=hour_s, only_hour=_BUSIEST, hours=1)

    def is_enough(endpoints: int) -> bool:
        fleet, _ = _fleet(policy, seed, endpoints)
        clients = _Clients(fleet, day, seed)
        clients.begin()
        fleet.clock.run()
        return clients.all.ttft.percentile(0.95) <= OBJECTIVE_S

    few, enough = _FEWEST_ENDPOINTS, _MOST_ENDPOINTS
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if is_enough(middle) else (middle, enough)
    return {"endpoints": float(enough)}


def _one(part: str, hour_s: float, policy: str, seed: int) -> Numbers:
    return (_day if part == "day" else _needed)(hour_s, policy, seed)


_CLAIMED = {
    "ttft-p95": "ttft_p95_s",
    "e2e-p95": "e2e_p95_s",
    "hit-rate": "hit_rate",
    "engine-seconds": "engine_s",
    "endpoints": "endpoints",
}


def run_day(scope: Scope) -> Report:
    """Run the day under each rule, and find the number of endpoints that each needs."""
    hour_s = _QUICK_HOUR_S if scope.quick else Day().hour_s
    rivals = _QUICK_RIVALS if scope.quick else RIVALS
    ours, *others = policies = scope.policies or (OURS, *rivals)
    if not others:
        raise SettingError("give at least two policies; the first is judged against the others")
    for policy in policies:
        parse_policy(policy)
    parts = product(("day", "endpoints"), policies)
    cases = {(part, policy): (part, hour_s, policy) for part, policy in parts}
    done = grid(_one, cases, scope.seeds, label="day")
    runs = {
        policy: [
            day | needed
            for day, needed in zip(done["day", policy], done["endpoints", policy], strict=True)
        ]
        for policy in policies
    }
    return Report(
        evidence={
            claim: {rival: paired(runs[ours], runs[rival], metric) for rival in others}
            for claim, metric in _CLAIMED.items()
        }
    )


EXPERIMENTS = declared(__name__, {"day": run_day})

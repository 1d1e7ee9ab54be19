"""A workload of the suite, and a run of it: a fleet, a load, a policy, a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

import numpy as np
import xxhash

from laar.flow.settings import FlowSettings
from laar_lab.policy_text import parse_policy
from laar_lab.sim.fleet import (
    Arrival,
    Conversation,
    Exchange,
    FleetSettings,
    Site,
    Turn,
    VirtualFleet,
    asking_again,
    converse,
    generator,
    hold_sessions,
    replay_open,
)
from laar_lab.suite.fleets import Knowledge, nothing

Numbers = dict[str, float]
"""Results of a run by name; those in `laar_lab.suite.verdict.MARGINS` are judged."""

UNCOUNTED_SHARE = 0.2
"""Share of a run, at its beginning, that is not counted while caches fill and sessions begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """An open loop: requests sent at their times.

    Args:
        draw: draws the requests for a number of seconds.
        cap: limit on the client's requests in flight.
        from_dispatch: measure times from when a request is sent, not from when it was due; for
            loads that the cap holds back.
        strangers: share of the sessions (or of the requests, if there are no sessions) that another
            picker serves, which keeps each session on one endpoint.
    """

    draw: Callable[[Random, float], Iterable[Arrival]]
    cap: int = 1024
    from_dispatch: bool = False
    strangers: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A closed loop: sessions wait for each answer, so a faster policy completes more of them.

    Args:
        draw: draws the sessions in the order in which they begin; may be endless.
        at_once: number of concurrent sessions.
        ramp_s: seconds over which the first sessions begin.
    """

    draw: Callable[[Random], Iterable[tuple[str, Iterable[Turn]]]]
    at_once: int
    ramp_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Sessions that begin together on a cold fleet, in several rounds; every request counts.

    Args:
        draw: draws the sessions of one round.
        rounds: number of rounds, each on a fresh fleet.
    """

    draw: Callable[[Random], Sequence[Conversation]]
    rounds: int = 4


Load = Open | Closed | Together


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A workload.

    Args:
        name: name, unique in the suite.
        about: one-line description of the traffic.
        role: `choose` for workloads used while shaping a policy, `judge` for workloads used for
            verdicts.
        fleet: makes its endpoints.
        load: the load to send.
        minutes: minutes of virtual time.
        knowledge: makes the picker's prior knowledge of the models.
        like: another workload, whose requests this one gets for each seed.
        first_tokens: first tokens that the picker sees, as in `laar_lab.sim.fleet.FleetSettings`.
    """

    name: str
    about: str
    role: Literal["choose", "judge"]
    fleet: Callable[[], list[Site]]
    load: Load
    minutes: float = 3.0
    knowledge: Knowledge = nothing
    like: str = ""
    first_tokens: Literal["seen", "sampled"] = "seen"


class Pickers(NamedTuple):
    """Number of pickers, and the delay with which they share; None if they don't share."""

    many: int = 1
    delay_s: float | None = None


@dataclass(slots=True)
class _Seen:
    """Latencies and outcomes as seen by the clients, per request."""

    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    endpoints: Counter[str] = field(default_factory=Counter)
    busiest: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    failed: int = 0

    def add(self, due_s: float, exchange: Exchange) -> None:
        """Count a request that was due at `due_s`."""
        self.endpoints[exchange.decision.address] += 1
        if exchange.status != 200:
            self.failed += 1
            return
        self.ttft_s.append(exchange.first_s - due_s)
        self.e2e_s.append(exchange.end_s - due_s)
        self.prompt_tokens += exchange.prompt.prompt_tokens
        self.cached_tokens += exchange.cached_tokens

    def end_round(self) -> None:
        """Finish a round; later requests go to a different fleet."""
        if self.endpoints:
            self.busiest.append(max(self.endpoints.values()) / self.endpoints.total())
        self.endpoints.clear()

    def numbers(self) -> Numbers:
        ttft, e2e = np.array(self.ttft_s), np.array(self.e2e_s)
        total = len(ttft) + self.failed
        return {
            "ttft_mean_s": float(ttft.mean()),
            "ttft_p50_s": float(np.percentile(ttft, 50)),
            "ttft_p95_s": float(np.percentile(ttft, 95)),
            "e2e_mean_s": float(e2e.mean()),
            "e2e_p95_s": float(np.percentile(e2e, 95)),
            "hit_rate": self.cached_tokens / self.prompt_tokens,
            "busiest": float(np.mean(self.busiest)),
            "failed": self.failed / total,
            "requests": float(total),
        }


def run_case(
    case: Case,
    policy: str,
    seed: int,
    *,
    share: float = 1.0,
    pickers: Pickers | None = None,
    gate: FlowSettings | None = None,
) -> Numbers:
    """Run a workload once.

    Args:
        case: the workload.
        policy: `name` or `name:parameter=value,...`.
        seed: seed of the load and of the network; the same for every policy.
        share: share of the minutes to run.
        pickers: number of pickers, and the delay with which they share; None for one picker.
        gate: settings of the session gate; None for no gate.
    """
    seen = _Seen()
    load, duration_s = case.load, 60.0 * case.minutes * share
    rng = generator(seed, f"load {case.like or case.name}")
    from_s = UNCOUNTED_SHARE * duration_s

    from_dispatch = isinstance(load, Open) and load.from_dispatch

    def counted(arrival: Arrival, exchange: Exchange) -> None:
        if arrival.at_s >= from_s:
            seen.add(exchange.sent_s if from_dispatch else arrival.at_s, exchange)

    def all_counted(arrival: Arrival, exchange: Exchange) -> None:
        seen.add(arrival.at_s, exchange)

    def refused(_arrival: Arrival | None = None) -> None:
        seen.failed += 1

    def begin(seed: int) -> VirtualFleet:
        return _fleet(case, policy, seed, pickers, gate)

    match load:
        case Together():
            for number in range(max(1, round(load.rounds * share))):
                fleet = begin(seed + 7919 * number)
                converse(fleet, load.draw(rng), all_counted, asking_again(fleet, refused))
                seen.end_round()
        case Closed():
            fleet = begin(seed)
            hold_sessions(
                fleet,
                load.draw(rng),
                counted,
                at_once=load.at_once,
                ramp_s=load.ramp_s,
                until_s=duration_s,
                send=asking_again(fleet, refused),
            )
        case Open():
            fleet = begin(seed)
            arrivals: Iterator[Arrival] = iter(load.draw(rng, duration_s))
            if load.strangers:
                arrivals = _ours(fleet, case.fleet(), arrivals, load.strangers)
            replay_open(fleet, arrivals, counted, max_in_flight=load.cap, on_refused=refused)
    seen.end_round()
    return seen.numbers()


def _fleet(
    case: Case,
    policy: str,
    seed: int,
    pickers: Pickers | None,
    gate: FlowSettings | None,
) -> VirtualFleet:
    name, parameters = parse_policy(policy)
    sites = case.fleet()
    many, delay_s = pickers or Pickers()
    settings = FleetSettings(
        policy=name,
        parameters=parameters,
        first_tokens=case.first_tokens,
        pickers=many,
        share_delay_s=delay_s,
    )
    assessor = case.knowledge(sites)
    return VirtualFleet(sites, settings, seed=seed, assessor=assessor, flow=gate, by_load=False)


def _ours(
    fleet: VirtualFleet, sites: Sequence[Site], arrivals: Iterable[Arrival], share: float
) -> Iterator[Arrival]:
    """Send the strangers' share without the picker, and return the other requests.

    The strangers' requests are scheduled before the first of ours is sent.
    """
    kept = []
    for number, arrival in enumerate(arrivals):
        drawn = xxhash.xxh3_64_intdigest((arrival.session or str(number)).encode())
        if drawn % 1000 >= 1000 * share:
            kept.append(arrival)
            continue
        address = sites[drawn // 1000 % len(sites)].name
        fleet.clock.at(arrival.at_s, fleet.intrude, address, f"stranger-{number}", arrival.prompt)
    return iter(kept)

"""`laar lab replay`: replay a user's traffic against a user's fleet, with any policies.

The traffic is a trace (`laar_lab.trace`) or recorded sessions (`laar_lab.sessions`); the first line
tells which.

Sessions run as a closed loop: a fixed number at a time, each request after the previous answer.
Everything else is sent when due, up to a limit on requests in flight, such as a client's
connections.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from laar.errors import SettingError
from laar_lab.policy_text import parse_policy
from laar_lab.report import Report, Table, Value
from laar_lab.sessions import Recorded, has_sessions, read_sessions
from laar_lab.sim.fleet import (
    MeasuredAssessor,
    VirtualFleet,
    generator,
    hold_sessions,
    replay_open,
)
from laar_lab.sim.fleet_file import FleetFile, fleet_of, read_fleet
from laar_lab.sweep import sweep
from laar_lab.tally import MEANS, METRICS, Tally
from laar_lab.trace import TRACE_BLOCK_TOKENS, read_trace

_OPEN_REMARK = (
    "The file names no sessions, so its requests were sent at their times, as an open loop."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A trace to send, and the fleet to send it to.

    Args:
        trace: the trace file; gzipped if its name ends in ``.gz``.
        fleet: fleet file; None to use `endpoints` endpoints with `engines`.
        engines: profiles, assigned to the endpoints in turn; `name@2.5` is 2.5 times slower.
        endpoints: number of endpoints.
        closed_loop: send sessions as a closed loop, if the file has sessions.
        sessions: number of sessions open at a time; None for all of them.
        ramp_s: seconds over which the first sessions begin.
        max_pause_s: longest pause within a session.
        until_s: virtual seconds after which nothing is sent.
        limit: maximum number of requests to send; None for all.
        time_scale: factor for the time between requests, and for pauses.
        block_tokens: prompt tokens per entry of `hash_ids`.
        max_in_flight: the client's limit in an open loop.
        seed: seed of the network, ties and sampling, and of the sessions' order unless it is 0.
    """

    trace: Path
    fleet: Path | None = None
    engines: tuple[str, ...] = ()
    endpoints: int = 8
    closed_loop: bool = False
    sessions: int | None = None
    ramp_s: float = 60.0
    max_pause_s: float = math.inf
    until_s: float = math.inf
    limit: int | None = None
    time_scale: float = 1.0
    block_tokens: int = TRACE_BLOCK_TOKENS
    max_in_flight: int = 64
    seed: int = 0

    def described(self) -> FleetFile:
        """Return the description of the fleet.

        Raises:
            SettingError: the fleet is invalid, or is given twice or not at all.
        """
        if (self.fleet is None) == (not self.engines):
            raise SettingError("give either --fleet FILE or --engine PROFILE")
        return (
            fleet_of(self.engines, self.endpoints) if self.fleet is None else read_fleet(self.fleet)
        )

    @property
    def files(self) -> list[Path | None]:
        """The files that a run reads; None for each file that was not given."""
        profiles = [end.profile for end in self.described().endpoints]
        own = {Path(profile) for profile in profiles if profile.endswith(".yaml")}
        return [self.trace, self.fleet, *own]


def replay(given: Replay, policies: Sequence[str]) -> Report:
    """Run the trace once per policy, given as `name` or `name:parameter=value,...`.

    Raises:
        SettingError: the trace, the fleet or a policy's name is invalid, or there is nothing to
            send.
    """
    for policy in policies:
        parse_policy(policy)
    given.described()  # report errors before anything runs
    cases = [(given, policy) for policy in policies]
    results = dict(zip(policies, sweep(replay_one, cases, label="replay"), strict=True))
    if not any(numbers["requests"] for numbers in results.values()):
        raise SettingError(f"{given.trace}: no requests, or none within the time limit")
    is_open = given.closed_loop and not has_sessions(given.trace)
    return Report(
        tables=[
            _table(given.trace.name, METRICS, results),
            _table("means and counts", MEANS, results),
        ],
        checks=[],
        remarks=[_OPEN_REMARK] if is_open else [],
    )


def _table(title: str, shown: dict[str, str], results: dict[str, dict[str, float]]) -> Table:
    rows: list[tuple[Value, ...]] = [
        (policy, *(numbers[name] for name in shown)) for policy, numbers in results.items()
    ]
    return Table(title=title, columns=("policy", *shown.values()), rows=rows, digits=3)


def replay_one(given: Replay, policy: str) -> dict[str, float]:
    """Return the metrics of one policy."""
    described = given.described()
    sites = described.sites()
    tally = Tally()
    virtual = VirtualFleet(
        sites, described.picker(policy), seed=given.seed, assessor=MeasuredAssessor(sites)
    )
    if given.closed_loop and has_sessions(given.trace):
        _hold(given, virtual, tally)
    else:
        arrivals = read_trace(
            given.trace, time_scale=given.time_scale, block_tokens=given.block_tokens
        )
        sent = (arrival for arrival in arrivals if arrival.at_s <= given.until_s)
        replay_open(
            virtual, islice(sent, given.limit), tally.add, max_in_flight=given.max_in_flight
        )
    return tally.numbers()


def _hold(given: Replay, virtual: VirtualFleet, tally: Tally) -> None:
    if not given.time_scale > 0:
        raise SettingError(f"time scale {given.time_scale}: give a number above 0")
    recorded = read_sessions(given.trace, block_tokens=given.block_tokens)
    if given.seed:
        generator(given.seed, "order of sessions").shuffle(recorded)
    if given.limit is not None:
        recorded = list(_first(recorded, given.limit))
    hold_sessions(
        virtual,
        (
            (each.name, each.turns(speed=1.0 / given.time_scale, max_pause_s=given.max_pause_s))
            for each in recorded
        ),
        tally.add,
        at_once=given.sessions or max(1, len(recorded)),
        ramp_s=given.ramp_s,
        until_s=given.until_s,
    )


def _first(recorded: Sequence[Recorded], limit: int) -> Iterator[Recorded]:
    """Yield sessions up to `limit` requests in total; the last session may be cut."""
    for each in recorded:
        if limit <= 0:
            return
        yield each.cut(limit)
        limit -= len(each)

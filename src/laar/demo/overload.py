"""`laar overload`: more than a fleet can carry, for a minute, through a real Envoy.

The load of `laar.lab.workloads.overload` meets four simulated endpoints under vLLM's scheduler, a
picker that knows their speed, and Envoy. What the fleet carries is measured first: requests that
are there all at once, by the time they take. Then the same arrivals, at 1.2 times that, meet a
fresh fleet for each order of the picker's queue:

* `slack`, the default of `flow`;
* `arrival, kept apart`: in order of arrival, with the same rules for long prompts;
* `arrival`: in order of arrival by a queue that knows nothing of lengths;
* `no queue`: each request is sent at once, as without `flow.enabled`.

`medha-picker` asks the same of the same code in virtual time. Here it is seen from outside: each
request must have exactly one answer, and nothing may be left in the picker, in Envoy or in the
endpoints. Times are the fleet's own seconds: the clock's, divided by the time scale.

Answers are read (`bodies.sample_answers` 1), or the queue would take a prefill to last as long as
its answer.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from laar.accuracy.artifact import Capability, ModelCapability, RetryTerms, Speed
from laar.core.request import Api, Request
from laar.demo.fleet import Endpoint, started_fleet
from laar.demo.leftovers import Rest, at_rest, begin, served
from laar.demo.openloop import HUNG, Answered, send
from laar.envoy import Shape
from laar.lab.experiment import FIRST_SEED
from laar.lab.experiments.medha_runs import Ratio, over
from laar.lab.intervals import estimate
from laar.lab.report import Check, Report, Table, dump, show
from laar.lab.tokens import ASCII_PER_TOKEN
from laar.lab.workloads.overload import (
    CLASSES,
    LOAD,
    MODEL,
    PROBE_POLICY,
    PROFILE,
    QUADRATIC_TOKENS,
    Ask,
    asks,
    assessor,
    sites,
)

__all__ = ["Run", "judge", "run_overload"]

NOT_HELD = 3
"""Exit status when a check failed, as of the lab's experiments."""

ROUTES: Mapping[str, Mapping[str, object]] = {
    "slack": {"enabled": True, "order": "lars"},
    "arrival, kept apart": {"enabled": True, "order": "fcfs"},
    "arrival": {"enabled": True, "order": "fcfs", "long_tokens": 1 << 30},
    "no queue": {"enabled": False},
}
_GAIN = 1.25
_KEPT = 0.9
_MAX_GROWTH_BYTES = 64 << 20
_DEADLINE_S = 240.0
"""Of the fleet's seconds: four times what the queue may hold a request, so that an answer that has
begun ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One load by one route.

    Args:
        seed: of the load.
        answers: one for each request of the load.
        served: requests that the endpoints say they have answered whole.
        before: the fleet before the first client.
        after: the fleet after the last.
    """

    seed: int
    answers: Sequence[Answered]
    served: int
    before: Rest
    after: Rest


def run_overload(
    *,
    seconds: float,
    seeds: int,
    probe_requests: int,
    time_scale: float,
    shape: Shape,
    json_file: Path | None,
) -> int:
    """Runs it and says what came of it; returns the exit status."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)  # a file has no edge
    began_s = time.monotonic()
    chosen = range(FIRST_SEED, FIRST_SEED + seeds)
    runs: dict[str, list[Run]] = {route: [] for route in ROUTES}
    rates = []
    with tempfile.TemporaryDirectory(prefix="laar-overload-") as directory:
        bench = _Bench(Path(directory), time_scale, shape)
        for seed in chosen:
            with console.status(f"seed {seed}: what the fleet carries"):
                rate = LOAD * asyncio.run(bench.capacity(seed, probe_requests))
            rates.append(rate)
            drawn = asks(rate, int(2 * rate * seconds) + 1, seed)
            load = [ask for ask in drawn if ask.at_s < seconds]
            for route in ROUTES:
                with console.status(f"seed {seed}: {len(load)} requests, {route}"):
                    runs[route].append(asyncio.run(bench.run(route, load, seed)))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy_s = used.ru_utime + used.ru_stime + time.process_time()
    report = judge(
        runs,
        rates=rates,
        seconds=seconds,
        time_scale=time_scale,
        remarks=(
            f"{busy_s:.0f} s of processor time in {time.monotonic() - began_s:.0f} s on "
            f"{os.cpu_count()} cores, load average {os.getloadavg()[1]:.1f}; {shape} shape, "
            f"{time_scale:g} real seconds for one of the fleet's",
        ),
    )
    show(report, console)
    if json_file is not None:
        about = {"seeds": list(chosen), "seconds": seconds, "time_scale": time_scale}
        json_file.write_bytes(dump(report, **about, shape=shape, remarks=report.remarks))
    return 0 if report.held else NOT_HELD


@dataclass(slots=True)
class _Bench:
    """Starts a fresh fleet for everything that is measured."""

    directory: Path
    time_scale: float
    shape: Shape
    fleets: int = 0

    async def capacity(self, seed: int, requests: int) -> float:
        """Requests a second that the fleet carries."""
        load = asks(math.inf, requests, seed)
        directory, settings = self._prepared({"enabled": False})
        async with started_fleet(directory, self._endpoints(), settings, shape=self.shape) as fleet:
            began_s = time.monotonic()
            answers = await self._send(fleet.url, load, requests * _DEADLINE_S, PROBE_POLICY)
            took_s = time.monotonic() - began_s
        failed = [one.fault or one.reason for one in answers if one.ttft_s is None or one.fault]
        if failed:
            raise SystemExit(f"{len(failed)} of {requests} failed, the first with: {failed[0]}")
        return requests / took_s * self.time_scale

    async def run(self, route: str, load: Sequence[Ask], seed: int) -> Run:
        """Serves a load by a route."""
        directory, settings = self._prepared(ROUTES[route])
        flow = bool(ROUTES[route]["enabled"])
        async with started_fleet(directory, self._endpoints(), settings, shape=self.shape) as fleet:
            before = await begin(fleet, flow=flow)
            answers = await self._send(fleet.url, load, _DEADLINE_S)
            after = await at_rest(fleet, before, flow=flow)
            return Run(
                seed=seed,
                answers=answers,
                served=await served(fleet),
                before=before,
                after=after,
            )

    async def _send(
        self, url: str, load: Sequence[Ask], deadline_s: float, policy: str = ""
    ) -> list[Answered]:
        return await send(
            url,
            load,
            time_scale=self.time_scale,
            deadline_s=deadline_s * self.time_scale,
            policy=policy,
        )

    def _endpoints(self) -> list[Endpoint]:
        arguments = ("--profile", PROFILE, "--model", MODEL, "--time-scale", str(self.time_scale))
        return [Endpoint(model=MODEL, arguments=arguments, names=(MODEL,)) for _ in sites()]

    def _prepared(self, flow: Mapping[str, object]) -> tuple[Path, dict[str, object]]:
        """A directory, and settings: the defaults, for engines so much faster than real ones."""
        self.fleets += 1
        directory = self.directory / str(self.fleets)
        directory.mkdir()
        artifact = directory / "capability.json"
        artifact.write_bytes(_measured(self.time_scale).dump())
        scaled = {"max_prefill_s": 2.0, "min_hold_s": 5.0, "max_hold_s": 60.0}
        return directory, {
            "accuracy": {"capability": str(artifact)},
            "bodies": {"sample_answers": 1.0},
            "routing": {"quadratic_tokens": QUADRATIC_TOKENS},
            "flow": {**{k: v * self.time_scale for k, v in scaled.items()}, **flow},
        }


def _measured(time_scale: float) -> Capability:
    """What `laar measure` and `laar fit` would tell of the fleet: one speed, always right."""
    known = assessor().assess(Request(id="", api=Api.CHAT), [MODEL], (), 0.0)
    speed = Speed(
        seconds_per_token=float(known.seconds_per_token[0]) * time_scale,
        spread_s_per_token=0.0,
        fixed_s=float(known.base_s[0]) * time_scale,
        samples=2,
    )
    model = ModelCapability(
        intercept=10.0,
        terms={},
        mean=1.0,
        regularisation=None,
        cells=[],
        speed=speed,
        chars_per_token={"en": float(ASCII_PER_TOKEN)},
        held_out=None,
    )
    untried = RetryTerms(
        per_failure=0.0, pairs=[], brier_unconditional=None, brier=None, attempts=0
    )
    return Capability(created="", data_sha256="", outcomes=0, models={MODEL: model}, retry=untried)


# -- the verdict -------------------------------------------------------------------------------


def judge(
    runs: Mapping[str, Sequence[Run]],
    *,
    rates: Sequence[float],
    seconds: float,
    time_scale: float,
    remarks: Sequence[str] = (),
) -> Report:
    """Tables and checks.

    Args:
        runs: by route, one for each seed.
        rates: requests a second of the fleet's, seed by seed.
        seconds: of the fleet's, that requests came for.
        time_scale: real seconds for one of those.
        remarks: to go with them.
    """
    shares = {route: [_Shares.of(run, time_scale) for run in runs[route]] for route in runs}
    late_ms = 1e3 * max(one.late_s for many in runs.values() for r in many for one in r.answers)
    return Report(
        tables=[
            Table(
                title=f"{seconds:g} s at {LOAD} times capacity, {len(sites())} endpoints, real "
                "Envoy: share within the objective",
                columns=("queue", "requests", "within", *CLASSES, "429, 503", "longest TTFT, s"),
                rows=[
                    (
                        route,
                        sum(len(run.answers) for run in runs[route]),
                        estimate([one.within for one in shares[route]]),
                        *(
                            estimate([one.by_class[kind] for one in shares[route]])
                            for kind in CLASSES
                        ),
                        estimate([one.shed for one in shares[route]]),
                        estimate([one.longest_s for one in shares[route]]),
                    )
                    for route in runs
                ],
                digits=3,
            )
        ],
        checks=[*_whole(runs), *_shares(shares)],
        remarks=[
            f"{estimate(rates).mean:.2f} requests a second, {LOAD} times what the fleet carried; "
            f"sent at most {late_ms:.0f} ms late",
            *remarks,
        ],
    )


@dataclass(frozen=True, slots=True)
class _Shares:
    """One run's shares of its requests, and the longest time to a first token."""

    within: float
    by_class: Mapping[str, float]
    shed: float
    longest_s: float

    @classmethod
    def of(cls, run: Run, time_scale: float) -> _Shares:
        ttft_s = {
            one.ask.number: one.ttft_s / time_scale
            for one in run.answers
            if one.ttft_s is not None and not one.fault
        }

        def share(answers: Sequence[Answered]) -> float:
            met = [ttft_s.get(a.ask.number, math.inf) <= a.ask.objective_s for a in answers]
            return sum(met) / max(1, len(met))

        return cls(
            within=share(run.answers),
            by_class={
                kind: share([one for one in run.answers if one.ask.kind == kind])
                for kind in CLASSES
            },
            shed=sum(one.status in (429, 503) for one in run.answers) / max(1, len(run.answers)),
            longest_s=max(ttft_s.values(), default=math.nan),
        )


def _whole(runs: Mapping[str, Sequence[Run]]) -> list[Check]:
    """Every request has its one answer, and nothing is left."""
    every = [run for many in runs.values() for run in many]
    answers = [one for run in every for one in run.answers]
    hung = sum(one.fault == HUNG for one in answers)
    faults = Counter(one.fault for one in answers if one.fault and one.fault != HUNG)
    statuses = Counter(one.status for one in answers)
    whole = {id(run): sum(a.status == 200 and not a.fault for a in run.answers) for run in every}
    doubled = [run for run in every if run.served != whole[id(run)]]
    left = Counter(name for run in every for name in run.after.left)
    grown = [run.after.rss_bytes - run.before.rss_bytes for run in every]
    files = [run.after.files - run.before.files for run in every]
    return [
        Check(
            claim="no request hangs",
            held=not hung,
            seen=f"{hung} of {len(answers)} without a whole answer after {_DEADLINE_S:g} s",
        ),
        Check(
            claim="each is answered by a whole 200, or by a 429 or 503 that says when to come back",
            held=not faults,
            seen=", ".join(f"{n} x {status}" for status, n in statuses.most_common())
            + "".join(f"; {n} x {fault}" for fault, n in faults.most_common(3)),
        ),
        Check(
            claim="no endpoint serves a request twice, or one that nobody waits for",
            held=not doubled,
            seen=f"{sum(run.served for run in every)} served, {sum(whole.values())} received",
        ),
        Check(
            claim="nothing is left in picker, Envoy and endpoints",
            held=not left and max(files) <= 0,
            seen=", ".join(left) or f"all at 0, files of the picker {max(files):+d} at most",
        ),
        Check(
            claim=f"the picker grows by at most {_MAX_GROWTH_BYTES >> 20} MiB",
            held=max(grown) <= _MAX_GROWTH_BYTES,
            seen=f"{max(grown) / (1 << 20):.1f} MiB at most",
        ),
    ]


def _shares(shares: Mapping[str, Sequence[_Shares]]) -> list[Check]:
    """Slack order serves more within the objective, at nobody's cost."""

    def gain(other: str) -> Ratio:
        ours, theirs = ([max(1e-9, s.within) for s in shares[r]] for r in ("slack", other))
        return over(theirs, ours)

    first = gain("arrival")
    checks = [
        Check(
            claim="the share within the objective is >= 25 % higher than in order of arrival",
            held=first.low >= _GAIN,
            seen=f"{first} times; {gain('arrival, kept apart')} times with like rules for long "
            f"prompts, {gain('no queue')} times that of no queue",
        )
    ]
    for kind in CLASSES:
        ours, theirs = (
            estimate([s.by_class[kind] for s in shares[r]]).mean for r in ("slack", "arrival")
        )
        checks.append(
            Check(
                claim=f"{kind}s keep >= 90 % of their goodput in order of arrival",
                held=ours >= _KEPT * theirs,
                seen=f"{ours:.3f} against {theirs:.3f} within the objective",
            )
        )
    return checks

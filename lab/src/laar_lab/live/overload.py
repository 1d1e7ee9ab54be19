"""`laar overload`: send a fleet more load than it can carry, through a real Envoy.

The load of `laar_lab.workloads.overload` is sent through Envoy, and a picker that knows their
speed, to four simulated endpoints with vLLM's scheduler. Their capacity is measured in virtual
time, so a seed gives the same load on any machine. First, many concurrent requests are sent here
and in virtual time, which shows whether this machine reaches that capacity. Then the load is sent
to a fresh fleet for each queue order:

* `slack`, the default of `flow`;
* `arrival, kept apart`: in order of arrival, with the same rules for long prompts;
* `arrival`: in order of arrival, ignoring lengths;
* `no queue`: each request is sent immediately, as without `flow.enabled`.

`medha-picker` tests the same code in virtual time. Here the fleet is observed from outside: each
request must get exactly one answer, and nothing may be left in the picker, Envoy or the endpoints.
Times are in the fleet's seconds: real time divided by the time scale.

In the native shape the picker reads only a share of the answers (1 in 100 by default; the report
shows it), and one every 0.25 s of the fleet's time. In the gateway shape it sees all answers.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from laar.accuracy.artifact import Capability, ModelCapability, RetryTerms, Speed
from laar.core.request import Api, Request
from laar.envoy.options import Shape
from laar.errors import LaarError
from laar.flow.settings import FlowSettings
from laar.settings.reading import Bodies
from laar_lab.experiment import FIRST_SEED
from laar_lab.experiments.medha_picker import carried_per_s
from laar_lab.live.fleet import Endpoint, started_fleet
from laar_lab.live.leftovers import at_rest, begin, served
from laar_lab.live.openloop import Answered, send
from laar_lab.live.verdict import DEADLINE_S, Run, judge
from laar_lab.report import dump, show
from laar_lab.sim.engine import Job, build_engine, drive, load_profile
from laar_lab.tokens import ASCII_PER_TOKEN
from laar_lab.workloads.overload import (
    MODEL,
    PROBE_POLICY,
    PROFILE,
    QUEUES,
    USUAL_ANSWER_TOKENS,
    Ask,
    asks,
    assessor,
    overload,
    sites,
    weight,
)

NOT_HELD = 3
"""Exit status if a check failed, as for the lab's experiments."""


def run_overload(
    *,
    seconds: float,
    seed: int,
    seeds: int,
    probe_requests: int,
    time_scale: float,
    shape: Shape,
    json_file: Path | None,
    sample_answers: float | None = None,
) -> int:
    """Run the overload and print the result; return the exit status."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)  # a file may have wide lines
    began_s = time.monotonic()
    if sample_answers is None:
        sample_answers = Bodies().sample_answers
    chosen = range(seed, seed + seeds)
    runs: dict[str, list[Run]] = {route: [] for route in QUEUES}
    with tempfile.TemporaryDirectory(prefix="laar-overload-") as directory:
        bench = _Bench(Path(directory), time_scale, shape, sample_answers)
        with console.status("measuring how fast this machine runs the fleet"):
            speed = asyncio.run(bench.speed(probe_requests))
        for one in chosen:
            load = overload(carried_per_s(), seconds, one)
            for route in QUEUES:
                with console.status(f"seed {one}: {len(load)} requests, {route}"):
                    runs[route].append(asyncio.run(bench.run(route, load, one)))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy_s = used.ru_utime + used.ru_stime + time.process_time()
    read = "all answers read"
    if shape != "gateway":
        read = f"bodies.sample_answers {sample_answers:g}"
    report = judge(
        runs,
        speed=speed,
        seconds=seconds,
        time_scale=time_scale,
        remarks=(
            f"{busy_s:.0f} s of processor time in {time.monotonic() - began_s:.0f} s on "
            f"{os.cpu_count()} cores, load average {os.getloadavg()[1]:.1f}; {shape} shape, "
            f"{time_scale:g} real seconds per fleet second; {read}",
        ),
    )
    show(report, console)
    if json_file is not None:
        about = {
            "seeds": list(chosen),
            "seconds": seconds,
            "time_scale": time_scale,
            "sample_answers": sample_answers,
        }
        json_file.write_bytes(dump(report, **about, shape=shape, remarks=report.remarks))
    return 0 if report.held else NOT_HELD


@dataclass(slots=True)
class _Bench:
    """Starts a fresh fleet for each measurement."""

    directory: Path
    time_scale: float
    shape: Shape
    sample_answers: float
    fleets: int = 0

    async def speed(self, requests: int) -> float:
        """Return the fleet's speed on this machine, as a share of its speed in virtual time.

        This compares the times that `requests` concurrent requests take.
        """
        load = asks(math.inf, requests, FIRST_SEED)
        directory, settings = self._prepared(None)
        async with started_fleet(directory, self._endpoints(), settings, shape=self.shape) as fleet:
            began_s = time.monotonic()
            answers = await self._send(fleet.url, load, requests * DEADLINE_S, PROBE_POLICY)
            took_s = (time.monotonic() - began_s) / self.time_scale
        failed = [one.fault or one.reason for one in answers if one.ttft_s is None or one.fault]
        if failed:
            raise LaarError(
                f"{len(failed)} of {requests} concurrent requests had no answer, the first "
                f"because of: {failed[0]}. Try fewer: --probe-requests"
            )
        return sum(map(weight, load)) / carried_per_s(requests) / took_s

    async def run(self, route: str, load: Sequence[Ask], seed: int) -> Run:
        """Serve a load with one queue order."""
        queue = QUEUES[route]
        directory, settings = self._prepared(queue)
        flow = queue is not None
        async with started_fleet(directory, self._endpoints(), settings, shape=self.shape) as fleet:
            before = await begin(fleet, flow=flow)
            answers = await self._send(fleet.url, load, DEADLINE_S)
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

    def _prepared(self, queue: FlowSettings | None) -> tuple[Path, dict[str, object]]:
        """Return a directory, and default settings scaled by the time scale."""
        self.fleets += 1
        directory = self.directory / str(self.fleets)
        directory.mkdir()
        artifact = directory / "capability.json"
        artifact.write_bytes(_measured(self.time_scale).dump())
        usual = FlowSettings()
        flow: dict[str, object] = {
            "enabled": queue is not None,
            "max_prefill_s": usual.max_prefill_s * self.time_scale,
            "min_hold_s": usual.min_hold_s * self.time_scale,
            "max_hold_s": usual.max_hold_s * self.time_scale,
        }
        if queue is not None:
            flow |= {"order": queue.order, "long_tokens": queue.long_tokens}
        return directory, {
            "accuracy": {"capability": str(artifact)},
            "bodies": {
                "sample_answers": self.sample_answers,
                "sample_every_s": Bodies().sample_every_s * self.time_scale,
            },
            "routing": {
                "baselines": {PROBE_POLICY: {}},
            },
            "flow": flow,
        }


def _measured(time_scale: float) -> Capability:
    """Return the artifact that `laar fit` would make here: one speed, always correct."""
    known = assessor().assess(Request(id="", api=Api.CHAT), [MODEL], (), 0.0)
    usual = Job(id="", arrival_s=0.0, prompt_tokens=1, output_tokens=USUAL_ANSWER_TOKENS)
    answered = drive(build_engine(load_profile(PROFILE)), [usual])[usual.id]
    speed = Speed(
        seconds_per_token=float(known.seconds_per_token[0]) * time_scale,
        spread_s_per_token=0.0,
        fixed_s=answered.end_s * time_scale,
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
    return Capability(
        created="", data_sha256="", outcomes=0, models={MODEL: model}, retry=RetryTerms()
    )

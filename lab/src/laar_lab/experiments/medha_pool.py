"""Figure 14 of Medha: the cost for long prompts of devices reserved for short ones.

Eight instances of two A100 each serve whole prompts without preemption. Shared, all eight work on
one prompt after the other; reserved, two of them serve the short requests (up to 8K) and six the
long. An instance group is one engine over its devices, which is kinder to it than the paper's
groups: joining and splitting them costs nothing here. Medha has the same 16 devices as TP-8, SPP-2.

Long requests are counted that have their first token when arrivals end, under a load that none of
the three carries, since systems that keep up complete the same number. The answer's end would be
unfair: the paper's baseline decodes on devices of its own, while here whole prompts go before all
decodes.
"""

from __future__ import annotations

import numpy as np

from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.medha_runs import MEDHA, Floats, over, percentile, run
from laar_lab.report import Report, Table, Value
from laar_lab.sim.engine import (
    EngineProfile,
    EngineSettings,
    RooflineCost,
    build_engine,
    drive,
    load_hardware,
    load_model,
    load_profile,
)
from laar_lab.statistics import estimate
from laar_lab.sweep import grid
from laar_lab.workloads.medha_mix import Mix, jobs

_RATE = 1.5
_INSTANCE_DEVICES = 2
_INSTANCES, _RESERVED = 8, 2
_SYSTEMS = ("medha", "shared", "reserved")
_Figures = tuple[float, float]


def _group(instances: int) -> EngineProfile:
    cost = RooflineCost(
        load_hardware("a100"), load_model("llama-3-8b"), tensor=_INSTANCE_DEVICES * instances
    )
    settings = EngineSettings(
        num_blocks=cost.kv_tokens() // 16,
        scheduler="non-preemptive",
        max_num_batched_tokens=8192,
    )
    return EngineProfile(name=f"{instances} instances", cost=cost, settings=settings)


def pool(system: str, mix: Mix, seed: int) -> _Figures:
    """Long requests answered by the end of the arrivals, and the shorts' median first token."""
    if system == "medha":
        seen = run(load_profile(MEDHA), mix, seed)
        return _figures(seen.first_s[seen.is_long], seen.short_ttft_s, mix)
    if system == "shared":
        seen = run(_group(_INSTANCES), mix, seed)
        return _figures(seen.first_s[seen.is_long], seen.short_ttft_s, mix)
    arrived = list(jobs(mix, seed))
    longs = [job for job in arrived if job.id.startswith("long")]
    shorts = [job for job in arrived if not job.id.startswith("long")]
    of_longs = drive(build_engine(_group(_INSTANCES - _RESERVED)), longs)
    of_shorts = drive(build_engine(_group(_RESERVED)), shorts)
    return _figures(
        np.array([timing.first_token_s for timing in of_longs.values()]),
        np.array([timing.ttft_s for timing in of_shorts.values()]),
        mix,
    )


def _figures(first_s: Floats, short_ttft_s: Floats, mix: Mix) -> _Figures:
    return float((first_s <= mix.duration_s).sum()), percentile(short_ttft_s, 50.0)


def run_pool(scope: Scope) -> Report:
    """Three arrangements of the same devices under the same requests."""
    mix = Mix(rate=_RATE, duration_s=300.0 if scope.quick else 1800.0)
    cases = {system: (system, mix) for system in _SYSTEMS}
    figures = grid(pool, cases, scope.seeds, label="medha-pool")

    def of(system: str, what: int) -> list[float]:
        return [one[what] for one in figures[system]]

    rows: list[tuple[Value, ...]] = [
        (
            system,
            estimate(of(system, 0)),
            estimate(of(system, 1)),
            str(over(of("medha", 0), of(system, 0))),
        )
        for system in _SYSTEMS
    ]
    return Report(
        tables=[
            Table(
                title=f"{_RATE} requests/s, 5 % long, {mix.duration_s:.0f} s",
                columns=(
                    "system",
                    "long with a first token",
                    "short p50 TTFT, s",
                    "long, by Medha's",
                ),
                rows=rows,
            )
        ],
        evidence={name: {"": Seen(of("reserved", 0), of(name, 0))} for name in ("medha", "shared")},
    )


EXPERIMENTS = declared(__name__, {"medha-pool": run_pool})

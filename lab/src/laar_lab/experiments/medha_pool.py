"""Figure 14 of Medha: what reserving devices for short prompts costs the long ones.

Eight instances of two A100s each serve whole prompts without preemption. When shared, all eight
work together on one prompt after another; when reserved, two of them serve the short requests (up
to 8K) and six the long ones. A group of instances is modeled as one engine, which favors it over
the paper's groups: joining and splitting devices costs nothing here. Medha uses the same 16 devices
as TP-8, SPP-2.

The experiment counts the long requests that have a first token when arrivals end. The load is too
heavy for all three systems, because systems that keep up would complete the same number. Counting
finished answers would be unfair: the paper's baseline decodes on separate devices, while here whole
prompts go before all decodes.
"""

from __future__ import annotations

import numpy as np

from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.medha_runs import MEDHA, Floats, over, percentile, run
from laar_lab.report import Report, Table
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
from laar_lab.statistics import means
from laar_lab.sweep import grid
from laar_lab.workloads.medha_mix import Mix, jobs

_RATE = 1.5
_INSTANCE_DEVICES = 2
_INSTANCES, _RESERVED = 8, 2
_SYSTEMS = ("medha", "shared", "reserved")


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


def pool(system: str, mix: Mix, seed: int) -> dict[str, float]:
    """Return how many long requests had a first token in time, and the short ones' median TTFT."""
    if system in ("medha", "shared"):
        seen = run(load_profile(MEDHA) if system == "medha" else _group(_INSTANCES), mix, seed)
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


def _figures(first_s: Floats, short_ttft_s: Floats, mix: Mix) -> dict[str, float]:
    answered = float((first_s <= mix.duration_s).sum())
    return {"longs": answered, "short_p50_s": percentile(short_ttft_s, 50.0)}


def run_pool(scope: Scope) -> Report:
    """Run three arrangements of the same devices on the same requests."""
    mix = Mix(rate=_RATE, duration_s=300.0 if scope.quick else 1800.0)
    cases = {system: (system, mix) for system in _SYSTEMS}
    runs = grid(pool, cases, scope.seeds, label="medha-pool")

    def longs(system: str) -> list[float]:
        return [one["longs"] for one in runs[system]]

    table = Table(
        title=f"{_RATE} requests/s, 5 % long, {mix.duration_s:.0f} s",
        columns=("system", "long prompts with first token", "short p50 TTFT, s", "long / Medha's"),
        rows=[
            (system, *means(of, ("longs", "short_p50_s")), str(over(longs("medha"), longs(system))))
            for system, of in runs.items()
        ],
    )
    return Report(
        tables=[table],
        evidence={
            name: {"": paired(runs["reserved"], runs[name], "longs")}
            for name in ("medha", "shared")
        },
    )


EXPERIMENTS = declared(__name__, {"medha-pool": run_pool})

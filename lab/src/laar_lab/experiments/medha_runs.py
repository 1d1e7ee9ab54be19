"""Code shared by Medha's experiments: run one engine under a load, and collect latencies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from laar_lab.sim.engine import EngineProfile, build_engine, drive, load_profile
from laar_lab.workloads.medha_mix import Mix, jobs

MEDHA, SARATHI, NON_PREEMPTIVE = "medha-8b-a100", "sarathi-8b-a100", "nonpreemptive-8b-a100"
"""The paper's three systems on 16 A100s; the last represents LoongServe."""

Floats = NDArray[np.float64]
"""One number per request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """The latencies of a run as seen by clients, in order of arrival.

    Args:
        ttft_s: TTFT.
        is_long: mask of the long requests.
    """

    ttft_s: Floats
    is_long: NDArray[np.bool_]

    @property
    def short_ttft_s(self) -> Floats:
        """TTFT of the short requests."""
        return self.ttft_s[~self.is_long]


def run(engine: str | EngineProfile, mix: Mix, seed: int) -> Latencies:
    """Run a load on a fresh engine to completion."""
    profile = load_profile(engine) if isinstance(engine, str) else engine
    arrived = list(jobs(mix, seed))
    timings = drive(build_engine(profile), arrived)
    return Latencies(
        ttft_s=np.array([timings[job.id].ttft_s for job in arrived]),
        is_long=np.array([job.id.startswith("long") for job in arrived]),
    )


def with_slack(order: str, *, multi_prefill: bool = True, late_share: float = 0.0) -> EngineProfile:
    """Return Medha's engine with a different order or batching, otherwise unchanged."""
    profile = load_profile(MEDHA)
    slack = replace(
        profile.settings.slack, order=order, multi_prefill=multi_prefill, late_share=late_share
    )
    return replace(profile, settings=replace(profile.settings, slack=slack))


def percentile(values: Floats, percent: float) -> float:
    """Return an interpolated percentile, or NaN if there are no values."""
    known = values[~np.isnan(values)]
    return float(np.percentile(known, percent)) if len(known) else float("nan")

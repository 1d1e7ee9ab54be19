"""Medha's experiments: the workload is the published one, and each part runs at a small size."""

from __future__ import annotations

import numpy as np
import pytest

from laar_lab.experiments.medha_policies import outcome
from laar_lab.experiments.medha_runs import MEDHA, NON_PREEMPTIVE, SARATHI, run
from laar_lab.workloads.medha_mix import LONG_FROM_TOKENS, Mix, jobs
from laar_lab.workloads.overload import LOAD, overload, weight


def test_the_workload_has_the_published_lengths() -> None:
    load = list(jobs(Mix(rate=10.0, duration_s=4000.0, long_share=0.5), 1))
    longs = [job for job in load if job.id.startswith("long")]
    shorts = [job for job in load if not job.id.startswith("long")]
    assert len(load) == pytest.approx(40_000, rel=0.02)
    assert len(longs) == pytest.approx(20_000, rel=0.03)
    assert max(job.prompt_tokens for job in shorts) <= 8192
    assert all(LONG_FROM_TOKENS <= job.prompt_tokens <= 1_000_000 for job in longs)
    median, p90 = np.percentile([job.prompt_tokens for job in longs], [50, 90])
    # The published 393,000 and 839,000 are lower here, as prompts end at 1M tokens.
    assert median == pytest.approx(384_000, rel=0.03)
    assert p90 == pytest.approx(726_000, rel=0.03)
    assert np.median([job.output_tokens for job in shorts]) == pytest.approx(415, rel=0.05)


def test_a_convoy_forms_without_preemption_and_not_with_medha() -> None:
    mix = Mix(rate=0.75, duration_s=40.0, long_share=0.1)
    median = {
        p: np.median(run(p, mix, 1001).short_ttft_s) for p in (MEDHA, NON_PREEMPTIVE, SARATHI)
    }
    assert median[NON_PREEMPTIVE] > 30 * median[MEDHA]


@pytest.mark.parametrize("order", ["medha", "fcfs"])
def test_an_isolated_request_takes_its_reference_time(order: str) -> None:
    seen = outcome(order, Mix(rate=0.002, duration_s=2500.0, long_share=0.5), 1002)
    assert 1.0 <= seen["median"] < 3.0  # the last chunk has to pass both stages
    assert seen["within"] == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_an_overload_is_defined_by_the_total_weight_of_its_prompts(seed: int) -> None:
    load = overload(40_000.0, 60.0, seed)
    assert sum(map(weight, load[:-1])) < LOAD * 40_000.0 * 60.0 <= sum(map(weight, load))
    assert load[-1].at_s == pytest.approx(60.0, rel=0.25)

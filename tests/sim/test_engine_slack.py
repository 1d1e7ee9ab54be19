"""Medha's scheduler in the simulated engine: order, adaptive chunks, shared iterations."""

from __future__ import annotations

from itertools import pairwise

import pytest

from laar_lab.sim.engine import (
    CostModel,
    EngineSettings,
    Job,
    LinearCost,
    RooflineCost,
    SimulatedEngine,
    SlackSettings,
    drive,
    load_hardware,
    load_model,
)

TARGET_S = 0.020
LINEAR = LinearCost(seconds_per_token=1e-4, decode_s_per_token=0.002)
A100 = RooflineCost(load_hardware("a100"), load_model("llama-3-8b"), tensor=8, stages=2)


def engine(
    cost: CostModel,
    slack: SlackSettings | None = None,
    *,
    blocks: int = 100_000,
    tokens: int = 8192,
) -> SimulatedEngine:
    values = EngineSettings(
        num_blocks=blocks,
        scheduler="slack",
        max_num_batched_tokens=tokens,
        slack=slack or SlackSettings(),
    )
    return SimulatedEngine(cost, values)


def job(
    name: str, arrival_s: float, prompt: int, output: int = 1, objective_s: float | None = None
) -> Job:
    return Job(
        id=name,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        ttft_objective_s=objective_s,
    )


@pytest.mark.parametrize("multi", [True, False])
def test_the_example_of_three_requests_in_the_paper_is_reproduced(multi: bool) -> None:
    """One prompt of 10 s, then two of 0.5 s: LARS meets all objectives, FCFS only the long one's.

    The long prompt's objective is 26 s here. With the paper's 16 s, its relative slack of 0.6 would
    let the short prompts begin with 0.3 s of slack, but one has to wait 0.5 s for the other.
    """
    jobs = [
        job("long", 0.0, 100_000, objective_s=26.0),
        job("one", 5.0, 5000, objective_s=1.1),
        job("two", 5.0, 5000, objective_s=1.1),
    ]
    late = {}
    for order in ("lars", "fcfs"):
        timings = drive(engine(LINEAR, SlackSettings(order=order, multi_prefill=multi)), jobs)
        late[order] = [
            each.id for each in jobs if timings[each.id].ttft_s > (each.ttft_objective_s or 0)
        ]
    assert late["lars"] == []
    assert late["fcfs"] == ["one", "two"]


def gaps(target: SimulatedEngine, prompt: int) -> tuple[list[float], list[int]]:
    """Return the gaps between a job's tokens next to a long prefill, and the prefill's chunks."""
    target.submit(job("decoding", 0.0, 16, 5000))
    step = target.step(0.0)
    assert step is not None
    now = step.duration_s
    target.submit(job("long", now, prompt, objective_s=1e6))
    ends, contexts = [], [0]
    while True:
        step = target.step(now)
        assert step is not None
        now += step.duration_s
        if target.prefilling:
            contexts.append(target.prefilling[0].context)
        ends += [now for gain in step.progress if gain.job_id == "decoding"]
        if any(gain.job_id == "long" for gain in step.progress):
            target.abort("decoding")
            chunks = [after - before for before, after in pairwise(contexts) if after > before]
            return [after - before for before, after in pairwise(ends)], chunks


@pytest.mark.parametrize("stages", [1, 2])
def test_iterations_meet_the_target_for_any_context(stages: int) -> None:
    """Next to a prefill of 300,000 tokens, p99 of the gaps is within 1.2 targets; chunks shrink."""
    cost = RooflineCost(A100.hardware, A100.model, tensor=8, stages=stages)
    waits, chunks = gaps(engine(cost), 300_000)
    assert sorted(waits)[int(0.99 * len(waits))] <= 1.2 * TARGET_S
    assert max(waits) <= 1.5 * TARGET_S  # reached once, after chunks without decodes
    assert sum(waits) / len(waits) >= 0.5 * TARGET_S
    if stages == 1:  # with two stages, every other chunk runs without a decode and may be larger
        assert sorted(chunks[:-1], reverse=True) == chunks[:-1]
    assert chunks[0] > 4 * chunks[-2]


def test_one_long_prefill_and_several_short_ones_share_an_iteration() -> None:
    """At most one prompt over `long_tokens` advances in an iteration; short ones join it."""
    target = engine(A100)
    for index in range(3):
        target.submit(job(f"long{index}", 0.0, 50_000, objective_s=1000.0))
    for index in range(6):
        target.submit(job(f"short{index}", 0.0, 50, objective_s=1000.0))
    before: dict[str, int] = {}
    now, most = 0.0, 0
    while (step := target.step(now)) is not None:
        now += step.duration_s
        contexts = {seq.job.id: seq.context for seq in target.prefilling}
        moved = [name for name, done in contexts.items() if done > before.get(name, 0)]
        before = contexts
        shorts = [gain.job_id for gain in step.progress if gain.job_id.startswith("short")]
        assert sum(name.startswith("long") for name in moved) <= 1
        most = max(most, len(shorts) if moved else 0)
    assert most >= 2


def test_a_long_prefill_with_slack_yields_its_share() -> None:
    """A short request next to a long one ends sooner if prefills may share iterations."""
    jobs = [job("long", 0.0, 400_000, objective_s=500.0)]
    jobs += [job(str(index), 1.0 + index, 2000, objective_s=100.0) for index in range(5)]
    mean = {}
    for multi in (True, False):
        timings = drive(engine(A100, SlackSettings(multi_prefill=multi)), jobs)
        mean[multi] = sum(timings[str(index)].ttft_s for index in range(5)) / 5
    assert mean[True] < 0.5 * mean[False]

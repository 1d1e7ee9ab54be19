"""The parallel engine compared with closed forms, and invariants under random loads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar_lab.sim.engine import (
    EngineSettings,
    Job,
    LinearCost,
    ParallelEngine,
    build_engine,
    drive,
    load_profile,
    slowed,
)
from support.exploring import examples

BASE_S, PREFILL_S, TOKEN_S = 0.02, 1e-3, 0.05
SLOTS, FACTOR = 16, 3.0
COST = LinearCost(
    seconds_per_token=PREFILL_S, decode_s_per_token=TOKEN_S, prefill_overhead_s=BASE_S
)


def engine(**given: object) -> ParallelEngine:
    values = {
        "num_blocks": 10_000,
        "scheduler": "parallel",
        "load_factor": FACTOR,
        "max_num_seqs": SLOTS,
    } | given
    return ParallelEngine(COST, EngineSettings(**values))  # type: ignore[arg-type]


def job(name: str, arrival_s: float, prompt: int, output: int = 1, **given: object) -> Job:
    return Job(id=name, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output, **given)  # type: ignore[arg-type]


def alone_s(prompt: int, output: int) -> tuple[float, float]:
    """Return the times of the first token and the end of a lone request."""
    first_s = BASE_S + PREFILL_S * prompt
    return first_s, first_s + (output - 1) * TOKEN_S


@pytest.mark.parametrize("together", [1, 2, 7, SLOTS])
@pytest.mark.parametrize("merge", [True, False])
def test_all_times_grow_linearly_with_running_requests(together: int, merge: bool) -> None:
    jobs = [job(str(i), 0.0, 500, 20) for i in range(together)]
    timings = drive(engine(), jobs, merge=merge)
    factor = 1 + (FACTOR - 1) * (together - 1) / (SLOTS - 1)
    for timing in timings.values():
        seen = (timing.first_token_s, timing.end_s)
        assert seen == pytest.approx([factor * s for s in alone_s(500, 20)])


loads = st.lists(
    st.tuples(
        st.floats(0, 5),
        st.integers(1, 3000),
        st.integers(1, 40),
        st.sampled_from("abcd"),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


@given(load=loads, slots=st.integers(1, 8), blocks=st.integers(200, 400))
@settings(max_examples=examples(60))
def test_merged_steps_change_no_time_and_every_token_is_reported(
    load: list[tuple[float, int, int, str, bool]], slots: int, blocks: int
) -> None:
    """Merged and single runs agree, except that a new request waits for the step in progress."""
    jobs = [
        job(
            str(i),
            at,
            prompt,
            output,
            blocks=[hash((name, k)) for k in range((prompt + output) // 16)] if cached else (),
        )
        for i, (at, prompt, output, name, cached) in enumerate(sorted(load))
    ]
    given = {"max_num_seqs": slots, "num_blocks": blocks}
    merged = drive(engine(**given), jobs)
    single = drive(engine(**given), jobs, merge=False)
    for name, timing in merged.items():
        assert timing.end_s < float("inf")
        assert single[name].end_s == pytest.approx(timing.end_s, abs=1e-6)
        assert single[name].first_token_s == pytest.approx(timing.first_token_s, abs=1e-6)
        assert single[name].cached_tokens == timing.cached_tokens


@given(load=loads, aborted=st.sets(st.integers(0, 39)))
@settings(max_examples=examples(40))
def test_tokens_add_up_and_memory_is_released(
    load: list[tuple[float, int, int, str, bool]], aborted: set[int]
) -> None:
    target = engine(max_num_seqs=4, num_blocks=300)
    wanted = {}
    for i, (_, prompt, output, name, _) in enumerate(load):
        blocks = [hash((name, k)) for k in range((prompt + output) // 16)]
        target.submit(job(str(i), 0.0, prompt, output, blocks=blocks))
        wanted[str(i)] = output
    now, told, steps = 0.0, dict.fromkeys(wanted, 0), 0
    while (step := target.step(now)) is not None:
        now += step.duration_s
        steps += 1
        assert steps < 100_000
        for gain in step.progress:
            told[gain.job_id] += gain.tokens
            assert gain.finished == (told[gain.job_id] == wanted[gain.job_id])
        if steps == 5:
            for i in aborted:
                target.abort(str(i))
    assert all(told[n] == wanted[n] for n in wanted if int(n) not in aborted)
    assert target.load().running == target.load().waiting == 0
    assert target.load().kv_usage == 0.0


def test_the_profile_is_the_published_engine_and_can_be_slowed() -> None:
    profile = load_profile("parallel")
    fast = drive(build_engine(profile), [job("a", 0.0, 8000, 161)])["a"]
    assert fast.first_token_s == pytest.approx(1.02)
    assert fast.end_s == pytest.approx(2.02)
    slow = drive(build_engine(slowed(profile, 2.5)), [job("a", 0.0, 8000, 161)])["a"]
    assert slow.end_s == pytest.approx(2.5 * fast.end_s)

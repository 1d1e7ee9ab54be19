"""The simulated engine compared with closed forms and vLLM, and invariants under random loads."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar_lab.sim.engine import (
    CostModel,
    EngineSettings,
    Job,
    KvEvent,
    LinearCost,
    RooflineCost,
    SimulatedEngine,
    Step,
    drive,
    load_hardware,
    load_model,
)

PREFILL_S = 1e-4
DECODE_S = 0.01
LINEAR = LinearCost(seconds_per_token=PREFILL_S, decode_s_per_token=DECODE_S)


def engine(cost: CostModel = LINEAR, **given: object) -> SimulatedEngine:
    values = {"num_blocks": 10_000, "scheduler": "fcfs"} | given
    return SimulatedEngine(cost, EngineSettings(**values))  # type: ignore[arg-type]


def job(name: str, arrival_s: float, prompt: int, output: int = 1, **given: object) -> Job:
    return Job(id=name, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output, **given)  # type: ignore[arg-type]


def run_out(target: SimulatedEngine, now: float = 0.0) -> list[tuple[float, Step]]:
    """Step one iteration at a time until nothing is left; return (end, step)."""
    steps = []
    while (step := target.step(now)) is not None:
        now += step.duration_s
        steps.append((now, step))
        assert len(steps) < 100_000
    return steps


# Queueing theory.


def poisson(count: int, load: float) -> list[Job]:
    """Return Poisson arrivals of prompts; lengths are exponential, with a mean of 1,000 (0.1 s)."""
    rng = random.Random(4)
    now, jobs = 0.0, []
    for index in range(count):
        now += rng.expovariate(load / 0.1)
        jobs.append(job(str(index), now, 1 + int(rng.expovariate(1 / 1000))))
    return jobs


def test_waits_for_one_slot_follow_lindleys_recursion() -> None:
    """With one slot, each wait follows from the one before: W' = max(0, W + S - A)."""
    jobs = poisson(2000, 0.8)
    timings = drive(engine(max_num_seqs=1, max_num_batched_tokens=100_000), jobs)
    wait_s, before = 0.0, jobs[0].arrival_s
    service_s = 0.0
    for each in jobs:
        wait_s = max(0.0, wait_s + service_s - (each.arrival_s - before))
        before, service_s = each.arrival_s, PREFILL_S * each.prompt_tokens
        assert timings[each.id].ttft_s == pytest.approx(wait_s + service_s, abs=1e-6)


# One job alone.


@pytest.mark.parametrize(("stages", "chunks"), [(1, 7), (2, 7), (4, 20), (8, 3)])
def test_a_stream_pipeline_takes_n_plus_p_minus_1_stage_times(stages: int, chunks: int) -> None:
    """Plain micro-batched pipelining takes n * p stage times."""

    class Even(LinearCost):
        """A linear cost with several equal stages."""

        __slots__ = ()

        @property
        def stages(self) -> int:
            return stages

    cost = Even(seconds_per_token=PREFILL_S, decode_s_per_token=DECODE_S)
    stage_s = 100 * PREFILL_S
    for stream, times in ((True, chunks + stages - 1), (False, chunks * stages)):
        target = engine(cost, max_num_batched_tokens=100, stream_pipeline=stream)
        timing = drive(target, [job("a", 0.0, 100 * chunks, 3)])["a"]
        assert timing.ttft_s == pytest.approx(times * stage_s)
        # A decode must leave the last stage before the next one can begin.
        assert timing.end_s - timing.first_token_s == pytest.approx(2 * stages * DECODE_S)


# Random loads.

H100 = load_hardware("h100")
COSTS: Sequence[CostModel] = (
    LINEAR,
    replace(LINEAR, decode_s_per_sequence=1e-3, decode_s_per_context_token=1e-6),
    RooflineCost(H100, load_model("llama-3-8b")),
    RooflineCost(H100, load_model("llama-3-8b"), tensor=2, stages=3),
    RooflineCost(H100, load_model("llama-3-8b"), tensor=2, stages=2, kv_parallel=2),
)


@st.composite
def loads(draw: st.DrawFn) -> tuple[int, list[Job]]:
    """Draw a seed for the cost and settings, and jobs, some of which share prefixes."""
    rng = random.Random(draw(st.integers(0, 10_000)))
    now, jobs = 0.0, []
    for index in range(draw(st.integers(1, 25))):
        now += rng.expovariate(rng.choice([3.0, 30.0, 300.0]))
        prompt, output = rng.randint(1, 400), rng.choice([1, 2, 40, 120])
        branch = rng.randrange(3)
        shared = [branch * 1000 + i for i in range(prompt // 16)]
        answer = [(index + 1) * 10_000 + i for i in range(output // 16)]
        blocks = (*shared, *answer) if rng.random() < 0.7 else ()
        jobs.append(job(str(index), now, prompt, output, blocks=blocks, priority=rng.randrange(3)))
    return draw(st.integers(0, 10_000)), jobs


def random_engine(seed: int, scheduler: str) -> SimulatedEngine:
    rng = random.Random(seed)
    return engine(
        rng.choice(COSTS),
        scheduler=scheduler,
        num_blocks=rng.choice([40, 60, 200]),
        max_num_seqs=rng.choice([1, 4, 64]),
        max_num_batched_tokens=rng.choice([128, 300, 2048]),
        stream_pipeline=rng.random() < 0.5,
    )


SCHEDULERS = ("fcfs", "priority", "prefill-first", "non-preemptive", "slack")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=25)
@given(loads())
def test_merging_steps_changes_no_result(scheduler: str, load: tuple[int, list[Job]]) -> None:
    """With merged and cut stretches, every job has the same times as with single iterations."""
    seed, jobs = load
    single = drive(random_engine(seed, scheduler), jobs, merge=False)
    merged = drive(random_engine(seed, scheduler), jobs)
    for name, timing in single.items():
        assert timing.end_s < math.inf
        assert merged[name].first_token_s == pytest.approx(timing.first_token_s, abs=1e-9)
        assert merged[name].end_s == pytest.approx(timing.end_s, abs=1e-9)
        assert merged[name].cached_tokens == timing.cached_tokens


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=25)
@given(loads(), st.sets(st.integers(0, 24), max_size=4))
def test_no_job_is_lost_and_no_memory_left_behind(
    scheduler: str, load: tuple[int, list[Job]], dropped: set[int]
) -> None:
    """Each job gets all its tokens, but none after an abort, and all memory is released."""
    seed, jobs = load
    target = random_engine(seed, scheduler)
    for each in jobs:
        target.submit(each)
    got = dict.fromkeys((each.id for each in jobs), 0)
    finished: list[str] = []
    gone: set[str] = set()
    now, count = 0.0, 0
    while (step := target.step(now)) is not None:
        assert step.duration_s > 0
        now += step.duration_s
        for gain in step.progress:
            assert gain.job_id not in gone
            got[gain.job_id] += gain.tokens
            if gain.finished:
                finished.append(gain.job_id)
        count += 1
        if count == 3:
            gone = ({str(index) for index in dropped} & got.keys()) - set(finished)
            for name in gone:
                target.abort(name)
        reading = target.load()
        assert 0 <= reading.kv_usage <= 1
        assert reading.running + reading.waiting <= len(jobs) - len(gone)
    wanted = {each.id: each.output_tokens for each in jobs if each.id not in gone}
    assert {name: tokens for name, tokens in got.items() if name not in gone} == wanted
    assert sorted(finished) == sorted(wanted)
    assert target.load().kv_usage == 0
    assert (target.load().running, target.load().waiting) == (0, 0)


# Prefix cache, preemption, priority.


def test_the_next_turn_finds_prompt_and_answer_cached() -> None:
    """Only full blocks are cached, and the last token of a prompt is always computed."""
    chat = tuple(range(20))
    jobs = [
        job("first", 0.0, 160, 32, blocks=chat),
        job("next", 50.0, 200, 1, blocks=chat),
        job("same", 60.0, 192, 1, blocks=chat),
        job("other", 70.0, 200, 1, blocks=(99,)),
    ]
    target = engine()
    timings = drive(target, jobs)
    # The last token of an answer is never computed, so its block (176 to 191) is not full.
    assert timings["next"].cached_tokens == 176
    assert timings["next"].ttft_s == pytest.approx(24 * PREFILL_S)
    assert timings["same"].cached_tokens == 176
    assert timings["other"].cached_tokens == 0
    assert target.load().prefix_queries_tokens == 160 + 200 + 192 + 200
    assert target.load().prefix_hits_tokens == 352


def test_replaying_all_events_yields_the_cache() -> None:
    """A reader of the events can predict how much of a prompt is cached."""
    rng = random.Random(1)
    target = engine(num_blocks=64, kv_events=True)
    known: set[int] = set()
    now = 0.0
    for index in range(60):
        branch, size = rng.randrange(6), rng.randint(1, 30)
        blocks = tuple(branch * 100 + i for i in range(size))
        expected = next((i for i, key in enumerate(blocks) if key not in known), size)
        target.submit(job(str(index), now, size * 16 + 1, 1 + rng.randrange(20), blocks=blocks))
        cached = 0
        while (step := target.step(now, math.inf)) is not None:
            now += step.duration_s
            for event in step.events:
                change = set(event.hashes)
                known = known | change if event.kind == "stored" else known - change
            for gain in step.progress:
                cached = gain.cached_tokens
        assert cached == expected * 16
    target.restart()
    assert len(known) > 20


def test_stored_events_come_chunk_by_chunk() -> None:
    """Each step has a batch of events, so routers can follow a long prefill (vllm.md section 5)."""
    target = engine(max_num_batched_tokens=256, kv_events=True)
    target.submit(job("a", 0.0, 700, blocks=tuple(range(43))))
    stored = [step.events[0] for _, step in run_out(target)]
    assert [event.hashes for event in stored] == [
        tuple(range(16)),
        tuple(range(16, 32)),
        tuple(range(32, 43)),
    ]
    assert [event.parent for event in stored] == [None, 15, 31]


def test_the_newest_request_is_preempted_and_recomputes_its_tokens() -> None:
    """11 blocks hold two prompts of 64 tokens, but not two sequences of more than 80 tokens."""
    target = engine(num_blocks=11)
    for name in ("old", "new"):
        target.submit(job(name, 0.0, 64, 60))
    ends = {}
    now = 0.0
    while (step := target.step(now)) is not None:
        now += step.duration_s
        ends |= {gain.job_id: now for gain in step.progress if gain.finished}
    assert target.load().preemptions == 1
    # Blocks run out when both have 80 tokens, 16 after the first output token.
    together = 128 * PREFILL_S + 59 * DECODE_S
    assert ends["old"] == pytest.approx(together)
    made = 1 + 16
    assert ends["new"] == pytest.approx(
        together + (64 + made) * PREFILL_S + (60 - made - 1) * DECODE_S
    )


def test_priority_orders_the_queue_but_not_a_running_prefill() -> None:
    """The blocker keeps the budget; B (-3), C (0), D (1), A (5) follow: vllm.md section 4."""
    target = engine(scheduler="priority", max_num_batched_tokens=256)
    target.submit(job("blocker", 0.0, 7000))
    assert target.step(0.0) is not None
    for index, (name, priority) in enumerate((("A", 5), ("B", -3), ("C", 0), ("D", 1))):
        target.submit(job(name, 0.02 * index, 2000, priority=priority))
    done = [gain.job_id for _, step in run_out(target, 0.0256) for gain in step.progress]
    assert done == ["blocker", "B", "C", "D", "A"]


def test_prefill_first_scheduling_starves_decodes() -> None:
    """SGLang's order prefills new requests before running ones get their next token."""
    gaps = {}
    for scheduler in ("fcfs", "prefill-first"):
        target = engine(scheduler=scheduler, max_num_batched_tokens=512)
        target.submit(job("decoding", 0.0, 16, 50))
        assert target.step(0.0) is not None
        for index in range(5):
            target.submit(job(str(index), 0.0, 512))
        ends = [
            end
            for end, step in run_out(target, 16 * PREFILL_S)
            for gain in step.progress
            if gain.job_id == "decoding"
        ]
        gaps[scheduler] = ends[0] - 16 * PREFILL_S
    assert gaps["fcfs"] == pytest.approx(DECODE_S + 511 * PREFILL_S)
    assert gaps["prefill-first"] == pytest.approx(DECODE_S + 5 * 512 * PREFILL_S)


def test_without_preemption_a_short_request_waits_for_a_full_long_prefill() -> None:
    target = engine(scheduler="non-preemptive", num_blocks=100_000)
    jobs = [job("long", 0.0, 1_000_000), job("short", 1.0, 100), job("too", 1.0, 100)]
    timings = drive(target, jobs)
    assert timings["short"].first_token_s == pytest.approx(100 + 200 * PREFILL_S)
    assert timings["too"].first_token_s == timings["short"].first_token_s


def test_a_restart_loses_jobs_and_cache() -> None:
    target = engine(max_num_seqs=1, kv_events=True)
    for name in "ab":
        target.submit(job(name, 0.0, 160, 50, blocks=tuple(range(10))))
    assert target.step(0.0) is not None
    assert sorted(target.restart()) == ["a", "b"]
    ((_, told),) = run_out(target, 1.0)
    assert (told.duration_s, told.events) == (0.0, (KvEvent("cleared"),))
    assert target.load().kv_usage == 0
    target.submit(job("a", 2.0, 161, blocks=tuple(range(10))))
    (_, step), *_ = run_out(target, 2.0)
    assert step.progress[0].cached_tokens == 0

"""The planning part of the vLLM scheduler, and its refusals."""

from __future__ import annotations

import importlib.util
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import laar_vllm
from laar_vllm import Candidate, StepSettings, plan, require_known_version
from laar_vllm.plan import LATE_SHARE, LEAST_STEP_TOKENS
from support.exploring import examples

SETTINGS = StepSettings(long_tokens=1000, seconds_per_token=1e-5, quadratic_s=0.0, overhead_s=0.0)
BLOCK = 16


def candidate(
    key: str,
    tokens: int,
    *,
    done: int = 0,
    arrival_s: float = 0.0,
    running: bool | None = None,
    deadline_ms: object = None,
) -> Candidate:
    line = SETTINGS.line(tokens, arrival_s, deadline_ms)
    blocks = -(-tokens // BLOCK) - -(-done // BLOCK)
    return Candidate(key, tokens - done, done, line, blocks, bool(done) or bool(running))


def decide(*candidates: Candidate, now: float = 0.0, leader: str | None = None, **limits: int):
    wide = {"budget_tokens": 8192, "free_slots": 100, "free_blocks": 10**6}
    return plan(candidates, now, SETTINGS, leader=leader, **(wide | limits))


def test_a_short_prompt_runs_whole_next_to_a_long_one_with_slack():
    step = decide(candidate("long", 100_000, done=5000), candidate("short", 300))
    assert list(step.chunks) == ["short", "long"]
    assert step.chunks["short"] == 300
    # In 20 ms 2,000 tokens fit; chunks that do not end a prefill are multiples of 16.
    assert 2000 - 300 - 16 < step.chunks["long"] <= 2000 - 300


def test_a_long_prompt_without_slack_precedes_short_ones_with_slack():
    long = candidate("long", 100_000, done=5000, arrival_s=-5.5)
    step = decide(long, candidate("short", 300))
    assert list(step.chunks) == ["long", "short"]


def test_a_clients_deadline_moves_its_request_ahead():
    step = decide(candidate("plain", 500), candidate("hurried", 500, deadline_ms=30))
    assert list(step.chunks) == ["hurried", "plain"]


def test_two_long_prefills_never_share_a_step():
    step = decide(candidate("a", 50_000, done=16), candidate("b", 50_000, done=16))
    assert sorted(bool(size) for size in step.chunks.values()) == [False, True]


def test_a_long_prefill_that_waited_longer_than_its_work_takes_precedence():
    running, waiting = candidate("running", 200_000, done=16), candidate("waiting", 10_000)
    assert decide(running, waiting, leader="running").leader == "running"
    assert decide(running, waiting, now=1.5, leader="running").leader == "waiting"


def test_the_blocks_that_a_paused_prefill_still_needs_stay_reserved():
    paused = candidate("paused", 6400, done=640)  # needs 360 more blocks
    other = candidate("other", 6400)  # needs 400 blocks
    assert decide(paused, other, free_blocks=759).chunks["other"] == 0
    # A step has at most one long prefill, so the other one has to be short.
    short = candidate("short", 640)  # needs 40 blocks
    assert decide(paused, short, free_blocks=399).chunks["short"] == 0
    assert decide(paused, short, free_blocks=400).chunks["short"] == 640


def test_a_prefill_behind_one_that_does_not_fit_waits_too():
    big = candidate("big", 960, arrival_s=-100.0)
    small = candidate("small", 16)
    running = candidate("running", 800, done=400)
    step = decide(running, big, small, free_blocks=30)
    assert (step.chunks["big"], step.chunks["small"]) == (0, 0)
    assert step.chunks["running"] == 400


@settings(max_examples=examples(100))
@given(
    rows=st.lists(
        st.tuples(
            st.integers(1, 60_000), st.integers(0, 59_999), st.floats(-100, 100), st.booleans()
        ),
        max_size=15,
    ),
    budget=st.integers(-5, 9000),
    slots=st.integers(-1, 5),
    blocks=st.integers(-10, 5000),
)
def test_a_plan_respects_the_limits_of_the_engine(rows, budget, slots, blocks):
    candidates = [
        candidate(str(i), tokens, done=min(done, tokens - 1) if is_running else 0,
                  arrival_s=arrival_s, running=is_running)
        for i, (tokens, done, arrival_s, is_running) in enumerate(rows)
    ]  # fmt: skip
    step = decide(*candidates, budget_tokens=budget, free_slots=slots, free_blocks=blocks)
    assert sorted(step.chunks) == sorted(one.key for one in candidates)
    assert sum(step.chunks.values()) <= max(0, budget)
    assert all(0 <= step.chunks[one.key] <= one.remaining_tokens for one in candidates)
    started = [one for one in candidates if not one.is_running and step.chunks[one.key]]
    assert len(started) <= max(0, slots)
    running = [one for one in candidates if one.is_running]
    if len(started) > 1 or (started and running):
        assert sum(one.blocks for one in started + running) <= max(
            blocks, started[0].blocks if not running else 0
        ) or (not running and sum(one.blocks for one in started[1:]) <= max(0, blocks))
    # The most urgent running request continues, whatever waits, unless a more urgent one starts and
    # takes all tokens of the step.
    assert not running or budget <= 0 or any(step.chunks.values())


def test_prefills_get_what_decodes_leave_of_a_step():
    """More requests that decode, or longer contexts, make a long prompt's chunk smaller."""
    loads = [(0, 0), (16, 0), (64, 64_000), (200, 200_000), (200, 800_000)]
    sizes = []
    for decodes, context_tokens in loads:
        counts = {"decodes": decodes, "decode_context_tokens": context_tokens}
        step = decide(candidate("long", 100_000), **counts)
        sizes.append(step.chunks["long"])
        step_s = SETTINGS.decode_s(decodes, context_tokens) + SETTINGS.prefill_s(sizes[-1])
        assert step_s <= SETTINGS.target_s or sizes[-1] == LEAST_STEP_TOKENS
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


@settings(max_examples=examples(100))
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 9000), st.integers(0, 100_000), st.floats(-100, 100)),
        min_size=1, max_size=6,
    ),
    decodes=st.integers(0, 2000),
    context_tokens=st.integers(0, 10**7),
    config=st.builds(
        StepSettings,
        seconds_per_token=st.floats(0, 1e-3), quadratic_s=st.floats(0, 1e-8),
        target_s=st.floats(0, 0.1), long_tokens=st.integers(0, 10_000),
    ),
)  # fmt: skip
def test_prompts_get_their_least_tokens_beside_any_number_of_decodes(
    rows, decodes, context_tokens, config
):
    candidates = [
        Candidate(str(n), left, done, config.line(left + done, arrival_s, None), 1, True)
        for n, (left, done, arrival_s) in enumerate(rows)
    ]
    step = plan(
        candidates, 0.0, config, leader=None, budget_tokens=8192, free_slots=0, free_blocks=100,
        decodes=decodes, decode_context_tokens=context_tokens,
    )  # fmt: skip
    # A step has one long prefill, which leaves a share to short ones.
    shorts = sum(left for left, done, _ in rows if left + done <= config.long_tokens)
    longs = [left for left, done, _ in rows if left + done > config.long_tokens]
    least = min(LEAST_STEP_TOKENS, shorts + min(longs, default=0))
    assert sum(step.chunks.values()) >= least * (1 - LATE_SHARE if shorts and longs else 1) - 1


def test_a_chat_beside_many_decodes_gets_its_least_tokens_a_step(figure):
    for decodes in (0, 64, 200, 256):
        one = Candidate("chat", 2000, 0, StepSettings().line(2000, 0.0, None), 125, True)
        step = plan(
            [one], 0.0, StepSettings(), leader=None, budget_tokens=2048 - decodes, free_slots=0,
            free_blocks=200, decodes=decodes, decode_context_tokens=1500 * decodes,
        )  # fmt: skip
        figure(f"tokens a step beside {decodes} decodes", step.chunks["chat"], "256")
        assert step.chunks["chat"] >= LEAST_STEP_TOKENS


def test_a_late_long_prompt_leaves_room_for_short_ones():
    long = candidate("long", 100_000, done=5000, arrival_s=-600.0)
    chunks = decide(long, candidate("short", 300)).chunks
    assert chunks["short"] == 300
    assert chunks["long"] > 600


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0.0", "dev", ""])
def test_an_unknown_vllm_is_rejected_with_its_version_and_a_fix(version):
    with pytest.raises(ValueError, match=r"0\.32\.x.*without --scheduler-cls") as refusal:
        require_known_version(version)
    assert f"vLLM {version}:" in str(refusal.value)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_error_says_where_to_install_laar():
    with pytest.raises(ImportError, match="install laar-vllm into vLLM's environment"):
        _ = laar_vllm.SlackScheduler


def test_settings_are_read_from_additional_config():
    config = {"laar": {"target_s": 0.05, "long_tokens": 9000}}
    assert StepSettings.from_config(config) == StepSettings(target_s=0.05, long_tokens=9000)


@pytest.mark.parametrize(
    "given",
    [{"targets_s": 1}, {"target_s": "fast"}, {"target_s": -1}, {"target_s": True},
     {"target_s": math.nan}, {"quadratic_s": math.inf}],
)  # fmt: skip
def test_invalid_settings_are_rejected_by_name(given):
    with pytest.raises(ValueError, match=rf"^additional-config: laar: .*{next(iter(given))}"):
        StepSettings.from_config({"laar": given})

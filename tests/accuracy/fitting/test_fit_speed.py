"""c(m) is fitted to timed answers, and outliers hardly change it."""

from __future__ import annotations

from bisect import bisect_right
from random import Random
from statistics import median

import pytest

from laar.accuracy.artifact import Speed
from laar.accuracy.assessment import CONTEXT_TOKENS
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.fitting.speed import fit_speed

C = 45e-6
LENGTHS = (200, 500, 1000, 2000, 4000, 8000)


def answers(
    count: int = 90,
    *,
    jitter_s: float = 0.005,
    shorts: float = 0.6,
    bend: float = 0.0,
    stalls: int = 0,
    seed: int = 1,
    longest: int = 8000,
    **given: object,
) -> list[MeasuredOutcome]:
    """Return answers to prompts of all lengths, but mostly short ones as in real traffic."""
    rng, made = Random(seed), []
    for at in range(count):
        tokens = rng.randint(40, 112)
        if rng.random() >= shorts:
            tokens = round(200 * (longest / 200) ** rng.random())
        ttft_s = 0.012 + C * tokens * (1 + bend * 0.5 * tokens / 65536)
        ttft_s = max(ttft_s + rng.expovariate(1 / jitter_s), 1e-3)
        if at < stalls:
            ttft_s += 3.0
        row = {"query_id": f"{seed}-{at}", "model": "m", "correct": at % 2 == 0, "language": "en",
               "prompt_chars": 4 * tokens, "prompt_tokens": tokens, "ttft_s": ttft_s,
               "latency_s": ttft_s + 0.4}  # fmt: skip
        made.append(MeasuredOutcome.model_validate(row | given))
    return made


def ratios(speed: Speed, **given: object) -> list[float]:
    """Return predicted / observed times to the first token of other prompts, by length class."""
    found: list[list[float]] = [[] for _ in LENGTHS[1:]]
    for outcome in answers(600, shorts=0.0, seed=9, **given):
        tokens, ttft_s = outcome.prompt_tokens or 0, outcome.ttft_s or 0.0
        work = tokens * (1.0 + speed.bend * 0.5 * tokens / CONTEXT_TOKENS)
        predicted_s = speed.start_s + speed.seconds_per_token * work
        if LENGTHS[0] <= tokens < LENGTHS[-1]:
            found[bisect_right(LENGTHS, tokens) - 1].append(predicted_s / ttft_s)
    return list(map(median, found))


@pytest.mark.parametrize(
    ("jitter_s", "bend"), [(0.001, 0.0), (0.005, 0.0), (0.005, 2.0), (0.005, 16.0), (0.02, 2.0)]
)
def test_first_tokens_of_every_length_are_predicted(jitter_s: float, bend: float) -> None:
    for seed in range(5):
        speed = fit_speed(mine := answers(jitter_s=jitter_s, bend=bend, seed=seed), mine)
        assert isinstance(speed, Speed)
        found = ratios(speed, jitter_s=jitter_s, bend=bend)
        assert all(0.8 <= each <= 1.25 for each in found), found


def test_a_few_stalls_do_not_change_the_fit() -> None:
    speed = fit_speed(mine := answers(stalls=12), mine)
    assert isinstance(speed, Speed)
    assert speed.seconds_per_token == pytest.approx(C, rel=0.2)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"shorts": 1.0, "jitter_s": 0.05}, "is not a measurement"),
        ({"count": 12, "shorts": 0.3, "jitter_s": 5.0}, "is not a measurement"),
        ({"count": 3, "shorts": 0.0}, "too alike in length, or too few"),
        ({"shorts": 0.0, "longest": 210}, "too alike in length, or too few"),
        ({"prompt_tokens": None}, "no answer has both a prompt length"),
        ({"cached_tokens": 10**6}, "no answer has both a prompt length"),
    ],
)
def test_times_without_a_slope_yield_no_speed_but_a_reason(
    given: dict[str, object], reason: str
) -> None:
    assert reason in str(fit_speed(mine := answers(**given), mine))  # type: ignore[arg-type]

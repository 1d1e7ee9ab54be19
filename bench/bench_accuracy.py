"""Measure what LAAR adds to a decision: features of a 400 KB prompt, and P(correct) of 5 models.

Times are CPU time of the thread, which excludes other work on the machine.
"""

from __future__ import annotations

import random
import time
import timeit
from collections.abc import Callable
from functools import partial

import numpy as np

from laar.accuracy.artifact import TEXT_COLUMNS, TextTerms, parse_artifact
from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features, bucket_of, language_of, task_of
from laar.accuracy.fitting.text import packed
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.text import TextModel
from laar.accuracy.tokens import TokenEstimator
from laar.core.request import Api, Request
from laar_lab.kv_lookup import queries
from laar_lab.measure_fleet import default_artifact

_CALLS = 2000
_PROMPTS = 1000
_TASKS = 12


def _per_call_us(call: Callable[[], object]) -> float:
    taken = timeit.repeat(call, timer=time.thread_time, number=_CALLS, repeat=7)
    return min(taken) / _CALLS * 1e6


def _whole_us() -> tuple[float, float]:
    """Return p50 and p99 for features and Q of varied 400 KB prompts, detecting tasks by words."""
    capability = CapabilityModel(parse_artifact(default_artifact(), source="default"))
    rng = np.random.default_rng(1)
    columns = [
        packed(f"task {number}", -1.0, rng.normal(0.0, 0.3, TEXT_COLUMNS))
        for number in range(_TASKS)
    ]
    capability.text = TextModel(TextTerms(tasks=columns))
    online = OnlineOutcomes()
    assessor = CapabilityAssessor(capability, online)
    letters = "".join(random.Random(3).choices("etaoinshrdlu   ", k=600_000))
    taken = []
    for number in range(_PROMPTS):
        request = Request(
            id="bench",
            api=Api.CHAT,
            question=letters[100 * number : 100 * number + 400_000],
            system="You are careful. ",
            marks=("api=chat", "turns=2"),
            chars=400_000,
        )
        start = time.thread_time()
        known = assessor.assess(request, capability.models, (), 0.0)
        taken.append((time.thread_time() - start) * 1e6)
        if not number:
            for model in capability.models:
                online.observe(model, Features(*known.cell), True, 0.0)
    taken.sort()
    return taken[_PROMPTS // 2], taken[_PROMPTS * 99 // 100]


def _features(text: str, tokens: float) -> Features:
    return Features(language_of(text), bucket_of(tokens), task_of(text))


def main() -> None:
    capability = CapabilityModel(parse_artifact(default_artifact(), source="default"))
    models = capability.models
    online = OnlineOutcomes(capability)
    tokens = TokenEstimator()
    tokens.begin(capability.chars_per_token)
    prompts = {
        f"look-up, {query.language}": query.prompt
        for query in queries(lengths_tokens=[65536], per_cell=1)
    }
    prompts["prose, no task seen"] = "nothing in here mentions any task or data " * 9500
    prompts["Cyrillic prose"] = "ничего особенного " * 22_000
    rows: list[tuple[str, float, float]] = []
    for name, text in prompts.items():
        took = _per_call_us(partial(_features, text, tokens.estimate(len(text), "en")))
        rows.append((f"features of {len(text) // 1000}K characters ({name})", took, 30.0))
    features = _features(prompts["look-up, ja"], 65536)
    for model in models:
        online.observe(model, features, True, 0.0)
    row, tried = capability.probabilities(models, features), models[:2]
    rows += [
        (
            "P(correct) of 5 models, fitted",
            _per_call_us(lambda: capability.probabilities(models, features)),
            20.0,
        ),
        (
            "P(correct) of 5 models, with outcomes",
            _per_call_us(lambda: online.probabilities(models, features, 1.0)),
            20.0,
        ),
        (
            "P(correct) of 5 models, given 2 failures",
            _per_call_us(lambda: capability.given_failures(row, models, tried)),
            20.0,
        ),
        (
            "tokens of a prompt for 5 models",
            _per_call_us(lambda: tokens.tokens_per_char(models, "ja")),
            20.0,
        ),
    ]
    p50_us, p99_us = _whole_us()
    rows.append(("features and Q of 400 KB, tasks found by words, p50", p50_us, 150.0))
    rows.append(("features and Q of 400 KB, tasks found by words, p99", p99_us, 300.0))
    for name, took_us, target_us in rows:
        verdict = "ok" if took_us <= target_us else "OVER"
        print(f"{name:<62} {took_us:7.2f} us   target {target_us:4.0f} us   {verdict}")


if __name__ == "__main__":
    main()

"""What LAAR adds to a decision: features of a 400 KB prompt, and P(correct) of five models."""

from __future__ import annotations

import timeit
from collections.abc import Callable

from laar.accuracy import (
    CapabilityModel,
    OnlineOutcomes,
    SuccessModel,
    TokenEstimator,
    features_of,
    parse_artifact,
)
from laar.lab.measure_fleet import default_artifact
from laar.measuring.kv_lookup import queries

_CALLS = 2000


def _per_call_us(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=_CALLS, repeat=7)) / _CALLS * 1e6


def main() -> None:
    capability = CapabilityModel(parse_artifact(default_artifact(), source="default"))
    models = capability.models
    success = SuccessModel(capability, OnlineOutcomes())
    tokens = TokenEstimator(capability.chars_per_token)
    prompts = {
        f"look-up, {query.language}": query.prompt
        for query in queries(lengths_tokens=[65536], per_cell=1)
    }
    prompts["prose, no task seen"] = "nothing in here tells of any task or data " * 9500
    prompts["Cyrillic prose"] = "ничего особенного " * 22_000
    rows: list[tuple[str, float, float]] = []
    for name, text in prompts.items():
        took = _per_call_us(lambda text=text: features_of(text, tokens.estimate(len(text), "en")))
        rows.append((f"features of {len(text) // 1000}K characters ({name})", took, 30.0))
    features = features_of(prompts["look-up, ja"], 65536)
    for model in models:
        success.observe(model, features, (), True, 0.0)
    tried = models[:2]
    rows += [
        (
            "P(correct) of 5 models, fitted",
            _per_call_us(lambda: capability.probabilities(models, features)),
            20.0,
        ),
        (
            "P(correct) of 5 models, with outcomes",
            _per_call_us(lambda: success.probabilities(models, features, (), 1.0)),
            20.0,
        ),
        (
            "P(correct) of 5 models, with outcomes, 2 tried",
            _per_call_us(lambda: success.probabilities(models, features, tried, 1.0)),
            20.0,
        ),
        (
            "tokens of a prompt for 5 models",
            _per_call_us(lambda: tokens.estimate_each(393_000, "ja", models)),
            20.0,
        ),
    ]
    for name, took_us, target_us in rows:
        verdict = "ok" if took_us <= target_us else "OVER"
        print(f"{name:<62} {took_us:7.2f} us   target {target_us:4.0f} us   {verdict}")


if __name__ == "__main__":
    main()

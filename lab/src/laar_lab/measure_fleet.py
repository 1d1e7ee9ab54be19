"""Measure and fit the simulated fleet without a server, for the demo's artifact.

Each model of a fleet file answers the `fit` split of the look-ups through its `Answerer`, and the
outcomes go through the same fit as in `laar fit`. Latencies are computed from the file, for an
idle engine with an empty cache: prompt tokens times seconds per token, plus the time for the
answer's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from importlib.resources import files

from laar.accuracy.features import language_of, task_of
from laar.accuracy.fitting.fit import Fit, fit
from laar.accuracy.fitting.outcomes import MeasuredOutcome, dump_outcome
from laar_lab.kv_lookup import Query, queries
from laar_lab.sim.answers import AccuracySurface, Answerer
from laar_lab.tokens import count_tokens

DEFAULT_CREATED = "2026-01-01"
"""Creation date in the artifact; fixed, so that artifacts can be compared."""


def fleet_outcomes(surface: AccuracySurface, asked: Iterable[Query]) -> Iterator[MeasuredOutcome]:
    """Yield every model's outcome on every query."""
    answerers = [Answerer(surface, model) for model in surface.models]
    for query in asked:
        prompt = query.prompt
        tokens = count_tokens(prompt)
        language, task = language_of(prompt), task_of(prompt)
        for answerer in answerers:
            ttft_s = answerer.seconds_per_token * tokens
            yield MeasuredOutcome(
                query_id=query.id,
                model=answerer.model,
                correct=query.answer in answerer.answer(prompt),
                language=language,
                task=task,
                prompt_chars=len(prompt),
                prompt_tokens=tokens,
                completion_tokens=answerer.answer_tokens,
                latency_s=ttft_s + answerer.decode_s_per_token * answerer.answer_tokens,
                ttft_s=ttft_s,
            )


def measure_fleet(
    surface: AccuracySurface, *, seed: int = 0, per_cell: int = 50, created: str = DEFAULT_CREATED
) -> Fit:
    """Fit the models of a fleet file on the `fit` split of the look-ups."""
    asked = queries(
        languages=surface.languages,
        lengths_tokens=surface.lengths_tokens,
        per_cell=per_cell,
        seed=seed,
        split="fit",
    )
    outcomes = list(fleet_outcomes(surface, asked))
    data = sha256(b"".join(dump_outcome(outcome) for outcome in outcomes))
    return fit(outcomes, created=created, data_sha256=data.hexdigest())


def default_artifact() -> bytes:
    """Return the packaged artifact, which was fitted on the packaged fleet file."""
    return (files("laar_lab.sim") / "data" / "laar-fleet.capability.json").read_bytes()

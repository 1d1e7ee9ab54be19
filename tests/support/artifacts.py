"""Small artifacts for tests."""

from __future__ import annotations

from laar.accuracy.artifact import Capability, FittedCell, ModelCapability, RetryTerms, Speed


def model(
    intercept: float = 0.0,
    terms: dict[str, float] | None = None,
    cells: tuple[tuple[str, int, str, int], ...] = (("en", 4096, "qa", 100),),
    mean: float = 0.5,
    c: float | None = 1e-4,
) -> ModelCapability:
    return ModelCapability(
        intercept=intercept,
        terms=terms or {},
        mean=mean,
        regularisation=1.0,
        cells=[
            FittedCell(language=language, bucket=bucket, task=task, outcomes=n, correct=n // 2)
            for language, bucket, task, n in cells
        ],
        speed=c and Speed(seconds_per_token=c, spread_s_per_token=0.0, fixed_s=1.0, samples=9),
        chars_per_token={"en": 4.0},
        held_out=None,
    )


def artifact(
    models: dict[str, ModelCapability],
    difficulty: float | None = None,
) -> Capability:
    return Capability(
        created="2026-01-01",
        data_sha256="0" * 64,
        outcomes=100,
        models=models,
        retry=RetryTerms(difficulty=difficulty),
    )

"""What right answers cost: the share right and answers a second by the price of a wrong answer.

Every model runs on one endpoint, as fast as the artifact says, and users ask one question after
another, each once. A price is the setting `routing.wrong_answer_s`, which laar divides among the
requests in flight. Beside the prices: the best single model, and P(correct) of the model alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from laar.accuracy.artifact import Capability
from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.retry import WRONG_ANSWER_S
from laar_lab.experiments.lookups import ByModel, sites_of
from laar_lab.experiments.real_questions import ANSWER_TOKENS, RecordsWorld, world_of
from laar_lab.report import Table
from laar_lab.sim.answers import ModelSurface
from laar_lab.sim.fleet import FleetSettings, VirtualFleet, ask_until_correct

PRICES_S = (0.0, 10.0, 60.0, WRONG_ANSWER_S, 1000.0)
USERS = (1, 8, 32)
BEST, BY_MODEL = "best single model", "P by model"
CHOICES: tuple[float | str, ...] = (*PRICES_S, BY_MODEL, BEST)
QUESTIONS = 200

Curve = Mapping[tuple[int, float | str], tuple[float, float]]


def world(artifact: Capability, outcomes: Sequence[MeasuredOutcome]) -> RecordsWorld | None:
    """Return the questions that every model of the artifact answered, to ask at its speeds.

    Returns:
        None if a model's speed was not measured, or no question was answered by all.
    """
    speeds = {name: model.speed for name, model in artifact.models.items()}
    models = {
        name: ModelSurface(
            seconds_per_token=speed.seconds_per_token,
            decode_s_per_token=max(speed.fixed_s, 1e-4) / ANSWER_TOKENS,
            accuracy={"en": [0.5]},
        )
        for name, speed in speeds.items()
        if speed is not None
    }
    if len(models) < len(speeds):
        return None
    made = world_of(outcomes, models, artifact)
    return made if made.asked else None


def curve(of: RecordsWorld, seed: int) -> Curve:
    """Return the share right and the answers a second, by users and by price or rule."""
    return {(users, by): _ask(of, users, by, seed) for users, by in product(USERS, CHOICES)}


def _ask(of: RecordsWorld, users: int, by: float | str, seed: int) -> tuple[float, float]:
    known = CapabilityModel(of.capability)
    asked = of.questions(seed, QUESTIONS)
    if by == BEST:
        best = max(known.base_rates, key=known.base_rates.__getitem__)
        asked = [replace(q, request=replace(q.request, model=best)) for q in asked]
    price_s = WRONG_ANSWER_S if isinstance(by, str) else by
    fleet = VirtualFleet(
        sites_of(of.surface),
        FleetSettings(wrong_answer_s=price_s),
        seed=seed,
        assessor=(ByModel if by == BY_MODEL else CapabilityAssessor)(known),
    )
    answered = ask_until_correct(fleet, asked, concurrency=users, max_attempts=1)
    return (
        float(np.mean([one.correct for one in answered])),
        users / float(np.mean([one.ttca_s for one in answered])),
    )


def table(found: Curve) -> Table:
    """Return the curve as a table."""
    return Table(
        title="First answers by routing.wrong_answer_s: share right, and answers a second",
        columns=("choice", *(f"{users} users, {of}" for users in USERS for of in ("right", "/s"))),
        rows=[
            (
                by if isinstance(by, str) else f"{by:g} s",
                *(
                    text
                    for users in USERS
                    for text in (f"{found[users, by][0]:.1%}", f"{found[users, by][1]:.3g}")
                ),
            )
            for by in CHOICES
        ],
        digits=3,
    )

"""Learn from reported outcomes: a Beta posterior per model and cell, around the fitted prior.

A cell has a decaying count of outcomes n and of correct ones s. With the prior p worth k outcomes
the posterior mean is (k p + s) / (k + n): without reports it is the prior, and old reports are
forgotten exponentially, faster if there are many, so that a model replaced under the same name is
noticed. k is the artifact's number of outcomes in the cell, clamped to the range from `kappa` to 4
`kappa`, because a few reports, some of them inverted, must not outweigh many measurements. k is
lower if the model's other cells show that the artifact is wrong about it (`laar.accuracy.trust`).

Reports are not trusted. A cell accepts at most `cap_per_hour` of them in any hour, so in an hour
false reports can move it at most cap / (kappa + cap) of the way, while true reports pull it back.
False reports in many cells of a model together look like a wrong artifact, so they lower k too.
The server restricts who may report.

An outcome that follows failures comes from a harder query. Its `offset` (how far the failures
had lowered the expectation) is added back, so that a model that is only ever tried last does not
look worse than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, isfinite, log
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from laar.accuracy.capability import MAX_PROBABILITY, MIN_PROBABILITY, CapabilityModel
from laar.accuracy.cells import Cell, Saved, learned, read_saved
from laar.accuracy.difficulty import Repeat, Repeats
from laar.accuracy.features import FEATURES_SCHEMA, Features, Name
from laar.accuracy.trust import PriorTrust
from laar.latest import Shared

STATE_SCHEMA = 1

MAX_CELLS = 20_000
"""Maximum number of cells (6 MB): 400 each for 50 models. Clients may name any task, so of the
tenant with most, the cell that was reported least recently is dropped."""

KAPPA = 50.0
"""Minimum weight of a fitted prior, in outcomes; even a thin cell's prior draws on other cells."""
_MOST_KAPPAS = 4.0
"""Maximum weight of a well-measured prior, as a multiple of `KAPPA`: 200 outcomes, as many as a
cell accepts in an hour."""
HALF_LIFE_S = 86_400.0
"""Half-life of an outcome: a day, because models rarely change but traffic changes hourly."""
CAP_PER_HOUR = 200.0
"""Weight of outcomes that one cell accepts in any hour: enough for true reports to move it 80 % of
the way in an hour, but not for a burst of false ones."""

_MOST_OUTCOMES = 1000.0
"""Number of outcomes that a cell remembers: small enough to notice within hours that a model was
replaced under the same name, yet enough for a share's standard error to be at most 0.016."""

_HOUR_S = 3600.0
_FORGOTTEN = 0.5  # outcomes below which a cell is dropped


class ModelOutcomes(NamedTuple):
    """A model's reported outcomes after decay, and the number of cells they are in."""

    correct: float
    outcomes: float
    cells: int


class Taken(NamedTuple):
    """An outcome that a picker accepted; the others check the bounds of the fields."""

    model: Name
    features: Features
    correct: bool
    weight: Annotated[float, Meta(gt=0, le=1)]
    offset: Annotated[float, Meta(ge=-1, le=1)]
    tenant: Name


class OnlineOutcomes:
    """Posterior success probabilities from reported outcomes.

    Args:
        capability: the artifact to correct; may be replaced. None if nothing was measured.
        cap_per_hour: weight of outcomes that one cell accepts in any hour.
    """

    def __init__(
        self,
        capability: CapabilityModel | None = None,
        *,
        half_life_s: float = HALF_LIFE_S,
        cap_per_hour: float = CAP_PER_HOUR,
    ) -> None:
        self.capability = capability or CapabilityModel()
        self.trust = PriorTrust()
        """The share of its weight that each prior keeps."""
        self.repeats = Repeats()
        self.cap_per_hour = cap_per_hour
        self._forgetting = log(2) / half_life_s
        # A leaky bucket of half the cap that drains half the cap an hour passes at most the cap in
        # any hour, whenever the hour begins.
        self._burst = cap_per_hour / 2
        self.cells = _cells()
        """Reported outcomes, by model and features; read only."""
        self.refused = 0
        """Outcomes refused because they are implausible."""
        self.on_taken: Callable[[Taken], None] | None = None
        """Called with each accepted outcome that was reported to this picker."""

    def posterior(
        self, prior: NDArray[np.float64], models: Sequence[str], features: Features, now: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the posterior means and the decayed numbers of reported outcomes, by model.

        Both have the shape (len(models),); the means are `prior` itself if there are no outcomes.
        """
        features = learned(features)
        found = [self.cells.get((model, features)) for model in models]
        reported = np.zeros(len(models))
        if not any(found):
            return prior, reported
        means = prior.tolist()
        for at, cell in enumerate(found):
            if cell is not None:
                kept = self._kept(cell, now)
                correct, outcomes = kept * cell.correct, kept * cell.outcomes
                k = self._weight(models[at], features, cell)
                k *= self.trust.share(models[at], cell.evidence)
                mean = (k * means[at] + correct) / (k + outcomes)
                means[at] = min(max(mean, MIN_PROBABILITY), MAX_PROBABILITY)
                reported[at] = outcomes
        return np.array(means), reported

    def probabilities(
        self, models: Sequence[str], features: Features, now: float
    ) -> NDArray[np.float64]:
        """Return P(correct) of each model at the first attempt."""
        prior = self.capability.probabilities(models, features)
        return self.posterior(prior, models, features, now)[0]

    def observe(
        self,
        model: str,
        features: Features,
        correct: bool,
        now: float,
        weight: float = 1.0,
        *,
        offset: float = 0.0,
        tried: Sequence[str] = (),
        reproducible: bool = False,
        tenant: str = "",
    ) -> bool:
        """Record one outcome; return False if it was refused or exceeds the hourly cap.

        That of a repeat shows what repeats are worth, and not how often first answers are right.

        Args:
            model: the model that answered.
            features: features of the request.
            correct: the client's verdict.
            now: seconds, monotonic.
            weight: in (0, 1]; less than 1 if the outcome is only inferred.
            offset: the unconditional probability minus the one expected for this attempt.
            tried: models that had failed on the request before; the offset depends on them.
            reproducible: answers to the request do not vary.
            tenant: tenant of the request.
        """
        if tried:
            if reproducible:
                tried = tuple(dict.fromkeys(tried))
            everyone = (model, *(other for other in dict.fromkeys(tried) if other != model))
            row = self.probabilities(everyone, features, now)
            given = self.capability.given_failures(row, everyone, tried)
            if repeated := tried.count(model):
                if not reproducible:  # each earlier repeat has kept its share, too
                    expected = given.item(0) * self.repeats.share(model) ** (repeated - 1)
                    self.repeats.observe(Repeat(model, expected, correct))
                return True
            offset = float((row - given)[0])
        if not (0 < weight <= 1 and -1 <= offset <= 1 and isfinite(now)):
            self.refused += 1
            return False
        outcome = Taken(model, features, correct, weight, offset, tenant)
        if not self.heard(outcome, now):
            return False
        if self.on_taken is not None:
            self.on_taken(outcome)
        return True

    def heard(self, outcome: Taken, now: float) -> bool:
        """Record a validated outcome from this or another picker; return the same as `observe`."""
        model, features, correct, weight, offset, tenant = outcome
        key = (model, learned(features))
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell(now, tenant)
            self._make_room()
        self.cells.move_to_end(key)
        before = sum(cell.levels.values())
        cell.correct, cell.outcomes, level = self._aged(cell, now)
        cell.at_s = max(now, cell.at_s)
        left = level / before if before else 0.0
        levels = cell.levels = {of: left * each for of, each in cell.levels.items() if left * each}
        own = levels.get(tenant, 0.0) + weight
        share = self._burst / len({*levels, tenant})
        if level + weight > self._burst and own > share:
            return False
        levels[tenant] = own
        cell.correct += weight * (correct + offset)
        cell.outcomes += weight
        # An outcome may come from a picker with a different artifact, whose errors differ.
        cell.prior = self._prior(model, features)
        self._judge(*key, cell)
        return True

    def state(self, now: float) -> dict[str, object]:
        """Return everything learned, as plain JSON types, as of `now`.

        Changes nothing. Thread-safe: an outcome that `observe` receives meanwhile may be missing.
        """
        cells: list[list[object]] = []
        for (model, features), cell in list(self.cells.items()):
            correct, outcomes, level = self._aged(cell, now)
            if outcomes >= _FORGOTTEN:
                cells.append([*Saved(model, *features, correct, outcomes, level, cell.prior)])
        return {
            "schema": STATE_SCHEMA,
            "features_schema": FEATURES_SCHEMA,
            "prior_id": self.capability.digest,
            "cells": cells,
            "repeats": self.repeats.state(),
        }

    def by_model(self, now: float) -> dict[str, ModelOutcomes]:
        """Return each model's decayed outcomes, summed over its cells. Thread-safe."""
        sums: dict[str, ModelOutcomes] = {}
        for (model, _), cell in list(self.cells.items()):
            correct, outcomes, _ = self._aged(cell, now)
            before = sums.get(model, ModelOutcomes(0.0, 0.0, 0))
            sums[model] = ModelOutcomes(
                before.correct + correct, before.outcomes + outcomes, before.cells + 1
            )
        return sums

    def prior_weights(self) -> dict[str, float]:
        """Return the minimum weight of a prior now, for each model with reports. Thread-safe."""
        return {model: KAPPA * self.trust.share(model) for model in list(self.trust.models)}

    def restore(self, state: object, now: float, *, away_s: float = 0.0) -> int:
        """Restore a saved state over the present cells; return the number restored.

        The state may come from a file that anyone can edit, so no error is raised: invalid entries
        are skipped and counted as refused, and a state with a different schema restores nothing.
        Evidence about an artifact that has been replaced is dropped, as in `new_prior`.

        Args:
            state: a result of `state`, after a round trip through JSON.
            now: seconds, monotonic, of this process.
            away_s: seconds between saving and now, by the wall clock.
        """
        if not isinstance(state, Mapping) or (
            state.get("schema") != STATE_SCHEMA or state.get("features_schema") != FEATURES_SCHEMA
        ):
            return 0
        self.repeats.restore(state.get("repeats"))
        cells = state.get("cells")
        same_prior = state.get("prior_id") == self.capability.digest
        found = {}
        for entry in cells[:MAX_CELLS] if isinstance(cells, list) else ():
            if (read := read_saved(entry)) is None:
                self.refused += 1
                continue
            cell = Cell(now - max(away_s, 0.0), "", read.correct, read.outcomes, {"": read.level})
            cell.prior = read.prior if same_prior else None
            found[read.model, read.features] = self.cells[read.model, read.features] = cell
        self._add_up()
        for key, cell in found.items():
            self._judge(*key, cell)
        self._make_room()
        return len(found)

    def new_prior(self, capability: CapabilityModel) -> None:
        """Replace the artifact, and drop the evidence about the old one's priors.

        The outcomes are kept; a cell counts as evidence again after its next outcome.
        """
        self.capability = capability
        self.trust.models.clear()
        for cell in self.cells.values():
            cell.prior, cell.evidence, cell.weight = None, (), None

    def _prior(self, model: str, features: Features) -> float:
        return float(self.capability.probabilities((model,), features)[0])

    def _weight(self, model: str, features: Features, cell: Cell) -> float:
        """Return the weight of the prior in a cell if nothing contradicts it."""
        if cell.weight is None:
            measured = self.capability.measured(model, features)
            cell.weight = min(max(KAPPA, measured), _MOST_KAPPAS * KAPPA)
        return cell.weight

    def _judge(self, model: str, features: Features, cell: Cell) -> None:
        """Update the cell's evidence about the model's prior."""
        if cell.prior is None:
            return
        before = cell.evidence
        weight = self._weight(model, features, cell)
        cell.evidence = self.trust.evidence(cell.prior, cell.correct, cell.outcomes, weight)
        self.trust.take(model, cell.evidence, before)

    def _kept(self, cell: Cell, now: float) -> float:
        aged = exp(-self._forgetting * max(now - cell.at_s, 0.0))
        return min(aged, _MOST_OUTCOMES / max(cell.outcomes, _FORGOTTEN))

    def _aged(self, cell: Cell, now: float) -> tuple[float, float, float]:
        """Return a cell's correct and total outcomes and its level, decayed to `now`."""
        kept = self._kept(cell, now)
        drained = self._burst * max(now - cell.at_s, 0.0) / _HOUR_S
        level = max(sum(cell.levels.values()) - drained, 0.0)
        return kept * cell.correct, kept * cell.outcomes, level

    def _make_room(self) -> None:
        """Drop one cell in a hundred, with their evidence, if there are too many."""
        if len(self.cells) > MAX_CELLS:
            for _ in range(1 + MAX_CELLS // 100):
                del self.cells[self.cells.next_out]
            self._add_up()

    def _add_up(self) -> None:
        """Add up the evidence in the cells."""
        self.trust.models.clear()
        for (model, _), cell in self.cells.items():
            if cell.evidence:
                self.trust.take(model, cell.evidence, ())


def _cells() -> Shared[tuple[str, Features], Cell]:
    return Shared(MAX_CELLS + 1, lambda _key, cell: cell.tenant)

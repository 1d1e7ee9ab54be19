"""What reported outcomes add: a Beta posterior for each model and cell, around the fitted prior.

A cell holds a decaying count of outcomes n and of correct ones s. With the prior p worth k outcomes
the posterior mean is (k p + s) / (k + n): without reports it is the prior, and old reports are
forgotten exponentially, so that a model replaced behind its name is found out. k is `kappa`, and
less where the model's other cells say that the artifact is wrong about it (`laar.accuracy.trust`).

Reports are not trusted. A cell takes at most `cap_per_hour` of them in any hour, hence lies about
it can't move it further than cap / (kappa + cap) of the way in an hour (`max_shift_per_hour`),
against all the true reports that come in meanwhile. Lies about many cells of a model at once look
like a wrong artifact, and lower k besides. A lie kept up for days does win; who may report is for
the server to restrict.

An outcome that was reached after failures comes from the harder queries. Its `offset` (how far the
failures had lowered the expectation) is added back, so that a model that is only ever tried last
does not look worse than it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.capability import MAX_PROBABILITY, MIN_PROBABILITY
from laar.accuracy.features import FEATURES_SCHEMA, MIN_LEARNED_BUCKET_TOKENS, Features
from laar.accuracy.trust import SHARES, Evidence, PriorTrust

__all__ = ["MAX_CELLS", "STATE_SCHEMA", "ModelOutcomes", "OnlineOutcomes", "Taken"]

STATE_SCHEMA = 1

MAX_CELLS = 20_000
"""About 6 MB: 50 models in 400 cells. The task is the client's word, so the number needs a cap."""

MAX_CELLS_OF_TENANT = 5_000
"""Cells that one tenant's outcomes may begin: 50 models in 100 cells. Others need room too."""

KAPPA = 50.0
"""What a fitted prior weighs, in outcomes: about what a cell was fitted on."""
HALF_LIFE_S = 86_400.0
"""Of an outcome. A day: a model changes rarely, and its traffic with the hours."""
CAP_PER_HOUR = 200.0
"""Weight of outcomes that one cell takes in any hour: the true accuracy wins within the hour (80 %
of the way), a burst of lies does not."""

_HOUR_S = 3600.0
_SWEEP_S = 60.0  # at the cap, how often forgotten cells are looked for
_FORGOTTEN = 0.5  # outcomes; a cell with less says nothing
_MAX_COUNT = 1e9  # no sum of decaying weights comes near it; a restored state might claim it
_MAX_NAME_CHARS = 256


@dataclass(slots=True)
class _Cell:
    correct: float  # decaying count; an offset can take it a little below 0 or above `outcomes`
    outcomes: float
    level: float  # of the leaky bucket that limits reports
    at_s: float
    prior: float | None = None  # None: not known, so that it can't be judged
    evidence: Evidence = ()
    tenant: str | None = None  # whose outcome began it; None: it was restored


class ModelOutcomes(NamedTuple):
    """Reported outcomes that still weigh on a model, and the cells they are in."""

    correct: float
    outcomes: float
    cells: int


class Taken(NamedTuple):
    """An outcome as `OnlineOutcomes.observe` took it."""

    model: str
    features: Features
    correct: bool
    weight: float
    prior: float | None
    offset: float
    tenant: str


class OnlineOutcomes:
    """Posterior success probabilities from reported outcomes.

    Args:
        kappa: what a fitted prior weighs that nothing speaks against, in outcomes.
        half_life_s: of an outcome.
        cap_per_hour: weight of outcomes that one cell takes in any hour.
        shares: of `kappa` that a prior may be found to weigh; (1.0,) never doubts it.
    """

    def __init__(
        self,
        *,
        kappa: float = KAPPA,
        half_life_s: float = HALF_LIFE_S,
        cap_per_hour: float = CAP_PER_HOUR,
        shares: Sequence[float] = SHARES,
    ) -> None:
        self.kappa = kappa
        self._trust = PriorTrust(kappa, shares)
        self.cap_per_hour = cap_per_hour
        self._forgetting = log(2) / half_life_s
        # A leaky bucket of half the cap that drains half the cap an hour passes at most the cap in
        # any hour, wherever the hour begins.
        self._burst = cap_per_hour / 2
        self._cells: dict[tuple[str, Features], _Cell] = {}
        self._begun: Counter[str | None] = Counter()
        self._swept_s = float("-inf")
        self.limited = 0
        """Outcomes refused by the hourly cap."""
        self.refused = 0
        """Outcomes refused because they make no sense, or for want of a free cell."""
        self.on_taken: Callable[[Taken], None] | None = None
        """Gets each outcome that was taken and does not come from another picker."""

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def max_shift_per_hour(self) -> float:
        """The share of the way from the prior that lies of one hour about a cell can move it."""
        return self.cap_per_hour / (self.kappa + self.cap_per_hour)

    def posterior(
        self, prior: NDArray[np.float64], models: Sequence[str], features: Features, now: float
    ) -> NDArray[np.float64]:
        """Posterior means around `prior`; shape (len(models),). `prior` itself without reports."""
        features = _learned(features)
        found = [self._cells.get((model, features)) for model in models]
        if not any(found):
            return prior
        means = prior.tolist()
        for at, cell in enumerate(found):
            if cell is not None:
                kept = self._kept(cell, now)
                k = self._trust.weight(models[at], cell.evidence)
                mean = (k * means[at] + kept * cell.correct) / (k + kept * cell.outcomes)
                means[at] = min(max(mean, MIN_PROBABILITY), MAX_PROBABILITY)
        return np.array(means)

    def observe(
        self,
        model: str,
        features: Features,
        correct: bool,
        now: float,
        weight: float = 1.0,
        *,
        prior: float | None = None,
        offset: float = 0.0,
        tenant: str = "",
    ) -> bool:
        """Takes one outcome; False if it was refused or is over the hourly cap.

        Args:
            model: that answered.
            features: of the request.
            correct: what the client says.
            now: seconds, monotonic.
            weight: in (0, 1]; less than 1 for an outcome that is only inferred.
            prior: the fitted probability, unconditional; None leaves it unjudged.
            offset: the unconditional probability minus the one that was expected of this attempt.
            tenant: whose request it was.
        """
        if not (0 < weight <= 1 and -1 <= offset <= 1 and isfinite(now)):
            self.refused += 1
            return False
        outcome = Taken(model, features, correct, weight, prior, offset, tenant)
        if not self.heard(outcome, now):
            return False
        if self.on_taken is not None:
            self.on_taken(outcome)
        return True

    def heard(self, outcome: Taken, now: float) -> bool:
        """As `observe`, where another picker took it in; its numbers are in range."""
        model, features, correct, weight, prior, offset, tenant = outcome
        key = (model, _learned(features))
        cell = self._cells.get(key)
        if cell is None:
            if not self._has_room(now, tenant):
                self.refused += 1
                return False
            cell = self._cells[key] = _Cell(0.0, 0.0, 0.0, now, tenant=tenant)
            self._begun[tenant] += 1
        self._age(cell, now)
        if cell.level + weight > self._burst:
            self.limited += 1
            return False
        cell.level += weight
        cell.correct += weight * (correct + offset)
        cell.outcomes += weight
        cell.prior = prior
        self._judge(model, cell)
        return True

    def state(self, now: float) -> dict[str, object]:
        """Everything learned, as plain JSON types, as of `now`.

        Changes nothing, and may run on another thread than the observing one: an outcome that comes
        in meanwhile is in the state or is not.
        """
        cells = []
        for (model, features), cell in list(self._cells.items()):
            counts = self._aged(cell, now)
            if counts[1] >= _FORGOTTEN:
                named = [model, features.language, features.bucket, features.task]
                known = () if cell.prior is None else (cell.prior,)
                cells.append([*named, *counts, *known])
        return {"schema": STATE_SCHEMA, "features_schema": FEATURES_SCHEMA, "cells": cells}

    def by_model(self, now: float) -> dict[str, ModelOutcomes]:
        """What weighs on each model, summed over its cells; as `state`, from any thread."""
        sums: dict[str, ModelOutcomes] = {}
        for (model, _), cell in list(self._cells.items()):
            correct, outcomes, _ = self._aged(cell, now)
            before = sums.get(model, ModelOutcomes(0.0, 0.0, 0))
            sums[model] = ModelOutcomes(
                before.correct + correct, before.outcomes + outcomes, before.cells + 1
            )
        return sums

    def prior_weights(self) -> dict[str, float]:
        """What the artifact's word on a model weighs against its outcomes, where there are any."""
        return {model: self._trust.weight(model) for model in self._trust.models()}

    def restore(self, state: object, now: float, *, away_s: float = 0.0) -> int:
        """Takes up a saved state; returns how many cells were kept.

        The state may come from a file that anyone edited: entries that make no sense are counted as
        refused and left out, another schema gives 0, and nothing is raised.

        Args:
            state: what `state` gave, after a round trip through JSON.
            now: seconds, monotonic, of this process.
            away_s: seconds between saving and now, by the wall clock.
        """
        if not isinstance(state, Mapping) or (
            state.get("schema") != STATE_SCHEMA or state.get("features_schema") != FEATURES_SCHEMA
        ):
            return 0
        cells = state.get("cells")
        kept = 0
        for entry in cells if isinstance(cells, list) else ():
            read = _read_cell(entry, now - max(away_s, 0.0))
            if read is None or len(self._cells) >= MAX_CELLS:
                self.refused += 1
                continue
            key, cell = read
            if key in self._cells:
                cell.evidence = self._cells[key].evidence
            self._cells[key] = cell
            self._judge(key[0], cell)
            kept += 1
        return kept

    def new_prior(self) -> None:
        """The artifact was replaced: what spoke against the old one says nothing of the new one.

        The outcomes stay; each cell speaks again at its next one.
        """
        self._trust.clear()
        for cell in self._cells.values():
            cell.prior, cell.evidence = None, ()

    def _judge(self, model: str, cell: _Cell) -> None:
        """Lets the cell say anew what the model's prior should weigh."""
        if cell.prior is None:
            return
        before = cell.evidence
        cell.evidence = self._trust.evidence(cell.prior, cell.correct, cell.outcomes)
        self._trust.take(model, cell.evidence, before)

    def _kept(self, cell: _Cell, now: float) -> float:
        return exp(-self._forgetting * max(now - cell.at_s, 0.0))

    def _aged(self, cell: _Cell, now: float) -> tuple[float, float, float]:
        """Correct ones, outcomes and the bucket's level as of `now`."""
        kept = self._kept(cell, now)
        drained = self._burst * max(now - cell.at_s, 0.0) / _HOUR_S
        return kept * cell.correct, kept * cell.outcomes, max(cell.level - drained, 0.0)

    def _age(self, cell: _Cell, now: float) -> None:
        cell.correct, cell.outcomes, cell.level = self._aged(cell, now)
        cell.at_s = max(now, cell.at_s)

    def _has_room(self, now: float, tenant: str) -> bool:
        is_full = len(self._cells) >= MAX_CELLS or self._begun[tenant] >= MAX_CELLS_OF_TENANT
        if is_full and now - self._swept_s >= _SWEEP_S:
            self._swept_s = now
            self._cells = {
                key: cell
                for key, cell in self._cells.items()
                if cell.outcomes * self._kept(cell, now) >= _FORGOTTEN
            }
            self._begun = Counter(cell.tenant for cell in self._cells.values())
            self._trust.clear()
            for (model, _), cell in self._cells.items():
                if cell.evidence:
                    self._trust.take(model, cell.evidence, ())
        return len(self._cells) < MAX_CELLS and self._begun[tenant] < MAX_CELLS_OF_TENANT


def _learned(features: Features) -> Features:
    """The cell that outcomes of these features are counted in."""
    if features.bucket >= MIN_LEARNED_BUCKET_TOKENS:
        return features
    return features._replace(bucket=MIN_LEARNED_BUCKET_TOKENS)


def _read_cell(entry: object, at_s: float) -> tuple[tuple[str, Features], _Cell] | None:
    """One cell of a saved state, or None if it can't be true."""
    if not isinstance(entry, list) or len(entry) not in (7, 8):  # the prior may be unknown
        return None
    model, language, bucket, task, *counts = entry
    for name in (model, language, task):
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARS:
            return None
    if type(bucket) is not int or any(type(count) not in (int, float) for count in counts):
        return None
    correct, outcomes, level, *known = map(float, counts)
    possible = 0 <= outcomes <= _MAX_COUNT and -outcomes <= correct <= 2 * outcomes
    possible = possible and all(0 <= prior <= 1 for prior in known)
    if not (possible and 0 <= level <= _MAX_COUNT):  # NaN fails each comparison
        return None
    prior = known[0] if known else None
    return (model, _learned(Features(language, bucket, task))), _Cell(
        correct, outcomes, level, at_s, prior
    )

"""The weight of each reporter of outcomes, estimated by comparison with the other reporters.

Every outcome is about a different answer, so two reports never contradict each other directly. But
reporters of the same kind of request (a model and a cell) should see similar shares of correct
answers. A reporter is compared with the others of a cell by a beta-binomial likelihood under four
hypotheses: its reports are true, a quarter of them are inverted, they are unrelated to the answers,
all are inverted. The evidence of all cells is added up. A reporter's weight is the posterior mean
of 1, 1/4, 0 and 0: for a share f inverted at random, (1 - 2 f)^2 is the information left in a
binary answer (the one-coin model of Dawid and Skene 1979); reports all inverted are not used.

Each reporter has one vote: none outweighs all others together, however much it sends, and a cell is
evidence about a reporter only if two others report there. So one of three can be outvoted, a lone
reporter always keeps its weight, and an honest majority is required. An honest reporter may have
harder questions, so a standard deviation of about 0.1 between shares (`_ALIKE`) costs no weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp
from operator import add, mul, sub

from laar.accuracy.trust import log_beta_binomial

MAX_REPORTERS = 16
"""Maximum number of named reporters; a service that checks answers is one reporter. Others are
treated as unnamed until the outcomes of an earlier reporter are forgotten."""

UNNAMED = ""
"""The reporter name of all reports that give none."""

_WEIGHTS = (1.0, 0.25, 0.0, 0.0)
_PRIORS = (0.94, 0.02, 0.02, 0.02)
_ALIKE = 20.0  # concentration of honest reporters' shares, in outcomes
_OTHERS_NEEDED = 2
_BELIEVED = 0.9  # higher weights become 1

Likelihood = tuple[float, ...]
"""Log likelihood of a reporter's outcomes in a cell under each hypothesis; empty if unknown."""


class ReporterTrust:
    """Learns the weight of each reporter's outcomes."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._logs: dict[str, list[float]] = {}
        self._weights: dict[str, float] = {}

    def admitted(self, name: str) -> str:
        """Return the name to count reports under; `UNNAMED` if there are too many names."""
        if name != UNNAMED and name not in self._names:
            if len(self._names) >= MAX_REPORTERS:
                return UNNAMED
            self._names.add(name)
        return name

    def weight(self, name: str) -> float:
        """Return the weight of a reporter's outcomes, in 0..1; 1 if it has not been judged."""
        return self._weights.get(name, 1.0)

    @property
    def doubted(self) -> bool:
        """Whether any weight is below 1."""
        return bool(self._weights)

    def weights(self) -> dict[str, float]:
        """Return the weight of each named reporter. Thread-safe."""
        return {name: self.weight(name) for name in list(self._names)}

    def likelihood(
        self, correct: float, outcomes: float, others: Iterable[tuple[str, float, float]]
    ) -> Likelihood:
        """Return a cell's evidence about a reporter; empty if fewer than two others report there.

        Args:
            correct: number of outcomes in the cell that it reported as correct.
            outcomes: number of outcomes in the cell that it reported.
            others: name, correct outcomes and all outcomes of each other reporter in the cell.
        """
        known = [
            (self.weight(name) * c, self.weight(name) * n) for name, c, n in others if n >= 1.0
        ]
        if len(known) < _OTHERS_NEEDED:
            return ()
        largest = max(n for _, n in known)
        rest = sum(n for _, n in known) - largest
        right = total = 0.0
        for c, n in known:
            share = min(1.0, rest / n) if n == largest and n > 0 else 1.0
            right, total = right + share * c, total + share * n
        mean = min(max((right + 1.0) / (total + 2.0), 0.02), 0.98)
        # Add the variance of the others' mean to the variance between honest reporters.
        alike = 1.0 / (1.0 / (_ALIKE + 1.0) + 1.0 / (total + 3.0)) - 1.0
        turned = mean + 0.25 * (1.0 - 2.0 * mean)
        s = min(max(correct, 0.0), outcomes)
        return (
            log_beta_binomial(s, outcomes, mean, alike),
            log_beta_binomial(s, outcomes, turned, alike),
            log_beta_binomial(s, outcomes, 0.5, 2.0),
            log_beta_binomial(s, outcomes, 1.0 - mean, alike),
        )

    def take(self, name: str, found: Likelihood, instead_of: Likelihood) -> None:
        """Replace a cell's earlier evidence about a reporter; empty means none."""
        logs = self._logs.get(name, [0.0] * len(_WEIGHTS))
        if instead_of:
            logs = list(map(sub, logs, instead_of))
        if found:
            logs = list(map(add, logs, found))
        self._logs[name] = logs
        top = max(logs)
        odds = [prior * exp(log - top) for prior, log in zip(_PRIORS, logs, strict=True)]
        weight = sum(map(mul, odds, _WEIGHTS)) / sum(odds)
        if weight < _BELIEVED:
            self._weights[name] = weight
        else:
            self._weights.pop(name, None)

    def begin(self, names: Iterable[str]) -> None:
        """Forget the evidence of all cells, and all names except these."""
        self._names = set(names) - {UNNAMED}
        self._logs.clear()
        self._weights.clear()

"""Declare claims before an experiment runs, and judge them afterwards by one rule.

A claim states its metric, direction, bound and number of seeds. An experiment returns its
evidence, one number (or a pair of numbers) per seed, and does not itself decide whether the claim
held. Effects:

* `ratio`: ours / theirs, paired by seed, as logarithms. A bound of 0.9 requires a 10 % reduction;
  1.03 is a non-inferiority margin of 3 %.
* `difference`: ours - theirs, paired by seed.
* `level`: ours alone.
* `every`: every seed's number meets the bound; for exact figures and events that must not happen.

All but `every` are one-sided t tests with the null hypothesis that the bound is not met. If a claim
has several parts (loads, rivals), it requires `all` of them, which needs no correction, or `any`
of them, corrected for the number of parts. Claims of one family are corrected by Holm's procedure.

With fewer seeds than the claim requires, there is no verdict. Outcomes:

* `shown`: the bound is met.
* `in kind`: the direction is shown but not the bound (a ratio on the right side of 1, for example).
* `contrary`: the opposite direction is shown.
* `open`: none of these.

Tables call a paper's claim reproduced, reproduced in kind, contradicted or not reproduced, or, if
it is shown with far more than was published, larger than published. laar's
own claims are "beyond the paper": shown, in kind only, refuted or not shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

import numpy as np

from laar_lab.statistics import (
    ALPHA,
    Estimate,
    below_zero,
    detectable,
    estimate,
    holm,
    log_ratios,
    seeds_for,
)

Effect = Literal["ratio", "difference", "level", "every"]
Direction = Literal["below", "above"]
Outcome = Literal["shown", "in kind", "contrary", "open", "no verdict"]

ALONE = "alone"
"""The family of claims that are tested individually, without correction."""

_LEAST_SEEDS = 3
_MANY_SEEDS = 1000
"""Maximum number of seeds to suggest; an effect that needs more is practically at the bound."""
_NONE = {"ratio": 1.0, "difference": 0.0}
"""The effect if ours and theirs are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim, declared before the run.

    Args:
        name: name in tables and files; unique in its experiment.
        says: the claim, in one sentence.
        metric: the metric and its unit.
        effect: how ours and theirs are compared; see the module's docstring.
        direction: side of the bound on which the effect should lie.
        bound: the required effect.
        seeds: number needed for a verdict.
        paper: paper and section, as in "GORGO, section 3"; empty for a claim of laar's own.
        published: the paper's figure, in our words.
        parts: whether all parts must be shown, or just one.
        family: name shared by claims that are corrected together; `ALONE` for no correction.
        kind: effect beyond which the claim holds in kind; by default, no difference. A level
            without it can't be contradicted.
        largest: the largest published effect, in this unit; by default, the bound of a ratio or
            difference that is not just a direction. If the whole interval is beyond it, the claim
            is not reproduced but larger than published: the regime is another.
        why: the reason, if known, why the result differs from the claim.
    """

    name: str
    says: str
    metric: str
    effect: Effect
    direction: Direction
    bound: float
    seeds: int
    paper: str = ""
    published: str = ""
    parts: Literal["all", "any"] = "all"
    family: str = "claims"
    kind: float | None = None
    largest: float | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if self.effect not in get_args(Effect) or self.direction not in get_args(Direction):
            raise ValueError(f"{self.name}: no effect or direction: {self.effect} {self.direction}")
        if self.effect != "every" and self.seeds < _LEAST_SEEDS:
            raise ValueError(f"{self.name}: a test needs {_LEAST_SEEDS} seeds or more")

    @property
    def most(self) -> float | None:
        """The largest published effect; None if only a direction was published."""
        none = _NONE.get(self.effect)
        if self.largest is not None or none is None or not self.published:
            return self.largest
        beyond = self.bound < none if self.direction == "below" else self.bound > none
        return self.bound if beyond else None

    @property
    def begins(self) -> float | None:
        """The effect beyond which a claim is shown in kind; None if it can't be."""
        if self.kind is not None:
            return self.kind
        none = _NONE.get(self.effect)
        if none is None:
            return None
        beyond = self.bound > none if self.direction == "below" else self.bound < none
        return None if beyond else none


@dataclass(frozen=True, slots=True)
class Seen:
    """The numbers of one part, one per seed; `theirs` is empty for a single contestant."""

    ours: Sequence[float]
    theirs: Sequence[float] = ()


Runs = Sequence[Mapping[str, float]]
"""Numbers by name, one per seed."""


def paired(ours: Runs, theirs: Runs, name: str) -> Seen:
    """Return one metric of two contestants, by seed."""
    return Seen([run[name] for run in ours], [run[name] for run in theirs])


def level(ours: Runs, name: str) -> Seen:
    """Return one metric of one contestant, by seed."""
    return Seen([run[name] for run in ours])


Evidence = Mapping[str, Mapping[str, Seen]]
"""The numbers measured for each part of each claim, by claim name and part name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim and its result.

    Args:
        claim: the claim as declared.
        outcome: see the module's docstring.
        part: the part that decides: the weakest if all must be shown, else the strongest.
        effect: effect measured for that part; for a ratio, the geometric mean.
        low: lower end of its 95 % interval.
        high: upper end of the interval.
        seeds: number of seeds that ran.
        detectable: smallest effect that these seeds could have detected, in percent for a ratio
            and otherwise in the metric's unit.
        wanted: number of seeds that would settle the observed effect.
    """

    claim: Claim
    outcome: Outcome
    part: str
    effect: float
    low: float
    high: float
    seeds: int
    detectable: float
    wanted: float

    @property
    def verdict(self) -> str:
        """The outcome in the words of the results table."""
        if self.outcome == "no verdict":
            return f"no verdict: needs {self.claim.seeds} seeds"
        if not self.claim.paper:
            ours = {"shown": "shown", "in kind": "in kind only", "contrary": "refuted"}
            return f"beyond the paper: {ours.get(self.outcome, 'not shown')}"
        if self.larger:
            return "larger than published"
        theirs = {
            "shown": "reproduced",
            "in kind": "reproduced in kind",
            "contrary": "contradicted",
        }
        return theirs.get(self.outcome, "not reproduced")

    @property
    def larger(self) -> bool:
        """Whether the claim is shown, with more than the largest published effect."""
        largest = self.claim.most
        if self.outcome != "shown" or largest is None:
            return False
        return self.high < largest if self._below else self.low > largest

    @property
    def ours(self) -> str:
        """The effect and its interval, as text."""
        if self.claim.effect == "every":
            return f"{self.effect:.4g} at most" if self._below else f"{self.effect:.4g} at least"
        if self.low == self.high or self.low != self.low:
            return f"{self.effect:.4g}"
        return f"{self.effect:.3g} ({self.low:.3g} .. {self.high:.3g})"

    @property
    def power(self) -> str:
        """The effect that these seeds could have detected, as text; empty if unknown."""
        if self.claim.effect == "every" or self.detectable != self.detectable:
            return ""
        unit = " %" if self.claim.effect == "ratio" else ""
        size = f"{self.detectable:.0f}" if self.detectable >= 100.0 else f"{self.detectable:.2g}"
        said = f"{self.seeds} seeds can detect an effect of {size}{unit}"
        if self.outcome == "open" and self.seeds < self.wanted < _MANY_SEEDS:
            said += f"; about {self.wanted:.0f} would settle the observed effect"
        return said

    @property
    def sentence(self) -> str:
        """The verdict as a full sentence."""
        where = f" ({self.part})" if self.part else ""
        asked = f"{self.claim.direction} {self.claim.bound:.4g} required"
        text = f"{self.claim.metric} {self.ours}{where}, {asked}"
        return f"{text}; {self.power}" if self.power else text

    @property
    def _below(self) -> bool:
        return self.claim.direction == "below"


@dataclass(frozen=True, slots=True)
class _Part:
    """One part's estimate, and p values for the bound, the direction and the opposite direction."""

    name: str
    effect: float
    low: float
    high: float
    values: Sequence[float]  # in the unit of the test: logarithms for a ratio
    shown_p: float
    kind_p: float
    contrary_p: float


def judge(claims: Sequence[Claim], evidence: Evidence) -> list[Judged]:
    """Judge each claim by its evidence, correcting the claims of a family together.

    Raises:
        ValueError: a claim has no evidence, or evidence belongs to no claim.
    """
    names = [claim.name for claim in claims]
    if sorted(names) != sorted(evidence):
        raise ValueError(f"claims {sorted(names)}, but evidence for {sorted(evidence)}")
    found: dict[str, Judged] = {}
    tested = [claim for claim in claims if claim.effect != "every"]
    by_family = sorted(tested, key=lambda claim: (claim.family, claim.name))
    for family, members in groupby(by_family, key=lambda claim: claim.family):
        together = [(claim, _decisive(claim, evidence[claim.name])) for claim in members]
        outcomes = _outcomes([part for _, part in together], corrected=family != ALONE)
        for (claim, part), outcome in zip(together, outcomes, strict=True):
            found[claim.name] = _judged(claim, evidence[claim.name], part, outcome)
    for claim in claims:
        if claim.effect == "every":
            found[claim.name] = _every(claim, evidence[claim.name])
    return [found[name] for name in names]


def _outcomes(parts: Sequence[_Part], *, corrected: bool) -> list[Outcome]:
    def refuted(p_values: list[float]) -> list[bool]:
        return holm(p_values) if corrected else [p <= ALPHA for p in p_values]

    shown = refuted([part.shown_p for part in parts])
    kind = refuted([part.kind_p for part in parts])
    contrary = refuted([part.contrary_p for part in parts])
    return [
        "shown" if a else "in kind" if b else "contrary" if c else "open"
        for a, b, c in zip(shown, kind, contrary, strict=True)
    ]


def _decisive(claim: Claim, seen: Mapping[str, Seen]) -> _Part:
    parts = [_part(claim, name, one) for name, one in seen.items()]
    if claim.parts == "all":
        worst = max(parts, key=lambda part: (part.shown_p, part.kind_p))
        contrary = min(1.0, min(part.contrary_p for part in parts) * len(parts))
        p_values = worst.shown_p, max(part.kind_p for part in parts), contrary
    else:
        worst = min(parts, key=lambda part: (part.shown_p, part.kind_p))
        shown, kind = (min(1.0, p * len(parts)) for p in (worst.shown_p, worst.kind_p))
        p_values = shown, kind, max(part.contrary_p for part in parts)
    return _Part(worst.name, worst.effect, worst.low, worst.high, worst.values, *p_values)


def _part(claim: Claim, name: str, seen: Seen) -> _Part:
    sign = 1.0 if claim.direction == "below" else -1.0
    bound, begins = claim.bound, claim.begins
    if claim.effect == "ratio":
        values = log_ratios(seen.ours, seen.theirs)
        bound = math.log(bound)
        begins = None if begins is None else math.log(begins)
    elif claim.effect == "difference":
        values = [a - b for a, b in zip(seen.ours, seen.theirs, strict=True)]
    else:
        values = list(seen.ours)
    mean = estimate(values)
    least = bound if begins is None else begins
    return _Part(
        name,
        *_back(claim, mean),
        values,
        below_zero([sign * (value - bound) for value in values]),
        1.0 if begins is None else below_zero([sign * (value - begins) for value in values]),
        1.0
        if claim.effect == "level" and begins is None
        else below_zero([sign * (least - value) for value in values]),
    )


def _back(claim: Claim, mean: Estimate) -> tuple[float, float, float]:
    ends = (mean.mean, mean.low, mean.high)
    if claim.effect != "ratio":
        return ends
    mid, low, high = (math.exp(min(end, 700.0)) for end in ends)
    return mid, low, high


def _judged(claim: Claim, seen: Mapping[str, Seen], part: _Part, outcome: Outcome) -> Judged:
    seeds = min(len(one.ours) for one in seen.values())
    least = detectable(part.values)
    bound = math.log(claim.bound) if claim.effect == "ratio" else claim.bound
    away = estimate(part.values).mean - bound
    return Judged(
        claim=claim,
        outcome=outcome if seeds >= claim.seeds else "no verdict",
        part=part.name if len(seen) > 1 else "",
        effect=part.effect,
        low=part.low,
        high=part.high,
        seeds=seeds,
        detectable=_percent(claim, least) if claim.effect == "ratio" else least,
        wanted=seeds_for(part.values, away),
    )


def _percent(claim: Claim, log: float) -> float:
    """Convert a logarithmic distance from the bound into percent in the claim's direction."""
    return 100.0 * abs(math.expm1(min(-log if claim.direction == "below" else log, 700.0)))


def _every(claim: Claim, seen: Mapping[str, Seen]) -> Judged:
    pick, place = (np.max, np.argmax) if claim.direction == "below" else (np.min, np.argmin)
    ends = [
        float(pick(one.ours)) for one in seen.values()
    ]  # NaN if any number is NaN; NaN meets no bound
    worst = ends[place(ends)]
    part = list(seen)[place(ends)]
    holds = worst <= claim.bound if claim.direction == "below" else worst >= claim.bound
    seeds = min(len(one.ours) for one in seen.values())
    outcome: Outcome = "shown" if holds else "contrary" if not claim.paper else "open"
    return Judged(
        claim=claim,
        outcome=outcome if seeds >= claim.seeds else "no verdict",
        part=part if len(seen) > 1 else "",
        effect=worst,
        low=math.nan,
        high=math.nan,
        seeds=seeds,
        detectable=math.nan,
        wanted=math.inf,
    )

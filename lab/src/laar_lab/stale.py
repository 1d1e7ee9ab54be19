"""Check whether stored numbers still match the code, by rerunning each run's first seed.

The lab is deterministic: the same code gives the same numbers to the last digit, so the first seed
stands for the others. If all its numbers match the stored ones, the code that repeats it confirms
the run; otherwise the run is stale and must be made again. The check runs the first seed alone, so
it compares with what this seed gave alone when the run was made.

Matrix products are rounded differently on different kinds of CPU, which changes some choices
between nearly equal endpoints. On CPUs with AVX-512, workers use the kernels that the stored
numbers used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from laar_lab.claims import Evidence
from laar_lab.experiment import Experiment, Scope
from laar_lab.results import DIGITS, Checked, Stored

TOLERANCE = 10.0 ** (1 - DIGITS)
"""Relative and absolute tolerance."""
ROUNDED = 1e-3
"""Relative differences up to this may come from another processor: rounding seldom changes a
choice, and then by little. With kernels for older CPUs a fiftieth of all numbers differ at all."""


def check(experiment: Experiment, stored: Stored, data: Path | None, commit: str) -> Stored:
    """Rerun a stored run's first seed; return the run with the result of the check."""
    known = {**first_numbers(stored.evidence), **stored.first}
    differ = differing(known, _first_alone(experiment, stored, data))
    return _checked(stored, commit, len(known), differ)


def just_made(experiment: Experiment, stored: Stored, data: Path | None) -> Stored:
    """Return a run that was just made, with what its first seed gives alone.

    The first seed runs once more, alone, so that later checks can compare with it: numbers that
    depend on a mean over all seeds, such as the choice of the best rival, may differ.
    """
    known = first_numbers(stored.evidence)
    otherwise = differing(known, _first_alone(experiment, stored, data))
    first = {name: float(alone) for name, (_, alone) in otherwise.items()}  # may be NumPy's
    return replace(stored, first=first)


def _first_alone(experiment: Experiment, stored: Stored, data: Path | None) -> dict[str, float]:
    taken = data if "--data" in stored.command.split() else None
    scope = Scope(seeds=(stored.first_seed,), data=taken)
    return first_numbers(experiment.run(scope).evidence)


def _checked(
    stored: Stored,
    commit: str,
    numbers: int,
    differ: Mapping[str, tuple[float, float]],
) -> Stored:
    worst = max(differ, key=lambda name: _gap(*differ[name]), default="")
    checked = Checked(
        commit=commit,
        date=datetime.now(UTC).date().isoformat(),
        numbers=numbers,
        differ=len(differ),
        moved=sum(_moved(*pair) for pair in differ.values()),
        worst=worst and "{}: {:.4g}, now {:.4g}".format(worst, *differ[worst]),
    )
    again = () if differ else (commit,)
    return replace(stored, checked=checked, repeated=(*stored.repeated, *again))


def differing(
    stored: Mapping[str, float], seen: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return the numbers that differ, as (stored, seen); NaN for a missing number."""
    pairs = {n: (stored.get(n, math.nan), seen.get(n, math.nan)) for n in {**stored, **seen}}
    return {name: pair for name, pair in pairs.items() if not _same(*pair)}


def _same(before: float, after: float) -> bool:
    if math.isnan(before) or math.isnan(after):
        return math.isnan(before) and math.isnan(after)
    return math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _moved(before: float, after: float) -> bool:
    return math.isnan(before) or math.isnan(after) or _gap(before, after) > ROUNDED


def _gap(before: float, after: float) -> float:
    """Return the relative difference; 0 if one number is missing."""
    gap = abs(after - before) / max(abs(before), abs(after), TOLERANCE)
    return 0.0 if math.isnan(gap) else gap


def first_numbers(evidence: Evidence) -> dict[str, float]:
    """Return the first seed's numbers, by claim, part and side."""
    return {
        f"{claim} {part}".rstrip() + side: values[0]
        for claim, parts in evidence.items()
        for part, seen in parts.items()
        for side, values in (("", seen.ours), (" (theirs)", seen.theirs))
        if values
    }

"""Cells of reported outcomes, and their serialization in a saved state.

A saved cell is a list: model, language, bucket, task, correct, outcomes, level, then the prior if
known, then the reporter if named. Each reporter has its own list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from laar.accuracy.features import MAX_BUCKET_TOKENS, MIN_LEARNED_BUCKET_TOKENS, Features
from laar.accuracy.reporters import UNNAMED, Likelihood
from laar.accuracy.trust import Evidence

MAX_NAME_CHARS = 256

_MAX_COUNT = 1e9  # far above any sum of decaying weights; a restored state might exceed it


@dataclass(slots=True)
class Share:
    """One reporter's share of a cell.

    Args:
        correct: decaying count; an offset can take it slightly below 0 or above `outcomes`.
        outcomes: decaying count.
        level: level of the leaky bucket that limits its reports.
        found: the cell's evidence about the reporter.
    """

    correct: float = 0.0
    outcomes: float = 0.0
    level: float = 0.0
    found: Likelihood = ()


@dataclass(slots=True)
class Cell:
    """Outcomes of one model on one kind of request.

    Args:
        at_s: when counts and levels were last updated.
        tenant: tenant of the outcome that created it; None if restored.
        total: counts of all reporters.
        shares: shares by reporter; empty while no reporter has had a name.
        prior: the artifact's probability; None if unknown and therefore not judged.
        evidence: the cell's evidence about the prior.
        weight: the undoubted prior's weight in outcomes; None until looked up.
    """

    at_s: float
    tenant: str | None = None
    total: Share = field(default_factory=Share)
    shares: dict[str, Share] = field(default_factory=dict)
    prior: float | None = None
    evidence: Evidence = ()
    weight: float | None = None


class Saved(NamedTuple):
    """One reporter's share of a cell in a saved state."""

    model: str
    features: Features
    share: Share
    prior: float | None
    reporter: str


def learned(features: Features) -> Features:
    """Return the cell that counts outcomes of these features."""
    if features.bucket >= MIN_LEARNED_BUCKET_TOKENS:
        return features
    return features._replace(bucket=MIN_LEARNED_BUCKET_TOKENS)


def written(saved: Saved) -> list[object]:
    """Return the entry as a list, for `read_saved`."""
    share = saved.share
    entry = [saved.model, *saved.features, share.correct, share.outcomes, share.level]
    if saved.reporter != UNNAMED:
        return [*entry, saved.prior, saved.reporter]
    return entry if saved.prior is None else [*entry, saved.prior]


def read_saved(entry: object) -> Saved | None:
    """Read one list of a saved state; return None if it is invalid."""
    if not isinstance(entry, list) or len(entry) not in (7, 8, 9):
        return None
    model, language, bucket, task, *counts = entry
    reporter = counts.pop() if len(counts) == 5 else UNNAMED
    if len(counts) == 4 and counts[3] is None:
        counts.pop()
    for name in (model, language, task):
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
            return None
    if not isinstance(reporter, str) or len(reporter) > MAX_NAME_CHARS:
        return None
    if type(bucket) is not int or not 0 <= bucket <= MAX_BUCKET_TOKENS:
        return None
    # NaN fails the comparison; an integer may be too large for a float.
    if not all(type(count) in (int, float) and abs(count) <= _MAX_COUNT for count in counts):
        return None
    correct, outcomes, level, *known = map(float, counts)
    possible = outcomes >= 0 and -outcomes <= correct <= 2 * outcomes and level >= 0
    if not (possible and all(0 <= prior <= 1 for prior in known)):
        return None
    share = Share(correct, outcomes, level)
    features = learned(Features(language, bucket, task))
    return Saved(model, features, share, known[0] if known else None, reporter)

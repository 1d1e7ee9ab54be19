"""An experiment: a name, the claim it checks, and the function that runs it.

Each is a small module in `laar.lab.experiments` with a tuple `EXPERIMENTS`; that is all it takes to
be listed and run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from laar.lab.report import Report

__all__ = ["FIRST_SEED", "Experiment", "Scope"]

FIRST_SEED = 1000
"""Seeds of experiments count from here unless told; artifacts that come with laar are fitted on
seed 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much of an experiment to run.

    Args:
        seeds: every policy runs on each.
        quick: the small version; its verdict is about whatever it covers.
        fleet: file of the simulated models; None for the one of the package.
        records: graded answers of real models, where an experiment takes these for questions.
    """

    seeds: tuple[int, ...]
    quick: bool = False
    fleet: Path | None = None
    records: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment.

    Args:
        name: what the command line calls it.
        claim: what it checks, one sentence.
        source: paper and section.
        run: makes the report.
        seeds: how many, unless told.
        quick_seeds: the same for the small version.
    """

    name: str
    claim: str
    source: str
    run: Callable[[Scope], Report]
    seeds: int = 10
    quick_seeds: int = 2

    def scope(self, seeds: int | None, *, quick: bool, first_seed: int = FIRST_SEED) -> Scope:
        """The scope for so many seeds, by default the experiment's own number."""
        count = seeds or (self.quick_seeds if quick else self.seeds)
        return Scope(seeds=tuple(range(first_seed, first_seed + count)), quick=quick)

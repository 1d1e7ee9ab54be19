"""An experiment: a name, the claim it checks, and the function that runs it.

Each is a small module in `laar.lab.experiments` with a tuple `EXPERIMENTS`; that is all it takes to
be listed and run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from laar.errors import SettingError
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
        data: directory with real traffic, for experiments that can use it.
        policies: in place of the experiment's own, for those that let one choose.
        workloads: the same.
        fleet: file of the simulated models; None for the one of the package.
        records: graded answers of real models, where an experiment takes these for questions.
    """

    seeds: tuple[int, ...]
    quick: bool = False
    data: Path | None = None
    policies: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
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
        first_seed: of its seeds, unless told.
        takes: options of `laar lab run` that only some experiments have: `data`, `policies`,
            `workloads`.
    """

    name: str
    claim: str
    source: str
    run: Callable[[Scope], Report]
    seeds: int = 10
    quick_seeds: int = 2
    first_seed: int = FIRST_SEED
    takes: frozenset[str] = frozenset()

    def scope(
        self,
        seeds: int | None,
        *,
        quick: bool,
        first_seed: int | None = None,
        data: Path | None = None,
        policies: Sequence[str] = (),
        workloads: Sequence[str] = (),
    ) -> Scope:
        """The scope for so many seeds, by default the experiment's own number.

        Raises:
            SettingError: the experiment has no such option.
        """
        given = {"data": data, "policies": policies, "workloads": workloads}
        for option, value in given.items():
            if value and option not in self.takes:
                raise SettingError(f"experiment `{self.name}` does not take {option}")
        count = seeds or (self.quick_seeds if quick else self.seeds)
        first = self.first_seed if first_seed is None else first_seed
        return Scope(
            seeds=tuple(range(first, first + count)),
            quick=quick,
            data=data,
            policies=tuple(policies),
            workloads=tuple(workloads),
        )

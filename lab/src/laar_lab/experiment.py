"""An experiment: a grid of runs, tables, and claims declared before it runs.

Each is a small module in `laar_lab.experiments` with a tuple `EXPERIMENTS`, and a YAML file next to
it that declares them (`laar_lab.declared`). Nothing else is needed to list, run and judge an
experiment and to give it a row in docs/results. Its function returns tables and, for each declared
claim, the numbers by seed; `laar_lab.claims` judges them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laar.errors import SettingError
from laar_lab.claims import Claim, Judged, judge
from laar_lab.report import Report

FIRST_SEED = 1000
"""Default first seed of experiments; the artifacts shipped with laar are fitted on seed 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The part of an experiment to run.

    Args:
        seeds: seeds to run each policy with.
        quick: whether this is a smoke test: small, without a verdict.
        data: directory of recorded real traffic, for experiments that can use it.
        policies: policies to run instead of the experiment's own, if it accepts this option.
        workloads: workloads to run instead of the experiment's own, if it accepts this option.
    """

    seeds: tuple[int, ...]
    quick: bool = False
    data: Path | None = None
    policies: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment.

    Args:
        name: name on the command line.
        about: subject, in one sentence.
        claims: claims to judge; may be empty.
        source: where its claims come from, such as "GORGO, section 3"; for laar's own ideas,
            "decision 13" or "no paper".
        run: function that makes the report.
        seeds: default number of seeds; no claim may need more.
        quick_seeds: number of seeds in a smoke test.
        minutes: approximate minutes per seed on one core.
        needs_data: whether it runs only with `--data`.
        first_seed: default first seed.
        takes: the options of `laar lab run` that only some experiments accept: `data`, `policies`,
            `workloads`.
    """

    name: str
    about: str
    source: str
    run: Callable[[Scope], Report]
    claims: tuple[Claim, ...] = ()
    seeds: int = 10
    quick_seeds: int = 2
    minutes: float = 1.0
    needs_data: bool = False
    first_seed: int = FIRST_SEED
    takes: frozenset[str] = frozenset()

    def judged(self, report: Report, scope: Scope) -> list[Judged]:
        """Return the verdicts; none for smoke tests, or if policies or workloads were chosen."""
        chosen = scope.quick or scope.policies or scope.workloads
        return [] if chosen else judge(self.claims, report.evidence)

    def hours(self, seeds: int, cores: int = 2) -> float:
        """Return the approximate duration of a run on `cores` cores, in hours."""
        return self.minutes * seeds / cores / 60.0

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
        """Return the scope for `seeds` seeds; None means the experiment's default number.

        Raises:
            SettingError: the experiment does not accept one of the options.
        """
        given: dict[str, Any] = {
            "data": data,
            "policies": tuple(policies),
            "workloads": tuple(workloads),
        }
        for option, value in given.items():
            if value and option not in self.takes:
                raise SettingError(f"experiment `{self.name}` does not take {option}")
        count = seeds or (self.quick_seeds if quick else self.seeds)
        first = self.first_seed if first_seed is None else first_seed
        return Scope(seeds=tuple(range(first, first + count)), quick=quick, **given)


def spoken_time(hours: float) -> str:
    """Format a duration in hours, or in minutes if below one hour."""
    return f"{hours:.1f} h" if hours >= 1.0 else f"{max(1.0, 60.0 * hours):.0f} min"

"""`laar lab results`: run experiments and write the index of all verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laar_lab.cli.lab.options import NOT_HELD, Data, Jobs, Keep, lab_console

if TYPE_CHECKING:
    from laar_lab.results import Stored


def results(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of experiments to run. Default: all that have no stored result."
        ),
    ] = None,
    directory: Annotated[
        Path, typer.Option(help="Directory for the results and their overview, index.md.")
    ] = Path("docs/results"),
    minutes: Annotated[
        float,
        typer.Option(
            min=0.0, help="Skip experiments that take longer than this many minutes on two cores."
        ),
    ] = math.inf,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Rerun the first seed of stored runs; exit with status 3 if a number differs."
            " Runs that this commit made or checked are skipped.",
        ),
    ] = False,
    data: Data = None,
    jobs: Jobs = -1,
    keep: Keep = None,
) -> None:
    """Run experiments, store their numbers by seed, and write the index with all verdicts.

    Each experiment runs on the seeds that its claims need.
    With `--minutes 0` none runs, and only the index is written.
    In laar's checkout, lab/claims.md is written as well.
    """
    from laar_lab.experiment import spoken_time
    from laar_lab.experiments import all_experiments, find_experiment
    from laar_lab.results import commit_of, hours, load, store, write, write_pages
    from laar_lab.stale import just_made
    from laar_lab.sweep import kept_in, placed, spent

    directory.mkdir(parents=True, exist_ok=True)
    known = {name: each for name, each in all_experiments().items() if each.claims}
    stored = load(directory)
    if check:
        with placed(jobs), kept_in(keep, (data,)):
            _check([stored[name] for name in names or stored], directory, minutes, data)
        stored = load(directory)
        write_pages(directory, known, stored)
        if any(run.checked and run.checked.differ for run in stored.values()):
            raise typer.Exit(NOT_HELD)
        return
    chosen = [find_experiment(name) for name in names or ()] or [
        each
        for each in known.values()
        if each.name not in stored and (data is not None or not each.needs_data)
    ]
    chosen = [each for each in chosen if 60.0 * hours({each.name: each}, stored) <= minutes]
    console, commit = lab_console(), commit_of()
    if chosen:
        needed = hours({each.name: each for each in chosen}, stored)
        console.print(f"{len(chosen)} experiments, about {spoken_time(needed)} on two cores")
    for experiment in chosen:
        console.print(experiment.name, highlight=False)
        taken = data if "data" in experiment.takes else None
        scope = experiment.scope(None, quick=False, data=taken)
        with placed(jobs), kept_in(keep, (taken,)):
            before_s = spent.cpu_s
            report = experiment.run(scope)
            took = (spent.cpu_s - before_s) / 60.0
            run = store(directory, experiment, report, scope, commit, took)
            run = just_made(experiment, run, taken)
        write(directory, run)
        stored[experiment.name] = run
        for one in experiment.judged(report, scope):
            console.print(f"  {one.verdict}: {one.claim.says}", highlight=False)
        write_pages(directory, known, stored)
    write_pages(directory, known, stored)
    together = spoken_time(hours(known, stored))
    console.print(f"all experiments together: about {together} on two cores", highlight=False)


def _check(runs: Sequence[Stored], directory: Path, minutes: float, data: Path | None) -> None:
    """Rerun the first seed of runs that this commit has not checked, and store the result."""
    from laar_lab.experiments import find_experiment
    from laar_lab.results import commit_of, write
    from laar_lab.stale import check

    console, commit = lab_console(), commit_of()
    for run in runs:
        experiment = find_experiment(run.experiment)
        if commit in (run.commit, run.checked and run.checked.commit):
            continue
        if experiment.minutes > minutes or ("--data" in run.command and data is None):
            console.print(f"{run.experiment}: not checked", highlight=False)
            continue
        checked = check(experiment, run, data, commit)
        write(directory, checked)
        seen = checked.checked
        assert seen is not None
        said = f"{seen.differ} of {seen.numbers} numbers differ; {seen.worst}"
        console.print(f"{run.experiment}: {said if seen.differ else 'as stored'}", highlight=False)

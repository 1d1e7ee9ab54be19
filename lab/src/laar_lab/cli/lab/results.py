"""`laar lab results`: run experiments and write the index of all verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from laar_lab.cli.lab.options import NOT_HELD, Backend, Data, Jobs, Keep, lab_console

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
            " Runs of unchanged code are skipped.",
        ),
    ] = False,
    stale: Annotated[
        bool,
        typer.Option(
            "--stale",
            help="Run nothing: list the stored runs that are not known to be valid for current "
            "code, with the pages that quote them; exit with status 3 if there are any.",
        ),
    ] = False,
    reuse: Annotated[
        bool,
        typer.Option(
            "--reuse",
            help="Keep the stored numbers of a policy, and run only its first seed, if that seed "
            "reproduces them on every workload. Only for no-regret, agents and conversations.",
        ),
    ] = False,
    data: Data = None,
    backend: Backend = "loky",
    jobs: Jobs = -1,
    keep: Keep = None,
) -> None:
    """Run experiments, store their numbers by seed, and write the index with all verdicts.

    Each experiment runs on the seeds that its claims need.
    With `--minutes 0` none runs, and only the index is written. In laar's checkout all claims are
    written to lab/claims.md as well.
    """
    from laar_lab.experiment import spoken_time
    from laar_lab.experiments import all_experiments, find_experiment
    from laar_lab.results import commit_of, load, store, write, write_pages
    from laar_lab.stale import just_made
    from laar_lab.sweep import kept_in, placed

    directory.mkdir(parents=True, exist_ok=True)
    known = {name: each for name, each in all_experiments().items() if each.claims}
    stored = load(directory)
    if stale:
        raise typer.Exit(NOT_HELD if _list_stale(stored, directory) else 0)
    if check:
        with placed(backend, jobs), kept_in(keep, (data,)):
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
    chosen = [each for each in chosen if 60.0 * each.hours(each.seeds) <= minutes]
    console, commit = lab_console(), commit_of()
    hours = sum(each.hours(each.seeds) for each in chosen)
    if chosen:
        about = "at most" if reuse else "about"
        console.print(f"{len(chosen)} experiments, {about} {spoken_time(hours)} on two cores")
    for experiment in chosen:
        console.print(experiment.name, highlight=False)
        taken = data if "data" in experiment.takes else None
        scope = experiment.scope(None, quick=False, data=taken)
        earlier = stored.get(experiment.name) if reuse else None
        if earlier is not None and earlier.first_seed != scope.seeds[0]:
            earlier = None  # its numbers are for other seeds
        if earlier is not None:
            scope = replace(scope, earlier=earlier.numbers)
        with (
            TemporaryDirectory() as scratch,
            placed(backend, jobs),
            # `just_made` runs the first seed again, which is most of the work
            kept_in(keep or (Path(scratch) if scope.earlier else None), (taken,)),
        ):
            report = experiment.run(scope)
            run = store(directory, experiment, report, scope, commit, earlier)
            run = just_made(experiment, run, taken)
        write(directory, run)
        stored[experiment.name] = run
        if reuse:
            _tell_reused(earlier, run)
        for one in experiment.judged(report, scope):
            console.print(f"  {one.verdict}: {one.claim.says}", highlight=False)
        write_pages(directory, known, stored)
    write_pages(directory, known, stored)


def _tell_reused(earlier: Stored | None, run: Stored) -> None:
    """Print how many runs were reused, and a line for each policy whose numbers differed."""
    from laar_lab.stale import changed

    console = lab_console()
    total = sum(
        len(values) for of in run.numbers.values() for values in next(iter(of.values())).values()
    )
    by_commit = {
        commit: sum(count for rivals in of.values() for count in rivals.values())
        for commit, of in run.reused.items()
    }
    of_them = "".join(f", {count} of {commit}" for commit, count in by_commit.items())
    console.print(f"  {sum(by_commit.values())} of {total} runs reused{of_them}", highlight=False)
    if earlier is not None:
        for rival, cases in changed(earlier, run).items():
            where = f"{len(cases)} of {len(run.numbers)} workloads: {', '.join(cases)}"
            console.print(f"  changed: {rival} on {where}", highlight=False)


def _check(runs: Sequence[Stored], directory: Path, minutes: float, data: Path | None) -> None:
    """Rerun the first seed of runs made with different code, and store the result."""
    from laar_lab.experiments import find_experiment
    from laar_lab.results import commit_of, write
    from laar_lab.stale import check, digest_of_code

    console, commit = lab_console(), commit_of()
    for run in runs:
        experiment = find_experiment(run.experiment)
        if run.checked is not None and run.checked.code == digest_of_code(experiment):
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


def _list_stale(stored: Mapping[str, Stored], directory: Path) -> int:
    """Print a line for each run not known to be valid for the current code; return their number."""
    from laar_lab.experiments import find_experiment
    from laar_lab.stale import of_other_code, pages_of

    console, count = lab_console(), 0
    for name, run in stored.items():
        why = of_other_code(find_experiment(name), run)
        if why is not None:
            count += 1
            pages = ", ".join(pages_of(name, directory.absolute().parent))
            quoted = f"; quoted in {pages}" if pages else ""
            console.print(f"{name}: {why}{quoted}", highlight=False)
    console.print(f"{count} of {len(stored)} stored runs are stale", highlight=False)
    return count

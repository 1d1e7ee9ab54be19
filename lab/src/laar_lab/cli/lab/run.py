"""`laar lab run`: run an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from laar.cli.terminal import check_places
from laar_lab.cli.lab.options import (
    NO_VERDICT,
    NOT_HELD,
    Data,
    Jobs,
    Json,
    Keep,
    lab_console,
)

if TYPE_CHECKING:
    from laar_lab.claims import Judged
    from laar_lab.experiment import Experiment, Scope


def run(
    name: Annotated[str, typer.Argument(help="Name of an experiment; `laar lab list` prints all.")],
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of seeds. Default: as many as the experiment's claims need."
        ),
    ] = None,
    first_seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="First seed. Default: the experiment's, usually 1000. Use another to "
            "check a claim on new seeds.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Run a smoke test, without a verdict; the exit status is 0."),
    ] = False,
    data: Data = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to run instead of the experiment's own, with no verdict: "
            "policy:parameter=value,...; repeatable."
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="Workload to run instead of the experiment's own, with no verdict; repeatable."
        ),
    ] = None,
    json: Json = None,
    jobs: Jobs = -1,
    keep: Keep = None,
) -> None:
    """Run an experiment. Exit status: 0 if its claims are shown, 3 if not, 4 without a verdict."""
    from laar_lab.experiment import spoken_time
    from laar_lab.experiments import find_experiment
    from laar_lab.report import as_records, dump, show
    from laar_lab.sweep import kept_in, placed

    check_places(json)
    experiment = find_experiment(name)
    scope = experiment.scope(
        seeds,
        quick=quick,
        first_seed=first_seed,
        data=data,
        policies=policy or (),
        workloads=workload or (),
    )
    console = lab_console()
    hours = experiment.hours(len(scope.seeds))
    if hours > 1.0 and not quick:
        console.print(
            f"{len(scope.seeds)} seeds take {spoken_time(hours)} on two cores. "
            "--keep DIR makes the run resumable; fewer --seeds give no verdict.",
            highlight=False,
        )
    with placed(jobs), kept_in(keep, (data,)):
        report = experiment.run(scope)
    judged = experiment.judged(report, scope)
    show(report, console, judged)
    console.print(_last_line(experiment, judged, scope), highlight=False)
    if json:
        about = {"experiment": name, "claim": experiment.about, "quick": quick}
        json.write_bytes(dump(report, **about, seeds=list(scope.seeds), claims=as_records(judged)))
    outcomes = {one.outcome for one in judged}
    if outcomes & {"in kind", "contrary", "open"}:
        raise typer.Exit(NOT_HELD)
    if "no verdict" in outcomes or (experiment.claims and not judged and not quick):
        raise typer.Exit(NO_VERDICT)


def _last_line(experiment: Experiment, judged: Sequence[Judged], scope: Scope) -> str:
    about = f"{experiment.about} ({experiment.source}; {_spoken(scope.seeds)})"
    if scope.quick:
        return f"a smoke test without a verdict: {about}"
    if not judged and experiment.claims:
        return f"no verdict with chosen policies or workloads: {about}"
    if not judged:
        return f"no claims to judge: {about}"
    shown = sum(one.outcome == "shown" for one in judged)
    return f"{shown} of {len(judged)} claims shown: {about}"


def _spoken(seeds: tuple[int, ...]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"

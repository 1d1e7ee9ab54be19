"""`laar lab`: list and run experiments, replay a trace, fit the engine model to an endpoint.

Exit status: 0 the claim held, 3 it did not, 2 something a person has to put right.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from laar.cli.terminal import report_errors
from laar.errors import SettingError

__all__ = ["app"]

NOT_HELD = 3

app = typer.Typer(
    help="Experiments in virtual time, about the code that serves.", no_args_is_help=True
)

_Json = Annotated[Path | None, typer.Option("--json", help="Write all numbers as JSON.")]
_Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the figure (png, svg, pdf).")]
_Backend = Annotated[str, typer.Option(help="Where runs go: loky (this machine), dask, ray.")]
_Jobs = Annotated[int, typer.Option(help="Runs at a time; -1 for all cores.")]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=240)


@app.command(name="list")
def list_() -> None:
    """List the experiments and the claims they check."""
    from rich.table import Table

    from laar.lab.experiments import all_experiments

    table = Table("experiment", "claim", "source", "seeds")
    for known in all_experiments().values():
        table.add_row(known.name, known.claim, known.source, str(known.seeds))
    _console().print(table)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment; `laar lab list` names them.")],
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds; the experiment's own.")] = None,
    first_seed: Annotated[
        int | None, typer.Option(min=0, help="First of the seeds; 1000. Try ones nobody has seen.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version.")] = False,
    fleet: Annotated[
        Path | None, typer.Option(help="Of laar-*: a fleet file in place of the package's.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="Of laar-ladder: graded answers of real models.")
    ] = None,
    json: _Json = None,
    plot: _Plot = None,
    backend: _Backend = "loky",
    jobs: _Jobs = -1,
) -> None:
    """Run an experiment; exit 0 when its claim held, 3 when it did not."""
    with report_errors():
        from laar.lab.experiment import FIRST_SEED
        from laar.lab.experiments import find_experiment
        from laar.lab.figure import draw
        from laar.lab.report import dump, show
        from laar.lab.sweep import placed

        experiment = find_experiment(name)
        first = FIRST_SEED if first_seed is None else first_seed
        scope = experiment.scope(seeds, quick=quick, first_seed=first)
        if fleet is not None and not name.startswith("laar-"):
            raise SettingError(f"--fleet is for the laar-* experiments, not for {name}")
        if records is not None and name != "laar-ladder":
            raise SettingError(f"--records is for laar-ladder, not for {name}")
        scope = replace(scope, fleet=fleet, records=records)
        with placed(backend, jobs):
            report = experiment.run(scope)
        console = _console()
        show(report, console)
        verdict = "held" if report.held else "NOT held"
        console.print(
            f"{verdict}: {experiment.claim} ({experiment.source}; {_spoken(scope.seeds)})",
            highlight=False,
        )
        if json:
            about = {"experiment": name, "claim": experiment.claim, "quick": quick}
            json.write_bytes(dump(report, **about, seeds=list(scope.seeds)))
        if plot:
            draw(report, plot, experiment.name)
    if not report.held:
        raise typer.Exit(NOT_HELD)


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(help="A trace, or laar's own decision log; JSON lines.")],
    fleet: Annotated[Path, typer.Option(help="Fleet description (YAML).")],
    policy: Annotated[list[str] | None, typer.Option(help="Policy; may be repeated.")] = None,
    time_scale: Annotated[float, typer.Option(help="Stretch the trace's time.")] = 1.0,
    block_tokens: Annotated[int, typer.Option(help="Tokens of one of `hash_ids`.")] = 512,
    max_in_flight: Annotated[int, typer.Option(min=1, help="The client's cap.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the network, ties and sampling.")] = 0,
    json: _Json = None,
    plot: _Plot = None,
    backend: _Backend = "loky",
    jobs: _Jobs = -1,
) -> None:
    """Replay a trace, or laar's decision log, against a fleet, once for each policy.

    A trace has Mooncake's fields. A decision log keeps times, lengths, names, and what was believed
    of each model; it has no prompts, so none shares a prefix with another.
    """
    with report_errors():
        from laar.lab.figure import draw
        from laar.lab.replay import replay as run_replay
        from laar.lab.report import dump, show
        from laar.lab.sweep import placed

        if not trace.is_file():
            raise SettingError(
                f"{trace} is not a file; give a trace or a decision log (JSON lines)"
            )
        with placed(backend, jobs):
            report = run_replay(
                trace,
                fleet,
                policy or ["laar", "least-loaded", "session-affinity"],
                time_scale=time_scale,
                block_tokens=block_tokens,
                max_in_flight=max_in_flight,
                seed=seed,
            )
        show(report, _console())
        if json:
            json.write_bytes(dump(report, trace=trace.name, seed=seed))
        if plot:
            draw(report, plot, trace.name)


@app.command()
def fit_engine(
    url: Annotated[str, typer.Argument(help="A running engine, such as http://10.0.0.7:8000.")],
    model: Annotated[str | None, typer.Option(help="Its name; the first it lists.")] = None,
    longest: Annotated[int, typer.Option(help="Tokens of the longest prompt.")] = 8000,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="The engine's setting of that name; it does not tell.")
    ] = 2048,
    repeat: Annotated[int, typer.Option(min=1, help="Of each point; the fastest counts.")] = 8,
    tolerance: Annotated[float, typer.Option(min=0.01, help="Of the verdict, relative.")] = 0.25,
    key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the API key.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the profile (.yaml).")
    ] = None,
    json: _Json = None,
    plot: _Plot = None,
) -> None:
    """Fit the lab's engine model to a running engine; exit 0 when it has the engine's shape.

    The engine should serve nobody else meanwhile. A fleet file names the profile by its path.
    """
    with report_errors():
        from rich.progress import Progress

        from laar.lab.figure import draw
        from laar.lab.fit_engine import FitSettings, check_out, write_profile
        from laar.lab.fit_engine import fit_engine as run_fit
        from laar.lab.report import dump, show
        from laar.measuring.run import key_headers

        check_out(out)
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("fit-engine")
            fitted = run_fit(
                FitSettings(
                    url=url,
                    model=model,
                    longest=longest,
                    max_num_batched_tokens=max_num_batched_tokens,
                    repeat=repeat,
                    tolerance=tolerance,
                    headers=key_headers(key_env),
                ),
                lambda done, total: bar.update(task, completed=done, total=total),
            )
        show(fitted.report, _console())
        if out:
            write_profile(fitted, out)
        if json:
            json.write_bytes(dump(fitted.report, endpoint=fitted.profile.name))
        if plot:
            draw(fitted.report, plot, fitted.profile.name)
    if not fitted.report.held:
        raise typer.Exit(NOT_HELD)


def _spoken(seeds: tuple[int, ...]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"

"""`laar lab`: list and run experiments, replay a trace, fit the engine model to an endpoint.

Exit status: 0 every claim is shown or nothing is judged, 3 some claim is not, 4 the seeds are too
few for a verdict, 2 a fault that the user can correct.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from laar.cli.terminal import report_errors
from laar.errors import SettingError

if TYPE_CHECKING:
    from laar.lab.claims import Judged
    from laar.lab.experiment import Experiment, Scope

__all__ = ["app"]

NOT_HELD, NO_VERDICT = 3, 4

app = typer.Typer(help="Run experiments: the serving code in virtual time.", no_args_is_help=True)

_Json = Annotated[
    Path | None, typer.Option("--json", help="Write all numbers to this file (JSON).")
]
_Plot = Annotated[
    Path | None, typer.Option("--plot", help="Draw the figure to this file (.png, .svg, .pdf).")
]
_Data = Annotated[
    Path | None,
    typer.Option(
        help="Directory with real traffic: agent-sessions.jsonl and "
        "conversation-trace.jsonl, or .gz. Used by agents, conversations, day, suite "
        "and no-regret."
    ),
]
_Backend = Annotated[
    str, typer.Option(help="Backend that executes the runs: loky (this machine), dask or ray.")
]
_Jobs = Annotated[int, typer.Option(help="Runs in progress at once; -1 for one per core.")]
_Keep = Annotated[
    Path | None,
    typer.Option(
        help="Store finished runs in this directory. The same command on unchanged sources "
        "resumes there."
    ),
]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=240)


@app.command(name="list")
def list_() -> None:
    """List the experiments: what each is about, its seeds, and its time on two cores."""
    with report_errors():
        from rich.table import Table

        from laar.lab.experiment import spoken_time
        from laar.lab.experiments import all_experiments

        table = Table("experiment", "about", "source", "claims", "seeds", "time")
        for known in all_experiments().values():
            claims, seeds = str(len(known.claims)), str(known.seeds)
            took = spoken_time(known.hours(known.seeds))
            table.add_row(known.name, known.about, known.source, claims, seeds, took)
        _console().print(table)


@app.command()
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
            help="First seed. Default: the experiment's own, mostly 1000. Give another to "
            "check a claim on new seeds.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a smoke test, without a verdict.")
    ] = False,
    data: _Data = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to run instead of the experiment's own: policy:parameter=value,...; "
            "repeatable."
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="Workload to run, for suite and no-regret; repeatable. Default: all."),
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option(
            help="Fleet file (YAML) for the laar-* experiments. Default: the one that comes "
            "with laar."
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="File of graded answers of real models, for laar-ladder and poisoning."),
    ] = None,
    json: _Json = None,
    plot: _Plot = None,
    backend: _Backend = "loky",
    jobs: _Jobs = -1,
    keep: _Keep = None,
) -> None:
    """Run an experiment. Exits 0 if its claims are shown, 3 if not, 4 without a verdict."""
    with report_errors():
        from laar.lab.experiment import spoken_time
        from laar.lab.experiments import find_experiment
        from laar.lab.figure import draw
        from laar.lab.report import as_records, dump, show
        from laar.lab.sweep import kept_in, placed

        experiment = find_experiment(name)
        scope = experiment.scope(
            seeds,
            quick=quick,
            first_seed=first_seed,
            data=data,
            policies=policy or (),
            workloads=workload or (),
        )
        if fleet is not None and not name.startswith("laar-"):
            raise SettingError(f"--fleet is for the laar-* experiments, not for {name}")
        if records is not None and name not in ("laar-ladder", "poisoning"):
            raise SettingError(f"--records is for laar-ladder and poisoning, not for {name}")
        scope = replace(scope, fleet=fleet, records=records)
        console = _console()
        hours = experiment.hours(len(scope.seeds))
        if hours > 1.0 and not quick and backend == "loky":
            console.print(
                f"{len(scope.seeds)} seeds take {spoken_time(hours)} on two cores. "
                "--keep DIR lets you stop and go on, --backend dask or ray runs them on a cluster, "
                "--seeds fewer without a verdict.",
                highlight=False,
            )
        with placed(backend, jobs), kept_in(keep):
            report = experiment.run(scope)
        judged = experiment.judged(report, scope)
        show(report, console, judged)
        console.print(_last_line(experiment, judged, scope), highlight=False)
        if json:
            about = {"experiment": name, "claim": experiment.about, "quick": quick}
            json.write_bytes(
                dump(report, **about, seeds=list(scope.seeds), claims=as_records(judged))
            )
        if plot:
            draw(report, plot, experiment.name, runs=len(scope.seeds))
    outcomes = {one.outcome for one in judged}
    if outcomes & {"in kind", "contrary", "open"}:
        raise typer.Exit(NOT_HELD)
    if "no verdict" in outcomes:
        raise typer.Exit(NO_VERDICT)


def _last_line(experiment: Experiment, judged: Sequence[Judged], scope: Scope) -> str:
    about = f"{experiment.about} ({experiment.source}; {_spoken(scope.seeds)})"
    if scope.quick:
        return f"a smoke test without a verdict: {about}"
    if not judged:
        return f"nothing is judged: {about}"
    shown = sum(one.outcome == "shown" for one in judged)
    return f"{shown} of {len(judged)} claims shown: {about}"


@app.command()
def results(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of experiments to run. Default: all that have no stored result."
        ),
    ] = None,
    directory: Annotated[
        Path, typer.Option(help="Directory for the results and for index.md, their overview.")
    ] = Path("docs/results"),
    minutes: Annotated[
        float,
        typer.Option(
            min=0.0, help="Leave out experiments that take more minutes than this on two cores."
        ),
    ] = math.inf,
    data: _Data = None,
    backend: _Backend = "loky",
    jobs: _Jobs = -1,
    keep: _Keep = None,
) -> None:
    """Run experiments, store their numbers by seed, and write the index with all verdicts.

    Each experiment runs on the seeds that its claims need. With `--minutes 0` none runs, and only
    the index is written.
    """
    with report_errors():
        from laar.lab.experiment import spoken_time
        from laar.lab.experiments import all_experiments, find_experiment
        from laar.lab.results import index_of, load, store
        from laar.lab.sweep import kept_in, placed

        directory.mkdir(parents=True, exist_ok=True)
        known = {name: each for name, each in all_experiments().items() if each.claims}
        stored = load(directory)
        chosen = [find_experiment(name) for name in names or ()] or [
            each
            for each in known.values()
            if each.name not in stored and (data is not None or not each.needs_data)
        ]
        chosen = [each for each in chosen if 60.0 * each.hours(each.seeds) <= minutes]
        console = _console()
        hours = sum(each.hours(each.seeds) for each in chosen)
        if chosen:
            console.print(f"{len(chosen)} experiments, about {spoken_time(hours)} on two cores")
        for experiment in chosen:
            console.print(experiment.name, highlight=False)
            taken = data if "data" in experiment.takes else None
            scope = experiment.scope(None, quick=False, data=taken)
            with placed(backend, jobs), kept_in(keep):
                report = experiment.run(scope)
            stored[experiment.name] = store(directory, experiment, report, scope)
            for one in experiment.judged(report, scope):
                console.print(f"  {one.verdict}: {one.claim.says}", highlight=False)
            (directory / "index.md").write_text(index_of(known, stored), "utf-8")
        (directory / "index.md").write_text(index_of(known, stored), "utf-8")


@app.command()
def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            help="File with a trace, sessions, or laar's decision log (JSON lines; .gz too)."
        ),
    ],
    fleet: Annotated[Path | None, typer.Option(help="Fleet file (YAML).")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Engine profile, instead of a fleet file; `name@2.5` is 2.5 times slower. "
            "Repeatable: the endpoints get the profiles in turn."
        ),
    ] = None,
    endpoints: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of endpoints with --engine.")
    ] = 8,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy to run, as policy or policy:parameter=value,...; repeatable."),
    ] = None,
    closed_loop: Annotated[
        bool,
        typer.Option(
            "--closed-loop",
            help="Send each request of a session after the answer before it. A file without "
            "sessions is replayed at its times.",
        ),
    ] = False,
    sessions: Annotated[
        int | None, typer.Option(min=1, help="Sessions in progress at once. Default: all.")
    ] = None,
    ramp: Annotated[
        float, typer.Option(min=0, help="Seconds over which the sessions start.")
    ] = 60.0,
    max_pause: Annotated[
        float | None,
        typer.Option(min=0, help="Longest pause within a session, in seconds. Default: no limit."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, help="Virtual minutes after which no request is sent. Default: no limit."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Requests to send at most. Default: all.")
    ] = None,
    time_scale: Annotated[
        float, typer.Option(help="Multiply the trace's arrival times by this.")
    ] = 1.0,
    speed: Annotated[
        float, typer.Option(min=1e-6, help="Divide the times, pauses included, by this.")
    ] = 1.0,
    block_tokens: Annotated[int, typer.Option(help="Tokens per entry of `hash_ids`.")] = 512,
    max_in_flight: Annotated[
        int, typer.Option(min=1, help="Requests in flight at most (open loop).")
    ] = 64,
    seed: Annotated[
        int,
        typer.Option(
            help="Random seed of network, ties and sampling. Unless 0, it also shuffles the "
            "sessions."
        ),
    ] = 0,
    json: _Json = None,
    plot: _Plot = None,
    backend: _Backend = "loky",
    jobs: _Jobs = -1,
    keep: _Keep = None,
) -> None:
    """Replay a trace, recorded sessions or a decision log against a fleet, once for each policy.

    A trace has the fields of Mooncake's traces. Sessions also have `session`, and `think_s` or
    times. A decision log has times, lengths, names and the estimates for each model. It has no
    prompts, so no two of its requests share a prefix.
    """
    with report_errors():
        from laar.lab.figure import draw
        from laar.lab.replay import Replay
        from laar.lab.replay import replay as run_replay
        from laar.lab.report import dump, show
        from laar.lab.sweep import kept_in, placed

        if not trace.is_file():
            raise SettingError(
                f"{trace} is not a file; give a trace or a decision log (JSON lines)"
            )
        given = Replay(
            trace=trace,
            fleet=fleet,
            engines=tuple(engine or ()),
            endpoints=endpoints,
            closed_loop=closed_loop,
            sessions=sessions,
            ramp_s=ramp,
            max_pause_s=math.inf if max_pause is None else max_pause,
            until_s=math.inf if minutes is None else 60.0 * minutes,
            limit=limit,
            time_scale=time_scale / speed,
            block_tokens=block_tokens,
            max_in_flight=max_in_flight,
            seed=seed,
        )
        with placed(backend, jobs), kept_in(keep):
            report = run_replay(given, policy or ["laar", "least-loaded", "session-affinity"])
        show(report, _console())
        if json:
            json.write_bytes(dump(report, trace=trace.name, seed=seed, remarks=report.remarks))
        if plot:
            draw(report, plot, trace.name)


@app.command()
def fit_engine(
    url: Annotated[
        str, typer.Argument(help="URL of a running engine, such as http://10.0.0.7:8000.")
    ],
    model: Annotated[
        str | None, typer.Option(help="Model to measure. Default: the first that the engine lists.")
    ] = None,
    longest: Annotated[int, typer.Option(help="Tokens of the longest prompt to measure.")] = 8000,
    max_num_batched_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="Value of the engine's setting of this name, which no metrics page shows."
        ),
    ] = 2048,
    repeat: Annotated[
        int, typer.Option(min=1, help="Measurements of each point; the fastest counts.")
    ] = 8,
    tolerance: Annotated[
        float,
        typer.Option(min=0.01, help="Largest relative error at which the model counts as fitting."),
    ] = 0.25,
    key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the API key.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the profile to this file (.yaml).")
    ] = None,
    json: _Json = None,
    plot: _Plot = None,
) -> None:
    """Fit the lab's engine model to a running engine. Exits 0 if the model fits, 3 if not.

    The engine should serve no other requests meanwhile. A fleet file names the profile by its path.
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

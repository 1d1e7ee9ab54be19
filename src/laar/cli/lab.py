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

app = typer.Typer(
    help="Experiments in virtual time, about the code that serves.", no_args_is_help=True
)

_Json = Annotated[Path | None, typer.Option("--json", help="Write all numbers as JSON.")]
_Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the figure (png, svg, pdf).")]
_Data = Annotated[
    Path | None,
    typer.Option(
        help="Directory with real traffic: agent-sessions.jsonl and conversation-trace.jsonl, "
        "or .gz. For agents, conversations, day, suite and no-regret."
    ),
]
_Backend = Annotated[str, typer.Option(help="Where runs go: loky (this machine), dask, ray.")]
_Jobs = Annotated[int, typer.Option(help="Runs at a time; -1 for all cores.")]
_Keep = Annotated[
    Path | None,
    typer.Option(
        help="Keep finished runs in this directory; begun again on the same sources, go on there."
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
            table.add_row(known.name, known.claim, known.source, claims, seeds, took)
        _console().print(table)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment; `laar lab list` names them.")],
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds; default as many as its claims need.")
    ] = None,
    first_seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="First seed; mostly 1000. Use a new one to check a claim on fresh seeds."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test, no verdict.")] = False,
    data: _Data = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="In place of the experiment's: policy:parameter=value,...; repeatable."),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="Workload of suite and no-regret; repeatable; default all."),
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option(help="Fleet file for the laar-* experiments; default the package's."),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Graded answers of real models, for laar-ladder and poisoning."),
    ] = None,
    json: _Json = None,
    plot: _Plot = None,
    backend: _Backend = "loky",
    jobs: _Jobs = -1,
    keep: _Keep = None,
) -> None:
    """Run an experiment; exit 0 when its claims are shown, 3 when not, 4 without a verdict."""
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
            about = {"experiment": name, "claim": experiment.claim, "quick": quick}
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
    about = f"{experiment.claim} ({experiment.source}; {_spoken(scope.seeds)})"
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
        typer.Argument(help="Experiments to run again; default all without a result."),
    ] = None,
    directory: Annotated[
        Path, typer.Option(help="Where results are stored; its index.md is written.")
    ] = Path("docs/results"),
    minutes: Annotated[
        float,
        typer.Option(min=0.0, help="Leave out what takes longer than this on two cores."),
    ] = math.inf,
    data: _Data = None,
    backend: _Backend = "loky",
    jobs: _Jobs = -1,
    keep: _Keep = None,
) -> None:
    """Run experiments, store their numbers by seed, and write the index with all verdicts.

    Each runs on the seeds that its claims need. Without an experiment to run (`--minutes 0`), only
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
        Path, typer.Argument(help="A trace, sessions, or laar's decision log; JSON lines, or .gz.")
    ],
    fleet: Annotated[Path | None, typer.Option(help="Fleet description (YAML).")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="In place of a fleet file: an engine profile; `name@2.5` is 2.5 times slower. May "
            "be repeated: endpoints get them in turn."
        ),
    ] = None,
    endpoints: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of endpoints with --engine.")
    ] = 8,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy, or policy:parameter=value,...; may be repeated."),
    ] = None,
    closed_loop: Annotated[
        bool,
        typer.Option(
            "--closed-loop", help="Sessions wait for each answer; a file without them is open."
        ),
    ] = False,
    sessions: Annotated[
        int | None, typer.Option(min=1, help="Sessions at a time; all of them.")
    ] = None,
    ramp: Annotated[float, typer.Option(min=0, help="Seconds over which they begin.")] = 60.0,
    max_pause: Annotated[
        float | None, typer.Option(min=0, help="Longest pause of a session, seconds.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Virtual minutes after which nothing is sent.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Requests sent at most.")] = None,
    time_scale: Annotated[float, typer.Option(help="Stretch the trace's time.")] = 1.0,
    speed: Annotated[float, typer.Option(min=1e-6, help="Factor of speed, pauses included.")] = 1.0,
    block_tokens: Annotated[int, typer.Option(help="Tokens of one of `hash_ids`.")] = 512,
    max_in_flight: Annotated[
        int, typer.Option(min=1, help="The client's cap, where the loop is open.")
    ] = 64,
    seed: Annotated[
        int,
        typer.Option(
            help="Random seed of network, ties and sampling; unless 0, of the sessions' order."
        ),
    ] = 0,
    json: _Json = None,
    plot: _Plot = None,
    backend: _Backend = "loky",
    jobs: _Jobs = -1,
    keep: _Keep = None,
) -> None:
    """Replay a trace, recorded sessions or a decision log against a fleet, once for each policy.

    A trace has Mooncake's fields; sessions have `session` and `think_s` or times beside them. A
    decision log keeps times, lengths, names, and what was believed of each model; it has no
    prompts, so none shares a prefix with another.
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
            json.write_bytes(dump(report, trace=trace.name, seed=seed))
        if plot:
            draw(report, plot, trace.name)


@app.command()
def fit_engine(
    url: Annotated[str, typer.Argument(help="A running engine, such as http://10.0.0.7:8000.")],
    model: Annotated[str | None, typer.Option(help="Its name; the first it lists.")] = None,
    longest: Annotated[int, typer.Option(help="Tokens of the longest prompt.")] = 8000,
    max_num_batched_tokens: Annotated[
        int,
        typer.Option(min=1, help="The engine's setting of that name, which no metrics page shows."),
    ] = 2048,
    repeat: Annotated[
        int, typer.Option(min=1, help="Repeats of each point; the fastest counts.")
    ] = 8,
    tolerance: Annotated[
        float, typer.Option(min=0.01, help="Relative tolerance of the verdict.")
    ] = 0.25,
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

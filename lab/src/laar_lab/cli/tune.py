"""`laar tune`: tune the weights of the cost by hill climbing, in the lab or on a live picker.

In the lab the climb runs on a trace. With `--live` it runs in the picker (`tuner.enabled` in its
settings), which alone sees decisions and outcomes; the command follows the climb and can freeze it.
Either way the command prints the best weights found, not the last ones tried, for the settings
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laar.cli.terminal import JsonFile, TokenFile, admin_url, read_token
from laar.errors import SettingError
from laar_lab.cli.lab.options import BlockTokens, TimeScale

if TYPE_CHECKING:
    from laar.tuning.settings import TunerSettings
    from laar_lab.sim.fleet import Arrival


def tune(
    trace: Annotated[
        Path | None,
        typer.Argument(help="Trace file (JSON lines; see `laar_lab.trace`). Omit it with --live."),
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option(help="Fleet file (YAML) to replay the trace against.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Follow the tuner of a running picker.")
    ] = False,
    picker: Annotated[
        str, typer.Option(help="Admin URL of the running picker.")
    ] = "http://127.0.0.1:9090",
    token_file: TokenFile = None,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="With --live: end the climb now.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --live: wait until the climb ends.")
    ] = False,
    objective: Annotated[
        str | None,
        typer.Option(
            help="Objective to minimize: ttft-p95, e2e-p95 or ttft-and-e2e-p95. Defaults to the "
            "default of `tuner.objective`."
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=20,
            max=100_000,
            help="Requests per window. Defaults to the default of `tuner.window`.",
        ),
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="Maximum number of windows to measure.")] = 60,
    seed: Annotated[int, typer.Option(help="Random seed for proposals, network and ties.")] = 0,
    time_scale: TimeScale = 1.0,
    block_tokens: BlockTokens = 512,
    json_file: JsonFile = None,
) -> None:
    """Tune the weights of the cost, on a trace in the lab or on a live picker."""
    import asyncio

    from laar.core.cost import TUNABLE
    from laar.tuning.settings import TunerSettings
    from laar_lab.live.tuner import follow

    if live:
        on_window = _show_window if wait else None
        token, picker = read_token(token_file), admin_url(picker)
        found = asyncio.run(follow(picker, token, freeze=freeze, wait=wait, on_window=on_window))
    else:
        if trace is None or fleet is None or not trace.is_file():
            raise SettingError("give a trace and --fleet, or --live for a running picker")
        settings = TunerSettings(bounds=TUNABLE, max_windows=windows, seed=seed)
        if objective is not None:
            settings = replace(settings, objective=objective)
        if window is not None:
            settings = replace(settings, window=window)
        read = partial(_read_trace, trace, time_scale=time_scale, block_tokens=block_tokens)
        found = _climb(read, fleet, settings)
    _show(found, picker if live else str(trace), json_file)


def _read_trace(trace: Path, *, time_scale: float, block_tokens: int) -> Iterator[Arrival]:
    from laar_lab.trace import read_trace

    return read_trace(trace, time_scale=time_scale, block_tokens=block_tokens)


def _climb(
    read: Callable[[], Iterator[Arrival]], fleet: Path, settings: TunerSettings
) -> dict[str, object]:
    """Tune on a trace in the lab; return the tuner's export."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from laar.core.cost import CostWeights
    from laar_lab.sim.fleet_file import read_fleet
    from laar_lab.tuning import tune as climb

    described = read_fleet(fleet)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn())
    most = settings.max_windows * (settings.window + settings.window // 8)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tune", total=most)
        tuner = climb(
            read,
            described.sites(),
            described.picker("laar"),
            settings,
            CostWeights().tunable(),
            seed=settings.seed,
            on_end=lambda _arrival, _exchange: bar.advance(task),
        )
    return tuner.export()


def _show_window(window: Mapping[str, Any]) -> None:
    weights = ", ".join(f"{name} {value:.3g}" for name, value in window["weights"].items())
    cost_s = window["cost_s"]
    measured = "no figure" if cost_s is None else f"{cost_s:.3f} s"
    text = f"window {window['version']}: {window['role']}, {window['outcome']}; {measured}"
    typer.echo(f"{text} with {weights}", err=True)


def _show(found: Mapping[str, object], title: str, json: Path | None) -> None:
    import yaml
    from rich.console import Console

    from laar_lab.report import dump, show
    from laar_lab.tuning import tuning_report

    report = tuning_report(found, title)
    console = Console()
    show(report, console if console.is_terminal else Console(width=200))
    if found["cost_s"] is None:
        typer.echo("no window has been measured yet: these are the initial weights", err=True)
    typer.echo(f"# for laar.yaml\n{yaml.safe_dump({'routing': found['weights']}, sort_keys=False)}")
    if json:
        json.write_bytes(dump(report, **found))

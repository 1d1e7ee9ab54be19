"""`laar tune`: the hill-climb over the cost's weights, on a trace in the lab.

The best weights found are written, never the last tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laar.cli.terminal import JsonFile, report_errors
from laar_lab.cli.lab.options import BlockTokens, TimeScale

if TYPE_CHECKING:
    from laar_lab.climb.settings import TunerSettings
    from laar_lab.sim.fleet import Arrival


def tune(
    trace: Annotated[
        Path, typer.Argument(help="Trace file (JSON lines; see `laar_lab.trace`).", dir_okay=False)
    ],
    fleet: Annotated[
        Path, typer.Option(help="Fleet file (YAML), to replay the trace against.", dir_okay=False)
    ],
    export: Annotated[
        Path | None, typer.Option(help="Write the best weights found to this file (YAML).")
    ] = None,
    objective: Annotated[
        str, typer.Option(help="Objective to minimise: ttft-p95, e2e-p95 or ttft-and-e2e-p95.")
    ] = "e2e-p95",
    window: Annotated[int, typer.Option(help="Requests per window.")] = 128,
    windows: Annotated[int, typer.Option(min=1, help="Windows to measure at most.")] = 60,
    seed: Annotated[int, typer.Option(help="Random seed of proposals, network and ties.")] = 0,
    time_scale: TimeScale = 1.0,
    block_tokens: BlockTokens = 512,
    json_file: JsonFile = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="Draw the climb's weights and objective to this file (.svg, .png)."
        ),
    ] = None,
) -> None:
    """Tune the weights of the cost on a trace."""
    with report_errors():
        from laar.core.cost import TUNABLE
        from laar_lab.climb.settings import TunerSettings

        settings = TunerSettings(
            bounds=TUNABLE, objective=objective, window=window, max_windows=windows, seed=seed
        )
        read = partial(_read_trace, trace, time_scale=time_scale, block_tokens=block_tokens)
        _show(_climb(read, fleet, settings), str(trace), export, json_file, plot)


def _read_trace(trace: Path, *, time_scale: float, block_tokens: int) -> Iterator[Arrival]:
    from laar_lab.trace import read_trace

    return read_trace(trace, time_scale=time_scale, block_tokens=block_tokens)


def _climb(
    read: Callable[[], Iterator[Arrival]], fleet: Path, settings: TunerSettings
) -> dict[str, object]:
    """Climbs on a trace, in the lab; returns the tuner's export."""
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


def _show(
    found: Mapping[str, object],
    title: str,
    export: Path | None,
    json: Path | None,
    plot: Path | None,
) -> None:
    from rich.console import Console

    from laar_lab.figure import draw
    from laar_lab.report import dump, show
    from laar_lab.tuning import tuning_report, write_weights

    report = tuning_report(found, title)
    console = Console()
    show(report, console if console.is_terminal else Console(width=200))
    if found["cost_s"] is None:
        typer.echo("no window was measured yet: these weights are those it began with", err=True)
    if export:
        write_weights(export, found)
        typer.echo(f"{export}: routing.weights_file of `laar serve` takes these")
    if json:
        json.write_bytes(dump(report, **found))
    if plot:
        draw(report, plot, "laar tune")

"""`laar tune`: tune the weights of the cost by hill climbing on a trace, in the lab.

The command prints the best weights found, not the last ones tried, for the settings file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laar.cli.terminal import JsonFile
from laar.errors import SettingError
from laar_lab.cli.lab.options import BlockTokens, TimeScale

if TYPE_CHECKING:
    from laar_lab.sim.fleet import Arrival
    from laar_lab.tuning.settings import TunerSettings


def tune(
    trace: Annotated[Path, typer.Argument(help="Trace file (JSON lines; see `laar_lab.trace`).")],
    fleet: Annotated[Path, typer.Option(help="Fleet file (YAML) to replay the trace against.")],
    objective: Annotated[
        str,
        typer.Option(help="Objective to minimize: ttft-p95, e2e-p95 or ttft-and-e2e-p95."),
    ] = "e2e-p95",
    window: Annotated[int, typer.Option(min=20, max=100_000, help="Requests per window.")] = 128,
    windows: Annotated[int, typer.Option(min=1, help="Maximum number of windows to measure.")] = 60,
    seed: Annotated[int, typer.Option(help="Random seed for proposals, network and ties.")] = 0,
    time_scale: TimeScale = 1.0,
    block_tokens: BlockTokens = 512,
    json_file: JsonFile = None,
) -> None:
    """Tune the weights of the cost on a trace, in the lab."""
    from laar_lab.tuning.settings import TUNABLE, TunerSettings

    if not trace.is_file():
        raise SettingError(f"{trace} is not a file; give a trace (JSON lines)")
    settings = TunerSettings(
        bounds=TUNABLE, objective=objective, window=window, max_windows=windows, seed=seed
    )
    read = partial(_read_trace, trace, time_scale=time_scale, block_tokens=block_tokens)
    _show(_climb(read, fleet, settings), str(trace), json_file)


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
    from laar_lab.tuning.climb import tune as climb

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
            asdict(CostWeights()),
            seed=settings.seed,
            on_end=lambda _arrival, _exchange: bar.advance(task),
        )
    return tuner.export()


def _show(found: Mapping[str, object], title: str, json: Path | None) -> None:
    import yaml
    from rich.console import Console

    from laar_lab.report import dump, show
    from laar_lab.tuning.climb import tuning_report

    report = tuning_report(found, title)
    console = Console()
    show(report, console if console.is_terminal else Console(width=200))
    if found["cost_s"] is None:
        typer.echo("no window has been measured yet: these are the initial weights", err=True)
    typer.echo(f"# for laar.yaml\n{yaml.safe_dump({'routing': found['weights']}, sort_keys=False)}")
    if json:
        json.write_bytes(dump(report, **found))

"""`laar tune`: tune the weights of the cost by hill climbing on a trace, in the lab.

The command prints the best weights found, not the last ones tried, for the settings file.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from laar.errors import SettingError, unknown
from laar_lab.cli.lab.options import BlockTokens, TimeScale


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
) -> None:
    """Tune the weights of the cost on a trace, in the lab."""
    import yaml

    from laar.core.cost import CostWeights
    from laar.policies.laar.outlook import Outlook
    from laar_lab.sim.fleet_file import read_fleet
    from laar_lab.trace import read_trace
    from laar_lab.tuning.climb import tune as climb
    from laar_lab.tuning.tuner import TUNABLE, TunerSettings
    from laar_lab.tuning.windows import OBJECTIVES

    if not trace.is_file():
        raise SettingError(f"{trace} is not a file; give a trace (JSON lines)")
    if objective not in OBJECTIVES:
        raise SettingError(unknown("objective", objective, OBJECTIVES))
    settings = TunerSettings(
        bounds=TUNABLE, objective=objective, window=window, max_windows=windows, seed=seed
    )
    described = read_fleet(fleet)
    read = partial(read_trace, trace, time_scale=time_scale, block_tokens=block_tokens)
    tuner = climb(
        read,
        described.sites(),
        described.picker("laar"),
        settings,
        asdict(CostWeights()),
        lambda weights: Outlook(CostWeights(**weights)),  # type: ignore[arg-type]
        seed=seed,
    )
    if not tuner.history:
        typer.echo("no window has been measured: these are the initial weights", err=True)
    for score in tuner.history:
        typer.echo(f"{score.role}, {score.outcome}: {score.cost_s:.3g} s", err=True)
    found = {"routing": dict(tuner.best)}
    typer.echo(f"# for laar.yaml\n{yaml.safe_dump(found, sort_keys=False)}")

"""`laar tune`: the hill-climb over the cost's weights, in the lab or watched on a live picker.

In the lab it climbs on a trace. With `--live` the climb is the picker's own (`tuner.enabled` in its
settings), since only it sees decisions and outcomes; the command follows it, may freeze it, and
exports. Either way the best weights found are written, never the last tried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from laar.core.cost import TUNABLE, CostWeights
from laar.datalayer.weights_file import write_weights
from laar.errors import LaarError, SettingError
from laar.tuning import TunerSettings

__all__ = ["follow", "run_tune"]

_POLL_S = 2.0
_TIMEOUT_S = 10.0
_PATIENCE_S = 120.0
"""A climb takes hours; a picker that is restarted meanwhile is soon back, and goes on with it."""


def run_tune(
    *,
    trace: Path | None,
    fleet: Path | None,
    live: bool,
    picker: str,
    token_file: Path | None,
    freeze: bool,
    wait: bool,
    export: Path | None,
    objective: str | None,
    window: int | None,
    windows: int,
    seed: int,
    time_scale: float,
    block_tokens: int,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """The command; its options are described in `laar.cli.operating.tune`.

    Raises:
        LaarError: what a person can put right.
    """
    if live:
        token = token_file.read_text("ascii").strip() if token_file else None
        found = asyncio.run(
            follow(picker, token, freeze=freeze, wait=wait, on_window=_say if wait else None)
        )
    else:
        if trace is None or fleet is None or not trace.is_file():
            raise SettingError("give a trace and --fleet, or --live for a running picker")
        settings = TunerSettings(bounds=TUNABLE, max_windows=windows, seed=seed)
        if objective is not None:
            settings = replace(settings, objective=objective)
        if window is not None:
            settings = replace(settings, window=window)
        found = _in_the_lab(trace, fleet, settings, seed, time_scale, block_tokens)
    _tell(found, picker if live else str(trace), export, json_file, plot)


def _in_the_lab(
    trace: Path,
    fleet: Path,
    settings: TunerSettings,
    seed: int,
    time_scale: float,
    block_tokens: int,
) -> dict[str, object]:
    from laar.lab.trace import read_trace
    from laar.lab.tuning import tune as climb
    from laar.sim.fleet_file import read_fleet

    described = read_fleet(fleet)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn())
    most = settings.max_windows * (settings.window + settings.window // 8)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tune", total=most)
        tuner = climb(
            partial(read_trace, trace, time_scale=time_scale, block_tokens=block_tokens),
            described.sites(),
            described.picker("laar"),
            settings,
            CostWeights().tunable(),
            seed=seed,
            on_end=lambda _arrival, _exchange: bar.advance(task),
        )
    return tuner.export()


async def follow(
    picker: str,
    token: str | None,
    *,
    freeze: bool = False,
    wait: bool = False,
    on_window: Callable[[Mapping[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """What a running picker's tuner has found.

    Args:
        picker: its admin address.
        token: of the admin port; None where it asks for none.
        freeze: end the climb first.
        wait: until the climb has ended.
        on_window: called with each window as it is seen to have ended.

    Raises:
        LaarError: nothing answers, or the picker has no tuner.
    """
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = f"{picker.rstrip('/')}/tuner"
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as http:
        if freeze:
            await _asked(http, "POST", f"{url}/freeze")
        told, answered_s = 0, None
        while True:
            try:
                found = await _asked(http, "GET", url)
            except LaarError:
                if answered_s is None or time.monotonic() - answered_s > _PATIENCE_S:
                    raise
                await asyncio.sleep(_POLL_S)
                continue
            answered_s = time.monotonic()
            if on_window is not None:
                told = _tell_new(found["windows"], told, on_window)
            if found["frozen"] or not wait:
                return found
            await asyncio.sleep(_POLL_S)


def _tell_new(
    windows: list[dict[str, Any]], told: int, on_window: Callable[[Mapping[str, Any]], None]
) -> int:
    """Tells of the windows since; returns the last one's number."""
    last = windows[-1]["version"] if windows else 0
    if last < told:
        told = 0  # the picker began anew
    for window in windows:
        if window["version"] > told:
            on_window(window)
    return last


def _say(window: Mapping[str, Any]) -> None:
    weights = ", ".join(f"{name} {value:.3g}" for name, value in window["weights"].items())
    cost_s = window["cost_s"]
    measured = "no figure" if cost_s is None else f"{cost_s:.3f} s"
    text = f"window {window['version']}: {window['role']}, {window['outcome']}; {measured}"
    typer.echo(f"{text} with {weights}", err=True)


async def _asked(http: aiohttp.ClientSession, method: str, url: str) -> dict[str, Any]:
    try:
        async with http.request(method, url) as answer:
            status, data = answer.status, await answer.read()
        found = orjson.loads(data) if status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
        raise LaarError(f"{url}: no picker's admin port answers there ({error})") from None
    if status != 200 or not isinstance(found, dict):
        raise LaarError(f"{url}: answered {status}; a token may be missing (--token-file)")
    if not found.get("enabled"):
        raise LaarError(f"{url}: this picker does not tune; set `tuner.enabled` in its settings")
    return found


def _tell(
    found: Mapping[str, object],
    title: str,
    export: Path | None,
    json: Path | None,
    plot: Path | None,
) -> None:
    from laar.lab.figure import draw
    from laar.lab.report import dump, show
    from laar.lab.tuning import tuning_report

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

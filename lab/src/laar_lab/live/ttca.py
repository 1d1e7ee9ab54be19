"""`laar ttca`: send the held-out half of the look-ups through Envoy, policy by policy.

`laar measure` and `laar fit` learn from the other half, which is never sent here (LAAR, section
6.1). Without a URL the demo fleet is started, and times are in the fleet's seconds.

`--against-lab` runs the same questions in the lab too and compares the two. The picker then has the
lab's settings: it reads metrics once per second of the fleet, sees streamed answers, and learns no
outcomes during the comparison, so that no policy benefits from another's turn.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from laar.core.cost import CostWeights
from laar.errors import SettingError
from laar.measuring.measure import discover
from laar.policies import build_policies
from laar_lab.kv_lookup import Query
from laar_lab.live.agreement import (
    DISAGREES,
    Agreement,
    Figures,
    agreements,
    in_lab,
    in_order,
    show,
)
from laar_lab.live.comparison import Tally, compare, exit_status
from laar_lab.live.figures import Improvement, Step, improvements, plot, steps
from laar_lab.live.fleet import running_fleet
from laar_lab.sim.fleet import FleetSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ttca:
    """The questions, the policies and the fleet of a comparison.

    Args:
        asked: the questions.
        policies: names of the policies; the first is compared with the others.
        concurrency: number of questions in flight.
        url: URL of the gateway; None starts the demo fleet.
        time_scale: real seconds per second of the started fleet.
        capability: artifact of the started fleet; None for its default.
        keep_prompts: whether engines of the started fleet cache the prompts of earlier requests.
        lab_runs: number of lab runs to compare with; None for no comparison.
    """

    asked: Sequence[Query]
    policies: Sequence[str]
    concurrency: int
    url: str | None
    time_scale: float
    capability: Path | None
    keep_prompts: bool
    lab_runs: int | None

    def __post_init__(self) -> None:
        """Check the options; raise SettingError for unknown policies or contradictions."""
        build_policies(CostWeights(), {policy: {} for policy in self.policies})
        if self.url is not None and self.capability is not None:
            raise SettingError(
                "--capability is for the fleet started here; with --url the picker has its own"
            )
        if self.url is not None and self.lab_runs is not None:
            raise SettingError("--against-lab needs the fleet that the lab knows: omit --url")


def run_ttca(wanted: Ttca, *, json_file: Path | None, plot_file: Path | None) -> int:
    """Run and show the comparison, and write the requested files; return the exit status."""
    console, lab_runs = Console(), wanted.lab_runs
    scale = 1.0 if wanted.url is not None else wanted.time_scale
    lab: dict[str, list[Figures]] = {}
    if lab_runs is not None:
        wanted = replace(wanted, asked=in_order(wanted.asked, "envoy"))
        lab = in_lab(
            wanted.asked,
            wanted.policies,
            runs=lab_runs,
            capability=wanted.capability,
            concurrency=wanted.concurrency,
            keep_prompts=wanted.keep_prompts,
        )
    tallies = asyncio.run(_replay(console, wanted))
    curves = [steps(tally, time_scale=scale) for tally in tallies]
    bars = improvements(tallies[0], tallies[1:], time_scale=scale)
    _show(console, curves, bars)
    found: list[Agreement] = []
    if lab_runs is not None:
        found = agreements(tallies, lab, time_scale=scale)
        show(console, found, runs=lab_runs)
    if json_file is not None:
        json_file.write_bytes(_as_json(tallies, curves, bars, found))
    if plot_file is not None:
        plot(plot_file, curves, bars)
    agrees = all(one.agrees for one in found)
    return exit_status(console, tallies) or (0 if agrees else DISAGREES)


async def _replay(console: Console, wanted: Ttca) -> list[Tally]:
    as_in_lab = wanted.lab_runs is not None
    ask = partial(
        compare,
        console,
        asked=wanted.asked,
        policies=wanted.policies,
        concurrency=wanted.concurrency,
    )
    if wanted.url is not None:
        await discover([wanted.url])  # fail early, not after ten retries per question
        return await ask(wanted.url)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="laar-ttca-")))
        with console.status("starting five simulated endpoints, the picker and Envoy"):
            fleet = await stack.enter_async_context(
                running_fleet(
                    directory,
                    time_scale=wanted.time_scale,
                    policies=wanted.policies,
                    capability=wanted.capability,
                    keep_prompts=wanted.keep_prompts,
                    changes=_lab_settings(wanted.time_scale) if as_in_lab else None,
                )
            )
        return await ask(fleet.url, models=fleet.models, stream=as_in_lab)


def _lab_settings(time_scale: float) -> dict[str, dict[str, object]]:
    """Return the lab's settings, with intervals no shorter than allowed."""
    lab = FleetSettings()
    return {
        "accuracy": {"online": False},
        "readings": {
            "scrape_interval_s": max(0.05, lab.scrape_interval_s * time_scale),
            "probe_interval_s": max(0.1, lab.probe_interval_s * time_scale),
        },
    }


def _as_json(
    tallies: Sequence[Tally],
    curves: Sequence[Sequence[Step]],
    bars: Sequence[Improvement],
    found: Sequence[Agreement],
) -> bytes:
    document = {
        "questions": len(tallies[0].results),
        "by_attempt": [step for curve in curves for step in curve],
        "improvement": [bar.as_dict() for bar in bars],
        "faults": sum(len(tally.faults) for tally in tallies),
        "against_lab": [one.as_dict() for one in found],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _show(console: Console, curves: Sequence[Sequence[Step]], bars: Sequence[Improvement]) -> None:
    by_attempt = Table(title="Success rate and mean time to correct answer, by attempts made")
    by_attempt.add_column("attempts", justify="right")
    for curve in curves:
        by_attempt.add_column(curve[0].policy, justify="right", overflow="fold")
    for made in range(max(map(len, curves))):
        # The curve of a policy ends at its last attempt.
        points = [
            f"{curve[made].success_rate:.0%}  {curve[made].ttca_s:.2f} s"
            if made < len(curve)
            else ""
            for curve in curves
        ]
        by_attempt.add_row(str(made + 1), *points)
    console.print(by_attempt)
    if not bars:
        return
    baselines = list(dict.fromkeys(bar.baseline for bar in bars))
    by_cell = Table(title=f"Time to correct answer that {curves[0][0].policy} saves")
    by_cell.add_column("cell")
    by_cell.add_column("questions", justify="right")
    for baseline in baselines:
        by_cell.add_column(f"against {baseline}", justify="right", overflow="fold")
    for cell in dict.fromkeys((bar.language, bar.length_tokens) for bar in bars):
        row = [bar for bar in bars if (bar.language, bar.length_tokens) == cell]
        saved = [f"{bar.ratio:+.0%}" for bar in row]
        by_cell.add_row(f"{cell[0]} {cell[1] / 1024:g}K", str(row[0].questions), *saved)
    console.print(by_cell)

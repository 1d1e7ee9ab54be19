"""`laar race`: run the turns, report each as it ends, and write the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from laar.errors import SettingError, unknown
from laar_lab.race.engines import Engines
from laar_lab.race.result import ratios, report
from laar_lab.race.run import Ended, Race, Simulated, run
from laar_lab.race.traffic import GENERATED, Traffic, generated, recorded
from laar_lab.report import dump, show

_MUCH = 0.1
"""Sending delay, as a share of the mean TTFT, above which the report mentions it."""


def traffic_of(
    named: str,
    *,
    seconds: float,
    rate_per_s: float,
    clients: int,
    speed: float,
    block_tokens: int,
) -> Callable[[int], Traffic]:
    """Return a function that makes the named traffic, given a limit on prompt plus answer tokens.

    Raises:
        SettingError: there is no such traffic or file, or a line of the file is invalid.
    """
    if named in GENERATED:
        return lambda most_tokens: generated(
            named,
            most_tokens=most_tokens,
            seconds=seconds,
            rate_per_s=rate_per_s,
            clients=clients,
        )
    if not Path(named).is_file():
        raise SettingError(f"--traffic: {unknown('traffic or file', named, GENERATED)}")
    of_file = recorded(
        Path(named), seconds=seconds, speed=speed, clients=clients, block_tokens=block_tokens
    )
    return lambda _: of_file


def run_race(
    console: Console,
    race: Race,
    *,
    rows_file: Path,
    json_file: Path | None,
) -> None:
    """Run all turns, print the tables, and write the rows and the numbers.

    Raises:
        LaarError: a router or engine did not start, or the rows file already exists.
    """
    try:
        ended = asyncio.run(_turns(console, race, rows_file))
    finally:
        if rows_file.is_file() and not rows_file.stat().st_size:
            rows_file.unlink()  # so that the next attempt can use the name
    turns = [ended_turn.turn for ended_turn in ended]
    title = f"{ended[0].about}; {_engines(race)}; {race.seconds - race.warm_up_s:g} s measured"
    seen = report(turns, title, _remarks(race, ended, rows_file))
    show(seen, console)
    if json_file is not None:
        ours, *others = (router.name for router in race.routers)
        json_file.write_bytes(
            dump(
                seen,
                turns=turns,
                ratios={other: ratios(turns, ours, other) for other in others},
                sentences=list(seen.remarks),
                version=version("laar"),
            )
        )


async def _turns(console: Console, race: Race, rows_file: Path) -> list[Ended]:
    try:
        file = rows_file.open("xb")
    except OSError as error:
        raise SettingError(
            f"--rows {rows_file}: {error.strerror or error}; rows are never overwritten"
        ) from None
    ended: list[Ended] = []
    of = race.repeat * len(race.routers)
    with file:
        async for ended_turn in run(race, file):
            ended.append(ended_turn)
            if ended_turn.kept and len(ended) == 1:
                console.print(_not_emptied(ended_turn), style="bold red", highlight=False)
            numbers = ended_turn.turn.numbers
            console.print(
                f"{len(ended)} of {of}: {ended_turn.turn.router}, repetition "
                f"{ended_turn.turn.repetition + 1}: {numbers['requests']:.0f} requests, "
                f"{numbers['failed_percent']:.3g} % failed, TTFT mean "
                f"{numbers['ttft_mean_s']:.3f} s, answer mean {numbers['answer_mean_s']:.2f} s",
                highlight=False,
            )
    return ended


def _engines(race: Race) -> str:
    if isinstance(race.engines, Simulated):
        fault = f", the first with {race.engines.fault}" if race.engines.fault else ""
        return f"{race.engines.count} simulated engines ({race.engines.profile}){fault}"
    engines = race.engines.urls if isinstance(race.engines, Engines) else race.engines
    return f"{len(engines)} engines"


def _not_emptied(ended: Ended) -> str:
    return (
        f"CACHES NOT EMPTIED at {', '.join(ended.kept)}: vLLM needs VLLM_SERVER_DEV_MODE=1 for "
        "/reset_prefix_cache. Prompts of different turns share no text, so no turn profits from "
        "an earlier one, but each has to evict what the earlier ones left."
    )


def _remarks(race: Race, ended: list[Ended], rows_file: Path) -> list[str]:
    remarks = [_not_emptied(ended[0])] if ended[0].kept else []
    left_out = max(turn.left_out for turn in ended)
    if left_out:
        remarks.append(f"up to {left_out} requests per turn were too long for the engines")
    if not any(ended_turn.turn.numbers["requests"] for ended_turn in ended):
        remarks.append("NO REQUEST WAS COUNTED: use more --seconds, less --warm-up or another file")
    late = max(ended, key=lambda ended_turn: ended_turn.turn.numbers["late_p95_s"]).turn
    if late.numbers["late_p95_s"] > _MUCH * late.numbers["ttft_mean_s"]:
        remarks.append(
            f"requests were sent late, by {late.numbers['late_p95_s']:.2f} s at p95 "
            f"({late.router}): this machine is busy, or --in-flight is too low; all times include "
            "the delay"
        )
    if race.time_scale != 1.0:
        remarks.append(
            f"a second of the simulated fleet takes {race.time_scale:g} real seconds; on a busy "
            "machine, its engines fall behind with any router"
        )
    return [*remarks, f"every request is in {rows_file.name}"]

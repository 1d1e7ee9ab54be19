"""`laar race`: race laar against other routers, in turns, on a user's engines and traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import JsonFile, KeyVariable, check_places, key_headers
from laar_lab.cli.lab.options import BlockTokens, lab_console


def race(
    engines: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of an engine; repeatable. The engines should serve no other traffic; their "
            "caches are emptied before each turn. Default: simulated engines."
        ),
    ] = None,
    rivals: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="Router to race against; repeatable: smg or vllm-router (options may follow a "
            "colon), the URL of a router in front of the same engines, another policy of laar, or "
            "a settings file for laar (.yaml). Default: least-loaded and round-robin.",
        ),
    ] = None,
    programs: Annotated[
        Path | None,
        typer.Option(help="Directory with the programs smg and vllm-router. Default: PATH."),
    ] = None,
    traffic: Annotated[
        str,
        typer.Option(
            help="chats or agents, which are generated, or a file: a trace or recorded "
            "sessions (JSON lines; .gz too)."
        ),
    ] = "chats",
    model: Annotated[
        str | None,
        typer.Option(help="Model to request. Default: the first that all engines serve."),
    ] = None,
    key_env: KeyVariable = None,
    seconds: Annotated[
        float, typer.Option(help="Seconds for which each turn sends requests.", min=1.0)
    ] = 90.0,
    warm_up: Annotated[
        float,
        typer.Option(
            help="Seconds at the start of each turn that are not counted; at most half of it.",
            min=0.0,
        ),
    ] = 15.0,
    repeat: Annotated[
        int,
        typer.Option(help="Repetitions; every router has one turn in each.", min=1, max=100),
    ] = 3,
    rate: Annotated[
        float | None,
        typer.Option(help="Chats per second. Default: one per engine.", min=0.001),
    ] = None,
    sessions: Annotated[
        int | None,
        typer.Option(
            help="Number of concurrent agents. Default: four per engine.", min=1, max=10_000
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="Divide a file's times and pauses by this factor.", min=1e-6)
    ] = 1.0,
    most_tokens: Annotated[
        int | None,
        typer.Option(
            help="Skip requests whose prompt and answer together have more tokens than this. "
            "Default: the engines' context length.",
            min=256,
        ),
    ] = None,
    in_flight: Annotated[
        int,
        typer.Option(help="Maximum number of requests in flight; others wait.", min=1, max=10_000),
    ] = 256,
    deadline: Annotated[
        float, typer.Option(help="Seconds after which an answer is considered failed.", min=0.1)
    ] = 120.0,
    seed: Annotated[int, typer.Option(help="Random seed of the first repetition.")] = 1000,
    block_tokens: BlockTokens = 512,
    simulate: Annotated[int, typer.Option(help="Number of simulated engines.", min=1, max=64)] = 4,
    profile: Annotated[
        str, typer.Option(help="Engine profile of the simulated engines.")
    ] = "gorgo-main",
    time_scale: Annotated[
        float,
        typer.Option(help="Real seconds per simulated second.", min=0.001, max=10.0),
    ] = 0.5,
    fault: Annotated[
        str, typer.Option(help="Fault to inject into the first simulated engine, such as 503@0.5.")
    ] = "",
    rows: Annotated[
        Path,
        typer.Option(help="File to create, with one JSON line per request as its client saw it."),
    ] = Path("race.jsonl"),
    json_file: JsonFile = None,
) -> None:
    """Race laar against other routers, in turns, on your engines and your traffic.

    Each turn sends the same requests through a fresh router to engines with empty caches.
    The tables show each router's numbers, and laar's relative to them with a 95 % interval.
    A sentence for each other router says where laar is better and where it is worse.
    """
    from laar_lab.race.command import run_race, traffic_of
    from laar_lab.race.routers import OURS, named
    from laar_lab.race.run import Race, Simulated
    from laar_lab.sim.endpoint import parse_fault

    check_places(json_file)
    if fault:
        parse_fault(fault)  # report an error before the engines start
    others = rivals if rivals is not None else ["least-loaded", "round-robin"]
    fleet = engines or Simulated(
        profile=profile, count=simulate, time_scale=time_scale, fault=fault
    )
    count = len(engines) if engines else simulate
    given = Race(
        routers=[named(name, programs) for name in dict.fromkeys((OURS, *others))],
        engines=fleet,
        model=model,
        headers=key_headers(key_env),
        traffic=traffic_of(
            traffic,
            seconds=seconds,
            rate_per_s=rate or float(count),
            clients=sessions or 4 * count,
            speed=speed,
            block_tokens=block_tokens,
        ),
        seconds=seconds,
        warm_up_s=min(warm_up, seconds / 2),
        repeat=repeat,
        seed=seed,
        deadline_s=deadline,
        in_flight=in_flight,
        most_tokens=most_tokens,
    )
    run_race(lab_console(), given, rows_file=rows, json_file=json_file)

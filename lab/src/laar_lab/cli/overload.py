"""`laar overload`: send a fleet more load than it can carry, through a real Envoy."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from laar.cli.terminal import JsonFile


class _Shape(StrEnum):
    STANDALONE = "standalone"
    GATEWAY = "gateway"


def overload(
    seconds: Annotated[
        float, typer.Option(help="Length of the load, in simulated seconds.", min=0.1)
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Random seed of the first load.")] = 1000,
    seeds: Annotated[int, typer.Option(help="Number of loads.", min=1)] = 1,
    shape: Annotated[
        _Shape,
        typer.Option(
            help="How Envoy is deployed. standalone: Envoy forwards bodies itself; gateway: "
            "every chunk passes through the picker."
        ),
    ] = _Shape.STANDALONE,
    probe_requests: Annotated[
        int,
        typer.Option(
            help="Number of concurrent requests that measure the speed of this machine.", min=1
        ),
    ] = 120,
    time_scale: Annotated[
        float,
        typer.Option(
            help="Real seconds per simulated second; smaller values need more cores.", min=0.01
        ),
    ] = 1.0,
    sample_answers: Annotated[
        float | None,
        typer.Option(
            help="The setting bodies.sample_answers, with --shape standalone. Default: that "
            "setting's default.",
            min=0.0,
            max=1.0,
            show_default=False,
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Send a fleet 1.2 times the load it can carry, once for each queue order.

    The requests pass through a real Envoy.
    Checks that no request hangs, nothing leaks, and slack order meets enough objectives.
    Exits with status 3 if a check fails, or if this machine is too slow for the fleet.
    """
    from laar_lab.live.overload import run_overload

    raise typer.Exit(
        run_overload(
            seconds=seconds,
            seed=seed,
            seeds=seeds,
            probe_requests=probe_requests,
            time_scale=time_scale,
            shape=shape.value,
            json_file=json_file,
            sample_answers=sample_answers,
        )
    )

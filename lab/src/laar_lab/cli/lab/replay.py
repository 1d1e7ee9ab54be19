"""`laar lab replay`: replay a trace against a fleet."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import check_places
from laar.errors import SettingError
from laar_lab.cli.lab.options import (
    BlockTokens,
    Jobs,
    Json,
    Keep,
    TimeScale,
    lab_console,
)


def replay(
    trace: Annotated[
        Path,
        typer.Argument(help="File with a trace or sessions (JSON lines; .gz too)."),
    ],
    fleet: Annotated[Path | None, typer.Option(help="Fleet file (YAML).")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Engine profile to use instead of a fleet file; `name@2.5` is 2.5 times slower. "
            "Repeatable: the endpoints get the profiles in turn."
        ),
    ] = None,
    endpoints: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of endpoints to create with --engine.")
    ] = 8,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to run, as policy or policy:parameter=value,...; repeatable. Default: "
            "laar, least-loaded and session-affinity."
        ),
    ] = None,
    closed_loop: Annotated[
        bool,
        typer.Option(
            "--closed-loop",
            help="Send each request of a session after the previous answer. A file without "
            "sessions is replayed at its recorded times.",
        ),
    ] = False,
    sessions: Annotated[
        int | None, typer.Option(min=1, help="Number of concurrent sessions. Default: all.")
    ] = None,
    ramp: Annotated[
        float, typer.Option(min=0, help="Seconds over which the sessions start.")
    ] = 60.0,
    max_pause: Annotated[
        float | None,
        typer.Option(min=0, help="Longest pause within a session, in seconds. Default: no limit."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, help="Virtual minutes after which no more requests are sent. Default: no limit."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of requests to send. Default: all.")
    ] = None,
    time_scale: TimeScale = 1.0,
    speed: Annotated[
        float, typer.Option(min=1e-6, help="Divide all times, including pauses, by this factor.")
    ] = 1.0,
    block_tokens: BlockTokens = 512,
    max_in_flight: Annotated[
        int, typer.Option(min=1, help="Maximum number of requests in flight (open loop).")
    ] = 64,
    seed: Annotated[
        int,
        typer.Option(
            help="Random seed for the network, ties and sampling. Unless 0, it also shuffles the "
            "sessions."
        ),
    ] = 0,
    json: Json = None,
    jobs: Jobs = -1,
    keep: Keep = None,
) -> None:
    """Replay a trace or recorded sessions against a fleet, once for each policy.

    A trace has the fields of Mooncake's traces.
    Sessions also have `session`, and `think_s` or times.
    """
    from laar_lab.replay import Replay
    from laar_lab.replay import replay as run_replay
    from laar_lab.report import dump, show
    from laar_lab.sweep import kept_in, placed

    check_places(json)
    if not trace.is_file():
        raise SettingError(f"{trace} is not a file; give a trace (JSON lines)")
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
    with placed(jobs), kept_in(keep, given.files):
        report = run_replay(given, policy or ["laar", "least-loaded", "session-affinity"])
    show(report, lab_console())
    if json:
        json.write_bytes(dump(report, trace=trace.name, seed=seed, remarks=report.remarks))

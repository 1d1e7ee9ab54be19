"""Measure CPU, latency and memory of a picker, compared with a picker that does nothing.

Everything runs through a real Envoy, on loopback, with instant endpoints. Within a part the
subjects alternate, so ratios hold even if absolute times do not. The no-op picker shows the cost of
gRPC and JSON parsing in Python. In the native shape it runs behind an Envoy that sends the
request's headers first, as is usual for pickers, and also behind laar's configuration, which avoids
that message. A run takes about eight minutes on two idle cores.

    cpu        requests of 1 KB to 1 MB, and answers of 1 and 200 chunks, in both shapes: Envoy
               alone, the no-op picker, and laar
    features   laar feature by feature
    fleets     1 to 1,000 endpoints
    idle       no requests; 100 and 1,000 endpoints
    latency    added to Envoy alone, at half of laar's maximum rate
    crowds     prompts of 220 KB from 1 to 1,000 concurrent clients
    streams    10,000 concurrent streams

    python -m bench picker --parts cpu --before old=../before/src --sample 1

By default few answers are read, and how many is a matter of time and chance: `--sample 1` has every
version read all of them, so that the rows with answers compare the reading.

Exit status: 0 if every target was met, 3 if one was missed, 1 if a part did not finish.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import uvloop

from bench.figures import Figures, print_table
from bench.options import count, names_of, output_file, parser_for, positive
from bench.picking.parts import (
    SHAPES,
    Costs,
    cpu,
    crowds,
    features,
    fleets,
    idle,
    latency,
    streams,
)
from bench.picking.subjects import (
    ALONE,
    LAAR,
    NOOP,
    NOOP_USUAL,
    Subject,
    laar_with,
    other_sources,
)
from laar.envoy.process import find_binary

DEADLINES_S = {
    "cpu": 600.0,
    "features": 120.0,
    "fleets": 180.0,
    "idle": 120.0,
    "latency": 180.0,
    "crowds": 120.0,
    "streams": 120.0,
}
"""Time limits; more than twice the duration on an idle machine."""


def main(argv: Sequence[str] = ()) -> int:
    """Run the parts; return 1 if one did not finish, 3 if one missed a target."""
    options = _parser().parse_args(argv)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    figures, costs = Figures(), Costs()
    about = machine()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    uvloop.run(_run(figures, costs, options))
    if costs.pickers:
        _table(costs)
    return figures.conclude(options.json, machine=about)


def _parser() -> argparse.ArgumentParser:
    parser = parser_for("picker", __doc__)
    parser.add_argument("--parts", type=names_of(DEADLINES_S), default=",".join(DEADLINES_S))
    parser.add_argument("--share", type=positive, default=1.0, help="share of the requests to send")
    parser.add_argument("--seconds", type=positive, default=10.0, help="for latency and idle")
    parser.add_argument("--streams", type=count, default=10_000, help="concurrent streams")
    parser.add_argument("--shapes", type=names_of(SHAPES), default=",".join(SHAPES), help="(cpu)")
    parser.add_argument("--before", action="append", default=[], help="NAME=SRC of laar (cpu)")
    parser.add_argument("--sample", type=positive, help="share of answers read (with --before)")
    parser.add_argument("--json", type=output_file, help="write all figures")
    return parser


def machine() -> dict[str, str]:
    """Return the machine's properties and the versions that affect results."""
    with Path("/proc/cpuinfo").open() as lines:
        cpu_name = next((x.partition(":")[2].strip() for x in lines if x[:10] == "model name"), "?")
    envoy = subprocess.run([find_binary(), "--version"], capture_output=True, text=True, check=True)
    packages = ("laar", "uvloop", "jh2", "grpcio", "protobuf")
    return {
        "cpu": cpu_name,
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "envoy": envoy.stdout.split("version:")[-1].split("/")[1],
        **{name: version(name) for name in packages},
    }


async def _run(figures: Figures, costs: Costs, options: argparse.Namespace) -> None:
    share, seconds = options.share, options.seconds
    parts: dict[str, Callable[[], Awaitable[None]]] = {
        "cpu": partial(cpu, figures, costs, _subjects(options), share, options.shapes),
        "features": partial(features, figures, share),
        "fleets": partial(fleets, figures, share),
        "idle": partial(idle, figures, seconds),
        "latency": partial(latency, figures, seconds),
        "crowds": partial(crowds, figures, share),
        "streams": partial(streams, figures, options.streams),
    }
    for name in options.parts:
        await figures.run(name, DEADLINES_S[name] * max(1.0, share), parts[name])


def _subjects(options: argparse.Namespace) -> list[Subject]:
    """Return the subjects of the first part; others are compared with the first picker."""
    if options.before:
        sampled = {"bodies": {"sample_answers": options.sample}} if options.sample else {}
        before = [other_sources(named, **sampled) for named in options.before]
        return [*before, laar_with(LAAR.name, **sampled)]
    return [NOOP_USUAL, NOOP, LAAR, ALONE]


def _table(costs: Costs) -> None:
    names = list(next(iter(costs.pickers.values())))
    rows = [
        (", ".join(key), *(f"{spent[n]:.0f} + {costs.envoys[key][n]:.0f}" for n in names))
        for key, spent in costs.pickers.items()
    ]
    print_table("us of CPU a request: picker + Envoy", ("request", *names), rows)
    print("requests a second of one core of the picker: 1,000,000 / us")

"""Measure cost and gain of sharing state between pickers.

Each part has a deadline, and prints what it has measured by then. Targets apply only to ages,
counts, and ratios within the run. Run it on an idle machine; it takes about six minutes on two
cores.

    age        pickers in separate processes at 1,000 decisions a second: age of received state,
               bytes and CPU per decision
    cost       two pickers behind Envoy with and without sharing: CPU per request, hit rate
    workers    `laar serve --workers 2` compared with one: requests a second, hit rate
    outage     the store stops under load for a while: requests failed and slowed, time to merge
    kill       one of two pickers is killed under load: requests failed, hit rate
    staleness  the lab's fleets behind four pickers, in virtual time

    python -m bench sharing
    python -m bench sharing --parts cost,kill --seconds 2

Without `redis-server` or `valkey-server` on the path, the parts that need a store are skipped and
reported as unfinished. Exit status: 0 if every target was met, 3 if one was missed or a part did
not finish.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from bench.figures import Figures
from bench.options import names_of, output_file, parser_for
from bench.sharing.real import cost, kill, outage, workers

DEADLINES_S = {
    "cost": 90.0,
    "workers": 150.0,
    "outage": 90.0,
    "kill": 90.0,
}
"""Time limits of the parts, about twice their duration on an idle machine."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; return 3 if one did not finish or missed a target."""
    options = _parser().parse_args(argv)
    figures = Figures()
    asyncio.run(_run(figures, options))
    return figures.conclude(options.json)


def _parser() -> argparse.ArgumentParser:
    parser = parser_for("sharing", __doc__)
    parser.add_argument("--parts", type=names_of(DEADLINES_S), default=",".join(DEADLINES_S))
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    parser.add_argument("--outage-s", type=float, default=30.0, help="seconds without the store")
    parser.add_argument("--requests", type=float, default=200.0, help="per second through Envoy")
    parser.add_argument("--deadline", type=float, default=1.0, help="factor for the deadlines")
    parser.add_argument("--json", type=output_file, help="write all figures")
    return parser


async def _run(figures: Figures, options: argparse.Namespace) -> None:
    store = shutil.which("redis-server") or shutil.which("valkey-server")
    seconds, requests = options.seconds, options.requests
    parts: dict[str, Callable[[], Awaitable[None]]] = {}
    if store is not None:
        load = {"store": store, "rate": requests}
        parts["cost"] = partial(cost, figures, seconds=seconds, **load)
        parts["outage"] = partial(outage, figures, seconds=options.outage_s, **load)
        parts["workers"] = partial(workers, figures, store=store, seconds=seconds)
        parts["kill"] = partial(kill, figures, seconds=seconds, **load)
    for name in options.parts:
        if name in parts:
            await figures.run(name, DEADLINES_S[name] * options.deadline, parts[name])
        else:
            print(f"{name}: SKIPPED, no redis-server and no valkey-server is installed")
            figures.unfinished[name] = "no store is installed"


if __name__ == "__main__":
    sys.exit(main())

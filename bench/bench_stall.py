"""Measure lost requests, and how long Envoy decides alone, while the picker stalls or restarts.

An open loop sends requests through a real Envoy, so that a stall never delays the next request.
Each row has a picker with default settings and five endpoints. In the `stop` rows the picker stops
for good and answers are short, which tests new requests. In the others each answer streams for
about five seconds, which also tests answers in flight. A request is lost if its client gets an
error or a truncated answer. The `full duplex` shape represents gateways other than laar's, and has
no target.

    stop 30, 100, 300     SIGSTOP at this many requests a second, with bodies up to 64 KB
    pause 0.5, 2, 5, 9    SIGSTOP, and SIGCONT after this many seconds
    starved               the picker runs for a tenth of 20 s, 50 ms at a time
    kill                  SIGKILL, then restarted
    restart               SIGTERM, then restarted
    mute                  the picker's port accepts connections and never answers

    python -m bench stall
    python -m bench stall --rows "pause 2,kill" --shapes gateway --json stall.json

Exit status: 0 if every target was met, 3 if one was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from bench.chaos.asking import GOOD, End, Ended, Question, outcome
from bench.chaos.load import OpenLoad
from bench.chaos.stand import Endpoint, Plan, Stand, standing
from bench.figures import VERDICTS, conclude, print_table, rank
from bench.options import names_of, output_file, parser_for
from laar_lab.live.bootstraps import AnyShape

MODEL = "m"
ENDPOINTS = 5
SHAPES: dict[str, AnyShape] = {
    "native": "standalone",
    "gateway": "gateway",
    "full duplex": "full-duplex",
}
LONG_TOKENS, LONG_SCALE, LONG_BODY_BYTES = 50, 5.0, 2000
SHORT_TOKENS, SHORT_SCALE, SHORT_BODY_BYTES = 2, 0.1, 64_000
"""Answer tokens, time scale, body size; the simulated engine takes 20 ms per token at scale 1."""

LEAD_S = 3.0
PATIENCE_S = 30.0


@dataclass(slots=True)
class Run:
    """The outcomes of a row's requests."""

    ended: list[Ended] = field(default_factory=list)
    struck_s: float = 0.0
    stop_s: float = 0.0
    start_s: float = 0.0


Strike = Callable[[Stand, Run], Awaitable[None]]
"""Injects a row's fault; returns when the fault is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault.

    Args:
        strike: injects the fault; returns when it is over.
        rate: requests a second.
        after_s: seconds of load after the fault.
        long: whether answers take seconds.
        undecided_s: target for how long Envoy may decide alone; None for no target.
    """

    strike: Strike
    rate: float = 20.0
    after_s: float = 4.0
    long: bool = True
    undecided_s: float | None = None


def _stop(seconds: float, *, back: bool) -> Strike:
    async def strike(stand: Stand, _run: Run) -> None:
        stand.pickers[0].send(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        if back:
            stand.pickers[0].send(signal.SIGCONT)

    return strike


async def _starve(stand: Stand, _run: Run) -> None:
    picker, until = stand.pickers[0], time.monotonic() + 20.0
    while time.monotonic() < until:
        picker.send(signal.SIGSTOP)
        await asyncio.sleep(0.45)
        picker.send(signal.SIGCONT)
        await asyncio.sleep(0.05)


def _end(number: int) -> Strike:
    async def strike(stand: Stand, run: Run) -> None:
        began = time.monotonic()
        await stand.pickers[0].end(number, within_s=60.0)
        ended = time.monotonic()
        await stand.restart_picker(0)
        run.stop_s, run.start_s = ended - began, time.monotonic() - ended

    return strike


async def _mute(stand: Stand, _run: Run) -> None:
    """Replace the picker with a silent listener, such as a proxy without a backend."""
    await stand.pickers[0].end(signal.SIGKILL)
    host, _, port = stand.settings(0)["listen"]["ext_proc"].rpartition(":")
    async with _mute_port(host, int(port)):
        await asyncio.sleep(6.0)
    await stand.restart_picker(0)


@asynccontextmanager
async def _mute_port(host: str, port: int) -> AsyncIterator[None]:
    held: list[asyncio.StreamWriter] = []

    async def keep(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    sock = socket.create_server((host, port))
    server = await asyncio.start_server(keep, sock=sock)
    try:
        yield
    finally:
        server.close()
        for writer in held:
            writer.transport.abort()


ROWS: dict[str, Row] = {
    **{
        f"stop {rate:g}": Row(strike=_stop(5.0, back=False), rate=rate, after_s=0.0, long=False)
        for rate in (30.0, 100.0, 300.0)
    },
    **{f"pause {s:g}": Row(strike=_stop(s, back=True)) for s in (0.5, 2.0, 5.0, 9.0)},
    "starved": Row(strike=_starve),
    "kill": Row(strike=_end(signal.SIGKILL)),
    "restart": Row(strike=_end(signal.SIGTERM), undecided_s=2.0),
    "mute": Row(strike=_mute),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit with 3 if a target was missed."""
    options = _parser().parse_args(argv)
    results = []
    for shape in options.shapes:
        for name in options.rows:
            run = asyncio.run(_measure(shape, ROWS[name], options.seed))
            results.append(_result(shape, name, run))
            print(orjson.dumps(results[-1]).decode(), flush=True)
    columns = ("requests", "errors", "cut", "undecided", "undecided_s", "longest_wait_s", "target")
    rows = [
        (f"{r['shape']}, {r['row']}", *(str(r[c]) for c in columns), VERDICTS[r["met"]])
        for r in results
    ]
    title = "The picker stalls, dies or restarts"
    print_table(title, ("shape, row", *columns, "verdict"), rows)
    return conclude(results, options.json, seed=options.seed)


def _parser() -> argparse.ArgumentParser:
    parser = parser_for("stall", __doc__)
    parser.add_argument("--rows", type=names_of(ROWS), default=",".join(ROWS), help="comma list")
    parser.add_argument("--shapes", type=names_of(SHAPES), default=",".join(SHAPES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=output_file, help="write all figures")
    return parser


async def _measure(shape: str, row: Row, seed: int) -> Run:
    one = Endpoint(model=MODEL, names=(MODEL,), known=(MODEL,))
    plan = Plan(
        endpoints=(one,) * ENDPOINTS,
        shape=SHAPES[shape],
        time_scale=LONG_SCALE if row.long else SHORT_SCALE,
    )
    async with standing(plan, deadline_s=300.0) as stand:
        run, over = Run(), asyncio.Event()
        load = OpenLoad(
            url=lambda: stand.url,
            next_question=_questions(row, seed, over),
            names=stand.names_of_one(MODEL),
            rate_per_s=row.rate,
            seed=seed,
            limit_s=PATIENCE_S,
            keep=run.ended.append,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            await asyncio.sleep(LEAD_S)
            run.struck_s = time.monotonic()
            await row.strike(stand, run)
            await asyncio.sleep(row.after_s)
            over.set()
    return run


def _questions(row: Row, seed: int, over: asyncio.Event) -> Callable[[int], Question | None]:
    rng = random.Random(seed)

    def next_question(number: int) -> Question | None:
        size = rng.randrange(LONG_BODY_BYTES if row.long else SHORT_BODY_BYTES)
        question = Question(
            asked=MODEL,
            text=f"Question {number}? {'x' * size}",
            tokens=LONG_TOKENS if row.long else SHORT_TOKENS,
            stream=row.long,
        )
        return None if over.is_set() else question

    return next_question


def _result(shape: str, name: str, run: Run) -> dict[str, Any]:
    row, ended = ROWS[name], run.ended
    lost = [e for e in ended if e.end not in GOOD]
    errors = sum(e.status not in (0, None, 200) for e in lost)
    undecided = [e.began_s - run.struck_s for e in ended if e.end is End.FAILED_OPEN]
    undecided_s = max(undecided, default=0.0)
    waits = [e.first_s - e.began_s for e in ended if e.first_s]
    met = not lost and (row.undecided_s is None or undecided_s < row.undecided_s)
    return {
        "shape": shape,
        "row": name,
        **outcome(ended),
        "errors": errors,
        "cut": len(lost) - errors,
        "undecided": len(undecided),
        "undecided_s": round(undecided_s, 2),
        "stop_s": round(run.stop_s, 2),
        "start_s": round(run.start_s, 2),
        "longest_wait_s": round(max(waits, default=0.0), 2),
        "p50_s": round(rank([e.took_s for e in ended], 0.5), 2),
        "target": "0 lost" + (f", undecided < {row.undecided_s:g} s" if row.undecided_s else ""),
        "met": met if shape != "full duplex" else None,
    }


if __name__ == "__main__":
    sys.exit(main())

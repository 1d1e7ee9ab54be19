"""Compare the picker's time for a body of real text with and without the context hook.

Framework prompts with six and forty chunks of real text pass alternately through two pickers that
differ only in the hook: real messages and the real processor, without the transport
(`bench.bench_decision`). Each request is answered, so that the hook learns from it. Times are CPU
time of the process, the median of `SCORED` requests after `LEARNT`. The first ratio is for the time
from the body to its answer, the second for all messages of a request and the hook's work after
sending. Ratios hold on a busy machine.

    python -m bench hooked
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import orjson

from bench.bench_decision import Caller, processor, request_messages
from bench.figures import MISSED
from bench.options import name_of, parser_for
from bench.prompts import corpora
from bench.prompts.templates import TEMPLATES
from laar.server.extproc import ExternalProcessor
from laar.server.extproc.exchange import Exchange
from laar.server.h2 import H2Call
from laar.server.picker import Picker
from laar.settings import Settings

NAMES = ("langchain stuff", "langchain retriever tool", "open webui", "json tool")
SIZES = (6, 40)
CHUNKS = 60
LEARNT, SCORED = 400, 150
TARGET = 1.3


def picker(due: list[Callable[[], None]], *, hooked: bool) -> ExternalProcessor:
    """Return a picker of five endpoints; `due` collects the work that it does after sending."""
    made = processor(5)
    if hooked:
        route = {"name": "rag", "mode": "on", "holdout_share": 0.0}
        given = {"endpoints_file": "none", "context": {"routes": [route]}}
        # CPU time, so that the hook's time limit is, too.
        hooks = Picker(Settings.model_validate(given), seed=1, clock=time.process_time).context
        hooks.shows_answers = True
        hooks.later = due.append
        made.env = replace(made.env, hook=hooks)
    return made


async def spent(
    at: ExternalProcessor, due: list[Callable[[], None]], messages: Sequence[bytes]
) -> tuple[float, float]:
    """Return the CPU seconds from the body to its answer, and for the whole request."""
    caller = Caller()
    exchange = Exchange(at, cast(H2Call, caller))
    answer = whole = 0.0
    for number, message in enumerate(messages):
        began = time.process_time()
        exchange.receive(message)
        await caller.waited()
        ended = time.process_time()
        answer += ended - began if number == 1 else 0.0
        while due:
            due.pop(0)()
        whole += time.process_time() - began
    exchange.closed()
    return answer, whole


async def measured(name: str, count: int) -> tuple[int, list[tuple[float, float]]]:
    """Return a body's size in bytes, and median times in microseconds without and with the hook."""
    rng = random.Random(1)
    pool = corpora.chunks("pages", CHUNKS, rng)
    due: list[Callable[[], None]] = []
    pickers = [picker(due, hooked=False), picker(due, hooked=True)]
    taken: list[list[tuple[float, float]]] = [[], []]
    size = 0
    for n in range(LEARNT + SCORED):
        docs = [(at, pool[at]) for at in rng.sample(range(CHUNKS), count)]
        body = orjson.dumps({**TEMPLATES[name](docs, f"What is said of {n}?"), "model": "auto"})
        size = len(body)
        for at in (0, 1) if n % 2 else (1, 0):
            taken[at].append(await spent(pickers[at], due, request_messages(body, n)))
    scored = [list(zip(*each[LEARNT:], strict=True)) for each in taken]
    return size, [(statistics.median(a) * 1e6, statistics.median(b) * 1e6) for a, b in scored]


def main(argv: Sequence[str] = ()) -> int:
    """Print the table; return 3 if a ratio exceeds the target."""
    parser = parser_for("hooked", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", type=name_of(TEMPLATES))
    names = parser.parse_args(argv).names or NAMES
    head = f"{'off':>8}{'on':>8}{'ratio':>8}"
    print(f"  {'us of CPU':34}{'':5}{'body to answer':>24}{'whole request':>24}")
    print(f"  {'':34}{'KB':>5}{head}{head}")
    worst = 0.0
    for name in names:
        for count in SIZES:
            size, (off, on) = asyncio.run(measured(name, count))
            worst = max(worst, *(b / a for a, b in zip(off, on, strict=True)))
            what = f"{name}, {count} chunks"
            both = [f"{a:8.0f}{b:8.0f}{b / a:8.2f}" for a, b in zip(off, on, strict=True)]
            print(f"  {what:34}{size >> 10:5}{''.join(both)}", flush=True)
    print(f"  at most {worst:.2f}; target {TARGET}")
    return MISSED if worst > TARGET else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The picker's time from a body of real text to its answer, with the context hook and without.

Chunks of real text in the prompts of frameworks, six and forty of them, go by turns through two
pickers that are alike but for the hook: real messages, the real processor, only the wire is left
out (`bench.bench_decision`). Each request is answered, so that the hook learns from it. CPU time
of the process, the median of `SCORED` requests once `LEARNT` came: the ratio is for busy machines.

    python -m bench hooked
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence

import orjson

from bench.bench_decision import processor, request_messages, time_answer
from bench.prompts import corpora
from bench.prompts.templates import TEMPLATES
from laar.server.context_hooks import ContextHooks
from laar.server.extproc import ExternalProcessor
from laar.settings import Settings
from laar.telemetry.problems import Problems

NAMES = ("langchain stuff", "langchain retriever tool", "open webui", "json tool")
SIZES = (6, 40)
CHUNKS = 60
LEARNT, SCORED = 120, 150
TARGET = 1.3


def picker(*, hooked: bool) -> ExternalProcessor:
    """A picker of five endpoints."""
    made = processor(5)
    if hooked:
        route = {"name": "rag", "mode": "on", "holdout_share": 0.0}
        hooks = ContextHooks(
            Settings.model_validate({"endpoints_file": "none", "context": {"routes": [route]}}),
            clock=time.process_time,  # the time limit of the hook, too, is of CPU here
            rng=random.Random(1),
            degraded=Counter(),
            problems=Problems(),
        )
        hooks.shows_answers = True
        made.apply(made.env.settings, hook=hooks, enforced=None)
    return made


async def measured(name: str, count: int) -> tuple[int, list[float]]:
    """Bytes of a body, and the medians in microseconds, off and on."""
    rng = random.Random(1)
    pool = corpora.chunks("pages", CHUNKS, rng)
    pickers = [picker(hooked=False), picker(hooked=True)]
    taken: list[list[float]] = [[], []]
    size = 0
    for n in range(LEARNT + SCORED):
        docs = [(at, pool[at]) for at in rng.sample(range(CHUNKS), count)]
        body = orjson.dumps({**TEMPLATES[name](docs, f"What is said of {n}?"), "model": "auto"})
        size = len(body)
        for at in (0, 1) if n % 2 else (1, 0):
            took = await time_answer(pickers[at], request_messages(body, n))
            taken[at].append(took * 1e6)
    return size, [statistics.median(each[LEARNT:]) for each in taken]


def main(argv: Sequence[str] = ()) -> int:
    """Print the table; 1 where a ratio is over the target."""
    print(f"  {'body to answer, us of CPU':34}{'KB':>5}{'off':>8}{'on':>8}{'ratio':>8}")
    worst = 0.0
    for name in argv or NAMES:
        for count in SIZES:
            size, (off, on) = asyncio.run(measured(name, count))
            worst = max(worst, on / off)
            what = f"{name}, {count} chunks"
            print(f"  {what:34}{size >> 10:5}{off:8.0f}{on:8.0f}{on / off:8.2f}", flush=True)
    print(f"  at most {worst:.2f}; target {TARGET}")
    return 1 if worst > TARGET else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Compare the guard's estimated gain with the real one: the hit rate with the hook minus without.

Four loads of prompts with six documents of real text pass through a picker to two engines with
block caches, once as received and once through the hook. Documents come as a search returns them,
sorted differently by two clients, mostly with popular ones first, or never repeated. The guard sees
only the second run and may not switch the hook off in it; a third run finds the request at which it
does. Targets: the estimate is within .02 of the real gain, and if the gain is negative the hook is
off within 500 requests.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from unittest.mock import patch

import orjson

from bench.bench_templates import BLOCKS, ENDPOINTS, SIZE, ids_of
from bench.caches import answered, serve
from bench.options import name_of, parser_for
from bench.prompts import corpora
from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings
from laar.core.cost import CostWeights
from laar.core.decision import DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointTable
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.policies import build_policies
from laar.prefix.beliefs import PrefixBeliefs
from laar.protocol.openai import read_body
from laar_lab.sim.engine.blocks import BlockPool

REQUESTS = 1000
DOCUMENTS = 6
TARGET = 0.02
LOADS = ("as retrieved", "clients sort", "popular first", "nothing shared")


def bodies(load: str, seed: int) -> Iterator[bytes]:
    """Yield the request bodies of a load."""
    rng = random.Random(seed)
    pool = corpora.chunks("pages", 60, rng)
    weights = [(i + 1) ** -0.8 for i in range(len(pool))]
    made = 0
    for n in range(REQUESTS):
        drawn: dict[int, None] = {}
        while len(drawn) < DOCUMENTS:
            drawn[rng.choices(range(len(pool)), weights)[0]] = None
        order = list(drawn)
        if load == "as retrieved":
            rng.shuffle(order)
        elif load == "clients sort":
            order.sort(reverse=bool(n % 2))
        elif load == "popular first":
            order.sort(key=lambda at: at + rng.gauss(0.0, 2.0))
        texts = [pool[at] for at in order]
        if load == "nothing shared":
            texts = [f"{n} {made + i}: {text}" for i, text in enumerate(texts)]
            made += len(texts)
        listed = "\n".join(f"<document>\n{text}\n</document>" for text in texts)
        system = {"role": "system", "content": "Answer from the documents. " * 10}
        question = f"<documents>\n{listed}\n</documents>\nWhat is said about number {n}?"
        user = {"role": "user", "content": question}
        yield orjson.dumps({"model": "m", "messages": [system, user]})


def run(load: str, hook: ContextHook | None, seed: int = 5) -> tuple[float, int]:
    """Return the cached share of tokens, and the request at which the hook switched off (or 0)."""
    table = EndpointTable()
    table.replace(
        "bench", [EndpointSpec(address=f"{n}:1", models=("m",)) for n in range(ENDPOINTS)]
    )
    beliefs = PrefixBeliefs(key=b"bench", max_bytes=1 << 26)
    director = Director(
        table,
        build_policies(CostWeights()),
        DirectorSettings(),
        rng=random.Random(seed),
        prefixes=beliefs,
    )
    pools = [BlockPool(BLOCKS) for _ in range(ENDPOINTS)]
    found = asked = off = 0
    for n, raw in enumerate(bodies(load, seed)):
        body, made, now = raw, None, float(n)
        if hook is not None:
            made = hook.apply(raw, api="chat", tenant="", now=now, mode="on")
            body = made.body
        read = read_body(Api.CHAT, body)
        request = Request(id="r", api=Api.CHAT, model="m", spans=read.spans, chars=read.chars)
        decision = director.decide(request, now)
        ids = ids_of(Api.CHAT, body, "qwen3")
        cached = serve(pools[decision.slot], ids, SIZE)
        found += cached
        asked += len(ids)
        director.settle(decision, answered(len(ids), cached))
        if hook is not None and made is not None:
            hook.commit(made, now)
            hook.record_usage(made, prompt_tokens=len(ids), cached_tokens=cached)
            off = off or (n + 1 if hook.guard.off else 0)
    return found / asked, off


def main(argv: Sequence[str] = ()) -> int:
    """Print the table for the loads in `argv`, or all; return 1 if a gain misses the target."""
    parser = parser_for("guard", __doc__)
    parser.add_argument("loads", nargs="*", metavar="LOAD", type=name_of(LOADS))
    loads = parser.parse_args(argv).loads or LOADS
    print(
        f"  {'load':16}{'off':>7}{'on':>7}{'real':>8}{'guard':>8}{'2 errors':>10}{'off after':>11}"
    )
    worst = 0.0
    for load in loads:
        before, _ = run(load, None)
        hook = ContextHook(ContextSettings())
        with patch("laar.context.guard.MIN_GAIN", -1.0):
            after, _ = run(load, hook)
        gain, error = hook.guard.gain()
        _, stopped = run(load, ContextHook(ContextSettings()))
        worst = max(worst, abs(gain - (after - before)))
        print(
            f"  {load:16}{before:7.3f}{after:7.3f}{after - before:+8.3f}{gain:+8.3f}"
            f"{2 * error:10.3f}{stopped or 'stays on':>11}",
            flush=True,
        )
    print(f"  difference at most {worst:.3f}; target {TARGET}")
    return 1 if worst > TARGET else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

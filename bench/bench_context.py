"""The context hook: what it costs and what it gains, beside the targets of its design note (6.4).

Times are CPU time of the calling thread, so that a busy machine does not count. The whole hook is
timed on 15 documents of 4 KB against an index of 30,000; gains are those of the replayed loads.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable

import orjson

from laar.context import ContextHook, ContextSettings, HookResult, OrderIndex, plan
from laar.lab.workloads import rag

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")


def document(i: int, size: int = 4096) -> str:
    rng = random.Random(i)
    text = f'<document id="d{i}">\n'
    while len(text) < size:
        text += f"{rng.choice(WORDS)} {rng.choice(WORDS)}, {rng.choice(WORDS)}.\n"
    return text + "</document>"


def p50_p99_ms(samples: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(samples, n=100)
    return cuts[49] * 1e3, cuts[98] * 1e3


def timed(call: Callable[..., object], *args: object) -> float:
    start = time.thread_time()
    call(*args)
    return time.thread_time() - start


def report(name: str, samples: list[float], target: str) -> None:
    p50, p99 = p50_p99_ms(samples)
    print(f"  {name:44} p50 {p50:6.3f} ms   p99 {p99:6.3f} ms   target {target}")


def hook_times() -> None:
    documents = [document(i) for i in range(1000)]

    def body(ids: list[int]) -> bytes:
        text = "<documents>\n" + "\n".join(documents[i] for i in ids) + "\n</documents>\n\nWhy?"
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        return json.dumps({"model": "m", "messages": messages}).encode()

    hook = ContextHook(ContextSettings(holdout_share=0.0))

    def apply(given: bytes, now: float = 999.0) -> tuple[float, HookResult]:
        start = time.thread_time()
        result = hook.apply(given, api="chat", tenant="t", route="r", now=now, mode="on")
        return time.thread_time() - start, result

    whole: list[float] = []
    given = b""
    for i, ids in enumerate(rag.topic(0, requests=4200)):
        given = body(ids)
        took, result = apply(given, i * 0.05)
        whole.append(took)
        hook.commit(result.receipt, i * 0.05)
    filled = hook.stats()["index_documents"]
    read = [timed(orjson.loads, given) for _ in range(800)]
    report("yardstick: orjson.loads of that body", read, "0.013 idle")
    report(f"whole hook, {len(given):,} B, index {filled:,}", whole[-800:], "p50 0.3, p99 1")
    prose = ("No delimiters, only results of documents in prose;\n" * 1400)[: 64 << 10]
    for name, text in (("64 KB, no escapes", "x" * (64 << 10)), ("64 KB of prose", prose)):
        plain = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        report(f"no documents, {name}", [apply(plain)[0] for _ in range(800)], "p99 0.1")


def aligner_times() -> None:
    for name, load in (
        ("topic", rag.topic(0, requests=4400)),
        ("zipf 1.0", rag.zipf(0, 1.0, requests=3800)),
        ("disjoint", rag.disjoint(requests=2800)),
    ):
        hashed = [rag.hashed(context) for context in load]
        gc.collect()
        tracemalloc.start()
        index = OrderIndex(capacity_docs=30_000)
        for i, docs in enumerate(hashed[:-800]):
            found = index.align(0, 0, docs, i * 0.05)
            sent = [docs[at] for at in found.permutation]
            names = {"endpoint": f"10.0.0.{i % 4}:8000", "request": f"request-{i:032x}"}
            index.insert(0, 0, sent, i * 0.05, **names)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        align = [timed(index.align, 0, 0, docs, 250.0) for docs in hashed[-800:]]
        insert = [timed(index.insert, 0, 0, docs, 250.0) for docs in hashed[-800:]]
        report(f"align, {name}, index {len(index):,}", align, "p99 0.15")
        report("insert (off the request's path)", insert, "-")
        print(f"  {used / len(index):.0f} bytes for each document position; target 200")


def gains() -> None:
    print("  load                  seeds 0, 1, 2           mean   must  stretch  reached  max/mean")
    for name, make, endpoints, capacity_docs, must, stretch in (
        ("topic, 4 x 750", rag.topic, 4, 750, 0.28, 0.33),
        ("topic, 4 x 3000", rag.topic, 4, 3000, 0.33, 0.38),
        ("zipf 1.0, 4 x 3000", lambda seed: rag.zipf(seed, 1.0), 4, 3000, 0.25, 0.30),
        ("zipf 0.6, 1 x 3000", lambda seed: rag.zipf(seed, 0.6), 1, 3000, 0.10, 0.12),
        ("no overlap, 4 x 750", lambda seed: rag.disjoint(), 4, 750, 0.0, 0.0),
    ):
        runs = [
            rag.replay(make(seed), endpoints=endpoints, capacity_docs=capacity_docs, reorder=True)
            for seed in range(3)
        ]
        hits = [run.hit for run in runs]
        mean = statistics.mean(hits)  # as it is, for 0.2996 is not 0.30
        each = "  ".join(f"{hit:.4f}" for hit in hits)
        print(
            f"  {name:20}  {each}  {mean:.4f}   {must:.2f}   {stretch:.2f}"
            f"     {'yes' if mean >= stretch else 'no':7}  {max(run.skew for run in runs):.2f}"
        )


def offline() -> None:
    for name, load, target in (("topic", rag.topic(0), 0.50), ("zipf 1.0", rag.zipf(0, 1.0), 0.30)):
        for capacity_docs in (None, 3000, 600):
            start = time.perf_counter()
            planned = plan(load, capacity_docs=capacity_docs)
            took = time.perf_counter() - start
            print(
                f"  {name:9} cache {capacity_docs or 'unbounded'!s:9}  received "
                f"{planned.hit_received:.3f}  planned {planned.hit_planned:.3f}  "
                f"target {target:.2f} unbounded   {took:.2f} s for 2,000 requests"
            )


def main() -> None:
    print("context hook, speed")
    hook_times()
    aligner_times()
    print("context hook, gain: share of documents found cached")
    gains()
    print("offline plan")
    offline()


if __name__ == "__main__":
    main()

"""Measure cost and gain of the context hook against its targets.

Times are CPU time of the calling thread, which excludes other work on the machine. The whole hook
is timed on 15 documents of 4 KB against an index of 30,000; gains come from replayed loads.
"""

from __future__ import annotations

import gc
import json
import random
import re
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson

from laar.context.aligner import OrderIndex
from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings
from laar.context.turn import TurnPlan
from laar.server.memory import keep_freed
from laar_lab.workloads import rag

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


Frame = Callable[[list[str]], str]

FRAMES: dict[str, Frame] = {
    "xml": lambda docs: "<documents>\n" + "\n".join(docs) + "\n</documents>\n\nWhy?",
    "Document n:": lambda docs: (
        "\n\n".join(f"Document {i}: {doc}" for i, doc in enumerate(docs, 1)) + "\n\nQuestion: Why?"
    ),
    "blank lines": lambda docs: (
        "Use the following pieces of context to answer the question at the end.\n\n"
        + "\n\n".join(docs)
        + "\n\nQuestion: Why?\nHelpful Answer:"
    ),
    "JSON": lambda docs: json.dumps({"results": [{"content": doc} for doc in docs]}),
}


def hook_times() -> None:
    tagged = [document(i) for i in range(1000)]
    # Lines of about 80 characters, as in prose.
    bare = [
        re.sub(r"\n(.*)\n(.*)\n(.*)", r" \1 \2 \3", text.partition("\n")[2])
        .removesuffix("\n</document>")
        .capitalize()
        for text in tagged
    ]

    def body(frame: Frame, ids: list[int], texts: list[str]) -> bytes:
        text = frame([texts[i] for i in ids])
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        return json.dumps({"model": "m", "messages": messages}).encode()

    hook = ContextHook(ContextSettings(holdout_share=0.0))

    def apply(given: bytes, now: float = 999.0, *, is_read: bool = False) -> tuple[float, TurnPlan]:
        document = orjson.loads(given) if is_read else None
        start = time.thread_time()
        result = hook.apply(given, api="chat", tenant="t", now=now, mode="on", document=document)
        return time.thread_time() - start, result

    for name, frame in FRAMES.items():
        texts = tagged if name == "xml" else bare
        whole: list[float] = []
        given = b""
        moved = 0
        for i, ids in enumerate(rag.topic(0, requests=4200 if name == "xml" else 1800)):
            given = body(frame, ids, texts)
            took, result = apply(given, i * 0.05)
            whole.append(took)
            moved += result.body is not given
            hook.commit(result, i * 0.05)
        if name == "xml":
            read = [timed(orjson.loads, given) for _ in range(800)]
            report("yardstick: orjson.loads of that body", read, "0.013 idle")
        filled = hook.stats()["index_documents"]
        what = f"{name}, {len(given) >> 10} KB, index {filled:,}, {moved / len(whole):.0%} moved"
        report(what, whole[-800:], "p99 0.6")
        large = [
            body(frame, rng.sample(range(1000), 95), texts) for rng in map(random.Random, range(30))
        ]
        for rng in map(random.Random, range(30, 36)):  # the first of each size grow the heap
            hook.commit(apply(body(frame, rng.sample(range(1000), 95), texts))[1], 999.0)
        times = []
        for given in large * 4:
            took, result = apply(given)
            times.append(took)
            hook.commit(result, 999.0)
        report(f"{name}, {len(large[0]) >> 10} KB, 95 documents", times, "p99 2")
        times = [apply(given, is_read=True)[0] for given in large * 4]
        report("  the same, as the picker has read it before", times, "-")
    prose = "No delimiters, only results of documents in prose;\n"
    code = "    context[i] = documents[i]  # 1. read the sources\n"
    for size, target in ((64 << 10, "p99 0.6"), (400 << 10, "p99 2")):
        for name, text in (("no escapes", "x"), ("prose", prose), ("code", code)):
            plain = (text * (size // len(text)))[:size]
            given = json.dumps({"messages": [{"role": "user", "content": plain}]}).encode()
            times = [apply(given)[0] for _ in range(400)]
            report(f"no documents, {size >> 10} KB, {name}", times, target)
            times = [apply(given, is_read=True)[0] for _ in range(400)]
            report("  the same, as the picker has read it before", times, "-")


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
            sent = [docs[at] for at in index.align(0, 0, docs, i * 0.05)]
            index.insert(0, 0, sent, i * 0.05, endpoint=f"10.0.0.{i % 4}:8000")
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        align = [timed(index.align, 0, 0, docs, 250.0) for docs in hashed[-800:]]
        insert = [timed(index.insert, 0, 0, docs, 250.0) for docs in hashed[-800:]]
        report(f"align, {name}, index {len(index):,}", align, "p99 0.15")
        report("insert (off the request's path)", insert, "-")
        print(f"  {used / len(index):.0f} bytes for each document position; target 200")


def gains() -> None:
    print(
        "  load                  seeds 0, 1, 2           mean   must  stretch  reached  max/mean"
        "  an order for each of two endpoints    evicted forgotten; ten times too large, both"
    )
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
        own = rag.replay(
            make(0), endpoints=endpoints, capacity_docs=capacity_docs, reorder=True, own_orders=2
        )
        size: dict[str, Any] = {
            "endpoints": endpoints,
            "capacity_docs": capacity_docs,
            "reorder": True,
        }
        large = 10 * endpoints * capacity_docs
        others = [
            statistics.mean(rag.replay(make(seed), **size, **how).hit for seed in range(3))
            for how in (
                {"forget_evicted": True},
                {"index_docs": large},
                {"index_docs": large, "forget_evicted": True},
            )
        ]
        hits = [run.hit for run in runs]
        mean = statistics.mean(hits)  # not rounded: 0.2996 misses 0.30
        each = "  ".join(f"{hit:.4f}" for hit in hits)
        print(
            f"  {name:20}  {each}  {mean:.4f}   {must:.2f}   {stretch:.2f}"
            f"     {'yes' if mean >= stretch else 'no':7}  {max(run.skew for run in runs):.2f}"
            f"      seed 0 {own.hit:.4f}    {'  '.join(f'{hit:.4f}' for hit in others)}"
        )


def main() -> None:
    print("context hook, speed")
    keep_freed()  # like a server after start-up
    gc.collect()
    gc.freeze()  # likewise: modules are never garbage
    hook_times()
    aligner_times()
    print("context hook, gain: share of documents found cached")
    gains()


if __name__ == "__main__":
    main()

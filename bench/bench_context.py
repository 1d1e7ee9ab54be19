"""Measure the cost of the context hook against its targets.

Times are CPU time of the calling thread, which excludes other work on the machine. The whole hook
is timed on 15 documents of 4 KB against an index of 30,000. `laar lab run context-hits` shows what
it gains.
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


def main() -> None:
    print("context hook, speed")
    keep_freed()  # like a server after start-up
    gc.collect()
    gc.freeze()  # likewise: modules are never garbage
    hook_times()
    aligner_times()


if __name__ == "__main__":
    main()

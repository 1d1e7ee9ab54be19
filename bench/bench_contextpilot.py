"""Compare laar's ContextPilot library and hook with the published program, in one run.

Needs the `contextpilot` package (`pip install 'laar[bench]'`); prints SKIPPED without it. Times are
CPU time including child processes, which excludes other work on the machine. The program prints on
its hot path; its output is captured, which costs less than printing to a terminal.
"""

from __future__ import annotations

import contextlib
import io
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from laar.context.aligner import OrderIndex
from laar_lab.offline import build, schedule
from laar_lab.workloads import rag

REQUESTS = 2000
QUERIES = 500
SEED = 0
LOADS = (
    ("topic, 4 x 750", rag.topic, 4, 750),
    ("zipf 1.0, 4 x 3000", lambda seed: rag.zipf(seed, 1.0), 4, 3000),
    ("zipf 0.6, 1 x 3000", lambda seed: rag.zipf(seed, 0.6), 1, 3000),
    ("no overlap, 4 x 750", lambda _seed: rag.disjoint(), 4, 750),
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def timed(call: Callable[..., Any], *args: object) -> tuple[float, Any]:
    start = cpu_s()
    result = call(*args)
    return cpu_s() - start, result


def cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def program() -> Any:
    from contextpilot import ContextPilot

    return ContextPilot(use_gpu=False)


def report(name: str, samples: list[float]) -> float:
    cuts = statistics.quantiles(samples, n=100)
    print(f"  {name:44} p50 {cuts[49] * 1e3:7.3f} ms   p99 {cuts[98] * 1e3:7.3f} ms")
    return cuts[49]


def same_orders() -> None:
    """Compare orders and schedules on small batches; ties between floats may differ."""
    rng = random.Random(SEED)
    equal = scheduled = 0
    for _ in range(60):
        batch = [rng.sample(range(12), rng.randint(2, 6)) for _ in range(rng.randint(2, 6))]
        built = build(batch, by="id").contexts
        with quiet():
            theirs = program().build_and_schedule(batch)
        order = theirs["original_indices"]
        ours = [list(one.docs) for one in built]
        equal += all(
            list(docs) == ours[at]
            for at, docs in zip(order, theirs["reordered_contexts"], strict=True)
        )
        scheduled += schedule([one.path for one in built]) == list(order)
    print(f"  60 random batches: same orders in {equal}, same schedule in {scheduled}")


def speed() -> None:
    load = rag.topic(SEED, requests=REQUESTS + QUERIES)
    batch, queries = load[:REQUESTS], load[REQUESTS:]
    live = program()
    with quiet():
        theirs_s, _ = timed(live.build_and_schedule, batch)
    ours_s, built = timed(lambda: build(batch))
    ratio = theirs_s / ours_s
    print(
        f"  index of {REQUESTS:,} contexts: contextpilot {theirs_s:.2f} s, laar {ours_s:.2f} s: "
        f"{ratio:.1f} times as fast; target 3"
    )

    def search_and_order(docs: Sequence[int]) -> object:
        _, node, _, found = live.search(docs)
        return live._reorder_with_prefix(docs, live._get_node_docs(node)) if found else docs

    with quiet():
        theirs = [timed(search_and_order, docs)[0] for docs in queries]
    ours = [timed(built.tree.order, docs)[0] for docs in queries]
    index = OrderIndex()
    for i, docs in enumerate(rag.hashed(docs) for docs in batch):
        order = index.align(0, 0, docs, i * 0.05)
        index.insert(0, 0, [docs[at] for at in order], i * 0.05)
    now = REQUESTS * 0.05
    aligned = [timed(index.align, 0, 0, rag.hashed(docs), now)[0] for docs in queries]
    report("search and ordering, contextpilot", theirs)
    report("search and ordering, laar's library", ours)
    report("search and ordering, laar's online aligner", aligned)


class Online:
    """The program, fed one request at a time; if it fails, the request keeps its order."""

    def __init__(self) -> None:
        self._live = program()
        self._numbers: dict[int, int] = {}  # ids by first appearance, as in the program
        self.faults = 0

    def order(self, docs: Sequence[int]) -> list[int]:
        """Return the documents in the program's order."""
        ids = [self._numbers.setdefault(doc, len(self._numbers)) for doc in docs]
        try:
            with quiet():
                reordered, _ = self._live.reorder(ids)
        except Exception:  # noqa: BLE001 - its proxy forwards the request on any error
            self.faults += 1
            return list(docs)
        of = dict(zip(ids, docs, strict=True))
        return [of[number] for number in reordered[0]]


def hits() -> None:
    print("  documents found cached     as received   contextpilot online   laar online")
    for name, make, endpoints, capacity_docs in LOADS:
        online = Online()
        received, theirs, ours = (
            rag.replay(
                make(SEED),
                endpoints=endpoints,
                capacity_docs=capacity_docs,
                reorder=reorder,
                order=order,
            ).hit
            for reorder, order in ((False, None), (False, online.order), (True, None))
        )
        fault = f"   ({online.faults} of its calls failed)" if online.faults else ""
        print(f"  {name:25}  {received:11.3f} {theirs:21.3f} {ours:13.3f}{fault}")


def main() -> None:
    if find_spec("contextpilot") is None:
        print("  SKIPPED: the package `contextpilot` is not installed: pip install 'laar[bench]'")
        return
    same_orders()
    speed()
    hits()


if __name__ == "__main__":
    main()

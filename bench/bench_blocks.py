"""The longest blocks of the event loop: CPU time of its own thread, in milliseconds.

`python -m bench blocks`. Above 20 ms, requests that arrive meanwhile notice.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable

from laar.health import Health, HealthSettings
from laar.prefix.blocks import Chain
from laar.prefix.index import PrefixIndex
from laar.sharing.snapshot import MAX_BLOCKS

PROMPTS, ENDPOINTS, UNREAD, REPEATS = 200_000, 100, 20_000, 3


def main() -> None:
    """Print a line for each case."""
    for name, call in (
        (f"collect {PROMPTS:,} prompts for a snapshot", snapshot()),
        (f"look for silence among {UNREAD:,} unread answers", unread(ENDPOINTS)),
        ("the same at one endpoint", unread(1)),
    ):
        print(f"{name:48}{max(_ms(call) for _ in range(REPEATS)):8.1f} ms", flush=True)


def _ms(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return 1e3 * (time.thread_time() - began)


def snapshot() -> Callable[[], object]:
    """Return what a snapshot does in the event loop; the rest is done by a thread."""
    index = PrefixIndex(ENDPOINTS, max_bytes=1 << 30)
    for number in range(PROMPTS):
        hashes = array("Q", (random.getrandbits(64) for _ in range(4)))
        index.settle(index.insert(number % ENDPOINTS, Chain(hashes, 4 * 64)))
    return lambda: index.dump(MAX_BLOCKS)


def unread(endpoints: int) -> Callable[[], object]:
    """Return a check of attempts whose answers have been under way for ten seconds."""
    health, now = Health(HealthSettings(), rng=random.Random(1)), [10.0]
    for number in range(UNREAD):
        health.sent(number % endpoints, "m", stream=True, predicted_s=1.0, tokens=9.0, now=0.0)

    def look() -> None:
        now[0] += 1.0
        health.look(now[0])

    return look

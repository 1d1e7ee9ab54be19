"""Measure the prefix index: time to hash, insert and match, memory per block, 10^6 requests.

Targets: hashing 400 kB in under 100 us if most of it was hashed before; inserting and matching 400
kB against 100 endpoints in under 150 us (median); 1,000 endpoints at most twice the time of 10; at
most 100 bytes per cached block; 10^6 requests of churning sessions within the memory limit.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence

from laar.prefix import blocks
from laar.prefix.blocks import Chain, PromptHasher
from laar.prefix.index import PrefixIndex

HASHER = PromptHasher(b"bench")


def _chain(spans: Sequence[str]) -> Chain:
    return HASHER.chain_of("".join(spans).encode())


PROMPT_BYTES = 400_000
TURNS = 30
SYSTEM = "s" * 1000
CHURN = 1_000_000


def main() -> None:
    hash_us = [_median_us(_hash_again(kind)) for kind in ("ascii", "日本語")]
    print(
        f"hash 400 kB, known              {hash_us[0]:8.1f} us ascii, {hash_us[1]:.1f} us Japanese"
        f"   (target 100, ascii)\nhash 400 kB, new                "
        f"{_median_us(_hash_new()):8.1f} us ascii"
    )
    for holders in (3, 10, 1000):
        sums = {}
        for slots in (10, 100, 1000):
            insert_us, match_us = _insert_and_match(slots, min(holders, slots))
            sums[slots] = insert_us + match_us
            print(
                f"{slots:5} endpoints, {min(holders, slots):4} to a conversation, 400 kB: "
                f"insert {insert_us:.1f} us, match {match_us:.1f} us"
            )
        hashed = (sums[1000] + hash_us[0]) / (sums[10] + hash_us[0])
        print(
            f"      sum at 100 endpoints {sums[100]:.1f} us (target 150); 1,000 against 10: "
            f"{sums[1000] / sums[10]:.2f} times, {hashed:.2f} with the hashing (target 2)"
        )
    for name, prompt_bytes in (("chats of 28 kB", 28_000), ("short prompts of 2 kB", 2_000)):
        real, claimed, held = _memory(prompt_bytes)
        print(
            f"memory, {name:22}  {real / held:8.1f} bytes a block   (target 100); "
            f"the index's own estimate is {claimed / real:.2f} of the real"
        )
    _churn(CHURN)


def _hash_again(kind: str) -> Callable[[int], object]:
    letters = "abcdefgh" if kind == "ascii" else kind
    size = PROMPT_BYTES // len(letters[0].encode())
    text = "".join(random.Random(1).choices(letters, k=size))
    spans = [text[i : i + 4000] for i in range(0, size, 4000)]
    return lambda _: _chain(spans)


def _hash_new() -> Callable[[int], object]:
    text = "".join(random.Random(2).choices("abcdefgh", k=PROMPT_BYTES))
    return lambda number: _chain([f"{number} ", text])


def _median_us(call: Callable[[int], object], times: int = 200) -> float:
    taken = []
    for number in range(times):
        start = time.perf_counter()
        call(number)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e6


def _conversation(seed: int, size: int, turns: int) -> list[Chain]:
    """Return the growing prompts of one conversation; all share a system prompt."""
    text = SYSTEM + random.Random(seed).randbytes(size // 2).hex()
    return [_chain([text[: size * (turn + 1) // turns]]) for turn in range(turns)]


def _insert_and_match(slots: int, holders: int) -> tuple[float, float]:
    """Time insert and match of 400 kB; `holders` endpoints know each conversation to some depth.

    In the worst case all endpoints hold it, which splits it into many parts.
    """
    index, rng = PrefixIndex(slots), random.Random(2)
    conversations = [_conversation(seed, PROMPT_BYTES, TURNS) for seed in range(8)]
    system = _chain([SYSTEM])
    for slot in range(slots):
        index.set_capacity(slot, 8_000_000)
        index.settle(index.insert(slot, system))
    for turns in conversations:
        for slot in rng.sample(range(slots), holders):
            index.settle(index.insert(slot, rng.choice(turns)))
    last = [turns[-1] for turns in conversations]
    match_us = _median_us(lambda number: index.shares(last[number % 8]))
    fresh = [_conversation(1000 + number, PROMPT_BYTES, 1)[0] for number in range(100)]
    prompts = [fresh[number // 2] if number % 2 else last[number % 8] for number in range(200)]
    insert_us = _median_us(lambda number: index.insert(rng.randrange(slots), prompts[number]))
    return insert_us, match_us


def _memory(prompt_bytes: int) -> tuple[int, int, int]:
    """Return real bytes, the index's estimate, and blocks, after conversations of six turns."""
    known, blocks.MAX_KNOWN = blocks.MAX_KNOWN, 1  # measure only the index
    gc.collect()
    tracemalloc.start()
    index = PrefixIndex(16, max_bytes=1 << 30)
    before, _ = tracemalloc.get_traced_memory()
    turns = 6 if prompt_bytes > 10_000 else 1
    for seed in range(1500):
        for chain in _conversation(seed, prompt_bytes, turns):
            index.settle(index.insert(seed % 16, chain))
    gc.collect()
    real = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    blocks.MAX_KNOWN = known
    return real, index.size_bytes, index._segments.blocks


def _churn(requests: int) -> None:
    """Run sessions that start, grow and end on 100 endpoints, within 32 MiB."""
    rng, limit = random.Random(4), 32 << 20
    index = PrefixIndex(100, max_bytes=limit)
    noise = rng.randbytes(1 << 20).hex()
    sessions: list[tuple[int, int]] = []
    largest, start = 0, time.perf_counter()
    for number in range(requests):
        if len(sessions) < 2000 or rng.random() < 0.2:
            sessions.append((rng.randrange(len(noise) - 20_000), 500))
        place = rng.randrange(len(sessions))
        origin, size = sessions[place]
        sessions[place] = (origin, size + 600)
        if size > 12_000 or len(sessions) > 4000:
            sessions[place] = sessions[-1]
            sessions.pop()
        receipt = index.insert(rng.randrange(100), _chain([noise[origin : origin + size]]))
        if rng.random() < 0.02:
            index.retract(receipt)
        else:
            index.settle(receipt, 0.0 if rng.random() < 0.001 else None)
        if number % 1000 == 0:
            largest = max(largest, index.size_bytes)
    print(
        f"churn, {requests:,} requests: {(time.perf_counter() - start) / requests * 1e6:.1f} us "
        f"each with hashing; at most {largest / 2**20:.1f} MiB of {limit >> 20}; "
        f"{index.uses} uses of {index._segments.blocks} blocks"
    )


if __name__ == "__main__":
    main()

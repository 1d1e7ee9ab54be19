"""Measure gain and cost of precise prefixes: KV events compared with the text index.

The simulator's block pools of eight engines (1,600 blocks of 16 tokens) serve conversations through
the picker, and some turns that bypass it. "Believed" is the share of a prompt that the picker
expects to be cached, "found" the share that is in the pool. "Found" differs between the variants,
since requests go where they are believed to be cached. The text index alone is corrected by the
usage that answers report. Targets with events that name the request: means within 1 point if all
turns pass through the picker, and decisions at most 1.3 times as long. Blocks of a turn that
bypasses the picker are not learned, so that part of the next prompt does not match.
"""

from __future__ import annotations

import random
import statistics
import time

import numpy as np

from bench.caches import answered, serve
from laar.core.cost import CostWeights
from laar.core.decision import DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointTable
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.policies import build_policies
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.tokens import Stored, hash_blocks, root
from laar_lab.sim.endpoint.tokenizer import block_hashes, token_ids
from laar_lab.sim.engine.blocks import BlockPool

SIZE = 16
BLOCKS = 1600
REQUESTS = 1500
ENDPOINTS = 8


def main() -> None:
    for past in (0.0, 0.25):
        print(f"{past:.0%} of the turns bypass the picker")
        base_us = 0.0
        for name, precise in (("text index alone", False), ("events and token ids", True)):
            believed, found, decide_us = _run(past, precise=precise)
            errors = np.abs(np.subtract(believed, found))
            base_us = base_us or decide_us
            print(
                f"  {name:21} believed {np.mean(believed):.3f}, found {np.mean(found):.3f}; "
                f"error p50 {np.quantile(errors, 0.5):.3f}, p90 {np.quantile(errors, 0.9):.3f}, "
                f"above .25 {np.mean(errors > 0.25):.1%}; decision {decide_us / base_us:.2f} times"
            )
    print("targets: means within .010 if none bypasses the picker; 1.3 times")


def _run(past: float, *, precise: bool) -> tuple[list[float], list[float], float]:
    rng, now = random.Random(7), 0.0
    table = EndpointTable()
    specs = [EndpointSpec(address=f"{at}:1", models=("m",)) for at in range(ENDPOINTS)]
    table.replace("bench", specs)
    beliefs = PrefixBeliefs(key=b"bench", max_bytes=1 << 26)
    director = Director(
        table,
        build_policies(CostWeights()),
        DirectorSettings(),
        rng=rng,
        prefixes=beliefs,
    )
    pools = [BlockPool(BLOCKS, record=True) for _ in specs]
    for slot in range(ENDPOINTS):
        beliefs.set_capacity(slot, BLOCKS * SIZE)
        if precise:
            beliefs.emptied(slot, "m")
    system = _text(rng, 300)
    talks = [system + _text(rng, 100) for _ in range(40 * ENDPOINTS)]
    believed, found, taken = [], [], []
    for number in range(REQUESTS):
        at = rng.randrange(len(talks))
        talks[at] = talk = talks[at] + _text(rng, rng.randrange(20, 250))
        if len(talk) > 20_000:
            talks[at] = system + _text(rng, 100)
        tokens = token_ids(talk)
        if rng.random() < past:
            slot = rng.randrange(ENDPOINTS)
            serve(pools[slot], tokens, SIZE)
            _publish(beliefs, slot, pools[slot], tokens, precise=precise)
            continue
        request = Request(id="r", api=Api.CHAT, model="m", spans=(talk,), chars=len(talk))
        now += 0.05
        start = time.perf_counter()
        decision = director.decide(request, now)
        taken.append(time.perf_counter() - start)
        slot, view = decision.slot, decision.view
        cached = serve(pools[slot], tokens, SIZE)
        _publish(beliefs, slot, pools[slot], tokens, precise=precise)
        if number > REQUESTS // 4:
            believed.append(1.0 - decision.uncached_tokens / decision.tokens)
            found.append(cached / len(tokens))
        director.settle(decision, answered(len(tokens), cached, 0.01))
        if precise and view is not None and (chain := view.chain) is not None:
            blocks = hash_blocks(tokens, SIZE, root("", ""))
            beliefs.blocks_held.learn("m", chain, len(tokens), SIZE, blocks)
    return believed, found, statistics.median(taken) * 1e6


def _text(rng: random.Random, words: int) -> str:
    return "".join(f"{rng.getrandbits(24):x} " for _ in range(words))


def _publish(
    beliefs: PrefixBeliefs, slot: int, pool: BlockPool, tokens: np.ndarray, *, precise: bool
) -> None:
    """Forward the pool's events; all stored blocks belong to this prompt."""
    at = {name: index for index, name in enumerate(block_hashes(tokens, SIZE))}
    for event in pool.drain() if precise else ():
        if event.kind == "removed":
            beliefs.blocks_held.removed(slot, event.hashes)
            continue
        start = at[event.hashes[0]] * SIZE
        stored = Stored(
            hashes=event.hashes,
            parent=event.parent,
            ids=tokens[start : start + len(event.hashes) * SIZE],
            block_size=SIZE,
        )
        beliefs.blocks_held.stored(slot, "m", stored)


if __name__ == "__main__":
    main()

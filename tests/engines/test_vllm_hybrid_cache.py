"""laar's beliefs about hybrid models' caches match what vLLM finds cached.

Part of `make test-vllm`; see `test_vllm_real` for what it needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from vllm_driver import QUIET
from vllm_hybrid_cache import BLOCK
from vllm_server import NEEDS_VLLM, PYTHON

from laar.datalayer.kv_batches import Groups, Removed, decode_batch
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.match import Grid
from laar.prefix.tokens import Stored, TokenBlocks, hash_blocks, root
from laar.request import Api, Request

PROMPTS = {"documents": 100, "agents": 80}

pytestmark = [*NEEDS_VLLM, pytest.mark.timeout(1800)]


def follow(held: TokenBlocks, batch: bytes, groups: Groups) -> None:
    """Apply a batch of events."""
    for event in decode_batch(batch, groups):
        if isinstance(event, Stored):
            held.stored(0, "m", event)
        elif isinstance(event, Removed):
            held.removed(0, event.hashes, event.tier, is_state=event.is_state)


@pytest.mark.parametrize(
    ("blocks", "points"),
    [
        pytest.param(1200, 1, id="no evictions"),
        # An eviction may remove a prompt's sliding window as well, which laar does not track.
        pytest.param(420, 5, id="evictions"),
    ],
)
def test_cached_prefixes_of_a_model_with_sliding_windows_are_estimated(
    blocks: int, points: int, tmp_path: Path
) -> None:
    script = Path(__file__).with_name("vllm_hybrid_cache.py")
    subprocess.run(
        [PYTHON, script, str(blocks), tmp_path / "served"],
        env=os.environ | QUIET,
        check=True,
        timeout=1500,  # it takes 13 s of CPU time, which may take much longer on a busy machine
    )
    held, groups = TokenBlocks(), Groups()
    held.emptied(0, "m")
    prompt = found_in_all = believed_in_all = 0
    for ids, found, batch in msgspec.msgpack.decode((tmp_path / "served").read_bytes()):
        own = hash_blocks(np.array(ids, np.uint32), BLOCK, root("", ""))
        believed = held._held(0, own, (len(ids) - 1) // BLOCK) * BLOCK
        prompt, found_in_all = prompt + len(ids), found_in_all + found
        believed_in_all += believed
        follow(held, batch, groups)
    found, believed = found_in_all / prompt, believed_in_all / prompt
    sys.stdout.write(f"\n{blocks} blocks: found {found:.3f}, believed {believed:.3f}\n")
    assert found >= 0.15, "the test would show nothing otherwise"
    assert abs(believed - found) <= 0.01 * points


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", PROMPTS)
def test_what_an_engine_with_a_recurrent_state_resumes_is_estimated(
    kind: str, seed: int, tmp_path: Path
) -> None:
    script = Path(__file__).with_name("vllm_recurrent.py")
    subprocess.run(
        [PYTHON, script, kind, tmp_path / "served", str(seed), str(PROMPTS[kind])],
        env=os.environ | QUIET,
        check=True,
        timeout=1700,
    )
    block, served = msgspec.msgpack.decode((tmp_path / "served").read_bytes())
    indexes = {"events": PrefixBeliefs(key=b"k", max_bytes=64 << 20)}
    indexes["text"] = PrefixBeliefs(key=b"k", max_bytes=64 << 20)
    for beliefs in indexes.values():
        beliefs.make_room(1)
        beliefs.set_capacity(0, 10_000_000)
    indexes["text"].states.use(0, Grid(block, block))
    held, groups = indexes["events"].blocks_held, Groups()
    held.emptied(0, "m")
    believed, found_in_all, total = dict.fromkeys(indexes, 0.0), 0, 0
    for number, (ids, found, batches) in enumerate(served):
        text = "".join(f"{each:03} " for each in ids)  # four bytes for each token
        asked = Request(id="", api=Api.CHAT, model="m", spans=(text,), tokens=len(ids))
        counts = number >= len(served) / 4
        found_in_all, total = found_in_all + counts * found, total + counts * len(ids)
        for name, beliefs in indexes.items():
            match = beliefs.look_up(asked, "", ["m"], np.array([len(ids)]), float(number))
            believed[name] += counts * match.shares[0] * len(ids)
            receipt = beliefs.insert(0, match.chain, float(number))
            if name == "events":
                for batch in batches:
                    follow(held, batch, groups)
                own = hash_blocks(np.array(ids, np.uint32), block, root("", ""))
                held.learn("m", match.chain, len(ids), block, own)
            beliefs.settle(receipt, found / len(ids), len(ids), "m")
    found = found_in_all / total
    shares = {name: tokens / total for name, tokens in believed.items()}
    sys.stdout.write(f"\n{kind}, blocks of {block}: found {found:.3f}, believed {shares}\n")
    assert found >= 0.3, "the test would show nothing otherwise"
    assert shares["events"] == pytest.approx(found, abs=0.01)
    assert shares["text"] == pytest.approx(found, abs=0.05)
    for beliefs in indexes.values():
        assert beliefs.index.forgotten_blocks["disproved"] == 0

"""laar's beliefs about hybrid models' caches match what vLLM finds cached.

Part of `make test-vllm`; see `test_vllm_real` for what it needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from vllm_driver import QUIET
from vllm_hybrid_cache import BLOCK
from vllm_server import NEEDS_VLLM, PYTHON

from laar.datalayer.kv_batches import Groups, Removed, decode_batch
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.index import Receipt
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


@pytest.mark.parametrize(("seed", "at_once"), [(1, 1), (2, 3)])
@pytest.mark.parametrize("kind", PROMPTS)
def test_what_an_engine_with_a_recurrent_state_resumes_is_estimated(
    kind: str, seed: int, at_once: int, tmp_path: Path, figure: Callable[[str, object, str], None]
) -> None:
    script = Path(__file__).with_name("vllm_recurrent.py")
    subprocess.run(
        [PYTHON, script, kind, tmp_path / "seen", str(seed), str(PROMPTS[kind]), str(at_once)],
        env=os.environ | QUIET,
        check=True,
        timeout=1700,
    )
    block, prompts, seen = msgspec.msgpack.decode((tmp_path / "seen").read_bytes())
    indexes = {"events": PrefixBeliefs(key=b"k", max_bytes=64 << 20)}
    indexes["text"] = PrefixBeliefs(key=b"k", max_bytes=64 << 20)
    for beliefs in indexes.values():
        beliefs.make_room(1)
        beliefs.set_capacity(0, 10_000_000)
    indexes["text"].states.use(0, Grid(block, block))
    held, groups = indexes["events"].blocks_held, Groups()
    held.emptied(0, "m")
    believed, found_in_all, total = dict.fromkeys(indexes, 0.0), 0, 0
    receipts: dict[tuple[str, int], Receipt] = {}
    for at, (number, found) in enumerate(seen):
        if number is None:
            follow(held, found, groups)
            continue
        ids, counts = prompts[number], number >= len(prompts) / 4
        if found is not None:
            found_in_all, total = found_in_all + counts * found, total + counts * len(ids)
            for name, beliefs in indexes.items():
                receipt = receipts.pop((name, number))
                if name == "events":
                    own = hash_blocks(np.array(ids, np.uint32), block, root("", ""))
                    held.learn("m", receipt.chain, len(ids), block, own)
                beliefs.settle(receipt, found / len(ids), len(ids), "m")
            continue
        text = "".join(f"{each:03} " for each in ids)  # four bytes for each token
        asked = Request(id="", api=Api.CHAT, model="m", spans=(text,), tokens=len(ids))
        for name, beliefs in indexes.items():
            match = beliefs.look_up(asked, "", ["m"], np.array([len(ids)]), float(at))
            believed[name] += counts * match.shares[0] * len(ids)
            receipts[name, number] = beliefs.insert(0, match.chain, float(at))
    found = found_in_all / total
    shares = {name: tokens / total for name, tokens in believed.items()}
    what = f"{kind}, {at_once} at once, blocks of {block}"
    sys.stdout.write(f"\n{what}: found {found:.3f}, believed {shares}\n")
    figure(f"a hybrid vLLM, {what}: believed less found", shares["text"] - found, "within .05")
    assert found >= 0.3, "the test would show nothing otherwise"
    assert shares["events"] == pytest.approx(found, abs=0.01 if at_once == 1 else 0.05)
    assert shares["text"] == pytest.approx(found, abs=0.05)
    for beliefs in indexes.values():
        assert beliefs.index.forgotten_blocks["disproved"] == 0

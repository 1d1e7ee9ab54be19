"""laar's beliefs from the events of a hybrid model's cache match what vLLM finds cached.

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
from laar.prefix.tokens import Stored, TokenBlocks, hash_blocks, root

pytestmark = [*NEEDS_VLLM, pytest.mark.timeout(1800)]


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
        for event in decode_batch(batch, groups):
            if isinstance(event, Stored):
                held.stored(0, "m", event)
            elif isinstance(event, Removed):
                held.removed(0, event.hashes, event.tier)
    found, believed = found_in_all / prompt, believed_in_all / prompt
    sys.stdout.write(f"\n{blocks} blocks: found {found:.3f}, believed {believed:.3f}\n")
    assert found >= 0.15, "the test would show nothing otherwise"
    assert abs(believed - found) <= 0.01 * points

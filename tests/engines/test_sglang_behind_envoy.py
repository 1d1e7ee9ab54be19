"""Real SGLang engines on a CPU behind a real Envoy and a picker (`make test-sglang`).

Shares are asserted, but no times, since the engines share two cores with everything else.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter

import pytest

pytest.importorskip("tokenizers", reason="NO tokenizers HERE")
from behind_envoy import words
from sglang_server import NEEDS_SGLANG, SGLang
from vllm_server import running

from support import eventually

pytestmark = [*NEEDS_SGLANG, pytest.mark.timeout(1800)]

OPTIONS = ("--max-total-tokens", "12800")


@pytest.fixture(scope="module")
def engines(model, tmp_path_factory):
    """Run two identical engines."""
    logs = tmp_path_factory.mktemp("sglang")
    with running(model, logs, 2, *OPTIONS, of=SGLang) as two:
        yield two


async def spread(behind, count, *, at_once, seed="shares"):
    """Ask unrelated questions; return how many each endpoint answered."""
    rng, went = random.Random(seed), Counter()
    left = [words(rng, rng.randint(20, 200)) for _ in range(count)]

    async def user():
        while left:
            _, headers = await behind.chat([{"role": "user", "content": left.pop()}])
            went[headers["x-laar-endpoint"]] += 1

    await asyncio.gather(*(user() for _ in range(at_once)))
    return went


async def probed(behind, count):
    """Wait until each endpoint has a round trip; return them in seconds."""
    table = behind.runner.picker.table
    await eventually(lambda: not any(table.rtt_s[n] != table.rtt_s[n] for n in range(count)))
    return table.rtt_s[:count].tolist()


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
@pytest.mark.parametrize("at_once", [1, 4])
async def test_two_equal_engines_share_the_work(gateway, engines, at_once, shape, figure):
    async with gateway(shape, of=engines, events=False) as behind:
        rtts_s = await probed(behind, 2)
        went = await spread(behind, 64, at_once=at_once)
    share = max(went.values()) / sum(went.values())
    sys.stdout.write(f"\n{went}, round trips {rtts_s}\n")
    figure(f"largest share of two equal SGLangs, {at_once} at once", share, ".6")
    assert share <= 0.62

"""`python -m bench outcomes`: its bodies share what prompts share, its clients count rightly."""

from __future__ import annotations

import asyncio
import random
from itertools import islice
from pathlib import Path

import aiohttp
import orjson
from bench.outcomes.load import Client, _body, send_open, send_sessions
from bench.outcomes.routers import engines

from laar_lab.sim.fleet import Arrival, Prompt, spread
from laar_lab.workloads.shared_prompts import AgentShape, agents


def prompt(shared_blocks: int, own: int, tokens: int = 1600) -> Prompt:
    blocks = spread(1, shared_blocks) + spread(own << 20, tokens // 16 - shared_blocks)
    return Prompt(prompt_tokens=tokens, output_tokens=4, blocks=blocks)


def text(of: Prompt) -> str:
    return orjson.loads(_body(of))["messages"][0]["content"]


def test_bodies_share_as_much_text_as_prompts_share_blocks() -> None:
    one, other = text(prompt(40, 7)), text(prompt(40, 8))
    same = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    assert 40 * 96 <= same < 41 * 96
    assert len(one) == 1600 * 6


def run(directory: Path, fault: str, case: str) -> dict[str, float]:
    async def go() -> dict[str, float]:
        async with (
            engines(directory, "parallel", 1, 0.02, fault) as addresses,
            aiohttp.ClientSession(f"http://{addresses[0]}") as session,
        ):
            client = Client(session, 0.02)
            if case == "open":
                arrivals = [Arrival(at_s=5.0 * i, prompt=prompt(90, i)) for i in range(8)]
                await send_open(client, arrivals)
            else:
                shape = AgentShape(system_tokens=512, mean_turns=4.0, max_output_tokens=20)
                sessions = islice(agents(shape, random.Random(1)), 200)
                await send_sessions(client, iter(sessions), at_once=3, until_s=40.0)
            return client.outcome.numbers()

    return asyncio.run(go())


def test_an_open_load_finds_the_shared_prefix_in_the_cache(tmp_path: Path) -> None:
    seen = run(tmp_path, "", "open")
    assert seen["requests"] == 8
    assert seen["failed %"] == 0
    assert 0.6 < seen["cached"] < 0.9, "seven of eight find nine tenths"
    assert seen["p50"] <= seen["p95"]
    assert seen["E2E mean s"] >= seen["TTFT mean s"] > 0


def test_sessions_wait_and_end(tmp_path: Path) -> None:
    seen = run(tmp_path, "", "closed")
    assert seen["requests"] > 6
    assert seen["failed %"] == 0
    assert seen["cached"] > 0.4


def test_what_an_endpoint_refuses_is_counted(tmp_path: Path) -> None:
    seen = run(tmp_path, "503@1", "open")
    assert seen["requests"] == 8
    assert seen["failed %"] == 100

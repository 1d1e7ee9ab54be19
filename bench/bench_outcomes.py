"""Latencies that clients see with laar and with other proxies, on the same simulated engines.

Conversations and coding agents go through real Envoy and laar, through SMG and through vLLM router,
each with its defaults, to fresh simulated endpoints: laar's engine model (`gorgo-main`) and one
that belongs to no router (`parallel`). In the last case one endpoint of four answers 503. The other
routers are whole proxies from PyPI and need an environment of their own. Those not found are
reported and skipped:

    python -m venv peers && peers/bin/pip install smg vllm-router
    LAAR_BENCH_PEERS=peers/bin python -m bench outcomes

Times are the fleet's seconds, from the moment a request was due; processor time is that of the
router's processes (laar's and Envoy's added up). LAAR_BENCH_SECONDS sets the real seconds of a case
(20), LAAR_BENCH_SCALE the real seconds for one of the fleet's (0.5: twice as fast as real engines).
On a loaded machine the engines fall behind and all figures with them: compare within one run.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table

from bench.outcomes.load import Client, send_open, send_sessions
from bench.outcomes.routers import Running, engines, laar, peer, smg, vllm_router
from laar_lab.workloads.sessions import GORGO_CHATS, chats
from laar_lab.workloads.shared_prompts import AgentShape, agents

ENDPOINTS = 4
SEED = 1000

Router = Callable[[Path, Sequence[str]], AbstractAsyncContextManager[Running]]
ROUTERS: dict[str, Router] = {"laar": laar, "smg": smg, "vllm-router": vllm_router}

_CHATS = replace(GORGO_CHATS, requests_per_s=4.0, max_prompt_tokens=12_000)
_AGENTS = AgentShape(system_tokens=4096, max_prompt_tokens=24_000, max_output_tokens=300)


@dataclass(frozen=True, slots=True)
class Case:
    """A load on engines of one kind."""

    name: str
    profile: str
    agents: int = 0  # sessions at a time; 0 for conversations
    fault: str = ""


CASES = (
    Case("chats, laar's engine", "gorgo-main"),
    Case("chats, parallel engine", "parallel"),
    Case("agents, laar's engine", "gorgo-main", agents=16),
    Case("agents, parallel engine", "parallel", agents=16),
    Case("chats, one of four answers 503", "gorgo-main", fault="503@1"),
)


async def run_case(
    case: Case, router: Router, directory: Path, seconds: float, scale: float
) -> dict[str, float]:
    """One router, one case, everything fresh."""
    fleet_s = seconds / scale
    rng = random.Random(SEED)
    async with (
        engines(directory, case.profile, ENDPOINTS, scale, case.fault) as addresses,
        router(directory, addresses) as running,
        aiohttp.ClientSession(
            running.url,
            connector=aiohttp.TCPConnector(limit=0),
            headers={"content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None),
        ) as session,
    ):
        client = Client(session, scale)
        before_s = running.cpu_s()
        if case.agents:
            sessions = agents(_AGENTS, rng)
            await send_sessions(client, sessions, at_once=case.agents, until_s=fleet_s)
        else:
            await send_open(client, chats(_CHATS, rng, fleet_s))
        used_s = running.cpu_s() - before_s
    numbers = client.outcome.numbers()
    return numbers | {"CPU ms a request": 1e3 * used_s / max(1, client.outcome.requests)}


async def run_all(seconds: float, scale: float) -> AsyncIterator[tuple[str, str, dict[str, float]]]:
    """Every case with every router there is, in turns."""
    for case in CASES:
        for name, router in ROUTERS.items():
            if name != "laar" and peer(name) is None:
                continue
            with tempfile.TemporaryDirectory(prefix="laar-outcomes-") as directory:
                numbers = await run_case(case, router, Path(directory), seconds, scale)
            yield case.name, name, numbers


async def show(seconds: float, scale: float) -> None:
    """Runs it and prints one table."""
    console = Console() if Console().is_terminal else Console(width=200)
    for name in ROUTERS:
        if name != "laar" and peer(name) is None:
            print(f"SKIPPED: {name} is not installed; see the text of bench/bench_outcomes.py")
    table: Table | None = None
    async for case, router, numbers in run_all(seconds, scale):
        if table is None:
            table = Table("case", "router", *numbers)
        table.add_row(case, router, *(f"{value:.3g}" for value in numbers.values()))
        print(f"{case}, {router}: {numbers['requests']:.0f} requests", file=sys.stderr, flush=True)
    console.print(table)


def main() -> None:
    """Runs all cases."""
    seconds = float(os.environ.get("LAAR_BENCH_SECONDS", "20"))
    scale = float(os.environ.get("LAAR_BENCH_SCALE", "0.5"))
    asyncio.run(show(seconds, scale))


if __name__ == "__main__":
    main()

"""Leftovers of a run in the picker, in Envoy and in the endpoints; none, if all is well.

Read from outside, as an operator would: metrics pages, Envoy's statistics and `/proc`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from laar_lab.live.fleet import Fleet
from laar_lab.live.pages import read_totals

SETTLE_S = 15.0
"""Requests that are in flight when the last answer has ended are gone by then, or leak."""

_POLL_S = 0.1
_PICKER = ("laar_streams_open", "laar_endpoint_in_flight", "laar_endpoint_queued_tokens")
_QUEUE = ("laar_flow_waiting", "laar_flow_held_bytes", "laar_flow_prefills")
_ENDPOINT = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_SERVED = "vllm:request_success_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A fleet without clients.

    Args:
        left: figures that should be 0 and are not, by the name of their metric.
        rss_bytes: memory of the picker's process.
        files: number of files that it has open.
    """

    left: Mapping[str, float]
    rss_bytes: int
    files: int


def kept_files(endpoints: int) -> int:
    """Connections that a picker opens and keeps: readings and probes of each endpoint, and Envoy's.

    A file left behind by each request, or by each refused one, would be many times that.
    """
    return 2 * endpoints + 1


async def begin(fleet: Fleet, *, flow: bool) -> Rest:
    """Return the fleet before its first client.

    Args:
        fleet: running.
        flow: whether its picker has a queue.
    """
    async with aiohttp.ClientSession() as session:
        return await _look(session, fleet, flow=flow)


async def at_rest(fleet: Fleet, before: Rest, *, flow: bool) -> Rest:
    """Return the fleet when all that was in flight is gone, or after `SETTLE_S`.

    Args:
        fleet: the fleet, without clients.
        before: as it was when they came.
        flow: whether its picker has a queue.
    """
    deadline = time.monotonic() + SETTLE_S
    async with aiohttp.ClientSession() as session:
        while True:
            rest = await _look(session, fleet, flow=flow)
            closed = rest.files <= before.files + kept_files(len(fleet.models))
            if (not rest.left and closed) or time.monotonic() > deadline:
                return rest
            await asyncio.sleep(_POLL_S)


async def served(fleet: Fleet) -> int:
    """Return the number of requests that the endpoints have answered whole."""
    async with aiohttp.ClientSession() as session:
        pages = [
            await read_totals(session, f"http://{address}/metrics") for address in fleet.models
        ]
    return round(sum(page[_SERVED] for page in pages))


async def _look(session: aiohttp.ClientSession, fleet: Fleet, *, flow: bool) -> Rest:
    picker = await read_totals(session, f"{fleet.admin_url}/metrics")
    found = {name: picker[name] for name in (*_PICKER, *(_QUEUE if flow else ()))}
    for address in fleet.models:
        page = await read_totals(session, f"http://{address}/metrics")
        found |= {f"{name} of {address}": page[name] for name in _ENDPOINT}
    async with session.get(f"{fleet.envoy.admin_url}/stats?format=json&filter=rq_active") as answer:
        stats = orjson.loads(await answer.read())["stats"]
    # Its admin port is answering us just now.
    found |= {s["name"]: s["value"] for s in stats if not s["name"].startswith("http.admin.")}
    process = Path("/proc", str(fleet.picker.pid))
    memory = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
    assert memory is not None
    return Rest(
        left={name: value for name, value in found.items() if value},
        rss_bytes=int(memory[1]) * 1024,
        files=sum(1 for _ in (process / "fd").iterdir()),
    )

"""Check that a run leaves nothing behind in the picker, Envoy and the endpoints.

Everything is read from outside, as an operator would: metrics pages, Envoy's statistics, `/proc`.
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
"""Requests still in flight this long after the last answer are considered leaked."""

_POLL_S = 0.1
_PICKER = ("laar_streams_open", "laar_endpoint_in_flight", "laar_endpoint_queued_tokens")
_QUEUE = ("laar_flow_waiting", "laar_flow_held_bytes")
_ENDPOINT = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_SERVED = "vllm:request_success_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The state of a fleet without clients.

    Args:
        left: nonzero figures that should be 0, by metric name.
        rss_bytes: memory of the picker's process.
        files: number of files that the picker has open.
    """

    left: Mapping[str, float]
    rss_bytes: int
    files: int


def kept_files(endpoints: int) -> int:
    """Return the number of connections a picker keeps open for scrapes, probes and Envoy.

    A leak of one file per request, or per refused request, would show as far more files.
    """
    return 2 * endpoints + 1


async def begin(fleet: Fleet, *, flow: bool) -> Rest:
    """Return the state of the fleet before its first client.

    Args:
        fleet: the running fleet.
        flow: whether its picker has a queue.
    """
    async with aiohttp.ClientSession() as session:
        return await _look(session, fleet, flow=flow)


async def at_rest(fleet: Fleet, before: Rest, *, flow: bool) -> Rest:
    """Return the state of the fleet once nothing is in flight, or after `SETTLE_S`.

    Args:
        fleet: the fleet, without clients.
        before: its state before the first client.
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
    """Return the number of requests that the endpoints answered completely."""
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
    # The admin port always counts the request for this page.
    found |= {s["name"]: s["value"] for s in stats if not s["name"].startswith("http.admin.")}
    process = Path("/proc", str(fleet.picker.pid))
    memory = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
    assert memory is not None
    return Rest(
        left={name: value for name, value in found.items() if value},
        rss_bytes=int(memory[1]) * 1024,
        files=sum(1 for _ in (process / "fd").iterdir()),
    )

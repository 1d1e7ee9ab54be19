"""The dashboard's queries, answered by a real Prometheus that scrapes a picker with traffic."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support import eventually
from support.clients import chat, post
from support.prometheus import ask, panels, prometheus

WELL = {"Failures", "Taken out", "Slowness", "What goes wrong", "Shed"}
"""Panels that are empty while all is well."""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus here")
async def test_every_panel_shows_data_after_traffic(
    gateway: Any, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    engines = [await gateway.simulated() for _ in range(2)]
    gateway.members(*((engine.address, "m") for engine in engines))
    await gateway.picker(flow={"enabled": True})
    envoy = await gateway.envoy()
    empty: list[str] = []

    async def all_have_data() -> bool:
        bodies = [chat(f"{number} " * 500, stream=True) for number in range(5)]
        answers = await asyncio.gather(*(post(http, envoy, body) for body in bodies))
        await post(http, envoy, chat(model="unknown"))
        told = [{"decision_id": a.headers["x-laar-decision-id"], "correct": True} for a in answers]
        await http.post(gateway.url("admin", "/outcomes"), json={"outcomes": told})
        with contextlib.suppress(aiohttp.ClientError):
            empty[:] = [
                f"{panel['title']}: {target['expr']}"
                for panel in panels("5m")
                for target in panel.get("targets", ())
                if not await ask(http, f"{url}/query", query=target["expr"])
                and panel["title"] not in WELL
            ]
            return not empty
        return False

    async with prometheus(tmp_path, gateway.url("admin", "")) as url:
        try:
            await eventually(all_have_data, timeout_s=120.0, what="data in every panel")
        finally:
            assert not empty, "\n".join(empty)

"""The dashboard's queries, answered by a real Prometheus that scrapes a picker with traffic."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from laar.envoy.process import end_process
from support import eventually, free_port
from support.clients import chat, post

BOARD = Path(__file__).parents[2] / "deploy" / "components" / "rules" / "dashboard.py"

WELL = {"Failures", "Taken out", "Slowness", "What goes wrong", "Shed"}
"""Panels that are empty while all is well."""


def queries() -> dict[str, list[str]]:
    """Return the queries of each panel, by its title."""
    spec = importlib.util.spec_from_file_location("board", BOARD)
    assert spec is not None
    assert spec.loader is not None
    board = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(board)
    return {
        panel["title"]: [
            target["expr"].replace("$__rate_interval", "5m").replace("$job", ".+")
            for target in panel["targets"]
        ]
        for panel in board.panels()
        if panel.get("targets")
    }


@pytest.mark.long
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus here")
async def test_every_panel_shows_data_after_traffic(
    gateway: Any, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    engines = [await gateway.simulated() for _ in range(2)]
    gateway.members(*((engine.address, "m") for engine in engines))
    await gateway.picker(flow={"enabled": True})
    envoy, port = await gateway.envoy(), free_port()
    scraped = [{"targets": [gateway.url("admin", "").removeprefix("http://")]}]
    config = {
        "global": {"scrape_interval": "2s"},
        "scrape_configs": [{"job_name": "laar", "static_configs": scraped}],
    }
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    prometheus = await asyncio.create_subprocess_exec(
        *("prometheus", f"--config.file={tmp_path}/prometheus.yaml", "--log.level=error"),
        *(f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}"),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    empty: list[str] = []

    async def count(query: str) -> int:
        asked = f"http://127.0.0.1:{port}/api/v1/query"
        async with http.get(asked, params={"query": query}) as answer:
            found = await answer.json()
            assert found["status"] == "success", (query, found)
            return len(found["data"]["result"])

    async def all_have_data() -> bool:
        bodies = [chat(f"{number} " * 500, stream=True) for number in range(5)]
        answers = await asyncio.gather(*(post(http, envoy, body) for body in bodies))
        await post(http, envoy, chat(model="unknown"))
        told = [{"decision_id": a.headers["x-laar-decision-id"], "correct": True} for a in answers]
        await http.post(gateway.url("admin", "/outcomes"), json={"outcomes": told})
        with contextlib.suppress(aiohttp.ClientError):
            empty[:] = [
                f"{title}: {query}"
                for title, asked in queries().items()
                for query in asked
                if not await count(query) and title not in WELL
            ]
            return not empty
        return False

    try:
        await eventually(all_have_data, timeout_s=120.0, what="data in every panel")
    finally:
        await end_process(prometheus, 5.0)
        assert not empty, "\n".join(empty)

"""A real Prometheus that scrapes one picker, and the dashboard's queries to it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from laar.envoy.process import end_process
from support.scripts import module_of
from support.waiting import free_port

BOARD = Path(__file__).parents[2] / "deploy" / "components" / "rules" / "dashboard.py"


def panels(interval: str) -> Iterator[dict[str, Any]]:
    """Yield the dashboard's rows and panels, whose queries have values for its variables."""
    for panel in module_of(BOARD).panels():
        for target in panel.get("targets", ()):
            asked = target["expr"].replace("$__rate_interval", interval)
            target["expr"] = asked.replace("$job", ".+")
        yield panel


@asynccontextmanager
async def prometheus(directory: Path, admin_url: str) -> AsyncIterator[str]:
    """Scrape a picker every two seconds; yield the URL of Prometheus' API."""
    scraped = [{"targets": [admin_url.removeprefix("http://").rstrip("/")]}]
    config = {
        "global": {"scrape_interval": "2s"},
        "scrape_configs": [{"job_name": "laar", "static_configs": scraped}],
    }
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *("prometheus", f"--config.file={directory}/prometheus.yaml", "--log.level=error"),
        *(f"--storage.tsdb.path={directory}/data", f"--web.listen-address=127.0.0.1:{port}"),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        await end_process(process, 5.0)


async def ask(http: aiohttp.ClientSession, url: str, **query: str) -> list[dict[str, Any]]:
    """Return the result of a query."""
    async with http.get(url, params=query) as answer:
        found = await answer.json()
    assert found["status"] == "success", (query, found)
    result: list[dict[str, Any]] = found["data"]["result"]
    return result

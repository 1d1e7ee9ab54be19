"""Take the documentation's pictures of the live page and the dashboard: `make screenshots`.

Two of each engine of `laar up` answer verified questions, and the outcomes are reported; one engine
is slow, one fails now and then, one is away for a while, and a client asks for a model that nobody
serves. Needs Debian's chromium, chromium-driver and prometheus.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp

from laar.client import report_outcome, until_correct
from laar_lab.kv_lookup import queries
from laar_lab.live.fleet import Running, running_fleet

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "server")]

import dashboard  # noqa: E402
from browser import browsing, missing  # noqa: E402 - the tests' own browser

from support import eventually  # noqa: E402
from support.prometheus import prometheus  # noqa: E402

TRAFFIC_S = 240.0
"""Before the first picture, so that the curves of the last hour have a shape."""

CONCURRENCY = 8
TIME_SCALE = 0.1


async def ask(fleet: Running) -> None:
    """Ask look-ups forever, and report whether the answers were right."""
    asked = queries(per_cell=10, lengths_tokens=(4096, 16384, 32768), seed=7)
    waiting = enumerate(cycle(asked))

    async def worker(session: aiohttp.ClientSession) -> None:
        for number, query in waiting:
            outcome = await until_correct(
                [{"role": "user", "content": query.prompt}],
                lambda answer, right=query.answer: right in answer,
                base_url=fleet.url,
                session=session,
                # Each text occurs twice: half of the prompts are cached.
                params={"cache_salt": str(number // (2 * len(asked)))},
                stream=number % 2 == 0,
            )
            await report_outcome(outcome, fleet.admin_url)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker(session))


async def trouble(fleet: Running, traffic_s: float) -> None:
    """Let an engine be slow, one fail now and then, and one be away; ask for an unknown model."""
    away, slow, failing, *_ = (f"http://{address}/sim" for address in fleet.models)
    async with aiohttp.ClientSession() as session:
        for engine, fault in ((slow, "slow"), (failing, "500@0.1")):
            await asyncio.sleep(traffic_s / 4)
            async with session.put(f"{engine}/faults", json={"faults": [fault]}):
                pass
        async with session.post(f"{away}/outage", json={"seconds": traffic_s / 8}):
            pass
        while True:
            await asyncio.sleep(traffic_s / 40)
            chat = {"model": "none", "messages": [{"role": "user", "content": "Hello"}]}
            async with session.post(f"{fleet.url}/v1/chat/completions", json=chat):
                pass


async def shows(browser: Any, selector: str, text: str) -> None:
    """Wait until a part of the page contains a text."""

    async def there() -> bool:
        return text in await browser.text(selector)

    await eventually(there, timeout_s=30.0, what=f"{text!r} in {selector}")


async def overview(browser: Any) -> None:
    """Show the top of the page once its figures have curves."""

    async def drawn() -> bool:
        return await browser.run("return document.querySelectorAll('#figures svg').length") == 5

    await eventually(drawn, timeout_s=30.0, what="the curves")


async def decision(browser: Any) -> None:
    """Open the newest decision on a first attempt, with each candidate's terms in seconds."""
    await browser.click("#pause")
    await browser.run(
        "const one = [...document.querySelectorAll('#list details')]"
        ".find((d) => !d.textContent.includes('tried'));"
        "one.querySelector('summary').click(); one.scrollIntoView(); window.scrollBy(0, -8)"
    )


PICTURES: dict[str, Callable[[Any], Awaitable[None]]] = {
    "live-page": overview,
    "decision": decision,
}


async def main(target: Path, traffic_s: float = TRAFFIC_S) -> None:
    """Write the pictures; exit with a message if there is no browser or no Prometheus."""
    if lacks := missing() or ("" if shutil.which("prometheus") else "prometheus"):
        raise SystemExit(f"no browser or no Prometheus: apt-get install {lacks}")
    with tempfile.TemporaryDirectory() as directory:
        work, began_s = Path(directory), time.time()
        (work / "fleet").mkdir()
        async with (
            running_fleet(work / "fleet", time_scale=TIME_SCALE, each=2) as fleet,
            prometheus(work, fleet.admin_url) as url,
            browsing(work / "profile") as browser,
        ):
            under_way = [
                asyncio.create_task(each) for each in (ask(fleet), trouble(fleet, traffic_s))
            ]
            await asyncio.wait(under_way, timeout=traffic_s, return_when=asyncio.FIRST_COMPLETED)
            await browser.open(fleet.admin_url, width=1280, height=1180)
            await shows(browser, "#link", "live")
            await shows(browser, "#list", " at 127.0.0.1")
            for name, arrange in PICTURES.items():
                await arrange(browser)
                await browser.screenshot(target / f"{name}.png")
            found = await dashboard.answers(url, began_s)
            for task in under_way:
                task.cancel()
            await asyncio.wait(under_way)
            if errors := await browser.errors():
                raise SystemExit("the page complains: " + json.dumps(errors))
    dashboard.draw(found, target / "dashboard.png")


if __name__ == "__main__":
    asyncio.run(main(IMAGES))

"""Take the documentation's screenshots of the live page: `make screenshots`.

The fleet of `laar up` answers verified questions, and the outcomes are reported. Needs Debian's
chromium and chromium-driver.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
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

from browser import browsing, missing  # noqa: E402 - the tests' own browser

from support import eventually  # noqa: E402

TRAFFIC_S = 240.0
"""Before the first picture, so that the curves of the last hour have a shape."""

CONCURRENCY = 6
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
            )
            await report_outcome(outcome, fleet.admin_url)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker(session))


async def shows(browser: Any, selector: str, text: str) -> None:
    """Wait until a part of the page contains a text."""

    async def there() -> bool:
        return text in await browser.text(selector)

    await eventually(there, timeout_s=30.0, what=f"{text!r} in {selector}")


async def overview(browser: Any) -> None:
    """Show the top of the page: the figures, the last hour, the fleet."""


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
    """Write one PNG for each of `PICTURES`; exit with a message if there is no browser."""
    if lacks := missing():
        raise SystemExit(f"no browser: apt-get install {lacks}")
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "fleet").mkdir()
        async with (
            running_fleet(work / "fleet", time_scale=TIME_SCALE) as fleet,
            browsing(work / "profile") as browser,
        ):
            asking = asyncio.create_task(ask(fleet))
            await asyncio.wait([asking], timeout=traffic_s)
            await browser.open(fleet.admin_url, width=1280, height=1180)
            await shows(browser, "#link", "live")
            await shows(browser, "#list", " at 127.0.0.1")
            for name, arrange in PICTURES.items():
                await arrange(browser)
                await browser.screenshot(target / f"{name}.png")
            asking.cancel()
            await asyncio.wait([asking])
            if errors := await browser.errors():
                raise SystemExit("the page complains: " + json.dumps(errors))


if __name__ == "__main__":
    asyncio.run(main(IMAGES))

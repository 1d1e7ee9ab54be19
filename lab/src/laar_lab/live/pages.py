"""Read the metrics pages of a running fleet."""

from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


async def read_totals(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Return the sum of each metric's samples, by name. A metric not on the page has no entry."""
    async with session.get(url) as answer:
        text = await answer.text()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals

"""The context hook follows the engines' caches: it forgets orders that were evicted."""

from __future__ import annotations

import aiohttp
import pytest
import yaml

from laar_lab.sim.endpoint import KvEventSettings
from support import eventually, metric

pytestmark = pytest.mark.envoy

ROUTE = {"name": "rag", "mode": "on", "holdout_share": 0.0}
CHAT = "/v1/chat/completions"


def body(ids):
    words = "some words of it " * 20
    content = "\n".join(f'<document id="d{i}">{i} {words}</document>' for i in ids)
    message = {"role": "user", "content": content + "\n\nWhat is it?"}
    return {"model": "m", "max_tokens": 1, "messages": [message]}


class Fleet:
    """Endpoints of one model behind picker and Envoy, and the picker's page."""

    def __init__(self, http, gateway, envoy):
        self.http, self.gateway, self.envoy = http, gateway, envoy

    async def ask(self, ids, **headers):
        url = self.envoy.url() + CHAT
        async with self.http.post(url, json=body(ids), headers=headers) as answer:
            assert answer.status == 200, await answer.text()

    async def memory(self):
        async with self.http.get(self.gateway.url("admin", "/context")) as answer:
            return (await answer.json())["routes"][0]["memory"]

    def reordered(self):
        page = self.gateway.runner
        return metric(page, 'laar_context_requests_total{reason="reordered",route="rag"}')

    async def learned(self):
        async def follows():  # orders from before the first event are forgotten
            for ids in ([1, 2, 3, 4], [4, 3, 2, 1]):
                if not self.reordered():
                    await self.ask(ids)
            return self.reordered() == 1

        await eventually(follows, what="an order that is followed")
        assert (await self.memory())["index_orders"] == 1

    async def forgot(self):
        """Return True after a request that was not reordered."""
        before = self.reordered()
        await self.ask([2, 4, 1, 3])
        assert self.reordered() == before
        return True


@pytest.fixture
def fleet(gateway, http, monkeypatch):
    monkeypatch.setattr("laar.context.hook.MAX_ADDED_MS", 5e3)  # even on a busy machine

    async def start(*entries, **readings):
        gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": list(entries)}))
        sections = {"readings": readings} if readings else {}
        await gateway.picker(context={"routes": [ROUTE]}, **sections)
        return Fleet(http, gateway, await gateway.envoy())

    return start


@pytest.fixture
async def engine(gateway):
    return await gateway.simulated(
        time_scale=0.001,
        allow_fault_header=True,
        num_blocks=128,
        kv_events=KvEventSettings(endpoint="tcp://127.0.0.1:*"),
    )


async def test_events_show_that_an_engine_lost_its_cache(fleet, engine, http):
    async with http.get(engine.url + "/kv_event_sources") as answer:
        (source,) = await answer.json()
    labels = {"laar.dev/kv-events": source["endpoint"]}
    address = engine.address
    prompts = iter(range(100, 10_000))

    async def prefill(**headers):
        given = body([next(prompts)] * 4)
        try:
            async with http.post(engine.url + CHAT, json=given, headers=headers) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    await prefill()  # the engine's first batch of events counts as a start, too
    # The metrics page is not read again, so only the events can show the restart.
    there = await fleet(
        {"address": address, "model": "m", "labels": labels}, scrape_interval_s=60.0
    )
    await there.learned()

    async def lost():
        """Crash the engine; its first batch of events after the crash has number 0 again."""
        for _ in range(2):  # the previous crash may not be over yet
            await eventually(prefill, what="the engine")
        await prefill(**{"x-sim-fault": "oom:0.01"})
        await eventually(prefill, what="the engine's return")
        return (await there.memory())["index_orders"] == 0

    await eventually(lost, what="the orders to be forgotten")
    assert await there.forgot()

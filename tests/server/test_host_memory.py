"""An engine that keeps evicted blocks in host memory, with a real picker and a real Envoy."""

from __future__ import annotations

from io import BytesIO

import orjson
import pytest
import yaml
from aiohttp import web

from support import eventually
from support.served import ServedEngine

pytestmark = pytest.mark.envoy

CACHE_TOKENS = 4_000


class SGLang(ServedEngine):
    """Has a cache of `CACHE_TOKENS` tokens, and host memory for `host_tokens` more."""

    def __init__(self, host_tokens):
        self.host_tokens = host_tokens

    async def _handle(self, request):
        if request.path == "/metrics":
            page = (
                f"sglang:num_running_reqs 0\nsglang:max_total_num_tokens {CACHE_TOKENS}\n"
                f"sglang:hicache_host_total_tokens {self.host_tokens}\n"
            )
            return web.Response(text=page if self.host_tokens else page[: page.rfind("sglang")])
        if request.method != "POST" or request.path == "/tokenize":
            return web.Response(text="{}")
        await request.read()
        message = {"role": "assistant", "content": "yes"}
        usage = {"prompt_tokens": 1_000, "completion_tokens": 1, "total_tokens": 1_001}
        return web.json_response({"choices": [{"message": message}], "usage": usage, "model": "m"})


def chat(number):
    words = " ".join(f"{number}-{word}" for word in range(500))
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": words}]})


@pytest.mark.parametrize("host_tokens", [0, 40_000])
async def test_host_memory_is_treated_as_cache_without_events(gateway, http, host_tokens):
    engine = await gateway.enter(SGLang(host_tokens))
    entry = {"address": engine.address, "model": "m", "engine": "sglang"}
    gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": [entry]}))
    runner = await gateway.picker(bodies={"sample_answers": 1.0})
    table = runner.picker.table
    await eventually(
        lambda: len(table) == 1 and bool(table.capacity_tokens[0] > 0), what="its page"
    )
    envoy = await gateway.envoy()
    headers = {"content-type": "application/json"}

    async def cached(number):
        """Return the tokens of a prompt that are believed cached."""
        url = gateway.url("admin", "/explain")
        async with http.post(url, data=chat(number), headers=headers) as answer:
            [row] = (await answer.json())["candidates"]
        return row["cached_tokens"]

    for number in range(12):
        url = envoy.url() + "/v1/chat/completions"
        async with http.post(url, data=BytesIO(chat(number)), headers=headers) as answer:
            assert answer.status == 200
    before = table.readings
    await eventually(lambda: table.readings > before + 6, what="its page, read again")
    assert await cached(11) > 500
    assert (await cached(0) > 500) is (host_tokens > 0)
    assert table.capacity_tokens[0] == CACHE_TOKENS

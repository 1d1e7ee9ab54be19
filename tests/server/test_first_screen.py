"""Ten faults, each reported on the first screen of the live page and by `laar doctor`."""

import asyncio
import sys

import aiohttp
import orjson
import pytest
from aiohttp import web
from browser import browsing, missing

from support import eventually
from support.served import ServedEngine

pytestmark = [
    pytest.mark.envoy,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(missing()), reason=f"no browser: apt-get install {missing()}"),
]

PAGE = "".join(
    f'vllm:{name}{{model_name="m"}} 0\n'
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
)
GOOD = {
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}


def changed(**fields):
    return web.json_response({**GOOD, **fields})


class Engine(ServedEngine):
    """An engine with one fault."""

    def __init__(self):
        self.fault = ""

    async def _handle(self, request):
        if self.fault == "gone":
            request.transport.abort()
            return web.Response()
        if request.path == "/metrics":
            return web.Response(text=PAGE, status=500 if self.fault == "metrics" else 200)
        if request.path == "/v1/models":
            name = "other" if self.fault == "lists another" else "m"
            return web.json_response({"data": [{"id": name}]})
        if request.method != "POST":
            return web.Response(text="{}")
        await request.read()
        if self.fault == "hangs":
            await asyncio.sleep(60)
        empty = [{"index": 0, "message": {"content": ""}, "finish_reason": "stop"}]
        answers = {
            "500": lambda: web.Response(status=500, text="CUDA error"),
            "400": lambda: web.Response(status=400, text="no such template"),
            "401": lambda: web.Response(status=401, text="no key"),
            "html": lambda: web.Response(text="<html>It works</html>", content_type="text/html"),
            "empty": lambda: changed(choices=empty),
            "another model": lambda: changed(model="other"),
        }
        return answers.get(self.fault, changed)()


FAULTS = {
    "gone": ("unreachable since", "closes it"),
    "500": ("answers 500", "500"),
    "400": ("rejects what its siblings answer (400", "400"),
    "401": ("denies what its siblings accept (401", "401"),
    "html": ("text/html", "text/html"),
    "empty": ("empty", "empty"),
    "another model": ("other", "other"),
    "hangs": ("does not answer in time", "sends nothing"),
    "metrics": ("/metrics", "/metrics"),
    "endpoints file": ("endpoints.yaml", "endpoints.yaml"),
    "settings": ("all settings stay", "polcy"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_reported_on_the_first_screen_and_by_the_doctor(gateway, tmp_path, fault):
    bad, good = [await gateway.enter(Engine()) for _ in range(2)]
    gateway.members(*((engine.address, "m") for engine in (bad, good)))
    await gateway.picker(health={"longest_trial_s": 5.0})
    envoy = await gateway.envoy()
    async with browsing(tmp_path / "profile") as browser, aiohttp.ClientSession() as http:

        async def ask():
            data = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
            headers = {"content-type": "application/json"}
            url = f"{envoy.url()}/v1/chat/completions"
            async with http.post(url, data=data, headers=headers) as answer:
                await answer.read()

        for _ in range(4):
            await ask()
        bad.fault = fault
        if fault == "endpoints file":
            gateway.endpoints_file.write_text("endpoints: [{address: here}]\n")
        if fault == "settings":
            gateway.change(routing={"polcy": "laar"})
        await browser.open(gateway.url("admin", "/"))
        seen, asked = "", []

        async def named():
            nonlocal seen
            asked.extend(asyncio.create_task(ask()) for _ in range(6))
            await asyncio.wait(asked[-6:], timeout=0.5)
            seen = await browser.run(
                "return [...document.querySelectorAll('#headline, #problems li, #fleet td')]"
                ".filter((e) => e.getBoundingClientRect().bottom < 900)"
                ".map((e) => e.innerText).join('\\n')"
            )
            return FAULTS[fault][0] in seen

        try:
            await eventually(named, what="the fault", timeout_s=100)
        except AssertionError:
            raise AssertionError(f"{fault}: the page shows\n{seen}") from None
        doctor = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "laar.cli", "doctor", "-c", gateway.settings_file),
            *("--envoy", envoy.admin_url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = (await doctor.communicate())[0].decode()
        assert FAULTS[fault][1] in said, said
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

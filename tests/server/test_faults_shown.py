"""Ten faults of operations happen at once: within a minute each is a line of the live page."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from laar.fleet.membership import EVENTS_LABEL
from support import eventually, free_port
from support.clients import chat, post

MODEL = "m"
TOKEN = "a-token-of-viewers"
FAULTS = {
    "the settings are not YAML": ("settings", "not valid YAML"),
    "the endpoints file is cut short": ("file ", "stay as they were"),
    "an engine is gone": ("probe ", "refused|Connect call failed"),
    "a metrics page answers 500": ("scrape ", "answered 500"),
    "an engine lists no models": ("models ", "not a list|JSON|Expecting|unexpected"),
    "a DNS name does not resolve": ("dns ", "does not resolve"),
    "nobody publishes KV events": ("kv-events ", "can't be reached"),
    "the viewers' token is lost": ("tokens", "stays in use"),
    "the decision log can't be written": ("decision-log", ""),
    "an engine fails all requests": ("endpoint ", "takes no requests"),
}


def engine(*, listed: str = "", page: int = 200, status: int = 200) -> TestServer:
    """Return an engine that lists other models, or with other statuses of its page or answers."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(text="vllm:num_requests_running 0\n", status=page)
        if request.path == "/v1/models":
            return web.Response(text=listed or '{"data": [{"id": "m"}]}')
        if request.method == "GET":
            return web.Response()
        said = {"role": "assistant", "content": "yes"}
        return web.json_response({"choices": [{"index": 0, "message": said}]}, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return TestServer(app)


@pytest.mark.long
async def test_each_of_ten_faults_is_a_line_of_the_page_within_a_minute(
    gateway: Any, http: aiohttp.ClientSession, figure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laar.server.admin.port.TOKENS_S", 0.2)
    monkeypatch.setattr("laar.datalayer.kv_events.REACH_S", 1.0)
    made = (engine(), engine(page=500), engine(listed="<html>"), engine(status=500))
    started = [await gateway.enter(each) for each in made]
    fine, *odd = [f"127.0.0.1:{each.port}" for each in started]
    gateway.members(*((address, MODEL) for address in odd))
    token = gateway.directory / "token"
    token.write_text(TOKEN)
    more = [
        {"address": f"127.0.0.1:{free_port()}", "model": MODEL},
        {"address": "nowhere.invalid:8000", "model": MODEL},
        {"address": fine, "model": MODEL, "labels": {EVENTS_LABEL: str(free_port())}},
    ]
    log = gateway.directory / "logs"
    log.mkdir()
    await gateway.picker(
        endpoints=more,
        decisions={"viewers_token_file": str(token), "log": str(log / "decisions")},
    )
    envoy = await gateway.envoy()
    seen: dict[str, str] = {}

    async def page() -> dict[str, str]:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with http.get(gateway.url("admin", "/fleet"), headers=headers) as answer:
            found = orjson.loads(await answer.read())["problems"]
            return {source: problem["message"] for source, problem in found.items()}

    gateway.settings_file.write_text("endpoints: [")
    gateway.endpoints_file.write_text("endpoints:\n- address: 127")
    token.write_text("")
    log.rename(log.with_name("gone"))

    async def all_shown() -> bool:
        for _ in range(5):
            await post(http, envoy, chat(MODEL))
        seen.update(await page())
        return len(shown(seen)) == len(FAULTS)

    try:
        await eventually(all_shown, timeout_s=60.0, what="all faults")
    finally:
        for fault in FAULTS:
            figure(fault, "page" if fault in shown(seen) else "-", "page")
        assert shown(seen) == [*FAULTS], seen


def shown(problems: dict[str, str]) -> list[str]:
    """Return the faults that are among the page's problems."""
    return [
        fault
        for fault, (source, text) in FAULTS.items()
        if any(each.startswith(source) and re.search(text, told) for each, told in problems.items())
    ]

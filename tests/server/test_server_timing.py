"""`server-timing` through a real Envoy, read by the grammar of the W3C's recommendation."""

import re

import pytest

from support.clients import chat, post
from support.upstream import Answer

pytestmark = pytest.mark.envoy

TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
QUOTED = r'"(?:[\t !#-\[\]-~]|\\[\t -~])*"'
PARAM = re.compile(rf"({TOKEN})[ \t]*=[ \t]*({TOKEN}|{QUOTED})")
METRIC = re.compile(rf"{TOKEN}(?:[ \t]*;[ \t]*{PARAM.pattern})*")
HEADER = re.compile(rf"{METRIC.pattern}(?:[ \t]*,[ \t]*{METRIC.pattern})*")
PHASES = {"network", "queue", "prefill", "decode", "total"}


def times(headers):
    """Return the milliseconds of all metrics, by name and description."""
    value = ", ".join(headers.getall("server-timing", []))
    assert HEADER.fullmatch(value), value
    found = {}
    for metric in METRIC.finditer(value):
        params = dict(PARAM.findall(metric[0]))
        name = re.match(TOKEN, metric[0])[0]
        found[name, params.get("desc")] = float(params["dur"])
    return found


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_says_where_its_time_went(gateway, http, shape, stream):
    engine = await gateway.upstream()
    engine.chat_answer = Answer(wait_s=0.1)
    gateway.members((engine.address, "m"))
    await gateway.picker(routing={"plugins": {"server-timing": {}}})
    envoy = await gateway.envoy(shape)
    got = await post(http, envoy, chat("m", stream=stream))
    found = times(got.headers)
    seen = "headers" if stream else "total"
    assert found.keys() == {(of, "predicted") for of in PHASES} | {(seen, "seen")}
    assert found[seen, "seen"] >= 90.0
    phases = sum(found[of, "predicted"] for of in PHASES - {"total"})
    assert found["total", "predicted"] == pytest.approx(phases, abs=0.5)


@pytest.mark.parametrize("settings", [{}, {"routing": {"mode": "shadow"}}])
async def test_nobody_is_told_unless_the_settings_ask_and_laar_chooses(gateway, http, settings):
    engine = await gateway.upstream()
    gateway.members((engine.address, "m"))
    if settings:
        settings["routing"]["plugins"] = {"server-timing": {}}
    await gateway.picker(**settings)
    got = await post(http, await gateway.envoy(), chat("m"))
    assert "server-timing" not in got.headers

"""A fleet that is full, or an engine slower than its siblings, is an event."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path

import pytest

import laar
from support import eventually
from support.clients import chat, post
from support.grids import crossed
from support.metrics import metric
from support.upstream import Answer

pytestmark = [pytest.mark.envoy, pytest.mark.long]

MODEL, ENDPOINTS, CLIENTS = "m", 4, 12
FULL = {
    "429": Answer(status=429),
    "429 and when": Answer(status=429, headers={"retry-after": "7"}),
    "529": Answer(status=529),
    "503 in words": Answer(status=503, body=b'{"error": "the queue is full"}'),
    "503 and when": Answer(status=503, headers={"retry-after": "7"}),
}


async def fleet_of(gateway, shape, make=lambda _at: Answer(), **options):
    """Start engines, a picker and Envoy."""
    engines = [await gateway.upstream() for _ in range(ENDPOINTS)]
    for at, engine in enumerate(engines):
        engine.chat_answer = make(at)
    gateway.members(*((engine.address, MODEL) for engine in engines))
    await gateway.picker()
    return engines, await gateway.envoy(shape, **options)


def problems(gateway, kind):
    """Return the names of what has a problem of a kind."""
    shown = gateway.runner.picker.problems
    return {source.partition(" ")[2] for source in shown if source.partition(" ")[0] == kind}


@pytest.mark.parametrize(("shape", "form"), crossed(["standalone", "gateway"], [*FULL]))
async def test_a_full_fleet_is_told_to_clients_page_and_metrics(gateway, http, figure, shape, form):
    engines, envoy = await fleet_of(gateway, shape, lambda _at: FULL[form])
    got = []

    async def is_told():
        got.extend(await asyncio.gather(*(post(http, envoy, chat(MODEL)) for _ in range(CLIENTS))))
        return problems(gateway, "full") == {MODEL}

    await eventually(is_told, what="a line of the page")
    waits = [int(each.headers.get("retry-after", "0")) for each in got]
    expected = 7 if "retry-after" in FULL[form].headers else 1
    figure(f"{shape}: {form}: refusals with retry-after", sum(w > 0 for w in waits), str(len(got)))
    assert min(waits) >= 1
    assert expected in waits
    assert {each.status for each in got} == {FULL[form].status}
    assert metric(gateway.runner, "laar_full_total") == len(got)

    async with http.get(f"{envoy.admin_url}/stats/prometheus") as stats:
        seen = re.findall(
            r'^envoy_cluster_upstream_rq\{envoy_response_code="(\d+)",.*laar-endpoints"\} (\d+)$',
            await stats.text(),
            re.MULTILINE,
        )
    assert dict(seen)[str(FULL[form].status)] == str(len(got)), "as the rule of LaarFull reads it"

    for engine in engines:
        engine.chat_answer = Answer()

    async def is_over():
        await asyncio.gather(*(post(http, envoy, chat(MODEL)) for _ in range(CLIENTS)))
        return not problems(gateway, "full")

    await eventually(is_over, timeout_s=60.0, what="the end")


async def test_engines_that_fail_for_another_reason_are_not_full(gateway, http):
    _, envoy = await fleet_of(gateway, "standalone", lambda _at: Answer(status=503))
    for _ in range(3 * CLIENTS):
        await post(http, envoy, chat(MODEL))
    assert metric(gateway.runner, "laar_full_total") == 0


async def test_an_engine_slower_than_its_siblings_is_named(gateway, http, figure):
    slow = Answer(wait_s=1.0)
    engines, envoy = await fleet_of(
        gateway, "standalone", lambda at: slow if at == 0 else Answer(wait_s=0.1)
    )

    async def is_named():
        await asyncio.gather(*(post(http, envoy, chat(MODEL)) for _ in range(CLIENTS)))
        return problems(gateway, "pace") == {engines[0].address}  # a loaded machine is slow, too

    await eventually(is_named, timeout_s=100.0, what="the slow engine")
    figure("a slow engine is named", len(problems(gateway, "pace")), "1")
    ratio = f'laar_endpoint_pace_ratio{{endpoint="{engines[0].address}"}}'
    assert metric(gateway.runner, ratio) >= 1.5


def test_each_temporary_refusal_of_laars_own_says_when_to_return():
    """Found in the source, so that a new one can't be silent; `None` has to be written out."""
    silent = []
    for path in (Path(laar.__file__).parent).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RequestError":
                status = getattr(node.args[0], "value", None) if node.args else None
                if status in (429, 503) and "retry_after_s" not in {k.arg for k in node.keywords}:
                    silent.append(f"{path.name}:{node.lineno}")
    assert silent == []

"""A model whose last endpoint is away for a while, behind a real Envoy."""

from __future__ import annotations

import orjson
import pytest

from support import eventually, metric
from support.clients import chat, post

pytestmark = pytest.mark.envoy

ABSENT = 'laar_pool_absent_total{model="b",pool=""}'


async def fleet_without_b(gateway, **sections):
    """Start a fleet of models a and b, and take b away; return b, and how it returns."""
    a, b = await gateway.upstream(), await gateway.upstream()
    gateway.members((a.address, "a"), (b.address, "b"))
    runner = await gateway.picker(**sections)
    table = runner.picker.table
    await eventually(lambda: table.serving("b") is not None, what="the second model")
    gateway.members((a.address, "a"))
    await eventually(lambda: table.serving("b") is None, what="the second model to leave")
    return b, lambda: gateway.members((a.address, "a"), (b.address, "b"))


@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_a_model_that_is_away_is_told_from_one_that_does_not_exist(
    gateway, http, figure, shape
):
    b, bring_back = await fleet_without_b(gateway)
    envoy = await gateway.envoy(shape)
    away, never = [await post(http, envoy, chat(model=name)) for name in ("b", "c")]
    figure("status for a model that is away", away.status, "503")
    assert (away.status, away.headers["x-laar-reason"]) == (503, "model-away")
    assert int(away.headers["retry-after"]) >= 1
    assert (never.status, never.headers["x-laar-reason"]) == (404, "unknown-model")
    listed = orjson.loads(await (await http.get(f"{envoy.url()}/v1/models")).read())["data"]
    assert {entry["id"]: entry.get("available", True) for entry in listed} == {
        "a": True,
        "b": False,
        "auto": True,
    }
    for name, status in (("b", 200), ("c", 404)):
        async with http.get(f"{envoy.url()}/v1/models/{name}") as answer:
            assert answer.status == status
    assert metric(gateway.runner, ABSENT) == 1
    bring_back()
    await eventually(lambda: served(http, envoy), what="the model to return")
    assert b.asked


async def served(http, envoy):
    return (await post(http, envoy, chat(model="b"))).status == 200

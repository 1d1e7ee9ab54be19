"""Envoy without a picker avoids failing endpoints, and a port in use is an error."""

from __future__ import annotations

from io import BytesIO

import orjson
import pytest

from laar.envoy.options import BootstrapOptions
from support import Answer, eventually

pytestmark = pytest.mark.envoy

BODY = orjson.dumps({"model": "auto", "prompt": "hello"})


async def status(http, envoy):
    async with http.post(f"{envoy.url()}/v1/completions", data=BytesIO(BODY)) as response:
        await response.read()
        return response.status


async def ejected(http, envoy):
    async with http.get(f"{envoy.admin_url}/clusters") as response:
        return "failed_outlier_check" in await response.text()


async def test_the_picker_may_choose_an_endpoint_that_envoy_has_ejected(fleet, http):
    """Envoy's ejection must not overrule the picker, which knows more."""
    bad, good = await fleet.upstreams(2)
    bad.default_answer = Answer(status=503)
    fleet.members([bad.address, good.address])
    picker = await fleet.picker(bad.address)
    envoy = await fleet.envoy("standalone", BootstrapOptions(retries=0))
    for _ in range(10):
        assert await status(http, envoy) == 503
    assert await ejected(http, envoy)
    before = len(bad.requests)
    assert await status(http, envoy) == 503
    assert len(bad.requests) == before + 1

    await picker.stop(None)

    async def served_by_the_good_one():
        return await status(http, envoy) == 200

    await eventually(served_by_the_good_one, what="failing open")
    before = len(bad.requests)
    for _ in range(20):
        assert await status(http, envoy) == 200
    assert len(bad.requests) == before

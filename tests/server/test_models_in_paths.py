"""Requests whose paths name the model, or which name none, behind a real Envoy."""

from __future__ import annotations

import pytest
from aiohttp import web

from support import eventually
from support.clients import post
from support.paths import FORMS, PREFIXES
from support.served import ServedEngine

pytestmark = pytest.mark.envoy

PATHS = [prefix + form for prefix in PREFIXES for form in FORMS]
NAMELESS = [
    "/v9/things",
    "/generate",
    "/v2/models",
    "/score",
    "/v1/chat/completions",
    "/x/y?model=b",
]


class Named(ServedEngine):
    """An engine that answers every path with the name of its model."""

    def __init__(self, model):
        self.model, self.paths = model, []

    async def _handle(self, request):
        await request.read()
        if request.method == "POST":
            self.paths.append(request.path_qs)
        return web.json_response({"of": self.model})


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
@pytest.mark.parametrize("picks", [True, False], ids=["picker", "no picker"])
async def test_a_path_that_names_a_model_reaches_that_model_and_others_none(
    gateway, http, figure, shape, picks
):
    engines = {name: await gateway.enter(Named(name)) for name in ("a", "b", "org/c")}
    gateway.members(*((engine.address, name) for name, engine in engines.items()))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    if not picks:
        await gateway.stop_picker()

        async def alone():
            return (await post(http, envoy, b"{}", "/v1/models/b")).status == 200

        await eventually(alone, what="Envoy's own choice")
    wrong, right = 0, 0
    for name, engine in engines.items():
        for path in PATHS:
            for each in engines.values():
                each.paths.clear()
            got = await post(http, envoy, b"{}", path.format(name.replace("/", "%2F")))
            right += bool(engine.paths)
            wrong += any(each.paths for each in engines.values() if each is not engine)
            assert (got.status == 200) == bool(engine.paths), (path, got)
    figure("paths with a model in them, of 3 x 40: at a wrong model", wrong, "0")
    figure("at the model, of 3 x 40", right, "120")
    assert (wrong, right) == (0, 3 * len(PATHS))
    for path in NAMELESS:
        got = await post(http, envoy, b"{}", path)
        assert got.status == (400 if picks else 503), path
        assert not picks or got.headers["x-laar-reason"] == "no-model"
    assert (await post(http, envoy, b"{}", "/ping")).status == 200


async def test_lists_are_the_fleets_below_any_prefix_and_a_setting_frees_a_path(gateway, http):
    engines = [await gateway.enter(Named(name)) for name in "ab"]
    gateway.members(*((engine.address, engine.model) for engine in engines))
    await gateway.picker(bodies={"any_model_paths": ["/version"]})
    envoy = await gateway.envoy()

    async def get(path, method="GET"):
        async with http.request(method, envoy.url() + path) as answer:
            return answer.status, await answer.json()

    for path in ("/v1/models", "/openai/v1/models", "/models", "/team/models/"):
        status, listed = await get(path)
        assert (status, [each["id"] for each in listed["data"]][:2]) == (200, ["a", "b"]), path
    assert (await get("/openai/v1/models/b"))[1]["id"] == "b"
    assert (await get("/version"))[0] == 200
    assert (await get("/v1/chat/completions", "OPTIONS"))[0] == 200
    assert (await get("/docs"))[0] == 400
    assert (await get("/v2/models/b"))[1] == {"of": "b"}

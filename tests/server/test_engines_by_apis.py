"""Eight kinds of engine and twelve APIs, through a real Envoy; makes docs/reference/engines.md."""

from __future__ import annotations

import aiohttp
import pytest
import yaml
from engines_by_apis import APIS, PAGE, Reach, ask, judged, page

from support import eventually
from support.authority import Authority
from support.stand_ins import KINDS, StandIn

pytestmark = pytest.mark.envoy
READINGS = {"waiting": "waiting", "running": "running", "kv_usage": "KV cache in use"}


@pytest.fixture
async def engines(gateway, tmp_path):
    """One engine of each kind, in the endpoints file."""
    authority = Authority(tmp_path, "authority")
    key_file = tmp_path / "key"
    key_file.write_text("the-engines-own\n")
    secret = {"pair": authority.issue("engine", host="engine.example"), "key": "the-engines-own"}
    engines = [
        await gateway.enter(StandIn(kind, f"model-{at}", **(secret if kind.secure else {})))
        for at, kind in enumerate(KINDS)
    ]
    far = {"ca_file": str(authority.path), "sni": "engine.example", "key_file": str(key_file)}
    entries = [
        {
            "address": f"https://{each.address}{each.kind.base}"
            if each.kind.secure
            else each.address,
            "models": [each.model],
            **each.kind.settings,
            **(far if each.kind.secure else {}),
        }
        for each in engines
    ]
    gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": entries}))
    gateway.cas = (str(authority.path),)
    return engines


async def seen_by(gateway, http, engines, shape):
    """How laar handles each API of each engine in a shape."""
    await gateway.picker(bodies={"sample_answers": 1.0})
    envoy = await gateway.envoy(shape, endpoint_cas=gateway.cas)

    asked = {
        (api.name, mine.kind.name): await ask(http, envoy.url(), engines, mine, api)
        for api in APIS
        for mine in engines
    }
    names = {one for one in asked.values() if isinstance(one, str)}
    records = {}

    async def ended():
        async with http.get(gateway.url("admin", "/decisions?limit=200")) as answer:
            found = {each["id"]: each for each in (await answer.json())["decisions"]}
        records.update({name: each for name, each in found.items() if "completion" in each})
        return names <= records.keys()

    await eventually(ended, timeout_s=20, what="the ends of all requests")
    return {
        key: judged(records[one]) if isinstance(one, str) else one for key, one in asked.items()
    }


@pytest.fixture
async def http():
    """Return a client that sends its own API key."""
    headers = {"authorization": "Bearer the-clients-own"}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield session


async def test_the_page_on_engines_matches_laars_behaviour(gateway, http, engines, pytestconfig):
    seen = await seen_by(gateway, http, engines, "standalone")
    async with http.get(gateway.url("admin", "/fleet")) as answer:
        fleet = {row["endpoint"]: row for row in (await answer.json())["fleet"]}
    reach = {
        each.kind.name: Reach(
            tuple(word for name, word in READINGS.items() if fleet[each.address][name] is not None)
        )
        for each in engines
    }
    assert all(row["health"] == "ok" for row in fleet.values()), fleet
    for each in engines:
        own = {f"Bearer {each.key}"} if each.key else {"Bearer the-clients-own", None}
        assert each.keys <= own, each.kind.name
    written = page(seen, reach)
    if pytestconfig.getoption("--write-pages", default=False):
        PAGE.write_text(written)
    assert PAGE.read_text() == written, f"run: pytest {__file__} --write-pages"


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["sidecar", "gateway", "full-duplex"])
async def test_engines_are_treated_the_same_in_every_shape(gateway, http, engines, shape):
    seen = await seen_by(gateway, http, engines, shape)
    reach = {kind.name: Reach(()) for kind in KINDS}
    tables = page(seen, reach).partition("## How they are reached")[0]
    assert PAGE.read_text().startswith(tables)

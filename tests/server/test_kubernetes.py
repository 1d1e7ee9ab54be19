"""The picker in a cluster, with a real Envoy and a stand-in for the Kubernetes API server."""

import asyncio
import contextlib

import grpc
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from laar.errors import SettingError
from support import Answer, eventually, free_port
from support.authority import Authority
from support.kube_api_server import KubeApiServer, pod, pool
from support.stand_ins import KINDS, StandIn

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextlib.asynccontextmanager
async def api_server():
    server = KubeApiServer()
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    listening = TestServer(app)
    await listening.start_server()
    server.url = f"http://127.0.0.1:{listening.port}"
    yield server
    server.disconnect()
    await listening.close()


@pytest.fixture
async def cluster():
    async with api_server() as server:
        yield server


def selector(cluster, port, app="vllm", **more):
    """Return a source that selects pods by label."""
    source = {"selector": {"app": app}, "ports": [port], "namespace": "ml"}
    return source | {"api_server": cluster.url} | more


def inference_pool(cluster, name="fleet"):
    """Return a source that is an InferencePool."""
    return {"pool": name, "namespace": "ml", "api_server": cluster.url}


async def picker(gateway, *sources, **sections):
    return await gateway.picker(endpoints_file=None, kubernetes=list(sources), **sections)


async def pods(gateway, cluster, count, **metadata):
    """Start numbered pods, with one endpoint each; their addresses differ, but not the port."""
    port = free_port()
    found = [await gateway.upstream(f"127.0.0.{n}", port) for n in range(2, count + 2)]
    for number, upstream in enumerate(found):
        await cluster.put("pods", pod(f"p{number}", upstream.host, **metadata))
    return found, port


def ask(http, envoy, model="org/tiny", **headers):
    body = orjson.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]})
    return http.post(
        f"{envoy.url()}/v1/chat/completions",
        data=body,
        headers={"content-type": "application/json", **headers},
    )


async def served_by(http, envoy, **more):
    async with ask(http, envoy, **more) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers["x-upstream"]


async def readiness(gateway):
    async with grpc.aio.insecure_channel(gateway.settings.listen.health) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service="readiness"))).status


async def quiet(upstream):
    """Wait until only scrapes and probes have arrived for 0.3 s."""

    def asked():
        return sum(request.path.startswith("/v1/") for request in upstream.requests)

    async with asyncio.timeout(20):
        before = -1
        while before != asked():
            before = asked()
            await asyncio.sleep(0.3)


async def knows(gateway, *upstreams):
    """Wait until the picker has listed exactly these endpoints for Envoy, and picks them.

    An Envoy that starts earlier decides alone until its next health check of the picker.
    """

    def told():
        resource = orjson.loads(gateway.eds.read_bytes())["resources"][0]
        entries = resource["endpoints"][0]["lb_endpoints"]
        hosts = {one["endpoint"]["address"]["socket_address"]["address"] for one in entries}
        used = {spec.address.split(":")[0] for spec in gateway.runner.picker.table.specs()}
        return hosts == used == {upstream.host for upstream in upstreams}

    await eventually(told, what="Envoy's list")


@pytest.mark.envoy
async def test_an_endpoint_is_used_while_its_pod_is_ready(gateway, http, cluster):
    (a, b), port = await pods(gateway, cluster, 2)
    await picker(gateway, selector(cluster, port))
    await knows(gateway, a, b)
    envoy = await gateway.envoy()
    turn = {"x-laar-policy": "round-robin"}

    async def used():
        return {await served_by(http, envoy, **turn) for _ in range(4)} == wanted

    for ready in (False, True):
        await cluster.put("pods", pod("p1", b.host, ready=ready))
        wanted = {a.address, b.address} if ready else {a.address}
        await eventually(used, what="the endpoints in use")


@pytest.mark.envoy
async def test_a_new_version_rolls_out_without_a_failed_request(gateway, http, cluster):
    (a, b, c, d), port = await pods(gateway, cluster, 4)
    for name in ("p2", "p3"):
        await cluster.delete("pods", name)
    await picker(gateway, selector(cluster, port))
    await knows(gateway, a, b)
    envoy = await gateway.envoy()
    stop, statuses, used = asyncio.Event(), [], set()

    async def client():
        while not stop.is_set():
            async with ask(http, envoy, **{"x-laar-policy": "round-robin"}) as answer:
                statuses.append(answer.status)
                used.add(answer.headers.get("x-upstream"))

    async with asyncio.TaskGroup() as clients:
        for _ in range(4):
            clients.create_task(client())
        for old, leaving, new, coming in (("p0", a, "p2", c), ("p1", b, "p3", d)):
            await cluster.put("pods", pod(new, coming.host, ready=False))
            await cluster.put("pods", pod(new, coming.host))
            await eventually(lambda up=coming: up.address in used, what="traffic to the new pod")
            gone = pod(old, leaving.host, deletionTimestamp="2026-01-02T00:00:00Z")
            await cluster.put("pods", gone)
            await quiet(leaving)  # as the engine's preStop hook does
            await leaving.__aexit__(None, None, None)
            await cluster.delete("pods", old)
        await knows(gateway, c, d)
        used.clear()
        await eventually(lambda: used == {c.address, d.address}, what="only new pods in use")
        stop.set()
    assert set(statuses) == {200}


@pytest.mark.envoy
async def test_answers_in_flight_survive_the_drain_of_their_pod(gateway, http, cluster):
    (a, b), port = await pods(gateway, cluster, 2)
    await cluster.delete("pods", "p1")
    await picker(gateway, selector(cluster, port))
    await knows(gateway, a)
    envoy = await gateway.envoy()
    drained = asyncio.Event()

    async def chunks():
        yield b"data: 1\n\n"
        await asyncio.wait_for(drained.wait(), 20)
        yield b"data: [DONE]\n\n"

    a.script(Answer.sse(chunks()))
    async with ask(http, envoy) as answer:
        assert await answer.content.readline() == b"data: 1\n"
        await cluster.put("pods", pod("p1", b.host))
        await knows(gateway, a, b)
        await cluster.put("pods", pod("p0", a.host, deletionTimestamp="2026-01-02T00:00:00Z"))
        await knows(gateway, b)
        assert {await served_by(http, envoy) for _ in range(6)} == {b.address}
        drained.set()
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    await eventually(lambda: not gateway.runner.picker.table.in_flight.any(), what="the release")


@pytest.mark.envoy
async def test_a_fleet_scaled_to_zero_is_reported_and_the_first_new_pod_serves(
    gateway, http, cluster
):
    (a,), port = await pods(gateway, cluster, 1)
    await picker(gateway, selector(cluster, port))
    await knows(gateway, a)
    envoy = await gateway.envoy()
    assert await served_by(http, envoy) == a.address
    await cluster.delete("pods", "p0")
    await eventually(lambda: len(gateway.runner.picker.table) == 0, what="an empty fleet")

    async def not_ready():
        return await readiness(gateway) == NOT_SERVING

    await eventually(not_ready, what="the picker to be unready")
    async with ask(http, envoy) as answer:
        assert answer.status == 503
        assert answer.headers["x-laar-reason"] == "no-endpoints"
        assert answer.headers["retry-after"] == "1"
    await cluster.put("pods", pod("p0", a.host))
    await knows(gateway, a)

    async def served():
        async with ask(http, envoy) as answer:
            return answer.status == 200

    await eventually(served, what="an answer of the pod that came back")


@pytest.mark.envoy
async def test_a_model_rewrite_takes_precedence_over_the_gateways_header(gateway, http, cluster):
    (a,), port = await pods(gateway, cluster, 1)
    await cluster.put("inferencepools", pool(ports=(port,)))
    rule = {
        "matches": [{"model": {"value": "public"}}],
        "targets": [{"modelRewrite": "org/tiny", "weight": 1}],
    }
    rewrite = {"metadata": {"name": "r"}, "spec": {"poolRef": {"name": "fleet"}, "rules": [rule]}}
    await cluster.put("inferencemodelrewrites", rewrite)
    await picker(gateway, inference_pool(cluster))
    await knows(gateway, a)
    envoy = await gateway.envoy("full-duplex")
    a.default_answer = Answer(body=b'{"model":"org/tiny","choices":[]}')

    async def rewritten():
        async with ask(http, envoy, "public") as answer:
            return answer.status == 200

    await eventually(rewritten, what="the rewrite")
    header = {"x-gateway-model-name-rewrite": "nobody-serves-this"}
    async with ask(http, envoy, "public", **header) as answer:
        assert answer.status == 200
        assert (await answer.json())["model"] == "public"
    [*_, last] = a.asked
    assert orjson.loads(last.body)["model"] == "org/tiny"
    async with ask(http, envoy, "anything", **header) as answer:
        assert answer.status == 404  # no rule for this name, so the header applies


@pytest.mark.envoy
async def test_pools_are_selected_by_model_or_by_route_metadata(gateway, http, cluster):
    port = free_port()
    a, b, c = [await gateway.upstream(f"127.0.0.{n}", port) for n in (2, 3, 4)]
    models = {"a": "shared,only-a", "b": "shared", "c": "only-c"}
    for name, upstream in (("a", a), ("b", b), ("c", c)):
        said = {"laar.dev/model": models[name]}
        await cluster.put("pods", pod(name, upstream.host, labels={"app": name}, annotations=said))
        await cluster.put("inferencepools", pool(f"pool-{name}", name, (port,)))
    await picker(gateway, *(inference_pool(cluster, f"pool-{name}") for name in "abc"))

    def route_by_team(bootstrap):
        data = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
        [host] = data["typed_config"]["route_config"]["virtual_hosts"]
        plain = host["routes"]
        host["routes"] = [
            {
                **route,
                "match": {
                    **route["match"],
                    "headers": [
                        *route["match"].get("headers", ()),
                        {"name": "x-team", "string_match": {"exact": team}},
                    ],
                },
                "metadata": {"filter_metadata": {"laar": {"pool": f"pool-{team}"}}},
            }
            for team in ("a", "b")
            for route in plain
        ] + plain

    await eventually(lambda: len(gateway.runner.picker.table) == 3, what="three pools")
    await knows(gateway, a, b, c)
    envoy = await gateway.envoy(change=route_by_team)
    for team, upstream in (("a", a), ("b", b)):
        got = {await served_by(http, envoy, model="shared", **{"x-team": team}) for _ in range(6)}
        assert got == {upstream.address}
    turn = {"x-laar-policy": "round-robin"}
    got = set()

    async def both():  # health pauses an endpoint that gives all the same answer
        got.add(await served_by(http, envoy, model="shared", **turn))
        return got == {a.address, b.address}

    await eventually(both, what="both endpoints in turn")
    assert await served_by(http, envoy, model="only-c") == c.address
    async with ask(http, envoy, "only-a", **{"x-team": "b"}) as answer:
        assert answer.status == 503
        assert answer.headers["x-laar-reason"] == "no-candidates"


"""Labels that llm-d's guides give to pods, without the model names that clients use."""


async def picks(http, envoy):
    """Wait until Envoy calls the picker, which was not ready while it had no endpoints."""

    async def asked():
        async with ask(http, envoy) as answer:
            # Envoy, too, gives a reason while it knows no endpoint, but with a 503.
            return answer.status != 503 and "x-laar-reason" in answer.headers

    await eventually(asked, what="a decision of the picker")


async def test_outside_a_cluster_a_fix_is_suggested(gateway, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingError, match="kubectl proxy"):
        await picker(gateway, {"pool": "fleet"})


async def test_pods_with_https_and_a_base_path_and_a_key_answer(gateway, http, cluster, tmp_path):
    authority, key = Authority(tmp_path, "authority"), tmp_path / "key"
    key.write_text("the-pods-own\n")
    hosted = next(kind for kind in KINDS if kind.secure)
    pair = authority.issue("engine", host="engine.example")
    engine = await gateway.enter(StandIn(hosted, "org/tiny", pair=pair, key="the-pods-own"))
    await cluster.put("pods", pod("p0", "127.0.0.1"))
    source = selector(
        cluster, int(engine.address.rpartition(":")[2]), metrics_path="",
        base_url="https://engine.example/openai/v1",
        ca_file=str(authority.path), key_file=str(key),
    )  # fmt: skip
    runner = await picker(gateway, source)
    await eventually(lambda: len(runner.picker.table) == 1, what="the pod")
    envoy = await gateway.envoy("standalone", endpoint_cas=(str(authority.path),))
    async with ask(http, envoy, authorization="Bearer the-clients-own") as answer:
        assert answer.status == 200, await answer.text()
    assert engine.asked == ["/openai/v1/chat/completions"]
    assert engine.keys == {"Bearer the-pods-own"}
    key.unlink()
    await cluster.put("pods", pod("p1", "127.0.0.1", labels={"app": "vllm", "new": "1"}))
    await eventually(
        lambda: any("key_file" in text for text in runner.picker.problems.values()),
        what="a problem that names the file",
    )

"""The demands on an endpoint picker in the Gateway API Inference Extension's conformance tests.

One test for a case, named as theirs are (v1.6.0). Theirs drive a gateway in a cluster; here Envoy
in the shape that gateways speak stands for it. The cases about a gateway's own work (weights
between pools, statuses of objects, a picker that is missing) have no counterpart.
"""

import grpc
import orjson
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

pytestmark = pytest.mark.envoy

SELECTION = "test-epp-endpoint-selection"
SELECTED = "x-conformance-test-selected-endpoint"
SERVED = "x-conformance-test-served-endpoint"
ASKED = {"model": "conformance-fake-model", "prompt": "Write as if you were a critic"}


async def pool(gateway, **routing):
    """Three endpoints, the picker and a gateway in front; their addresses and the gateway."""
    members = [await gateway.upstream() for _ in range(3)]
    gateway.members(*((one.address, "conformance-fake-model") for one in members))
    await gateway.picker(routing={"conformance_headers": True, **routing})
    return [one.address for one in members], await gateway.envoy("gateway")


async def ask(http, envoy, **headers):
    async with http.post(
        f"{envoy.url()}/v1/completions", data=orjson.dumps(ASKED), headers=headers
    ) as answer:
        return answer.status, dict(answer.headers)


async def test_gateway_following_epp_routing(gateway, http):
    addresses, envoy = await pool(gateway)
    for address in addresses:
        status, headers = await ask(http, envoy, **{SELECTION: address})
        assert (status, headers["x-upstream"]) == (200, address)
    for _ in range(10):
        _, headers = await ask(http, envoy, **{SELECTION: ",".join(addresses[:2])})
        assert headers["x-upstream"] in addresses[:2]


async def test_gateway_following_epp_routing_with_data_parallelism(gateway, http):
    """Each port of an address is an endpoint; the address alone means all of them."""
    addresses, envoy = await pool(gateway, policy="round-robin")
    seen = set()
    for _ in range(9):
        _, headers = await ask(http, envoy, **{SELECTION: "127.0.0.1"})
        seen.add(headers["x-upstream"])
    assert seen == set(addresses)


async def test_an_endpoint_that_is_not_in_the_pool_gets_an_error(gateway, http):
    """Their two pickers differ here: 429, or any endpoint. Ours says 503, as for a subset."""
    _, envoy = await pool(gateway)
    status, headers = await ask(http, envoy, **{SELECTION: "10.9.9.9"})
    assert (status, headers["x-laar-reason"]) == (503, "no-candidates")


async def test_gateway_destination_endpoint_served(gateway, http):
    addresses, envoy = await pool(gateway)
    for address in addresses:
        _, headers = await ask(http, envoy, **{SELECTION: address})
        assert headers[SERVED] == headers[SELECTED] == headers["x-upstream"] == address


async def test_the_test_headers_mean_nothing_unless_they_are_turned_on(gateway, http):
    addresses, envoy = await pool(gateway, conformance_headers=False)
    status, headers = await ask(http, envoy, **{SELECTION: "10.9.9.9"})
    assert status == 200
    assert headers["x-upstream"] in addresses
    assert not {SERVED, SELECTED}.intersection(headers)


@pytest.mark.parametrize(
    "service", ["liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"]
)
async def test_epp_health_services(gateway, service):
    gateway.members(("127.0.0.1:1", "m"))
    await gateway.picker()
    async with grpc.aio.insecure_channel(gateway.settings.listen.health) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING

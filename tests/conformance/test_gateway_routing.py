"""The picker's cases of the Gateway API Inference Extension's conformance tests (v1.6.0).

There is one test for each case, with the same name. The originals drive a gateway in a cluster;
here an Envoy in the shape of such gateways takes its place. docs/reference/conformance.md also says
which cases a real gateway passes.
"""

import asyncio
import re
from pathlib import Path

import grpc
import orjson
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.waiting import free_ports

pytestmark = pytest.mark.envoy

SELECTION = "test-epp-endpoint-selection"
SELECTED = "x-conformance-test-selected-endpoint"
SERVED = "x-conformance-test-served-endpoint"
ASKED = {"model": "conformance-fake-model", "prompt": "Write as if you were a critic"}


async def pool(gateway, **routing):
    """Start three endpoints, the picker and a gateway; return the addresses and the gateway."""
    members = [await gateway.upstream() for _ in range(3)]
    gateway.members(*((one.address, "conformance-fake-model") for one in members))
    await gateway.picker(routing={"conformance_headers": True, **routing})
    return [one.address for one in members], await gateway.envoy("full-duplex")


async def ask(http, envoy, **headers):
    async with http.post(
        f"{envoy.url()}/v1/completions", data=orjson.dumps(ASKED), headers=headers
    ) as answer:
        return answer.status, dict(answer.headers)


async def served(http, envoy, selection):
    """Send a hundred requests, ten at a time, like the suite; return which endpoints answered."""
    at_once = asyncio.Semaphore(10)

    async def one():
        async with at_once:
            status, headers = await ask(http, envoy, **{SELECTION: ",".join(selection)})
        assert status == 200
        return headers["x-upstream"]

    return set(await asyncio.gather(*(one() for _ in range(100))))


async def test_gateway_following_epp_routing(gateway, http):
    addresses, envoy = await pool(gateway)
    for address in addresses:
        assert await served(http, envoy, [address]) == {address}
    for chosen in (addresses[:2], addresses):
        assert await served(http, envoy, chosen) <= set(chosen)


async def test_gateway_following_epp_routing_with_data_parallelism(gateway, http):
    """Each port of an address is an endpoint; the address without a port means all of them."""
    hosts, ports = [f"127.0.0.{n}" for n in (2, 3, 4)], free_ports(3)
    ranks = {host: [f"{host}:{port}" for port in ports] for host in hosts}
    for host in hosts:
        for port in ports:
            await gateway.upstream(host, port)
    a, b, c = hosts
    gateway.members(*((one, "conformance-fake-model") for host in hosts for one in ranks[host]))
    await gateway.picker(routing={"conformance_headers": True, "policy": "round-robin"})
    envoy = await gateway.envoy("full-duplex")
    for selection, wanted in (
        ([b], ranks[b]),
        ([a, ranks[c][1]], [*ranks[a], ranks[c][1]]),
        ([a, ranks[b][0], ranks[b][2], c], [*ranks[a], ranks[b][0], ranks[b][2], *ranks[c]]),
    ):
        assert await served(http, envoy, selection) == set(wanted)


async def test_epp_unavailable_fail_open(gateway, http):
    addresses, envoy = await pool(gateway)
    assert await served(http, envoy, addresses[:1]) == set(addresses[:1])
    await gateway.stop_picker()
    async with asyncio.timeout(30):
        # Each thread of Envoy learns it by losing a request, whose body it had sent to the picker.
        while (await ask(http, envoy))[0] != 200 or (await ask(http, envoy))[0] != 200:
            pass
    assert await served(http, envoy, addresses[:1]) <= set(addresses)


async def test_each_of_two_weighted_pools_uses_only_its_own_endpoints(gateway, http):
    """The picker's part of GatewayWeightedAcrossTwoInferencePools; the gateway applies the weights.

    The original names the endpoints of both pools to each picker.
    """
    addresses, envoy = await pool(gateway)
    other = [(await gateway.upstream()).address for _ in range(3)]
    assert await served(http, envoy, [*other, *addresses]) <= set(addresses)


async def test_an_endpoint_that_is_not_in_the_pool_gets_an_error(gateway, http):
    """The reference pickers answer 429 or choose any endpoint; laar answers 503, as for subsets."""
    _, envoy = await pool(gateway)
    status, headers = await ask(http, envoy, **{SELECTION: "10.9.9.9"})
    assert (status, headers["x-laar-reason"]) == (503, "no-candidates")


async def test_gateway_destination_endpoint_served(gateway, http):
    addresses, envoy = await pool(gateway)
    for address in addresses:
        _, headers = await ask(http, envoy, **{SELECTION: address})
        assert headers[SERVED] == headers[SELECTED] == headers["x-upstream"] == address


async def test_the_test_headers_have_no_effect_unless_enabled(gateway, http):
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


def test_the_report_names_exactly_the_tests_in_this_file():
    report = (Path(__file__).parents[2] / "docs/reference/conformance.md").read_text()
    source = Path(__file__).read_text()
    here = set(re.findall(r"^(?:async )?def (test_\w+)", source, re.MULTILINE))
    assert set(re.findall(r"test_\w+", report)) == here - {
        "test_the_report_names_exactly_the_tests_in_this_file"
    }
    rows = re.findall(r"^\| [A-Z]\w+ \| [^|]+ \| `test_\w+`", report, re.MULTILINE)
    assert f"{len(rows)} of its 15 cases are run here" in report

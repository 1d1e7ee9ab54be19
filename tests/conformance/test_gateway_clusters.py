"""The chosen endpoint is reached through the kinds of clusters that gateways configure.

Istio overrides the host that Envoy would choose, Envoy AI Gateway sends to the address in the
header, and kgateway looks for an endpoint whose metadata has the same text. agentgateway, which is
no Envoy, also reads the header as one address. None sends the attributes of laar's own Envoys.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from support.clients import post

pytestmark = pytest.mark.envoy

DESTINATION = "x-gateway-destination-endpoint"
BODY = orjson.dumps(
    {"messages": [{"role": "user", "content": "hello"}], "model": "m", "max_tokens": 9}
)
ATTRIBUTES = ("request_attributes", "response_attributes")
OWN = ("eds_cluster_config", "load_balancing_policy", "transport_socket_matches")


def endpoint(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {
        "endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}},
        "metadata": {"filter_metadata": {"envoy.lb": {DESTINATION: address}}},
    }


def original_destination(_addresses: list[str]) -> dict[str, Any]:
    by_header = {"use_http_header": True, "http_header_name": DESTINATION}
    return {
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": by_header,
    }


def subset(addresses: list[str]) -> dict[str, Any]:
    listed = {"lb_endpoints": [endpoint(address) for address in addresses]}
    return {
        "type": "STATIC",
        "lb_policy": "RANDOM",  # kgateway's is ROUND_ROBIN, like the picker's in this test
        "lb_subset_config": {
            "fallback_policy": "ANY_ENDPOINT",
            "subset_selectors": [{"keys": [DESTINATION]}],
        },
        "load_assignment": {"cluster_name": "laar-endpoints", "endpoints": [listed]},
    }


def of_gateway(cluster: dict[str, Any] | None) -> Any:
    """Return a change of the bootstrap: no attributes, and `cluster` instead of laar's own."""

    def change(bootstrap: Any) -> None:
        resources = bootstrap["static_resources"]
        manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        for name in ATTRIBUTES:
            manager["http_filters"][0]["typed_config"].pop(name, None)
        if cluster is not None:
            endpoints = next(c for c in resources["clusters"] if c["name"] == "laar-endpoints")
            for name in OWN:
                endpoints.pop(name, None)
            endpoints |= cluster

    return change


@pytest.mark.parametrize("make", [None, original_destination, subset])
async def test_the_chosen_endpoint_is_reached(gateway: Any, http: Any, make: Any) -> None:
    members = [await gateway.upstream() for _ in range(3)]
    gateway.members(*((one.address, "m") for one in members))
    await gateway.picker(routing={"policy": "round-robin"})
    cluster = make and make([one.address for one in members])
    envoy = await gateway.envoy("full-duplex", of_gateway(cluster))
    seen = set()
    for _ in range(12):
        answer = await post(http, envoy, BODY)
        assert answer.status == 200
        assert answer.headers["x-upstream"] == answer.headers["x-laar-endpoint"]
        seen.add(answer.headers["x-upstream"])
    assert seen == {one.address for one in members}

"""The gateway objects of the examples match their overlay, and each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deploy.kustomized import documents, render

DEPLOY = Path(__file__).parents[2] / "deploy"


def objects(name: str) -> dict[str, dict[str, Any]]:
    folder = DEPLOY / "examples" / name
    listed = documents(folder / "kustomization.yaml")[0]["resources"]
    return {one["kind"]: one for file in listed for one in documents(folder / file)}


@pytest.mark.parametrize("name", ["istio", "envoy-gateway"])
def test_route_gateway_and_pool_refer_to_each_other(name: str) -> None:
    found = objects(name)
    [parent] = found["HTTPRoute"]["spec"]["parentRefs"]
    assert parent["name"] == found["Gateway"]["metadata"]["name"]
    overlay = {one["kind"]: one for one in render(DEPLOY / "overlays" / "inference-pool")}
    pool = overlay["InferencePool"]
    [rule] = found["HTTPRoute"]["spec"]["rules"]
    [backend] = rule["backendRefs"]
    assert backend["group"] == pool["apiVersion"].partition("/")[0]
    assert (backend["kind"], backend["name"]) == (pool["kind"], pool["metadata"]["name"])
    assert rule["timeouts"]["request"] == "1h"
    picker = pool["spec"]["endpointPickerRef"]["name"]
    if name == "istio":
        assert found["DestinationRule"]["spec"]["host"] == picker
        assert found["DestinationRule"]["spec"]["trafficPolicy"]["tls"]["insecureSkipVerify"]
        assert found["Gateway"]["spec"]["gatewayClassName"] == "istio"
    else:
        assert (
            found["Gateway"]["spec"]["gatewayClassName"]
            == found["GatewayClass"]["metadata"]["name"]
        )
        [target] = found["ClientTrafficPolicy"]["spec"]["targetRefs"]
        assert target["name"] == found["Gateway"]["metadata"]["name"]

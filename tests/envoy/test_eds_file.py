from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from laar.envoy import ENDPOINTS_CLUSTER, EndpointAddress, render, write_eds
from laar.errors import SettingError

ENDPOINTS = [
    EndpointAddress(host="10.0.0.2", port=8000, metadata={"model": "m", "region": "eu"}),
    EndpointAddress(host="10.0.0.1", port=8001),
    EndpointAddress(host="10.0.0.1", port=8000),
    EndpointAddress(host="2001:db8::1", port=8000),
]


def listed(path: Path) -> list[tuple[str, int]]:
    (resource,) = json.loads(path.read_bytes())["resources"]
    assert resource["cluster_name"] == ENDPOINTS_CLUSTER
    (locality,) = resource["endpoints"]
    addresses = [e["endpoint"]["address"]["socket_address"] for e in locality["lb_endpoints"]]
    return [(address["address"], address["port_value"]) for address in addresses]


def test_the_file_lists_exactly_the_endpoints(tmp_path):
    path = tmp_path / "endpoints.json"
    assert write_eds(path, ENDPOINTS)
    assert listed(path) == sorted((e.host, e.port) for e in ENDPOINTS)
    assert write_eds(path, ENDPOINTS[1:2])
    assert listed(path) == [("10.0.0.1", 8001)]
    assert list(tmp_path.iterdir()) == [path]


def test_the_bytes_depend_on_the_set_alone(tmp_path):
    shuffled = list(ENDPOINTS)
    random.Random(1).shuffle(shuffled)
    reversed_metadata = {"region": "eu", "model": "m"}
    shuffled.append(EndpointAddress(host="10.0.0.2", port=8000, metadata=reversed_metadata))
    write_eds(tmp_path / "a.json", ENDPOINTS)
    write_eds(tmp_path / "b.json", shuffled)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_an_unchanged_list_is_not_written_again(tmp_path):
    path = tmp_path / "endpoints.json"
    write_eds(path, ENDPOINTS)
    before = path.stat().st_ino
    assert not write_eds(path, ENDPOINTS[::-1])
    assert path.stat().st_ino == before


def test_a_change_is_a_rename_and_a_new_version(tmp_path):
    path = tmp_path / "endpoints.json"
    write_eds(path, ENDPOINTS)
    with path.open("rb") as old:  # what a reader holds stays whole
        before = path.stat().st_ino
        write_eds(path, [])
        assert path.stat().st_ino != before
        versions = {json.loads(old.read())["version_info"]}
    versions.add(json.loads(path.read_bytes())["version_info"])
    assert len(versions) == 2


@pytest.mark.parametrize(
    ("host", "port"), [("vllm-0.vllm", 8000), ("[::1]", 8000), ("10.0.0.1", 0), ("10.0.0.1", 65536)]
)
def test_an_address_envoy_would_refuse_never_gets_into_the_file(host, port):
    with pytest.raises(SettingError, match="endpoint"):
        EndpointAddress(host=host, port=port)


def test_the_bootstrap_reads_this_cluster_under_its_name():
    cluster = render("sidecar")["static_resources"]["clusters"][0]  # type: ignore[index]
    assert cluster["name"] == ENDPOINTS_CLUSTER

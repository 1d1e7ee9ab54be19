from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from laar.datalayer.endpoints_file import split_address
from laar.envoy.endpoints_file import ENDPOINTS_CLUSTER, write_eds
from laar.errors import SettingError
from laar.fleet.membership import EndpointSpec

ENDPOINTS = [
    EndpointSpec(address=address, models=("m",))
    for address in ("10.0.0.2:8000", "10.0.0.1:8001", "10.0.0.1:8000", "[2001:db8::1]:8000")
]


def listed(path: Path) -> list[tuple[str, int]]:
    (resource,) = json.loads(path.read_bytes())["resources"]
    assert resource["cluster_name"] == ENDPOINTS_CLUSTER
    (locality,) = resource["endpoints"]
    addresses = [e["endpoint"]["address"]["socket_address"] for e in locality["lb_endpoints"]]
    return [(address["address"], address["port_value"]) for address in addresses]


def test_the_file_lists_exactly_the_endpoints(tmp_path):
    path = tmp_path / "endpoints.json"
    write_eds(path, ENDPOINTS)
    assert listed(path) == sorted(split_address(spec.address) for spec in ENDPOINTS)
    write_eds(path, ENDPOINTS[1:2])
    assert listed(path) == [("10.0.0.1", 8001)]
    assert list(tmp_path.iterdir()) == [path]


WRITER = """
import sys
from pathlib import Path
from laar.fleet.membership import EndpointSpec
from laar.envoy.endpoints_file import write_eds

path, port = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for number in range(60):  # lists of any length, so that a part of one is no list
    hosts = [f"10.0.{number}.{host}" for host in range(1 + number * port % 97)]
    write_eds(path, [EndpointSpec(address=f"{host}:{port}", models=("m",)) for host in hosts])
"""


def test_processes_may_write_one_file_at_the_same_time(tmp_path):
    """All workers of a picker write it when an endpoint joins or leaves."""
    path = tmp_path / "endpoints.json"
    write_eds(path, ENDPOINTS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, str(port)], **pipes)
        for port in (8001, 8002, 8003)
    ]
    for writer in writers:
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    while any(writer.poll() is None for writer in writers):
        assert listed(path)  # never an incomplete list
    for writer in writers:
        _, errors = writer.communicate(timeout=30)
        assert (writer.returncode, errors) == (0, b"")
    assert list(tmp_path.iterdir()) == [path]


def test_an_unchanged_list_is_not_written_again(tmp_path):
    path = tmp_path / "endpoints.json"
    write_eds(path, ENDPOINTS)
    before = path.stat().st_ino
    write_eds(path, ENDPOINTS[::-1])
    assert path.stat().st_ino == before


def test_a_change_is_written_by_rename_with_a_new_version(tmp_path):
    path = tmp_path / "endpoints.json"
    write_eds(path, ENDPOINTS)
    with path.open("rb") as old:  # a reader's open file must stay complete
        before = path.stat().st_ino
        write_eds(path, [])
        assert path.stat().st_ino != before
        versions = {json.loads(old.read())["version_info"]}
    versions.add(json.loads(path.read_bytes())["version_info"])
    assert len(versions) == 2


@pytest.mark.parametrize(
    "address", ["vllm-0.vllm:8000", "::1:8000", "10.0.0.1:0", "10.0.0.1:65536"]
)
def test_an_address_that_envoy_would_refuse_is_never_written_to_the_file(tmp_path, address):
    with pytest.raises((SettingError, ValueError)):
        write_eds(tmp_path / "eds.json", [EndpointSpec(address=address, models=("m",))])
    assert not list(tmp_path.iterdir())

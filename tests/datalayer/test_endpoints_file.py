from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from laar.datalayer import files
from laar.datalayer.endpoints_file import (
    EndpointsFile,
    load_endpoints,
    split_address,
)
from laar.errors import SettingError

ONE = "endpoints:\n  - address: 10.0.0.7:8000\n    model: tiny\n"
TWO = ONE + "  - address: 10.0.0.8:8000\n    model: tiny\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_every_field_reaches_the_spec(tmp_path: Path) -> None:
    text = """
endpoints:
  - address: "[2001:DB8::0001]:8000"
    models: [big, auto]
    region: eu-west
    engine: sglang
    metrics_url: https://metrics.example/page
    labels: {rack: a7}
    priority_field: true
  - address: gpu.example.:9000
    model: tiny
"""
    first, second = load_endpoints(write(tmp_path / "e.yaml", text))
    assert first.address == "[2001:db8::1]:8000"
    assert first.models == ("big", "auto")
    assert (first.region, first.engine, first.priority_field) == ("eu-west", "sglang", True)
    assert first.metrics_url == "https://metrics.example/page"
    assert dict(first.labels) == {"rack": "a7"}
    assert (second.address, second.models) == ("gpu.example.:9000", ("tiny",))
    assert second.metrics_url is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            ONE + "    modle: x\n",
            "e.yaml:4: endpoints[0].modle: unknown key `modle` (did you mean",
        ),
        (ONE + "models: x\n", "e.yaml:4: models: unknown key"),
        ("", "e.yaml:1: endpoints: is missing; add it"),
        ("endpoints:\n  - model: a\n", "e.yaml:2: endpoints[0].address: is missing; add it"),
        (ONE.replace(":8000", ""), "e.yaml:2: endpoints[0].address: '10.0.0.7' has no port"),
        (ONE.replace("8000", "80000"), "the port must be a number from 1 to 65535"),
        (ONE.replace("10.0.0.7", "::1"), "put an IPv6 address in brackets"),
        (ONE.replace("10.0.0.7:8000", '"[::z]:1"'), "e.yaml:2: endpoints[0].address: "),
        (ONE.replace("10.0.0.7", "10.0.0.777"), "e.yaml:2: endpoints[0].address: "),
        (ONE.replace("10.0.0.7", "a b"), "neither an IP address nor a DNS name"),
        (ONE.replace("10.0.0.7", "ftp://a"), "e.yaml:2: endpoints[0].address: "),
        (ONE.replace("    model: tiny\n", ""), "needs `model: name`, or `models: [name, ...]`"),
        (ONE + "    models: [b]\n", "and not both"),
        (
            ONE + "    engine: triton\n",
            "e.yaml:4: endpoints[0].engine: 'triton' is not allowed here",
        ),
        (ONE + "    metrics_url: /metrics\n", "is not an http or https URL"),
        (TWO.replace("0.8", "0.7"), "endpoints: [1] has the same address as [0] (10.0.0.7:8000)"),
        (
            TWO.replace("10.0.0.7", "https://a").replace("10.0.0.8", "https://a"),
            "endpoints: [1] has the same address as [0] (a:8000)",
        ),
        (ONE + "    model: other\n", "e.yaml:4: not valid YAML: the key 'model' occurs twice"),
        (ONE + "   - {\n", "not valid YAML"),
        ("endpoints: &a [*a]\n", "e.yaml"),
        ("just text\n", "e.yaml:1: 'just text' is not a map"),
        ("endpoints: 2026-99-99\n", "e.yaml"),
    ],
)
def test_an_error_is_reported_with_file_line_and_key(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(SettingError) as error:
        load_endpoints(write(tmp_path / "e.yaml", text))
    assert expected in str(error.value)
    assert str(tmp_path / "e.yaml") in str(error.value)


def test_all_errors_are_reported_together_up_to_a_screenful(tmp_path: Path) -> None:
    text = "endpoints:\n" + "  - address: x\n" * 100
    with pytest.raises(SettingError) as error:
        load_endpoints(write(tmp_path / "e.yaml", text))
    lines = str(error.value).splitlines()
    assert len(lines) == 21
    assert lines[-1].endswith("and 80 more errors")


def test_files_that_cannot_be_read_are_reported_clearly(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="can't be read: No such file"):
        load_endpoints(tmp_path / "none.yaml")
    (tmp_path / "latin").write_bytes(b"endpoints: [\xff]")
    with pytest.raises(SettingError, match="not UTF-8 at byte 12"):
        load_endpoints(tmp_path / "latin")
    (tmp_path / "long").write_bytes(b"#" * (files.MAX_FILE_BYTES + 1))
    with pytest.raises(SettingError, match="larger than"):
        load_endpoints(tmp_path / "long")


def test_a_pipe_or_an_impossible_name_is_reported_clearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PIPE_MS", 1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingError, match="nothing is written to this pipe"):
        load_endpoints(tmp_path / "pipe")
    for key, fault in (("pipe", "nothing is written"), (r"\0", "null byte")):
        text = f'{ONE}    key_file: "{tmp_path}/{key}"\n'
        with pytest.raises(SettingError, match=fault):
            load_endpoints(write(tmp_path / "e.yaml", text))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.7:1", ("10.0.0.7", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("a-b.c_d:80", ("a-b.c_d", 80)),
    ],
)
def test_an_address_splits_into_host_and_port(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laar.datalayer.endpoints_file.POLL_S", 0.01)


async def test_changes_take_effect_and_an_invalid_file_changes_nothing(
    tmp_path: Path, recorder: Any, start: Any, until: Any
) -> None:
    path = write(tmp_path / "e.yaml", ONE)
    file = EndpointsFile(path, recorder)
    file.load()
    assert recorder.addresses == ["10.0.0.7:8000"]
    start(file.run())
    path.write_text(TWO)
    await until(lambda: len(recorder.addresses) == 2)
    path.write_text(TWO + "    color: red\n")
    await until(lambda: recorder.problems)
    [message] = recorder.problems.values()
    assert "stay as they were" in message
    assert f"{path}:6: endpoints[1].color" in message
    assert len(recorder.addresses) == 2
    path.unlink()
    await until(lambda: "can't be read" in next(iter(recorder.problems.values())))
    assert len(recorder.addresses) == 2
    path.write_text(ONE)
    await until(lambda: len(recorder.addresses) == 1)
    assert recorder.problems == {}


async def test_a_config_map_mount_that_swaps_its_link_is_detected(
    tmp_path: Path, recorder: Any, start: Any, until: Any
) -> None:
    for version, text in (("1", ONE), ("2", TWO)):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "e.yaml", text)
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "e.yaml").symlink_to("..data/e.yaml")
    start(EndpointsFile(tmp_path / "e.yaml", recorder).run())
    await until(lambda: len(recorder.addresses) == 1)
    (tmp_path / "..tmp").symlink_to("2")
    (tmp_path / "..tmp").replace(tmp_path / "..data")
    await until(lambda: len(recorder.addresses) == 2)


async def test_an_authority_that_is_written_after_the_list_that_names_it_is_used(
    tmp_path: Path, recorder: Any, start: Any, until: Any
) -> None:
    path, ca = write(tmp_path / "e.yaml", ONE), tmp_path / "ca.pem"
    file = EndpointsFile(path, recorder)
    file.load()
    start(file.run())
    path.write_text(ONE.replace("10.0.0.7", "https://10.0.0.8") + f"    ca_file: {ca}\n")
    await until(lambda: recorder.problems)
    ca.write_text("a certificate")
    await until(lambda: recorder.addresses == ["10.0.0.8:8000"])
    assert not recorder.problems


async def test_a_change_is_not_lost_if_applying_it_fails_at_first(
    tmp_path: Path, recorder: Any, start: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, there is no memory for another thread; the task is then restarted."""
    path = write(tmp_path / "e.yaml", ONE)
    file = EndpointsFile(path, recorder)
    file.load()
    with monkeypatch.context() as without_threads:
        fault = RuntimeError("can't start new thread")
        without_threads.setattr(file, "_read", Mock(side_effect=fault))
        path.write_text(TWO)
        with pytest.raises(RuntimeError):
            await asyncio.wait_for(file.run(), 20.0)
    start(file.run())
    await until(lambda: len(recorder.addresses) == 2)


@pytest.mark.parametrize("name", ["a\nb", "a\x00", " a", "a ", "a,b", "a\x7fb", "", "x" * 257])
def test_a_model_name_that_no_header_can_carry_is_refused(tmp_path: Path, name: str) -> None:
    text = yaml.safe_dump({"endpoints": [{"address": "10.0.0.1:80", "models": [name]}]})
    with pytest.raises(SettingError, match="model name"):
        load_endpoints(write(tmp_path / "endpoints.yaml", text))

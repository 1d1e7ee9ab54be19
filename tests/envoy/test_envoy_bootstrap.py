"""Rendered bootstraps match the checked-in files, are valid for Envoy, and follow the options."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from laar.cli import app
from laar.envoy.bootstrap import render, to_yaml
from laar.envoy.endpoints_file import write_eds
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import validate
from laar.errors import SettingError
from support.bootstraps import rendered
from support.commands import run

CHECKED_IN = Path(__file__).parents[2] / "envoy"
SHAPES = ["sidecar", "standalone", "gateway"]


def data_listener(bootstrap: Any) -> Any:
    return bootstrap["static_resources"]["listeners"][0]


def connections(listener: Any) -> Any:
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def ext_proc(bootstrap: Any) -> Any:
    filters = connections(data_listener(bootstrap))["http_filters"]
    return next(of for of in filters if of["name"].endswith("ext_proc"))["typed_config"]


def bind_addresses(bootstrap: Any) -> list[str]:
    places = [*bootstrap["static_resources"]["listeners"], bootstrap["admin"]]
    return [p["address"]["socket_address"]["address"] for p in places if "address" in p]


@pytest.fixture
def options(tmp_path: Path) -> BootstrapOptions:
    path = tmp_path / "endpoints.json"
    write_eds(path, [])
    return BootstrapOptions(eds_path=str(path))


@given(st.integers(256 << 20, 1 << 36), st.integers(1, 1 << 30))
def test_what_envoy_may_hold_fits_in_its_memory_or_is_refused(memory_bytes, max_body_bytes):
    def held_bytes(connections):
        return 4 * max_body_bytes + connections * (256 + 4 * 32 << 10)

    try:
        options = BootstrapOptions(memory_bytes=memory_bytes, max_body_bytes=max_body_bytes)
    except SettingError as error:
        least = int(str(error).rpartition(" ")[2])
        assert held_bytes(100) > 0.75 * memory_bytes
        BootstrapOptions(memory_bytes=max(least, 256 << 20), max_body_bytes=max_body_bytes)
    else:
        assert 100 <= options.most_connections <= 20_000
        assert held_bytes(options.most_connections) <= 0.75 * memory_bytes


@pytest.mark.parametrize("shape", SHAPES)
def test_the_checked_in_bootstraps_match_the_rendered_ones(shape):
    path = CHECKED_IN / f"{shape}.yaml"
    assert path.read_text() == to_yaml(render(shape)), (
        f"render it again: laar envoy --shape {shape} > envoy/{shape}.yaml"
    )
    assert run("envoy", "--shape", shape).text == path.read_text()


@pytest.mark.envoy
@pytest.mark.parametrize("shape", SHAPES)
def test_envoy_accepts_every_shape_as_yaml(envoy_binary, options, shape):
    validate(yaml.safe_load(to_yaml(render(shape, options))), Path(options.eds_path))


@pytest.mark.envoy
@pytest.mark.parametrize(
    "changes",
    [
        {"picker": "picker.example.internal:9002"},
        {"picker": "[::1]:9002"},
        {
            "picker": "10.0.0.1:9002, picker.example.internal:9002",
            "picker_ca_path": certifi.where(),
        },
        {"fail_open": False},
        {"longest_hold_s": 3590.0},
        {"max_body_bytes": 1},
        {"request_timeout_s": 1e9, "idle_timeout_s": 1_000_000.5},
    ],
    ids=str,
)
def test_envoy_accepts_bootstraps_with_all_options(envoy_binary, options, changes):
    validate(render("standalone", replace(options, **changes)), Path(options.eds_path))


@pytest.mark.envoy
def test_a_bootstrap_can_be_validated_before_the_picker_has_run(envoy_binary, tmp_path):
    eds = str(tmp_path / "none yet" / "endpoints.json")
    done = CliRunner().invoke(
        app, ["envoy", "--shape", "standalone", "--validate", "--eds-file", eds]
    )
    assert (done.exit_code, eds in done.output) == (0, True), done.output


@pytest.mark.parametrize(
    ("shape", "data_address"),
    [("sidecar", "127.0.0.1"), ("standalone", "0.0.0.0"), ("gateway", "0.0.0.0")],
)
def test_each_listener_binds_to_the_address_for_its_callers(shape, data_address):
    assert bind_addresses(rendered(shape, BootstrapOptions())) == [
        data_address,
        "0.0.0.0",
        "127.0.0.1",
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_body_modes_depend_on_the_shape(shape):
    filter_ = ext_proc(rendered(shape, BootstrapOptions()))
    bodies = filter_["processing_mode"]
    answers = "STREAMED" if shape == "gateway" else "NONE"
    assert (bodies["request_body_mode"], bodies["response_body_mode"]) == ("BUFFERED", answers)
    assert filter_["allow_mode_override"]


@pytest.mark.parametrize(
    ("shape", "fail_open", "timeout"),
    [
        ("standalone", True, None),
        ("gateway", True, "1.5s"),
        ("gateway", False, "12s"),
        ("full-duplex", True, "12s"),
    ],
)
def test_late_pings_cut_streams_early_only_if_their_answers_continue(shape, fail_open, timeout):
    options = BootstrapOptions(fail_open=fail_open)
    clusters = rendered(shape, options)["static_resources"]["clusters"]
    (picker,) = (each for each in clusters if each["name"] == "laar-picker")
    (protocol,) = picker["typed_extension_protocol_options"].values()
    http2 = protocol["explicit_http_config"]["http2_protocol_options"]
    assert http2.get("connection_keepalive", {}).get("timeout") == timeout


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"picker": "9002"}, "--picker"),
        ({"picker": "host"}, "--picker"),
        ({"picker": "host:port"}, "--picker"),
        ({"picker": "http://host:1"}, "--picker"),
        ({"picker": "host:1/path"}, "--picker"),
        ({"picker": "::1:9002"}, "--picker"),
        ({"picker_key_path": "/k"}, "--picker-certificate, --picker-key"),
        (
            {"picker_certificate_path": "/c", "picker_key_path": "/k"},
            "--picker-certificate, --picker-key",
        ),
        ({"listen_port": 65536}, "--listen-port"),
        ({"admin_port": -1}, "--admin-port"),
        ({"eds_path": "endpoints.json"}, "--eds-file"),
        ({"max_body_bytes": 0}, "--max-body-bytes"),
        ({"longest_hold_s": 3591.0}, "--longest-hold"),
        ({"request_timeout_s": 0.0}, "--request-timeout"),
        ({"request_timeout_s": math.inf}, "--request-timeout"),
        ({"request_timeout_s": 1e12}, "--request-timeout"),
        ({"idle_timeout_s": -1.0}, "--idle-timeout"),
        ({"idle_timeout_s": math.nan}, "--idle-timeout"),
        ({"retries": 11}, "--retries"),
        ({"listen_host": "localhost"}, "--listen-address"),
    ],
    ids=str,
)
def test_an_invalid_option_is_reported_by_name(changes, option):
    with pytest.raises(SettingError, match=f"^{option}: "):
        BootstrapOptions(**changes)

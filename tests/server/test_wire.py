"""laar's messages match Envoy's on the wire: same names and numbers as in Envoy's definitions."""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
import types
import typing
from pathlib import Path

import betterproto2
import pytest

from laar.protocol.headers import FAIRNESS, read_head
from laar.server.extproc.messages import event_of
from laar.wire import ext_proc_pb2 as ours
from laar.wire import health_pb2


@functools.cache
def envoys() -> dict[str, type[betterproto2.Message]]:
    """Return Envoy's messages by name; their import takes a second, so only here."""
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ProcessingMode
    from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
    from envoy_data_plane.envoy.type.v3 import HttpStatus

    others = (core.HeaderMap, core.HeaderValue, core.HeaderValueOption, core.Metadata)
    return {
        **{name: kind for name, kind in vars(ext_proc).items() if isinstance(kind, type)},
        **{kind.__name__: kind for kind in (*others, HttpStatus, ProcessingMode)},
    }


STRUCTS = {
    "Struct": {"fields": 1},
    "Value": {
        "number_value": 2,
        "string_value": 3,
        "bool_value": 4,
        "struct_value": 5,
        "list_value": 6,
    },
    "ListValue": {"values": 1},
}
"""google/protobuf/struct.proto."""


def numbers(kind: type[betterproto2.Message]) -> dict[str, int]:
    return {
        field.name: field.metadata["betterproto"].number
        for field in dataclasses.fields(typing.cast("typing.Any", kind))
    }


@pytest.mark.parametrize("name", sorted(ours.DESCRIPTOR.message_types_by_name))
def test_every_field_has_the_number_used_by_envoy(name: str) -> None:
    descriptor = ours.DESCRIPTOR.message_types_by_name[name]
    known = STRUCTS.get(name) or numbers(envoys()[name])
    made = {field.name: field.number for field in descriptor.fields}
    assert made.items() <= known.items()


def test_a_message_from_envoy_is_decoded_identically() -> None:
    kinds: dict[str, typing.Any] = dict(envoys())
    header = kinds["HeaderValue"](key=":path", raw_value=b"/v1/completions")
    theirs = kinds["ProcessingRequest"](
        request_headers=kinds["HttpHeaders"](headers=kinds["HeaderMap"](headers=[header])),
        protocol_config=kinds["ProtocolConfiguration"](request_body_mode=4),
    )
    read = ours.ProcessingRequest.FromString(bytes(theirs))
    assert read.request_headers.headers.headers[0].raw_value == b"/v1/completions"
    assert read.protocol_config.request_body_mode == ours.ProcessingMode.FULL_DUPLEX_STREAMED


def test_a_header_that_is_not_text_is_treated_as_absent() -> None:
    message = ours.ProcessingRequest(request_body=ours.HttpBody(body=b"{}", end_of_stream=True))
    message.protocol_config.request_body_mode = ours.ProcessingMode.BUFFERED
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.headers['x-laar-task']"].string_value = b"\xff\xfe"
    fields["request.headers['x-laar-session']"].string_value = b"s1"
    event = event_of(ours.ProcessingRequest.FromString(message.SerializeToString()))
    head = read_head(event.headers)
    assert (head.task, head.named.session) == ("", "s1")


@pytest.mark.parametrize("kept", [False, True])
def test_tenants_in_latin_1_are_distinguished(kept: bool) -> None:
    """Many systems send Latin-1. When its bytes were replaced, these tenants counted as one."""
    found = []
    for raw in ("Müller".encode(), "Müller".encode("latin-1"), "Möller".encode("latin-1")):
        message = ours.ProcessingRequest()
        if kept:
            message.request_body.body = b"{}"
            message.protocol_config.request_body_mode = ours.ProcessingMode.BUFFERED
            fields = message.attributes["envoy.filters.http.ext_proc"].fields
            fields[f"request.headers['{FAIRNESS}']"].string_value = raw
        else:
            message.request_headers.headers.headers.add(key=FAIRNESS, raw_value=raw)
        event = event_of(ours.ProcessingRequest.FromString(message.SerializeToString()))
        found.append(read_head(event.headers).tenant)
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("generated", [ours, health_pb2])
def test_the_messages_are_read_by_every_protobuf_that_pip_may_install(
    generated: types.ModuleType,
) -> None:
    """Generated code refuses to load with a protobuf older than its generator."""
    made_with = re.search("Protobuf Python Version: (.+)", Path(generated.__file__).read_text())
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    [oldest] = [it for it in project["project"]["dependencies"] if it.startswith("protobuf")]
    assert made_with is not None
    assert oldest == f"protobuf>={made_with[1]}"

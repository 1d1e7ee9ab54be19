"""Messages with attributes that are no text."""

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.server.extproc.mending import read_message


def written(values, body=b""):
    """A message with these attributes, of bytes."""
    message = pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True))
    message.protocol_config.request_body_mode = 2
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.update({"x": ["10.0.0.1:80"], "n": 1.5})
    text = {name: f"<{'-' * len(value)}{i}>" for i, (name, value) in enumerate(values.items())}
    message.attributes["envoy.filters.http.ext_proc"].update(text)
    data = message.SerializeToString()
    for i, value in enumerate(values.values()):  # of the same length, so that all lengths hold
        old = f"<{'-' * len(value)}{i}>".encode()
        data = data.replace(old, b"<" + value + b"%d>" % i)
    return data


def attributes(message):
    return {
        name: value.string_value
        for one in message.attributes.values()
        for name, value in one.fields.items()
    }


@given(
    values=st.dictionaries(st.text("abc", min_size=1, max_size=5), st.binary(max_size=300)),
    body=st.binary(max_size=2000),
)
@settings(max_examples=150, deadline=None)
def test_what_is_text_is_kept_and_the_rest_of_the_message_whole(values, body):
    message = read_message(written(values, body))
    plain = pb.ProcessingRequest.FromString(written({}, body))
    kept = {}
    for i, (name, value) in enumerate(values.items()):
        try:
            kept[name] = f"<{value.decode()}{i}>"
        except UnicodeDecodeError:
            continue
    assert attributes(message) == kept
    message.ClearField("attributes")
    plain.ClearField("attributes")
    assert message == plain


@given(noise=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_noise_is_a_message_or_a_fault_of_protobufs(noise):
    try:
        read_message(noise)
    except DecodeError:
        return


def test_a_body_that_is_cut_off_is_a_fault():
    with pytest.raises(DecodeError):
        read_message(written({"a": b"\xff"}, b"x" * 500)[:-100])

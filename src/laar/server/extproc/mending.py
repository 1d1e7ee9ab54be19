"""Messages of Envoy that protobuf refuses.

Attributes are text to protobuf, which takes nothing but UTF-8 for that, while HTTP takes any bytes
in a header. One header of a client's would make the whole message unreadable, and its request would
miss the picker. So a message that cannot be read is read without the attributes that are not text:
such a header counts as absent, as a malformed one does everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError

__all__ = ["read_message", "try_read_message"]

_ATTRIBUTES = pb.ProcessingRequest.DESCRIPTOR.fields_by_name["attributes"].number
_VALUE = 2  # of a map's entry, which is a message of key and value
_MAX_SHIFT = 63  # protobuf's own limit; without one a long number would take quadratic time
_BYTES = 2  # wire type of everything that has a length


def read_message(data: bytes) -> pb.ProcessingRequest:
    """Reads a message, without attributes that are not UTF-8.

    Raises:
        DecodeError: something else is wrong with it.
    """
    try:
        return pb.ProcessingRequest.FromString(data)
    except DecodeError:
        return _mended(data)


def try_read_message(data: bytes) -> pb.ProcessingRequest | DecodeError:
    """As `read_message`, with the error as a value: grpc would log a traceback for each."""
    try:
        return read_message(data)
    except DecodeError as error:
        return error


def _mended(data: bytes) -> pb.ProcessingRequest:
    fields = list(_fields(data))
    message = pb.ProcessingRequest.FromString(
        b"".join(whole for number, whole, _ in fields if number != _ATTRIBUTES)
    )
    readable = message.attributes["mended"]
    for number, _, entry in fields:
        if number == _ATTRIBUTES:
            for key, _, attributes in _fields(entry):
                for _, attribute, _ in _fields(attributes) if key == _VALUE else ():
                    try:
                        readable.MergeFromString(attribute)
                    except DecodeError:
                        continue
    return message


def _fields(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The fields of a message on the wire: number, all of its bytes, its content."""
    at = 0
    while at < len(data):
        start = at
        tag, at = _varint(data, at)
        if tag & 7 == _BYTES:
            length, at = _varint(data, at)
            content, at = data[at : at + length], at + length
        elif tag & 7 == 0:
            content = b""
            _, at = _varint(data, at)
        else:
            raise DecodeError("a wire type that the ext_proc protocol does not use")
        yield tag >> 3, data[start:at], content


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _MAX_SHIFT:
            break
    raise DecodeError("cut off")

"""Records in batches, as JSON, which pickers send each other.

JSON, since an operator can look at it, and msgspec reads it checked as fast as any other form. A
record is a list that begins with its tag; hashes are base64. No input is trusted: an invalid load
or record is left out and counted, a batch of another schema or namespace is not read at all.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from laar.errors import LaarError
from laar.sharing.records import Count, Load, Record, Text

SCHEMA = 3

MAX_BATCH_BYTES = 4 << 20
"""Longest batch that is read. All loads of 10,000 endpoints are 1 MB, a longest chain 50 kB."""

_FEW = Meta(max_length=20_000)


class Unreadable(LaarError):  # noqa: N818 - what it is, not that it is an error
    """A batch that is not for this picker; `reason` is one of few."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Batch(Struct, frozen=True):
    """Records of one picker, in order.

    Args:
        schema: version of this form.
        namespace: pickers of one namespace read each other.
        origin: the picker, as it is called since its start; another start is another origin.
        seq: 1, 2, 3 ...
        key_id: identifies the key of its hashes: hashes of the same key can be compared.
        sent_at_s: the origin's wall clock, for showing how old records are; nothing depends on it.
        oldest_open: entries before it have ended, even if their end was not received.
        full: loads that are not in it are zero.
        loads: loads by the endpoints' addresses.
        records: the records.
    """

    schema: int
    namespace: Text
    origin: Text
    seq: Count
    key_id: Text
    sent_at_s: float
    oldest_open: Count
    full: bool
    loads: Annotated[dict[Text, Load], _FEW]
    records: Annotated[list[Record], _FEW]


write_batch = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Batch).decode


def read_batch(namespace: str, data: bytes) -> tuple[Batch, int]:
    """Read a batch; return it and the number of its invalid loads and records.

    Raises:
        Unreadable: it is too long, no batch, of another schema or of another namespace.
    """
    if len(data) > MAX_BATCH_BYTES:
        raise Unreadable("too-long")
    try:
        batch, bad = _read(data), 0
    except (ValueError, RecursionError):  # bad UTF-8 in a string is no DecodeError
        batch, bad = _valid_part(namespace, data)
    _check(namespace, batch.schema, batch.namespace)
    records = [record for record in batch.records if record.makes_sense()]
    if len(records) < len(batch.records):
        bad += len(batch.records) - len(records)
        batch = msgspec.structs.replace(batch, records=records)
    return batch, bad


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value from JSON is of this kind, within its declared bounds."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


def _valid_part(namespace: str, data: bytes) -> tuple[Batch, int]:
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
        _check(namespace, document.get("schema"), document.get("namespace"))
        loads, records = document["loads"], document["records"]
        document["loads"] = {
            address: load
            for address, load in loads.items()
            if _fits(address, Text) and _fits(load, Load)
        }
        document["records"] = [record for record in records if _fits(record, Record)]
        batch = msgspec.convert(document, Batch)
    except (ValueError, RecursionError, KeyError, AttributeError, TypeError):
        raise Unreadable("no-batch") from None
    return batch, len(loads) + len(records) - len(batch.loads) - len(batch.records)


def _check(namespace: str, schema: object, of: object) -> None:
    if schema != SCHEMA:
        raise Unreadable("schema")
    if of != namespace:
        raise Unreadable("namespace")

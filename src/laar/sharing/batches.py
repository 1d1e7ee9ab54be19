"""Batches of records, as pickers send them to each other in JSON.

Operators can read JSON, and msgspec parses and validates it as fast as any other format. A record
is a list that begins with its tag; hashes are base64. Input is untrusted: invalid loads and records
are skipped and counted, and batches with a different schema or namespace are rejected.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from laar.errors import LaarError
from laar.sharing.records import Load, Record
from laar.untrusted import Count, Text, valid

SCHEMA = 4

MAX_BATCH_BYTES = 2 << 20
"""Maximum size of a batch. All loads of 10,000 endpoints take 1 MB, the longest chain 50 kB."""

MAX_RECORDS = 256
"""Maximum number of records in a batch. Pickers send 128, which take 3 ms to apply."""


class Unreadable(LaarError):  # noqa: N818 - names the condition
    """Raised for a batch that this picker can't use; the text is one of a few fixed words."""


class Batch(Struct, frozen=True):
    """A picker's records, in order.

    Args:
        namespace: pickers read only batches of their own namespace.
        origin: name of the sending process; a restarted picker has a new name.
        seq: number of the batch: 1, 2, 3 ...
        key_id: identifies the key of its hashes; only hashes made with the same key are comparable.
        sent_at_s: wall clock of the sender; used only to display the age of records.
        oldest_open: the oldest open entry; earlier entries have ended, even if no end was received.
        full: loads that this batch does not list are zero.
    """

    schema: int
    namespace: Text
    origin: Text
    seq: Annotated[int, Meta(ge=0, lt=1 << 53)]  # exact as a float, in which a metric sums it
    key_id: Text
    sent_at_s: float
    oldest_open: Count
    full: bool
    loads: Annotated[dict[Text, Load], Meta(max_length=20_000)]
    records: Annotated[list[Record], Meta(max_length=MAX_RECORDS)]


write_batch = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Batch).decode


def read_batch(namespace: str, data: bytes) -> tuple[Batch, int]:
    """Read a batch; return it and the number of its invalid loads and records.

    Raise `Unreadable` if the data is too long, not a batch, or of a different schema or namespace.
    """
    if len(data) > MAX_BATCH_BYTES:
        raise Unreadable("too-long")
    try:
        batch, bad = _read(data), 0
    except (ValueError, RecursionError):  # bad UTF-8 in a string does not raise DecodeError
        batch, bad = _valid_part(namespace, data)
    _check(namespace, batch.schema, batch.namespace)
    records = [record for record in batch.records if record.makes_sense()]
    if len(records) < len(batch.records):
        bad += len(batch.records) - len(records)
        batch = msgspec.structs.replace(batch, records=records)
    return batch, bad


def _valid_part(namespace: str, data: bytes) -> tuple[Batch, int]:
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
        _check(namespace, document.get("schema"), document.get("namespace"))
        loads, records = [*document["loads"].items()], [*document["records"]]
        if len(records) > MAX_RECORDS:
            raise ValueError
        document["loads"] = dict(valid(loads, tuple[Text, Load]))
        document["records"] = list(valid(records, Record))
        batch = msgspec.convert(document, Batch)
    except (ValueError, RecursionError, KeyError, AttributeError, TypeError):
        raise Unreadable("no-batch") from None
    return batch, len(loads) + len(records) - len(batch.loads) - len(batch.records)


def _check(namespace: str, schema: object, of: object) -> None:
    if schema != SCHEMA:
        raise Unreadable("schema")
    if of != namespace:
        raise Unreadable("namespace")

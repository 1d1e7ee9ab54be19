"""Snapshots of a picker's state, for pickers that start.

A snapshot is data only: JSON after a checksum. It may come from a store or a file that anyone can
write, so every part is validated and invalid parts are skipped. Loads are not included: other
pickers' loads arrive within a second, and a starting picker's own are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from laar.fleet.away import MAX_MODELS, MAX_OTHERS, Away
from laar.prefix.beliefs import PrefixBeliefs, ShownCaching
from laar.prefix.density import Density
from laar.prefix.index import Kept
from laar.prefix.lengths import MAX_KNOWN, Known
from laar.sharing.records import Hashes, Moved, from_bytes, to_bytes
from laar.sharing.sharing import Sharing
from laar.untrusted import Amount, Text, valid

SCHEMA = 1

MAX_BLOCKS = 1 << 20
"""Maximum number of prompt blocks in a snapshot; the latest are kept. They take 11 MB and cover
about 100 busy endpoints' caches."""
_PIECE = 1024  # prompts

MAX_ORDERS = 8192
"""Maximum number of document orders that are restored from a snapshot."""

MAX_NAMES = MAX_MODELS + MAX_OTHERS
"""Maximum number of model names that are restored, and of endpoints and tenants."""

MAX_SNAPSHOT_BYTES = 64 << 20


class _Use(Struct, array_like=True):
    """A prompt at an endpoint, as in `laar.prefix.index.Kept`, and its end."""

    address: Text
    start: int
    end: int
    hashes: Hashes
    age_s: Amount


class _Sizes(NamedTuple):
    """Cache sizes by address, as in `PrefixBeliefs`."""

    bytes_per_token: Annotated[float, Meta(ge=0.25, le=16)]
    rooms_bytes: dict[Text, Annotated[int, Meta(ge=0, le=1 << 50)]]


_Length = tuple[Annotated[int, Meta(ge=0)], Annotated[dict[Text, Known], Meta(max_length=8)]]
"""The hash of a prompt, and its length by model."""

_Name = tuple[Text, Text, tuple[Text, ...], Amount]
"""A model's name, its first name, its pools, and the seconds since it was served, as in `Away`."""


class SnapshotFault(ValueError):  # noqa: N818 - names the condition
    """The snapshot cannot be used; the text gives the reason."""


def snapshot(
    sharing: Sharing, now: float, *, with_key: bool, place: str = ""
) -> Callable[[], bytes]:
    """Collect the current state; return a function that serializes it on any thread.

    Args:
        sharing: the picker's sharing.
        now: seconds, monotonic.
        with_key: include the hash secret; only for the picker's own file.
        place: position of the last stream record that the snapshot includes.
    """
    director = sharing.director
    table = director.table
    addresses = {slot: table.spec(slot).key for slot in table.active.tolist()}
    uses: Callable[[], list[Kept]] = list
    document: dict[str, Any] = director.plugins.save()
    if sharing.prefixes is not None:
        beliefs = sharing.prefixes.beliefs
        uses = beliefs.index.dump(MAX_BLOCKS, now)
        document |= _beliefs(beliefs, addresses, now)
    document |= {
        "v": SCHEMA,
        "at_s": sharing.wall_clock(),
        "ns": sharing.settings.namespace,
        "key_id": sharing.key_id,
        "place": place,
        "names": table.away.state(table.specs(), now),
        "engines": director.engines.state(),
    }
    orders = sharing.orders.latest() if sharing.orders is not None else iter(())
    if with_key:
        document["key"] = sharing.key.hex()

    def write() -> bytes:
        if (online := sharing.online) is not None:
            # Serialized first: outcomes received after `place` was read will be counted twice.
            document["outcomes"] = online.state(now)
        kept = (
            _Use(addresses[at], start, start + len(hashes), to_bytes(hashes), round(age_s, 1))
            for at, start, hashes, age_s in uses()
            if at in addresses
        )
        # In pieces: while one is encoded, no other thread runs.
        pieces = iter(lambda: list(islice(kept, _PIECE)), [])
        encoded = b",".join(msgspec.json.encode(piece)[1:-1] for piece in pieces)
        document["uses"] = msgspec.Raw(b"[" + encoded + b"]")
        document["orders"] = [Moved(key, changes) for key, changes in orders]
        data = msgspec.json.encode(document)
        return _digest(data) + b"\n" + data

    return write


def _beliefs(beliefs: PrefixBeliefs, addresses: Mapping[int, str], now: float) -> dict[str, Any]:
    """Return what was learned about prefixes, other than the prompts themselves."""
    rooms_bytes = beliefs.index.room_bytes.tolist()
    rooms = {address: rooms_bytes[slot] for slot, address in addresses.items()}
    return {
        "sizes": _Sizes(beliefs.density.mean, rooms),
        "shown": [(address, beliefs.state(slot)) for slot, address in addresses.items()],
        "evictions": beliefs.evictions.state(now),
        "known": list(beliefs.lengths.known.items()),
        "lengths": beliefs.lengths.state(),
        "partial": list(beliefs.lengths.partial),
    }


def read_snapshot(data: bytes, namespace: str) -> dict[str, Any]:
    """Return the snapshot as plain values; may run on any thread.

    Raise `SnapshotFault` if the snapshot is damaged, or of a different version or namespace.
    """
    digest, _, body = data.partition(b"\n")
    if len(data) > MAX_SNAPSHOT_BYTES or digest != _digest(body):
        raise SnapshotFault("is too large, or has a wrong checksum")
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        raise SnapshotFault("is not a snapshot") from None
    if not isinstance(document, dict) or document.get("v") != SCHEMA:
        raise SnapshotFault(f"does not have version {SCHEMA}")
    if document.get("ns") != namespace:
        raise SnapshotFault("is for another namespace")
    return document


def key_of(document: dict[str, Any]) -> bytes | None:
    """Return the secret with which its hashes were made; None if it is missing or invalid."""
    try:
        return bytes.fromhex(document["key"])
    except (KeyError, ValueError, TypeError):
        return None


def restore(sharing: Sharing, document: dict[str, Any], now: float) -> int:
    """Restore a snapshot into a new picker; return the number of prompts restored.

    Prompts are restored only if they were hashed with the same key.
    """
    director = sharing.director
    slot_of = director.table.slot  # -1 for an endpoint that is unknown here

    def each(name: str, kind: Any, most: int = MAX_NAMES) -> Iterator[Any]:
        return islice(valid(document.get(name), kind), most)

    made_at_s, now_s = document.get("at_s"), sharing.wall_clock()
    # Outcomes, names and prompts age even while no picker runs.
    then = now - (max(0.0, now_s - made_at_s) if isinstance(made_at_s, float) else 0.0)
    kept = 0
    same_key = document.get("key_id") == sharing.key_id
    if same_key and sharing.orders is not None:
        for turn in each("orders", Moved, MAX_ORDERS):
            sharing.orders.put(turn.key, turn.changes)
    if sharing.prefixes is not None:
        beliefs = sharing.prefixes.beliefs
        if same_key:
            # Make room for the prompts: engines report their cache sizes only after the start.
            for sizes in valid([] if beliefs.index.uses else [document.get("sizes")], _Sizes):
                beliefs.density = Density(sizes.bytes_per_token)
                for address, room_bytes in sizes.rooms_bytes.items():
                    if (slot := slot_of(address)) >= 0:
                        beliefs.index.set_capacity(slot, room_bytes)
            kept = beliefs.index.restore(_uses(sharing, document.get("uses")), then)
            beliefs.lengths.known.update(each("known", _Length, MAX_KNOWN))
        for address, shown in each("shown", tuple[Text, ShownCaching]):
            if (slot := slot_of(address)) >= 0:
                beliefs.restore(slot, shown)
        beliefs.evictions.restore(each("evictions", tuple[Amount, Amount, Amount]), then)
        beliefs.lengths.restore(document.get("lengths"))
        beliefs.lengths.partial.update(each("partial", Text))
    director.engines.restore(document.get("engines"), now)
    director.plugins.restore(document)
    for name, model, pools, age_s in each("names", _Name):
        director.table.away.hear(Away(name, model, pools, then - age_s), now)
    # A picker that learned alone while the store was unreachable keeps what it learned; one that
    # has just started may have received a few outcomes before its own file was read.
    if (online := sharing.online) is not None and (sharing.outbox.closed or not online.cells):
        online.restore(document.get("outcomes"), now, away_s=now - then)
    return kept


def _uses(sharing: Sharing, entries: object) -> Iterator[Kept]:
    table = sharing.director.table
    for use in islice(valid(entries, _Use), MAX_BLOCKS):
        slot = table.slot(use.address)
        if slot >= 0 and len(use.hashes) % 8 == 0:
            yield Kept(slot, use.start, from_bytes(use.hashes), use.age_s)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=32).hexdigest().encode()

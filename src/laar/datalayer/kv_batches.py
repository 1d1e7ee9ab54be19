"""Decode batches of KV cache events from vLLM and SGLang.

vLLM's events (``--kv-events-config``) are maps, or arrays in older releases; SGLang's have the same
leading fields in both forms. A batch is an array.

Blocks are tracked in the memory that prefills read, and as copies in slower tiers (host, disk,
peer). For a hybrid model, the first layer group with full attention is tracked: a sliding window
drops the start of a prompt while the prompt is still useful. The states of recurrent layers (vLLM's
groups of kind ``mamba``) are tracked by their hashes only: a prompt is resumed where one was kept.
Their events' token ids span the blocks that were skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from laar.prefix.tiers import FAR, HOST
from laar.prefix.tokens import Stored

_MEDIUM = "GPU"
"""The medium that prefills read from; vLLM uses this name on CPUs too."""
_TIERS = {
    _MEDIUM: 0,
    **dict.fromkeys(("CPU", "CPU_PINNED"), HOST),
    **dict.fromkeys(("STORAGE", "DISK", "EXTERNAL"), FAR),
}
"""Tiers by medium, as vLLM and SGLang name them."""

MAX_BLOCKS = 131_072
"""Maximum number of blocks in an event: 100,000 tokens in pages of one token."""

_PIECE_BLOCKS = 4096
"""Blocks that are applied without interruption."""

MAX_HASH_BYTES = 64
"""Maximum length of a block's hash, since hashes are kept; vLLM's SHA-256 has 32 bytes."""


class Removed(NamedTuple):
    """Blocks, by the engine's hashes, removed from a tier of memory (`laar.prefix.tiers`)."""

    hashes: Sequence[int | bytes]
    tier: int = 0
    is_state: bool = False


class Cleared(NamedTuple):
    """A cache was emptied."""

    at_s: float = math.nan
    """Time by the engine's clock; NaN if unknown."""


Event = Stored | Removed | Cleared


@dataclass(slots=True)
class Groups:
    """Selects which layer groups of a hybrid model to track, based on the blocks stored.

    Removal events have a group's index but not its kind, and all groups share a block's hash.
    """

    counted: int = 0
    attends_to_all: bool = False
    states: int | None = None

    def is_state(self, raw: Mapping[str, Any]) -> bool | None:
        """Return whether an event is about states, not blocks; None if its group is not tracked."""
        group, kind = raw.get("group_idx") or 0, raw.get("kv_cache_spec_kind")
        if kind in _WHOLE and not self.attends_to_all:
            self.counted, self.attends_to_all = group, True
        if kind in _STATES and self.states is None:
            self.states = group
        if group == self.states:
            return True if kind in (*_STATES, None, "unknown") else None
        return False if group == self.counted and kind in _FOLLOWED else None


_STATES = ("mamba",)
"""vLLM's kinds of layer groups with a recurrent state."""
_WHOLE = ("full_attention", "mla_attention", "sink_full_attention")
"""vLLM's kinds of layer groups that attend to the whole prompt."""
_FOLLOWED = (*_WHOLE, None, "unknown")
"""Kinds that may be tracked; old releases, removed blocks and mixed groups use the last two."""


def decode_batch(payload: bytes, groups: Groups) -> list[Event]:
    """Decode one message into events; fields after its time and its events are ignored.

    Raise `ValueError` if the message is not a batch of events.
    """
    try:
        at_s, events, *_ = msgspec.msgpack.decode(payload)
        if not isinstance(events, list):
            raise ValueError("it is not an array of a time and events")
        found = [event for raw in events if (event := _event(raw, groups)) is not None]
    except _FAULTS as error:
        raise ValueError(f"{type(error).__name__} {error}".strip()) from None
    return [Cleared(_time(at_s)) if type(event) is Cleared else event for event in found]


def in_pieces(event: Event) -> Iterator[Event]:
    """Yield an event of many blocks as several events, of which the first has the session."""
    if isinstance(event, Cleared) or len(event.hashes) <= _PIECE_BLOCKS:
        yield event
        return
    for at in range(0, len(event.hashes), _PIECE_BLOCKS):
        part = slice(at, at + _PIECE_BLOCKS)
        if isinstance(event, Removed):
            yield event._replace(hashes=event.hashes[part])
            continue
        size = len(event.ids) // len(event.hashes)
        yield replace(
            event,
            hashes=event.hashes[part],
            parent=event.hashes[at - 1] if at else event.parent,
            ids=event.ids[at * size : (at + _PIECE_BLOCKS) * size],
            extra=event.extra[part],
            session="" if at else event.session,
        )


def time_of(payload: bytes) -> float:
    """Return a message's time in seconds, by the engine's clock; NaN if it has none."""
    try:
        parts = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
        return _time(msgspec.msgpack.decode(parts[0]))
    except _FAULTS:
        return math.nan


_FAULTS = (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError)


def _time(value: object) -> float:
    return value if isinstance(value, float) else math.nan


_STORED = (
    *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"),
    *("medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
    *("sliding_window", "locality", "ownership", "session_id"),
)
_REMOVED = ("type", "block_hashes", "medium", "group_idx")
"""Field order of the array forms."""


def _event(raw: Any, groups: Groups) -> Event | None:
    """Convert an event in either form; return None if it is not tracked."""
    if not isinstance(raw, dict):
        places = _REMOVED if raw[0] == "BlockRemoved" else _STORED
        raw = dict(zip(places, raw, strict=False))
    kind = raw["type"]
    if kind == "AllBlocksCleared":
        return Cleared()
    if kind not in ("BlockStored", "BlockRemoved"):
        return None
    tier = _TIERS.get(str(raw.get("medium") or _MEDIUM).upper())
    if tier is None or (is_state := groups.is_state(raw)) is None:
        return None
    if raw.get("locality") == "REMOTE":
        tier = FAR
    hashes, parent = raw["block_hashes"], raw.get("parent_block_hash")
    if not isinstance(hashes, list) or not all(
        isinstance(it, int) or (isinstance(it, bytes) and len(it) <= MAX_HASH_BYTES)
        for it in hashes
    ):
        raise ValueError(f"{kind} without block hashes")
    if len(hashes) > MAX_BLOCKS:
        raise ValueError(f"{kind} of more than {MAX_BLOCKS} blocks")
    if kind == "BlockRemoved":
        return Removed(hashes, tier, is_state)
    if tier or not hashes or is_state:
        return Stored(hashes=hashes, tier=tier, is_state=is_state)
    if isinstance(raw.get("lora_name"), dict):  # SGLang's metadata, before events were maps
        raw |= raw.pop("lora_name")
    size, ids = raw.get("block_size"), raw.get("token_ids")
    ids = np.array(ids if isinstance(ids, list) else [], np.uint32)
    adapter, session = raw.get("lora_name"), raw.get("session_id")
    if not isinstance(adapter, str):
        adapter = None if raw.get("lora_id") is None else str(raw["lora_id"])
    extra = _extra(raw.get("extra_keys"), adapter, len(hashes))
    if parent is None and raw.get("cache_salt"):  # later blocks differ by their parents
        extra = (str(raw["cache_salt"]), *[""] * (len(hashes) - 1))
    return Stored(
        hashes=hashes,
        parent=parent if isinstance(parent, int | bytes) else None,
        ids=ids[:, 0] if ids.ndim == 2 else ids.reshape(-1),  # for EAGLE, SGLang publishes pairs
        block_size=size if isinstance(size, int) and 0 < size < 1 << 20 else 0,
        adapter=adapter or "",
        extra=extra,
        session=session if isinstance(session, str) else "",
    )


def _extra(given: Any, adapter: str | None, blocks: int) -> tuple[str, ...]:
    """Return the extra keys of each block's hash; the first block's include the cache salt."""
    if not isinstance(given, list) or not any(given):
        return ()
    if len(given) != blocks:
        raise ValueError(f"extra keys for {len(given)} blocks instead of {blocks}")
    return tuple(
        "\0".join(str(key) for key in keys if key is not None and key != adapter)
        if isinstance(keys, list)
        else ""
        for keys in given
    )

"""Batches of KV cache events, as vLLM and SGLang encode them.

vLLM's (``--kv-events-config``) come as maps, or as arrays from older releases; SGLang's are arrays
with the same first places.

Blocks count in the memory that prefills read from, and as copies in slower memory, from where they
are fetched: the host's, a disk's or a peer's. Of the groups of a hybrid
model's layers one counts, the first that attends to the whole prompt: a sliding window lets go of a
prompt's beginning while the prompt is still of use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from laar.prefix.tiers import FAR, HOST
from laar.prefix.tokens import Stored

_MEDIUM = "GPU"
"""The name of the memory that prefills read from, with vLLM on CPUs as well."""
_TIERS = {
    _MEDIUM: 0,
    **dict.fromkeys(("CPU", "CPU_PINNED"), HOST),
    **dict.fromkeys(("STORAGE", "DISK", "EXTERNAL"), FAR),
}
"""Tiers by the names of media (vLLM, SGLang)."""


class Removed(NamedTuple):
    """Blocks, by the engine's names, that left a tier of memory (`laar.prefix.tiers`)."""

    hashes: Sequence[int | bytes]
    tier: int = 0


class Cleared(NamedTuple):
    """A cache was emptied."""

    at_s: float = math.nan
    """By the engine's clock; NaN where that is not known."""


Event = Stored | Removed | Cleared


@dataclass(slots=True)
class Groups:
    """Which of a hybrid model's groups of layers counts, by the blocks that were stored.

    Events of removed blocks name the group and not its kind, and all groups give a block one name.
    """

    counted: int = 0
    attends_to_all: bool = False

    def counts(self, raw: Mapping[str, Any]) -> bool:
        """Return whether an event is of the group that counts."""
        group, kind = raw.get("group_idx") or 0, raw.get("kv_cache_spec_kind")
        if kind in _WHOLE and not self.attends_to_all:
            self.counted, self.attends_to_all = group, True
        return bool(group == self.counted) and kind in _FOLLOWED


_WHOLE = ("full_attention", "mla_attention", "sink_full_attention")
"""vLLM's kinds of groups that attend to the whole prompt."""
_FOLLOWED = (*_WHOLE, None, "unknown")
"""Those, and what older releases, removed blocks and groups of several kinds have."""


def decode_batch(payload: bytes, groups: Groups) -> list[Event]:
    """Decode one message: its time, its events, and more that is not needed.

    Raises:
        ValueError: it is none.
    """
    try:
        at_s, events, *_ = msgspec.msgpack.decode(payload)
        found = [event for raw in _joined(events) if (event := _event(raw, groups)) is not None]
    except _FAULTS as error:
        raise ValueError(f"{type(error).__name__} {error}".strip()) from None
    return [Cleared(_time(at_s)) if type(event) is Cleared else event for event in found]


def time_of(payload: bytes) -> float:
    """Return the time of a message in seconds, by the engine's clock; NaN where it has none."""
    try:
        return _time(msgspec.msgpack.decode(payload)[0])
    except _FAULTS:
        return math.nan


_FAULTS = (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError)


def _time(value: object) -> float:
    return value if isinstance(value, float) else math.nan


def _joined(events: Iterable[Any]) -> list[Any]:
    """Yield the events, joining those of pages that follow one another in a prompt.

    SGLang reports each page by itself, and its pages have one token by default.
    """
    joined: list[Any] = []
    for event in events:
        if joined and _follows(event, joined[-1]):
            joined[-1][1] += event[1]
            joined[-1][3] += event[3]
        else:
            joined.append(event)
    return joined


def _follows(event: Any, last: Any) -> bool:
    return (
        isinstance(event, list)
        and isinstance(last, list)
        and min(len(event), len(last)) > _PAGE.start
        and event[0] == last[0] == "BlockStored"
        and all(isinstance(stored[at], list) for stored in (event, last) for at in (1, 3))
        and event[2] is not None
        and event[2:3] == last[1][-1:]
        and event[_PAGE] == last[_PAGE]
        and not any(event[_PAGE.stop :] + last[_PAGE.stop :])
    )


_PAGE = slice(4, 7)
"""The places of what pages of one prompt have in common: size, adapter, and medium if there."""
_STORED = (
    *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"),
    *("medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
    *("sliding_window", "locality", "ownership", "session_id"),
)
_REMOVED = ("type", "block_hashes", "medium", "group_idx")
"""The places of arrays."""


def _event(raw: Any, groups: Groups) -> Event | None:
    """Read one event in either form; None for an unknown kind."""
    if not isinstance(raw, dict):
        places = _REMOVED if raw[0] == "BlockRemoved" else _STORED
        raw = dict(zip(places, raw, strict=False))
    kind = raw["type"]
    if kind == "AllBlocksCleared":
        return Cleared()
    if kind not in ("BlockStored", "BlockRemoved"):
        return None
    tier = _TIERS.get(str(raw.get("medium") or _MEDIUM).upper())
    if tier is None or not groups.counts(raw):
        return None
    if raw.get("locality") == "REMOTE":
        tier = FAR
    hashes, parent = raw["block_hashes"], raw.get("parent_block_hash")
    if not isinstance(hashes, list) or not all(isinstance(hash_, int | bytes) for hash_ in hashes):
        raise ValueError(f"{kind} without block hashes")
    if kind == "BlockRemoved":
        return Removed(hashes, tier)
    if tier:
        return Stored(hashes=hashes, tier=tier)
    size, ids = raw.get("block_size"), raw.get("token_ids")
    adapter, session = raw.get("lora_name"), raw.get("session_id")
    if adapter is not None and not isinstance(adapter, str):  # SGLang has its metadata there
        raw["extra_keys"] = [[adapter.get("cache_salt")]] if isinstance(adapter, dict) else None
        adapter = None
    if adapter is None and raw.get("lora_id") is not None:
        adapter = str(raw["lora_id"])
    return Stored(
        hashes=hashes,
        parent=parent if isinstance(parent, int | bytes) else None,
        ids=np.array(ids if isinstance(ids, list) else [], np.uint32).reshape(-1),
        block_size=size if isinstance(size, int) and 0 < size < 1 << 20 else 0,
        adapter=adapter or "",
        extra=_extra(raw.get("extra_keys"), adapter),
        session=session if isinstance(session, str) else "",
    )


def _extra(given: Any, adapter: str | None) -> tuple[str, ...]:
    """Return the other keys of each block's hash; the first block's holds the cache salt."""
    if not isinstance(given, list) or not any(given):
        return ()
    return tuple(
        "\0".join(str(key) for key in keys if key is not None and key != adapter)
        if isinstance(keys, list)
        else ""
        for keys in given
    )

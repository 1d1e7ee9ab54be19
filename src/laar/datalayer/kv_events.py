"""KV cache events that engines publish over ZeroMQ, decoded for a sink.

vLLM's (``--kv-events-config``) come as maps, or as arrays from older releases; SGLang's are arrays
with the same first places. An endpoint takes part when its label ``laar.dev/kv-events`` says where
it publishes: a port on the endpoint's own host, or a whole ``tcp://host:port``.

Publishing is fire and forget, so batches are numbered. Where numbers are skipped, the engine is
asked to send those batches again, if the label ``laar.dev/kv-events-replay`` says where. Without
that, or when it no longer has them, or when a batch can't be decoded, the sink learns that events
were lost. So it does where listening begins: an earlier listener may have stopped at any time. A
number that is not above the last one is a restart. A stream that is followed from number 0 on is
known to begin with an empty cache.

Blocks count in the memory that prefills read from, and as copies in the host's, from where they
are fetched faster than they are computed; other media are no news. Of the groups of a hybrid
model's layers one counts, the first that attends to the whole prompt: a sliding window lets go of a
prompt's beginning while the prompt is still of use.

Needs the package pyzmq.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from laar.core.membership import EVENTS_LABEL, REPLAY_LABEL
from laar.datalayer.endpoints_file import split_address
from laar.datalayer.interface import KvEventSink, Targets
from laar.prefix.tokens import Stored, TokenIds

__all__ = ["Cleared", "Event", "KvEvents", "Removed", "decode_batch"]

LOOK_S = 1.0
"""How soon a new endpoint is listened to."""
REPLAY_S = 5.0
"""Time-out for all batches of a gap together; what takes longer is lost."""
REACH_S = 10.0
"""Time-out of a connection, and the time between two tries to open the first one."""
PING_S = 10.0
"""An engine that does not answer a ping for as long is connected to again: a host that went down,
or a forgotten connection, says nothing."""
MAX_ENDPOINTS = 1000
"""ZeroMQ's own cap on the sockets of a process is 1,023."""
MAX_BATCH_BYTES = 16 << 20
"""The blocks of a million tokens in one engine step; longer batches end the connection."""
MAX_BATCHES_WAITING = 1000
"""Batches that may wait for each endpoint. Further ones are dropped, which then shows as a gap."""

_NUMBER_BYTES = 8
_END = b"\xff" * _NUMBER_BYTES
_MEDIUM = "GPU"
"""The name of the memory that prefills read from, with vLLM on CPUs as well."""
_HOST = ("CPU", "CPU_PINNED")
"""The host's memory, to which blocks are copied (vLLM, SGLang)."""


class Removed(NamedTuple):
    """Blocks that left a cache, by the engine's names; of the copies in the host's memory alone."""

    hashes: Sequence[int | bytes]
    host: bool = False


class Cleared(NamedTuple):
    """A cache was emptied."""


Event = Stored | Removed | Cleared


class KvEvents:
    """The collector: listens to every endpoint that publishes.

    Args:
        targets: the endpoints now.
        sink: takes events and problems.
    """

    def __init__(self, targets: Targets, sink: KvEventSink) -> None:
        self._targets = targets
        self._sink = sink

    async def run(self) -> None:
        """Listen until cancelled."""
        context = zmq.asyncio.Context()
        listeners: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        try:
            while True:
                for task in listeners.values():
                    if task.done():
                        task.result()
                wanted = dict.fromkeys(self._wanted())
                for gone in listeners.keys() - wanted.keys():
                    listeners.pop(gone).cancel()
                    for kind in ("kv-events", "kv-events-replay"):
                        self._sink.problem(f"{kind} {gone[0]}", None)
                for address, url, replay in wanted.keys() - listeners.keys():
                    if len(listeners) >= MAX_ENDPOINTS:
                        self._sink.problem("kv-events", f"more than {MAX_ENDPOINTS} endpoints")
                        break
                    task = asyncio.create_task(
                        self._listen(context, address, url, replay), name=f"kv-events {address}"
                    )
                    listeners[address, url, replay] = task
                await asyncio.sleep(LOOK_S)
        finally:
            for task in listeners.values():
                task.cancel()
            await asyncio.gather(*listeners.values(), return_exceptions=True)
            context.destroy(linger=0)

    def _wanted(self) -> Iterator[tuple[str, str, str]]:
        for spec in self._targets():
            if url := _url(spec.address, spec.labels.get(EVENTS_LABEL, "")):
                yield spec.address, url, _url(spec.address, spec.labels.get(REPLAY_LABEL, ""))

    async def _listen(
        self, context: zmq.asyncio.Context, address: str, url: str, replay: str
    ) -> None:
        source = f"kv-events {address}"
        with context.socket(zmq.SUB) as socket:
            try:
                for each in (url, replay) if replay else (url,):
                    split_address(each.removeprefix("tcp://"))
                _limit(socket)
                socket.set(zmq.HEARTBEAT_IVL, int(1000 * PING_S))
                socket.subscribe(b"")
                socket.connect(url)
            except (ValueError, zmq.ZMQError) as error:
                self._sink.problem(source, f"the label {EVENTS_LABEL} says {url!r}: {error}")
                return
            reaching = asyncio.create_task(self._reach(source, url), name=f"reach {url}")
            try:
                await self._follow(context, socket, address, replay)
            finally:
                reaching.cancel()

    async def _reach(self, source: str, url: str) -> None:
        """Reports a publisher that can't be reached, until it can: ZeroMQ just tries again."""
        host, port = split_address(url.removeprefix("tcp://"))
        is_reported = False
        while True:
            try:
                async with asyncio.timeout(REACH_S):
                    _, writer = await asyncio.open_connection(host, port)
            except (OSError, ValueError) as error:  # a time-out is of the first, names of both
                problem = f"{url}, as the label {EVENTS_LABEL} has it, can't be reached: "
                self._sink.problem(source, problem + (str(error) or "time-out"))
                is_reported = True
            else:
                writer.close()
                if is_reported:
                    self._sink.problem(source, None)
                return
            await asyncio.sleep(REACH_S)

    async def _follow(
        self, context: zmq.asyncio.Context, socket: zmq.asyncio.Socket, address: str, replay: str
    ) -> None:
        source = f"kv-events {address}"
        self._sink.lost(address)  # whatever came before was not heard here
        expected: int | None = None
        groups = _Groups()
        while True:
            frames = await socket.recv_multipart()
            await asyncio.sleep(0)  # receiving does not pause while more messages wait
            try:
                number, payload = _read(frames)
            except ValueError as error:
                self._lost_by(source, address, error)
                continue  # the next number shows whether it was one of the batches
            begins = number == 0 or (expected is not None and number < expected)
            if begins:  # a restart
                groups = _Groups()
                self._sink.cleared(address)
            if number not in (0, expected):
                if begins:  # its first events are lost
                    self._sink.lost(address)
                start = None if begins else expected
                await self._catch_up(context, address, replay, start, number, groups)
            expected = number + 1
            try:
                events = _decode(payload, groups)
            except ValueError as error:
                self._lost_by(source, address, error)
                continue
            for event in events:
                self._pass_on(address, event)
            self._sink.problem(source, None)

    def _lost_by(self, source: str, address: str, fault: ValueError) -> None:
        self._sink.problem(source, f"a batch of events can't be read: {fault}")
        self._sink.lost(address)

    async def _catch_up(
        self,
        context: zmq.asyncio.Context,
        address: str,
        replay: str,
        start: int | None,
        until: int,
        groups: _Groups,
    ) -> None:
        """Takes the batches from `start` on and before `until`, or reports that some are lost.

        Without a start all that the engine keeps; the first of those may have any number.
        """
        following, history = start, start is None
        fault: ValueError | None = None
        try:
            async with (
                asyncio.timeout(REPLAY_S),
                aclosing(_again(context, replay, start or 0)) as kept,
            ):
                async for number, payload in kept:
                    await asyncio.sleep(0)
                    if number >= until:
                        break
                    if number == 0:
                        self._sink.cleared(address, past=history)
                    elif following not in (None, number):
                        self._sink.lost(address)
                    following = number + 1
                    try:
                        events = _decode(payload, groups)
                    except ValueError as error:
                        fault = error
                        self._sink.lost(address)
                        continue
                    for event in events:
                        self._pass_on(address, event, past=True, history=history)
        except ValueError as error:
            fault = error
        except (TimeoutError, zmq.ZMQError):
            pass  # missing batches show below
        problem = f"a batch of events that was sent again can't be read: {fault}"
        self._sink.problem(f"kv-events-replay {address}", None if fault is None else problem)
        if following not in (None, until):
            self._sink.lost(address)

    def _pass_on(
        self, address: str, event: Event, *, past: bool = False, history: bool = False
    ) -> None:
        if isinstance(event, Stored):
            self._sink.stored(address, event, past=past)
        elif isinstance(event, Removed):
            self._sink.removed(address, event.hashes, host=event.host)
        else:
            self._sink.cleared(address, past=history)


async def _again(
    context: zmq.asyncio.Context, url: str, start: int
) -> AsyncGenerator[tuple[int, bytes], None]:
    """The batches that an engine keeps, from a number on; none without a URL."""
    if not url:
        return
    with context.socket(zmq.DEALER) as socket:
        _limit(socket)
        socket.set(zmq.LINGER, 0)
        socket.connect(url)
        await socket.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            _, *frames = await socket.recv_multipart()
            if len(frames) == 2:  # SGLang, and vLLM before the topic was added
                frames = [b"", *frames]
            if len(frames) > 1 and frames[1] == _END:
                return
            yield _read(frames)


def _limit(socket: zmq.asyncio.Socket) -> None:
    socket.set(zmq.RCVHWM, MAX_BATCHES_WAITING)
    socket.set(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
    socket.set(zmq.IPV6, 1)


def _url(address: str, label: str) -> str:
    if label.isascii() and label.isdigit():
        return f"tcp://{address.rpartition(':')[0]}:{label}"
    return label


def _read(frames: Sequence[bytes]) -> tuple[int, bytes]:
    """Read one message: its number, and the batch.

    Raises:
        ValueError: it is none.
    """
    _, number, payload = frames
    if len(number) != _NUMBER_BYTES:
        raise ValueError(f"a number of {len(number)} bytes")
    return int.from_bytes(number, "big"), payload


@dataclass(slots=True)
class _Groups:
    """Which of a hybrid model's groups of layers counts, by the blocks that were stored.

    Events of removed blocks name the group and not its kind, and all groups give a block one name.
    """

    counted: int = 0
    attends_to_all: bool = False

    def counts(self, raw: Mapping[str, Any]) -> bool:
        """Whether an event is of the group that counts."""
        group, kind = raw.get("group_idx") or 0, raw.get("kv_cache_spec_kind")
        if kind in _WHOLE and not self.attends_to_all:
            self.counted, self.attends_to_all = group, True
        return bool(group == self.counted) and kind in (*_WHOLE, *_ANY)


_WHOLE = ("full_attention", "mla_attention", "sink_full_attention")
"""vLLM's kinds of groups that attend to the whole prompt."""
_ANY = (None, "unknown")
"""Older releases, removed blocks, and groups of several kinds."""


def decode_batch(payload: bytes) -> list[Event]:
    """Decode the first message of an engine: its time, its events, and more that is not needed.

    Raises:
        ValueError: it is none.
    """
    return _decode(payload, _Groups())


def _decode(payload: bytes, groups: _Groups) -> list[Event]:
    try:
        _, events, *_ = msgspec.msgpack.decode(payload)
        return [event for raw in _joined(events) if (event := _event(raw, groups)) is not None]
    except (
        *(msgspec.MsgspecError, TypeError, KeyError, IndexError),
        *(RecursionError, OverflowError),
    ) as error:
        raise ValueError(f"{type(error).__name__} {error}".strip()) from None


def _joined(events: Iterable[Any]) -> list[Any]:
    """The events, with those of pages that follow one another in a prompt as one.

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
        and min(len(event), len(last)) >= _PAGE.stop
        and event[0] == last[0] == "BlockStored"
        and all(isinstance(each[at], list) for each in (event, last) for at in (1, 3))
        and event[2] is not None
        and event[2:3] == last[1][-1:]
        and event[_PAGE] == last[_PAGE]
        and not any(event[_PAGE.stop :] + last[_PAGE.stop :])
    )


_PAGE = slice(4, 7)
"""The places of what pages of one prompt have in common: size, adapter and medium."""
_STORED = (
    *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"),
    *("medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
)
_REMOVED = ("type", "block_hashes", "medium", "group_idx")
"""The places of arrays."""


def _event(raw: Any, groups: _Groups) -> Event | None:
    """Read one event in either form; None for an unknown kind."""
    if not isinstance(raw, dict):
        places = _REMOVED if raw[0] == "BlockRemoved" else _STORED
        raw = dict(zip(places, raw, strict=False))
    kind = raw["type"]
    if kind == "AllBlocksCleared":
        return Cleared()
    if kind not in ("BlockStored", "BlockRemoved"):
        return None
    medium = str(raw.get("medium") or _MEDIUM).upper()
    host = medium in _HOST
    if not (host or medium == _MEDIUM) or not groups.counts(raw):
        return None
    hashes, parent = raw["block_hashes"], raw.get("parent_block_hash")
    if not isinstance(hashes, list) or not all(isinstance(one, int | bytes) for one in hashes):
        raise ValueError(f"{kind} without block hashes")
    if kind == "BlockRemoved":
        return Removed(hashes, host)
    if host:
        return Stored(hashes=hashes, host=True)
    size = raw.get("block_size")
    adapter = raw.get("lora_name")
    if adapter is not None and not isinstance(adapter, str):  # SGLang has its metadata there
        raw["extra_keys"] = [[adapter.get("cache_salt")]] if isinstance(adapter, dict) else None
        adapter = None
    if adapter is None and raw.get("lora_id") is not None:
        adapter = str(raw["lora_id"])
    return Stored(
        hashes=hashes,
        parent=parent if isinstance(parent, int | bytes) else None,
        ids=_ids(raw.get("token_ids")),
        block_size=size if isinstance(size, int) and 0 < size < 1 << 20 else 0,
        adapter=adapter or "",
        extra=_extra(raw.get("extra_keys"), adapter),
    )


def _ids(given: Any) -> TokenIds:
    return np.array(given if isinstance(given, list) else [], np.uint32).reshape(-1)


def _extra(given: Any, adapter: str | None) -> tuple[str, ...]:
    """Other keys that each block's hash depends on; the first block's holds the cache salt."""
    if not isinstance(given, list) or not any(given):
        return ()
    return tuple(
        "\0".join(str(key) for key in keys if key is not None and key != adapter)
        if isinstance(keys, list)
        else ""
        for keys in given
    )

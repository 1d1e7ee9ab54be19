"""KV cache events that vLLM publishes over ZeroMQ (``--kv-events-config``), decoded for a sink.

An endpoint takes part when its label ``laar.dev/kv-events`` says where it publishes: a port on
the endpoint's own host, or a whole ``tcp://host:port``. Publishing is fire and forget, so batches
are numbered; a number that is skipped, repeated or starts over means that events were lost or that
the engine restarted, and a batch that can't be decoded is as good as lost: each time the sink is
told that nothing may be believed of that cache. Lost events are not asked for again: a belief that
is too small costs one prefill, which the next answer corrects.

Events come as maps, or as arrays from older releases; both are read. Only the cache that prefills
read from counts: blocks that move to another medium are no news.

Needs the packages pyzmq and msgpack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import zmq
import zmq.asyncio

from laar.datalayer.endpoints_file import split_address
from laar.datalayer.interface import KvEventSink, Targets

__all__ = ["LABEL", "KvEvents", "decode_batch"]

LABEL = "laar.dev/kv-events"
LOOK_S = 1.0
"""How soon a new endpoint is listened to."""
MAX_ENDPOINTS = 1000
"""ZeroMQ's own cap on the sockets of a process is 1,023."""
MAX_BATCH_BYTES = 16 << 20
"""The blocks of a million tokens in one engine step; longer batches end the connection."""
MAX_BATCHES_WAITING = 1000
"""For each endpoint, before further ones are dropped, which then shows as a gap."""

Event = tuple[str, Sequence[int | bytes], int | bytes | None]
"""What happened, the blocks it happened to, and the block before the first of them."""

_FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash"),
    "BlockRemoved": ("block_hashes",),
    "AllBlocksCleared": (),
}


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
        listeners: dict[tuple[str, str], asyncio.Task[None]] = {}
        try:
            while True:
                for task in listeners.values():
                    if task.done():
                        task.result()
                wanted = dict.fromkeys(self._wanted())
                for gone in listeners.keys() - wanted.keys():
                    listeners.pop(gone).cancel()
                    self._sink.problem(f"kv-events {gone[0]}", None)
                for address, url in wanted.keys() - listeners.keys():
                    if len(listeners) >= MAX_ENDPOINTS:
                        self._sink.problem("kv-events", f"more than {MAX_ENDPOINTS} endpoints")
                        break
                    task = asyncio.create_task(
                        self._listen(context, address, url), name=f"kv-events {address}"
                    )
                    listeners[address, url] = task
                await asyncio.sleep(LOOK_S)
        finally:
            for task in listeners.values():
                task.cancel()
            await asyncio.gather(*listeners.values(), return_exceptions=True)
            context.destroy(linger=0)

    def _wanted(self) -> Iterator[tuple[str, str]]:
        for spec in self._targets():
            said = spec.labels.get(LABEL, "")
            if said.isascii() and said.isdigit():
                host = spec.address.rpartition(":")[0]
                yield spec.address, f"tcp://{host}:{said}"
            elif said:
                yield spec.address, said

    async def _listen(self, context: zmq.asyncio.Context, address: str, url: str) -> None:
        source = f"kv-events {address}"
        with context.socket(zmq.SUB) as socket:
            try:
                split_address(url.removeprefix("tcp://"))
                socket.set(zmq.RCVHWM, MAX_BATCHES_WAITING)
                socket.set(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
                socket.set(zmq.IPV6, 1)
                socket.subscribe(b"")
                socket.connect(url)
            except (ValueError, zmq.ZMQError) as error:
                self._sink.problem(source, f"the label {LABEL} says {url!r}: {error}")
                return
            expected: int | None = None
            while True:
                frames = await socket.recv_multipart()
                expected = self._take(address, source, frames, expected)

    def _take(
        self, address: str, source: str, frames: Sequence[bytes], expected: int | None
    ) -> int | None:
        """Pass one batch on; returns the number of the next."""
        try:
            _, number_bytes, payload = frames
            number = int.from_bytes(number_bytes, "big")
            events = decode_batch(payload)
        except ValueError as error:
            self._sink.problem(source, f"a batch of events can't be read: {error}")
            self._sink.cleared(address)
            return None
        if expected is not None and number != expected:
            self._sink.cleared(address)
        for kind, hashes, parent in events:
            if kind == "BlockStored":
                self._sink.stored(address, hashes, parent)
            elif kind == "BlockRemoved":
                self._sink.removed(address, hashes)
            else:
                self._sink.cleared(address)
        self._sink.problem(source, None)
        return number + 1


def decode_batch(payload: bytes) -> list[Event]:
    """Decode one message: its time, its events, and more that is not needed.

    Raises:
        ValueError: it is none.
    """
    try:
        _, events, *_ = msgpack.unpackb(payload, strict_map_key=False)
        return [event for raw in events if (event := _event(raw)) is not None]
    except (msgpack.UnpackException, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__} {error}".strip()) from None


def _event(raw: Any) -> Event | None:
    """Read one event in either form; kinds that are not known are no events of ours."""
    if isinstance(raw, dict):
        kind = raw["type"]
        values = [raw.get(name) for name in _FIELDS.get(kind, ())]
        if raw.get("medium") not in (None, "GPU"):
            return None
    else:
        kind = raw[0]
        values = [*raw[1:3]]
    if kind not in _FIELDS:
        return None
    hashes, parent, *_ = [*values, None, None]
    if not _FIELDS[kind]:
        return kind, (), None
    if not isinstance(hashes, list) or not all(isinstance(one, int | bytes) for one in hashes):
        raise ValueError(f"{kind} without block hashes")
    known = isinstance(parent, int | bytes) and kind == "BlockStored"
    return kind, hashes, parent if known else None

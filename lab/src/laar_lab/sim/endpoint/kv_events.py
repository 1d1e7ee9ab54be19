"""KV events over ZMQ, as vLLM publishes them: blocks stored in and removed from the cache.

PUB sends three frames: topic, sequence number (8 bytes, big-endian), msgpack of
``[time, events, data_parallel_rank]`` with each event a map; one batch per engine iteration that
changed something. A ROUTER socket replays kept batches: a DEALER sends ``[b"", start]`` and gets
``[b"", topic, seq, payload]`` for each, ending with sequence number -1 and an empty payload.

Sending never waits. As usual with PUB, a slow subscriber loses messages; it can request them again
while they are kept. A restart drops all batches and resets the sequence number to 0.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import zmq
import zmq.asyncio

from laar.errors import SettingError
from laar_lab.sim.endpoint.settings import KvEventSettings
from laar_lab.sim.endpoint.tokenizer import TokenIds
from laar_lab.sim.engine.interface import KvEvent

LEFT_KEPT = 32
"""Jobs remembered after they left the engine; a job of 64K tokens takes about 0.6 MB."""

_END = b"\xff" * 8
_COMMON = {"medium": "GPU", "group_idx": 0}


class _Tracked(NamedTuple):
    """A job's block indexes by hash, its token ids, the first block's salt, and its session."""

    at: dict[int, int]
    ids: TokenIds
    salt: str
    session: str


class KvEventPublisher:
    """Publishes KV events; binds its sockets when created and closes them in `close`.

    Raises:
        SettingError: an address can't be bound.
    """

    def __init__(self, settings: KvEventSettings, *, block_size: int) -> None:
        self._settings = settings
        self._block_size = block_size
        self._topic = settings.topic.encode()
        self._noted: list[dict[str, object]] = []
        self._tracked: dict[str, _Tracked] = {}
        self._left: deque[str] = deque()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=settings.buffer_steps)
        self._next_seq = 0
        self._context = zmq.asyncio.Context()
        self._publisher = zmq.Context(self._context).socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self._publisher.set_hwm(settings.hwm)
        self.endpoint = self._bind(self._publisher, settings.endpoint)
        self.replay_endpoint: str | None = None
        self._replays: asyncio.Task[None] | None = None
        if settings.replay_endpoint is not None:
            self.replay_endpoint = self._bind(self._router, settings.replay_endpoint)
            self._replays = asyncio.create_task(self._replay(), name="kv-event-replay")

    def source(self) -> dict[str, object]:
        """Return this publisher's entry in `/kv_event_sources`."""
        return {
            "data_parallel_rank": 0,
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "topic": self._settings.topic,
            "buffer_steps": self._settings.buffer_steps,
            "hwm": self._settings.hwm,
            "max_queue_size": self._settings.hwm,
        }

    def track(
        self, job_id: str, hashes: Sequence[int], ids: TokenIds, salt: str, session: str
    ) -> None:
        """Remember the token ids of a job's blocks, to include them in events."""
        at = {digest: index for index, digest in enumerate(hashes)}
        self._tracked[job_id] = _Tracked(at, ids, salt, session)

    def left(self, job_id: str) -> None:
        """Forget a job after a delay: events about its last blocks come an iteration later."""
        self._left.append(job_id)
        if len(self._left) > LEFT_KEPT:
            self._tracked.pop(self._left.popleft(), None)

    def note(self, events: Sequence[KvEvent]) -> None:
        """Convert the engine's events to vLLM's form; `publish` sends them."""
        for event in events:
            if event.kind == "stored":
                self._noted.append(self._stored(event))
            elif event.kind == "removed":
                removed = {"type": "BlockRemoved", "block_hashes": event.hashes, **_COMMON}
                self._noted.append(removed)
            else:
                self._noted.append({"type": "AllBlocksCleared"})

    def publish(self) -> None:
        """Send the recorded events, if any, as one batch."""
        if not self._noted:
            return
        payload = msgspec.msgpack.encode([time.time(), self._noted, 0])
        self._noted = []
        seq = self._next_seq.to_bytes(8, "big")
        self._next_seq += 1
        self._kept.append((seq, payload))
        with suppress(zmq.Again):
            self._publisher.send_multipart((self._topic, seq, payload), zmq.NOBLOCK)

    def restart(self) -> None:
        """Drop all state, as if the process had been restarted."""
        self._noted = []
        self._kept.clear()
        self._next_seq = 0

    async def close(self) -> None:
        """Close the sockets."""
        if self._replays is not None:
            self._replays.cancel()
            with suppress(asyncio.CancelledError):
                await self._replays
        self._free()

    def _stored(self, event: KvEvent) -> dict[str, object]:
        size, first = self._block_size, event.hashes[0]
        ids: list[int] = []
        session = None
        extra: list[list[str] | None] = [None] * len(event.hashes)
        for job in self._tracked.values():
            index = job.at.get(first)
            if index is not None:
                session = job.session or None
                ids = job.ids[index * size : (index + len(event.hashes)) * size].tolist()
                if index == 0 and job.salt:
                    extra[0] = [job.salt]
                break
        return {
            "type": "BlockStored",
            "block_hashes": event.hashes,
            "parent_block_hash": event.parent,
            "token_ids": ids,
            "block_size": size,
            "lora_id": None,
            "lora_name": None,
            "extra_keys": extra,
            "session_id": session,
            "kv_cache_spec_kind": "full_attention",
            **_COMMON,
        }

    async def _replay(self) -> None:
        router = self._router
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue  # not a replay request, so there is no client to answer
            client, _, start = frames
            for seq, payload in list(self._kept):
                if seq >= start:  # big-endian, so that bytes sort like numbers
                    await router.send_multipart((client, b"", self._topic, seq, payload))
            await router.send_multipart((client, b"", b"", _END, b""))

    def _free(self) -> None:
        self._publisher.close(linger=0)
        self._router.close(linger=0)
        self._context.term()

    def _bind(self, socket: zmq.SyncSocket | zmq.asyncio.Socket, address: str) -> str:
        try:
            socket.bind(address)
        except zmq.ZMQError as fault:
            self._free()
            raise SettingError(f"kv_events: cannot bind {address}: {fault}") from fault
        if not address.endswith(":*"):
            return address
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

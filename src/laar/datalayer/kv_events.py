"""Receive KV cache events that engines publish over ZeroMQ, and pass them to a sink.

An endpoint is tracked if its label ``laar.dev/kv-events`` says where it publishes: a port on the
endpoint's host, or a complete ``tcp://host:port``. Data-parallel ranks use consecutive ports, or
those that the label lists, separated by commas.

Publishing is fire-and-forget, so batches are numbered. If numbers are skipped, the engine is asked
to replay the missing batches, provided that the label ``laar.dev/kv-events-replay`` says where.
Without it, or if the engine no longer has them, or if a batch can't be decoded, the sink's `lost`
is called. It is also called when listening starts, since an earlier listener may have stopped at
any time. A number that is not above the last one indicates a restart. A stream received from number
0 is known to start with an empty cache.

Requires the pyzmq package.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import chain

import zmq
import zmq.asyncio

from laar.datalayer.endpoints_file import split_address
from laar.datalayer.interface import GONE, EngineSink, Targets
from laar.datalayer.kv_batches import Event, Groups, Removed, decode_batch, in_pieces, time_of
from laar.datalayer.visits import aside, cancel, until_look_s
from laar.faults import Fault
from laar.fleet.membership import EVENTS_LABEL, REPLAY_LABEL
from laar.prefix.tokens import Stored
from laar.slices import Slice

LOOK_S = 1.0
"""Maximum seconds until a new endpoint is subscribed to."""
REPLAY_S = 5.0
"""Timeout for replaying the batches of a gap; any not received by then are lost."""
REACH_S = 10.0
"""Timeout of the first connection, and seconds between reports that it is still missing."""
PING_S = 10.0
"""Seconds without an answer to a ping after which to reconnect: there is no other sign that a host
is down or that a connection was dropped on the way."""
MAX_ENDPOINTS = 1000
"""Maximum number of endpoints tracked, each with up to four sockets."""
MAX_BATCH_BYTES = 4 << 20
"""Maximum size of a batch: the blocks of 800,000 tokens in one step, or of 100,000 in pages of one
token. A larger batch ends the connection."""
_LONG_BYTES = 64 << 10
"""Size from which a batch is decoded in a thread, since 4 MB take seconds."""
MAX_BATCHES_WAITING = 1000
"""Maximum number of batches queued per endpoint. More are dropped, which is seen as a gap."""

_NUMBER_BYTES = 8
_END = b"\xff" * _NUMBER_BYTES


class KvEvents:
    """A collector that listens to every endpoint that publishes events."""

    def __init__(self, targets: Targets, sink: EngineSink) -> None:
        self._targets = targets
        self._sink = sink
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, 4 * MAX_ENDPOINTS)

    async def run(self) -> None:
        """Listen until cancelled."""
        listeners: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        try:
            while True:
                for task in listeners.values():
                    if task.done():
                        task.result()
                wanted = dict.fromkeys(self._wanted())
                for gone in listeners.keys() - wanted.keys():
                    listeners.pop(gone).cancel()
                    for name in (gone[0], f"{gone[0]} replay"):
                        self._sink.problem(Fault.KV_EVENTS, GONE, name)
                over = f"more than {MAX_ENDPOINTS} endpoints publish events; the rest are ignored"
                self._sink.problem(Fault.KV_EVENTS, over if len(wanted) > MAX_ENDPOINTS else None)
                for key, url, replay in wanted.keys() - listeners.keys():
                    if len(listeners) >= MAX_ENDPOINTS:
                        break
                    task = asyncio.create_task(
                        self._listen(key, url, replay), name=f"kv-events {key}"
                    )
                    listeners[key, url, replay] = task
                await asyncio.sleep(until_look_s(LOOK_S))
        finally:
            await cancel(listeners.values())
            self._context.destroy(linger=0)

    def _wanted(self) -> Iterator[tuple[str, str, str]]:
        for spec in self._targets():
            if label := spec.labels.get(EVENTS_LABEL):
                url, replay = (
                    _url(spec.address, text, spec.rank or 0)
                    for text in (label, spec.labels.get(REPLAY_LABEL, ""))
                )
                yield spec.key, url, replay

    async def _listen(self, key: str, url: str, replay: str) -> None:
        with (
            self._context.socket(zmq.SUB) as socket,
            socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor,
        ):
            try:
                for label, text in ((REPLAY_LABEL, replay), (EVENTS_LABEL, url)):  # noqa: B007
                    if text:
                        split_address(text.removeprefix("tcp://"))
                _limit(socket)
                socket.set(zmq.HEARTBEAT_IVL, int(1000 * PING_S))
                socket.subscribe(b"")
                socket.connect(url)
            except (ValueError, zmq.ZMQError) as error:
                problem = f"the label {label} says {text!r}: {error}"
                self._sink.problem(Fault.KV_EVENTS, problem, key)
                return
            reaching = asyncio.create_task(self._reach(socket, monitor, key, url))
            try:
                await self._follow(socket, key, replay)
            finally:
                reaching.cancel()
                socket.disable_monitor()

    async def _reach(
        self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket, key: str, url: str
    ) -> None:
        """Report that no publisher answers, since ZeroMQ retries silently."""
        problem = f"{url} (label {EVENTS_LABEL}) can't be reached, or does not publish events"
        while not await monitor.poll(int(1000 * REACH_S)):
            self._sink.problem(Fault.KV_EVENTS, problem, key)
        self._sink.problem(Fault.KV_EVENTS, None, key)
        socket.disable_monitor()
        monitor.close()

    async def _follow(self, socket: zmq.asyncio.Socket, key: str, replay: str) -> None:
        self._sink.lost(key)  # earlier events were missed
        expected: int | None = None
        groups = Groups()
        while True:
            frames = await socket.recv_multipart()
            await asyncio.sleep(0)  # receiving does not yield while messages are queued
            problem = None
            try:
                number, payload = _read(frames)
                begins = number == 0 or (expected is not None and number < expected)
                if begins:  # a restart
                    groups = Groups()
                    self._sink.cleared(key, at_s=time_of(payload))
                if number not in (0, expected):
                    if begins:  # the first events after the restart were missed
                        self._sink.lost(key)
                    start = None if begins else expected
                    await self._catch_up(key, replay, start, number, groups)
                expected = number + 1
                await self._pass_on(key, payload, groups)
            except ValueError as error:  # a batch without a number leaves a gap before the next
                problem = f"a batch of events can't be read: {error}"
                self._sink.lost(key)
            self._sink.problem(Fault.KV_EVENTS, problem, key)

    async def _catch_up(
        self, key: str, replay: str, start: int | None, until: int, groups: Groups
    ) -> None:
        """Apply the batches from `start` up to `until`, or report that some are lost.

        If `start` is None, apply all batches that the engine kept, whatever their first number.
        """
        following, history = start, start is None
        fault: Exception | None = None
        try:
            async with (
                asyncio.timeout(REPLAY_S),
                aclosing(_again(self._context, replay, start or 0)) as kept,
            ):
                async for number, payload in kept:
                    await asyncio.sleep(0)
                    if number >= until:
                        break
                    if number == 0:
                        self._sink.cleared(key, past=history, at_s=time_of(payload))
                    elif following not in (None, number):
                        self._sink.lost(key)
                    following = number + 1
                    try:
                        await self._pass_on(key, payload, groups, history=history)
                    except ValueError as error:
                        fault = error
                        self._sink.lost(key)
        except (ValueError, TimeoutError, zmq.ZMQError) as error:
            if following == start:  # otherwise missing batches are noticed below
                fault = error
        problem = (
            f"{replay}, from the label {REPLAY_LABEL}, does not replay missed events: "
            f"{str(fault) or 'timeout'}"
        )
        self._sink.problem(Fault.KV_EVENTS, None if fault is None else problem, f"{key} replay")
        if following not in (None, until):
            self._sink.lost(key)

    async def _pass_on(
        self, key: str, payload: bytes, groups: Groups, *, history: bool = False
    ) -> None:
        events: list[Event] = await aside(len(payload) > _LONG_BYTES, decode_batch, payload, groups)
        slice_ = Slice()
        for event in chain.from_iterable(map(in_pieces, events)):
            await slice_.step()
            if isinstance(event, Stored):
                self._sink.stored(key, event)
            elif isinstance(event, Removed):
                self._sink.removed(key, event.hashes, event.tier, is_state=event.is_state)
            else:
                self._sink.cleared(key, past=history, at_s=event.at_s)


async def _again(
    context: zmq.asyncio.Context, url: str, start: int
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield the batches that an engine kept, from number `start`; none if `url` is empty."""
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


def _url(address: str, label: str, rank: int) -> str:
    """Return the URL of a rank's socket: a listed port, or the first's and the rank."""
    host, _, text = label.rpartition(":")
    ports = text.split(",")
    port = ports[rank] if rank < len(ports) else ports[0]
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        return label
    offset = rank if len(ports) == 1 else 0
    return f"{host or 'tcp://' + address.rpartition(':')[0]}:{int(port) + offset}"


def _read(frames: Sequence[bytes]) -> tuple[int, bytes]:
    """Return a message's number and payload.

    Raise `ValueError` if the message has no valid number.
    """
    _, number, payload = frames
    if len(number) != _NUMBER_BYTES:
        raise ValueError(f"its number has {len(number)} bytes, not {_NUMBER_BYTES}")
    return int.from_bytes(number, "big"), payload

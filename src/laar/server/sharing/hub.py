"""A hub on a local socket: the carrier between the workers of one machine, without a store.

The parent process of `laar serve --workers` runs the `Hub`; each worker is a `HubClient`. A frame
is a length, a letter and bytes. The hub passes each batch on to all others in the order it came,
keeps those of the last minute and the last snapshot for a worker that starts, and gives the key
out. The last snapshot may go to a file as well, for the next start of all. The socket's directory
is its owner's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from laar.server.sharing.carrier import CarrierError, Received, StartState
from laar.server.tasks import cancel
from laar.server.whole_file import WholeFile
from laar.sharing.batches import MAX_BATCH_BYTES
from laar.sharing.snapshot import MAX_SNAPSHOT_BYTES

_LOG = logging.getLogger(__name__)

_HISTORY_BYTES = 32 << 20
"""Batches kept for a worker that starts: more than a minute of 1,000 decisions a second."""

_SLOW_BYTES = 32 << 20
"""A worker that has so much to read, beside what it was welcomed with, is cut off; it connects
again, and misses the batches until then."""

_TIMEOUT_S = 2.0
_OPEN_S = 10.0  # with a snapshot of tens of MB, on a busy machine
_LAST_S = 1.0
_LONGEST = max(MAX_BATCH_BYTES, MAX_SNAPSHOT_BYTES)

_BATCH, _SNAPSHOT, _KEY, _OPEN, _TURN = b"b", b"s", b"k", b"o", b"t"


class Hub:
    """The parent's side.

    Args:
        path: path of the socket; must not exist.
        history_s: seconds that batches are kept.
        interval_s: seconds between two snapshots.
        key: secret of the hashes; None to draw one.
        snapshot: the first one, by that key; empty for none.
        file: gets each snapshot; None to keep it in memory alone.
    """

    def __init__(
        self,
        path: Path,
        *,
        history_s: float,
        interval_s: float,
        key: bytes | None = None,
        snapshot: bytes = b"",
        file: WholeFile | None = None,
    ) -> None:
        self._path = path
        self._history_s = history_s
        self._interval_s = interval_s
        self._key = key or secrets.token_bytes(16)
        self._file = file
        self._unwritten = False
        self._turn_at: dict[asyncio.StreamWriter, float] = {}
        self._history: deque[tuple[float, bytes]] = deque()
        self._history_bytes = 0
        self._snapshot = snapshot
        self._workers: dict[asyncio.StreamWriter, int] = {}
        """With the bytes that each was welcomed with."""
        self._open: set[asyncio.Task[object]] = set()
        self._server: asyncio.Server | None = None
        self._turns: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen on the socket."""
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        self._turns = asyncio.create_task(self._give_turns())

    async def stop(self) -> None:
        """Close the socket and all connections, and write the last snapshot."""
        if self._turns is not None:
            await cancel([self._turns])
        if self._open:  # a worker that has ended may have sent what is not read yet
            await asyncio.wait(self._open, timeout=_LAST_S)
        for worker in list(self._workers):
            worker.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        await self._save()

    async def _give_turns(self) -> None:
        """Ask one worker after the other for a snapshot."""
        turn = 0
        while True:
            await asyncio.sleep(self._interval_s)
            if self._workers:
                turn = (turn + 1) % len(self._workers)
                worker = list(self._workers)[turn]
                _write(worker, _TURN)
                self._turn_at[worker] = asyncio.get_running_loop().time()
            await self._save()  # that of the turn before

    async def _save(self) -> None:
        """Write the last snapshot to the file, if it is not there yet."""
        if self._file is None or not self._unwritten:
            return
        self._unwritten, data = False, self._snapshot
        try:
            await asyncio.to_thread(self._file.write, lambda: data)
        except OSError as fault:
            _LOG.warning("share.snapshot_file: can't be written (%s)", fault.strerror)

    async def _serve(self, reader: asyncio.StreamReader, worker: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while True:
                kind, data = await _read(reader)
                if kind == _OPEN:
                    self._welcome(worker, starting=data == b"1")
                elif kind == _SNAPSHOT:
                    self._snapshot, self._unwritten = data, True
                    # The worker had read what came before its turn, and may not have the rest.
                    self._forget(until=self._turn_at.pop(worker, -math.inf))
                elif kind == _BATCH:
                    self._pass_on(worker, data)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            self._open.discard(task)
            self._turn_at.pop(worker, None)
            self._workers.pop(worker, None)
            worker.close()

    def _welcome(self, worker: asyncio.StreamWriter, *, starting: bool) -> None:
        _write(worker, _KEY, self._key)
        _write(worker, _SNAPSHOT, self._snapshot if starting else b"")
        if starting:
            now = asyncio.get_running_loop().time()
            for at, data in self._history:
                _write(worker, _BATCH, _age(now - at) + data)
        self._workers[worker] = worker.transport.get_write_buffer_size()

    def _pass_on(self, sender: asyncio.StreamWriter, data: bytes) -> None:
        now = asyncio.get_running_loop().time()
        self._history.append((now, data))
        self._history_bytes += len(data)
        self._forget()
        for worker, welcome_bytes in list(self._workers.items()):
            if worker is sender:
                continue
            if worker.transport.get_write_buffer_size() > _SLOW_BYTES + welcome_bytes:
                _LOG.warning("a worker does not keep up with the others; reconnecting it")
                del self._workers[worker]
                worker.transport.abort()
                continue
            _write(worker, _BATCH, _age(0.0) + data)

    def _forget(self, *, until: float = -math.inf) -> None:
        oldest = max(until, asyncio.get_running_loop().time() - self._history_s)
        while self._history and (
            self._history_bytes > _HISTORY_BYTES or self._history[0][0] < oldest
        ):
            self._history_bytes -= len(self._history.popleft()[1])


class HubClient:
    """A worker's side; implements `laar.server.sharing.carrier.Carrier`.

    Args:
        path: path of the hub's socket.
        secret: secret of the hashes, from the settings; None for the hub's.
        keeps_file: whether the hub writes snapshots to a file.
    """

    def __init__(
        self, path: Path, *, secret: bytes | None = None, keeps_file: bool = False
    ) -> None:
        self._path = path
        self.keeps_file = keeps_file
        self._secret = secret
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._turn = False

    @property
    def place(self) -> str:
        """The hub's order needs no name: a snapshot replaces the batches before it."""
        return ""

    def after(self, place: str) -> None:
        """See `Carrier`."""

    async def open(self, key: bytes, *, starting: bool) -> StartState:
        """See `Carrier`."""
        await self.close()
        try:
            async with asyncio.timeout(_OPEN_S):
                reader, writer = await asyncio.open_unix_connection(self._path)
                self._reader, self._writer = reader, writer
                _write(writer, _OPEN, b"1" if starting else b"0")
                _, found = await _read(reader)
                _, snapshot = await _read(reader)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as fault:
            raise _unreachable(fault) from None
        return StartState(key=self._secret or found, snapshot=snapshot or None)

    async def send(self, batches: Sequence[bytes]) -> None:
        """See `Carrier`."""
        writer = self._open_writer()
        for data in batches:
            _write(writer, _BATCH, data)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await writer.drain()
        except (OSError, TimeoutError) as fault:
            raise _unreachable(fault) from None

    async def receive(self) -> AsyncIterator[list[Received]]:
        """See `Carrier`."""
        reader = self._reader
        yield []
        while reader is not None:
            try:
                kind, data = await _read(reader)
            except (OSError, asyncio.IncompleteReadError, ValueError) as fault:
                raise _unreachable(fault) from None
            if kind == _TURN:
                self._turn = True
            elif kind == _BATCH:
                yield [Received(data[4:], int.from_bytes(data[:4]) / 1e3)]

    async def is_my_turn(self) -> bool:
        """See `Carrier`."""
        turn, self._turn = self._turn, False
        return turn

    async def put_snapshot(self, data: bytes) -> None:
        """See `Carrier`."""
        _write(self._open_writer(), _SNAPSHOT, data)

    async def close(self) -> None:
        """See `Carrier`."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._writer.wait_closed()
        self._reader = self._writer = None

    def _open_writer(self) -> asyncio.StreamWriter:
        if self._writer is None or self._writer.is_closing():
            raise CarrierError("the hub of the workers is gone; `laar serve --workers` has ended")
        return self._writer


def _unreachable(fault: BaseException) -> CarrierError:
    return CarrierError(f"the hub of the workers can't be reached ({type(fault).__name__})")


def _age(seconds: float) -> bytes:
    return int(max(0.0, seconds) * 1e3).to_bytes(4)


def _write(writer: asyncio.StreamWriter, kind: bytes, data: bytes = b"") -> None:
    writer.write(len(data).to_bytes(4) + kind + data)


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read a frame.

    Raises:
        ValueError: it is longer than any.
    """
    head = await reader.readexactly(5)
    size = int.from_bytes(head[:4])
    if size > _LONGEST + 4:
        raise ValueError("too long")
    return head[4:], await reader.readexactly(size)

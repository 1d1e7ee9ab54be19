"""Sharing in a running picker: tasks, store and snapshots.

Without a connection to the others, the picker works alone and reports a problem. Its records are
queued, and sent once it is connected again. Requests never wait for sharing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from laar.datalayer.files import read_file, replace_file
from laar.datalayer.visits import cancel, occurs
from laar.errors import SettingError
from laar.faults import Fault
from laar.server.sharing.store import Store, StoreError
from laar.settings.share import Share
from laar.sharing.settings import SNAPSHOT_INTERVAL_S
from laar.sharing.sharing import Sharing
from laar.sharing.snapshot import (
    MAX_SNAPSHOT_BYTES,
    SnapshotFault,
    key_of,
    read_snapshot,
    restore,
    snapshot,
)
from laar.slices import Slice
from laar.telemetry.problems import Problems

_LOG = logging.getLogger(__name__)

WARM_S = 3.0
"""Maximum seconds that startup waits for records from the others or the file."""

_POLL_S = 0.25
_AGAIN_S = (0.1, 1.0)  # first and longest wait before reconnecting
_LATER = 3.0
"""Records of request ends may wait this many times as long as decisions, to be sent with one."""
_REFUSED = 10.0
"""Number of intervals to skip after a rejected snapshot: sending megabytes that do not fit into the
store also burdens others."""


def new_origin() -> str:
    """Return a name for this picker process, different at each start."""
    return f"{socket.gethostname()}-{os.getpid()}/{secrets.token_hex(6)}"


def secret_of(share: Share) -> bytes | None:
    """Return the hash key derived from `secret_file`; None if there is no file.

    Raise `SettingError` if the file can't be read, or its secret is too short.
    """
    if share.secret_file is None:
        return None
    try:
        secret = read_file(share.secret_file).strip()
    except OSError as fault:
        raise SettingError(f"share.secret_file {share.secret_file}: {fault.strerror}") from None
    if len(secret) < 16:
        raise SettingError("share.secret_file: shorter than 16 bytes; try `openssl rand -hex 32`")
    return blake2b(secret, digest_size=16, person=b"laar-prefix").digest()


class Sharer:
    """Runs the sharing of one picker.

    Args:
        store: transports batches to the others; None means snapshots on disk only.
        snapshot_file: file for snapshots without a store.
        has_secret: whether the settings provide the hash secret.
        problems: receives lost connections and unusable snapshots.
    """

    def __init__(
        self,
        sharing: Sharing,
        store: Store | None,
        *,
        snapshot_file: Path | None = None,
        has_secret: bool = False,
        clock: Callable[[], float],
        problems: Problems,
    ) -> None:
        self.sharing = sharing
        self.store = store
        self.endpoints_known = asyncio.Event()
        """Set once the endpoints are known, since snapshots refer to endpoints."""
        self.connected = False
        self.restored = 0
        """Number of prompts whose blocks were restored from a snapshot."""
        self._has_secret = has_secret
        self._file = snapshot_file if store is None else None
        self._clock = clock
        self._problems = problems
        self._starting = True
        self._running: asyncio.Task[None] | None = None
        self._warm = asyncio.Event()
        self._due = asyncio.Event()  # set when records should be sent
        self._timer: asyncio.TimerHandle | None = None  # sets `_due`
        self.sharing.outbox.on_news = self._noted
        self._unsent: list[bytes] = []
        if store is None:
            self.sharing.close()

    def shown(self) -> dict[str, object] | None:
        """Return the state for the page and the doctor; None if there is no store."""
        if self.store is None:
            return None
        sharing = self.sharing
        return {
            "connected": self.connected,
            "pickers": len(sharing.peers),
            "age_s": sharing.age_s,
            "waiting_bytes": sharing.outbox.waiting_bytes,
            "refused": {reason: count for reason, count in sharing.refused.items() if count},
        }

    # -- life ----------------------------------------------------------------------------------

    def tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return the tasks to run, by name."""
        if self.store is None:
            return {"snapshot": self._keep_file}
        return {"share": self._run, "leases": self._poll}

    async def warmed(self) -> None:
        """Wait for records from the others or the file, for at most `WARM_S`."""
        await occurs(self._warm, WARM_S)

    async def stop(self) -> None:
        """Save, notify the others, and close; to them, a restarted picker is a new one."""
        if self._file is not None and self._warm.is_set():  # otherwise the file is still unread
            await self._save(self._file)
        if self.store is None:
            return
        if self._running is not None:
            await cancel([self._running])
        if self.connected:
            self.sharing.leaving()
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(1.0):
                    while self._unsent or self.sharing.outbox.waiting_bytes:
                        await self._send()
        await self.store.close()

    # -- with others ---------------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            self.sharing.poll(self._clock())
            self._due.set()  # sends the heartbeat

    async def _run(self) -> None:
        self._running = asyncio.current_task()
        pause_s, most_s = _AGAIN_S
        await self.endpoints_known.wait()
        while True:
            try:
                await self._together()
            except StoreError as fault:
                if self.connected:
                    self.sharing.lost["interruption"] += 1
                    pause_s = _AGAIN_S[0]
                self.connected = False
                self._warm.set()
                self._problems.report(
                    Fault.SHARE, f"{fault}; this picker continues alone, and keeps what it learns"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(most_s, 2.0 * pause_s)

    async def _together(self) -> None:
        """Connect, and share until the connection fails (`StoreError`)."""
        store = self.store
        assert store is not None
        key, snapshot = await store.open(self.sharing.key, starting=self._starting)
        self.sharing.use_key(key)
        if snapshot is not None:
            await self._take_up(snapshot, "the others' snapshot")
        self._starting = False
        self.sharing.outbox.send_all_loads()
        await self._send()  # fails if the store is full, or read-only for this user
        self.connected = True
        self._problems.report(Fault.SHARE, None)
        self._problems.report(Fault.SHARE, None, "snapshot")
        keeping = (self._keep_sending, self._keep_receiving, self._keep_snapshots)
        parts = [asyncio.ensure_future(keep()) for keep in keeping]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_EXCEPTION)
            for part in parts:
                if part.done():
                    part.result()
        finally:
            await cancel(parts)

    async def _keep_sending(self) -> None:
        """Send queued records `flush_ms` after the first; wait without polling."""
        self._due.set()  # records may have been queued before
        while True:
            await self._due.wait()
            self._due.clear()
            await self._send()

    def _noted(self, soon: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_s = self.sharing.settings.flush_ms / 1e3 * (1.0 if soon else _LATER)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._due.set)

    async def _send(self) -> None:
        """Send the queued records; resend batches that failed, with the same numbers."""
        assert self.store is not None
        if not self._unsent:
            self._unsent = self.sharing.batches(self._clock())
        if self._unsent:
            await self.store.send(self._unsent)
            self._unsent = []

    async def _keep_receiving(self) -> None:
        assert self.store is not None
        async for received in self.store.receive():
            await self._take(received)
            if not self.store.is_behind:
                self._warm.set()
        raise StoreError("the connection to the other pickers was closed")

    async def _take(self, received: Iterable[tuple[bytes, float]]) -> None:
        slice_ = Slice()
        for data, age_s in received:
            for _ in self.sharing.taking(data, self._clock(), age_s=age_s):
                await slice_.step()

    # -- snapshots -----------------------------------------------------------------------------

    async def _keep_snapshots(self) -> None:
        store = self.store
        assert store is not None
        while True:
            await asyncio.sleep(SNAPSHOT_INTERVAL_S / 4.0)
            if not await store.is_my_turn():
                continue
            write = snapshot(self.sharing, self._clock(), with_key=False, place=store.position)
            try:
                await store.put_snapshot(await asyncio.to_thread(write))
            except StoreError as fault:
                # Stay connected: if the store can't be reached, sending records fails, too.
                problem = f"{fault}; a new picker will start cold"
                self._problems.report(Fault.SHARE, problem, "snapshot")
                await asyncio.sleep(_REFUSED * SNAPSHOT_INTERVAL_S)
            else:
                self._problems.report(Fault.SHARE, None, "snapshot")

    async def _take_up(self, data: bytes, what: str) -> None:
        namespace = self.sharing.settings.namespace
        try:
            document: dict[str, Any] = await asyncio.to_thread(read_snapshot, data, namespace)
        except SnapshotFault as fault:
            _LOG.warning("%s %s; starting without it", what, fault)
            return
        if self.store is None and not self._has_secret:
            self.sharing.use_key(key_of(document) or self.sharing.key)
        self.restored = restore(self.sharing, document, self._clock())
        if self.store is not None:
            await self.store.after(str(document.get("place", "")))
        _LOG.info("restored the blocks of %d prompts from %s", self.restored, what)

    async def _keep_file(self) -> None:
        path = self._file
        assert path is not None
        await self.endpoints_known.wait()
        try:
            data = await asyncio.to_thread(read_file, path, MAX_SNAPSHOT_BYTES)
            await self._take_up(data, f"share.snapshot_file {path}")
        except FileNotFoundError:
            pass
        except OSError as fault:
            _LOG.warning("share.snapshot_file %s can't be read: %s", path, fault.strerror)
        self._warm.set()
        while True:
            await asyncio.sleep(SNAPSHOT_INTERVAL_S)
            await self._save(path)

    async def _save(self, path: Path) -> None:
        write, fault = snapshot(self.sharing, self._clock(), with_key=True), None
        try:
            await asyncio.to_thread(lambda: replace_file(path, write()))
        except OSError as error:
            fault = f"{path} can't be written ({error.strerror}); the next start will be cold"
        self._problems.report(Fault.SNAPSHOT, fault)

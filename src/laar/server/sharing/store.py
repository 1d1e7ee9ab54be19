"""Redis or Valkey as the way between pickers: one stream of batches, a snapshot, a key.

Keys, all with the namespace as their hash tag, so that they are on one node of a cluster:

    laar:{ns}:records    stream; entries older than `history_s` are trimmed
    laar:{ns}:snapshot   what a picker that starts needs before the stream's entries
    laar:{ns}:turn       expires when the next snapshot is due
    laar:{ns}:key        secret of the hashes, where no `secret_file` is given

Sending and receiving have a connection each. No call waits longer than a second.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from laar.errors import SettingError
from laar.server.sharing.carrier import Away, Begun, Received
from laar.settings.share import Share
from laar.sharing import SharingSettings
from laar.sharing.snapshot import MAX_SNAPSHOT_BYTES

__all__ = ["Seen", "Store"]

_TIMEOUT_S = 1.0
_BLOCK_MS = 1000
_AT_ONCE = 200  # entries of one read
_KEPT_S = 86_400  # without a picker the store forgets all in a day

T = TypeVar("T")


class Seen(NamedTuple):
    """How a store is: seconds that it took to answer, and since its last record; None for none."""

    took_s: float
    record_age_s: float | None


class Store:
    """Implements `laar.server.sharing.carrier.Carrier`.

    Args:
        share: where the store is, and how to log in.
        settings: namespace and times.
        origin: this picker; its own entries are not received.
        secret: of the hashes, from the settings; None to find one in the store.

    Raises:
        SettingError: the extra is not installed, or a file cannot be read.
    """

    def __init__(
        self, share: Share, settings: SharingSettings, *, origin: str, secret: bytes | None
    ) -> None:
        try:
            import redis.asyncio as client
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
        except ImportError:
            raise SettingError(
                "needs the client of Redis: pip install 'laar[share]'", setting="share.url"
            ) from None
        assert share.url is not None
        self._faults = (RedisError, OSError, TimeoutError)
        self._secret = secret
        self._origin = origin.encode()
        self._interval_ms = int(settings.snapshot_interval_s * 1000)
        self._history_ms = int(settings.history_s * 1000)
        self._gather_s = settings.flush_ms / 1e3
        self._where = share.url.partition("://")[2]
        base = f"laar:{{{settings.namespace}}}:"
        self._records, self._snapshot = base + "records", base + "snapshot"
        self._turn, self._key = base + "turn", base + "key"
        options: dict[str, Any] = {
            "username": share.username,
            "password": _read(share),
            "socket_connect_timeout": _TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "client_name": "laar",
        }
        if share.url.startswith("rediss"):
            options |= _tls(share)
        options = {name: value for name, value in options.items() if value is not None}
        self._client: Any = client.Redis.from_url(share.url, socket_timeout=_TIMEOUT_S, **options)
        self._reader: Any = client.Redis.from_url(
            share.url, socket_timeout=_TIMEOUT_S + _BLOCK_MS / 1e3, **options
        )
        self.place = "0-0"
        self._used = b""  # the key
        self._clock_ms = 0.0  # of the store, less the loop's

    async def open(self, key: bytes, *, starting: bool) -> Begun:
        """See `Carrier`."""
        seconds, micros = await self._ask(self._client.time())
        self._clock_ms = seconds * 1e3 + micros / 1e3 - asyncio.get_running_loop().time() * 1e3
        self._used = await self._agreed(self._secret or key)
        await self._see_where()
        snapshot = None
        if starting:
            size = await self._ask(self._client.strlen(self._snapshot))
            if 0 < size <= MAX_SNAPSHOT_BYTES:
                snapshot = await self._ask(self._client.get(self._snapshot))
            self.place = f"{max(0, int(self._now_ms()) - self._history_ms)}-0"
        return Begun(key=self._used, snapshot=snapshot)

    async def _agreed(self, key: bytes) -> bytes:
        """The key that all use, which is this one where the store has none."""
        if self._secret is not None:
            return key
        await self._ask(self._client.set(self._key, key.hex(), nx=True))
        return _key(await self._ask(self._client.get(self._key)))

    async def look(self) -> Seen:
        """Asks how the store is; changes nothing there. Raises `Away` as the others do."""
        began = time.perf_counter()
        seconds, micros = await self._ask(self._client.time())
        took_s = time.perf_counter() - began
        last = await self._ask(self._client.xrevrange(self._records, count=1))
        now_ms = seconds * 1e3 + micros / 1e3
        age_s = max(0.0, now_ms - _number(last[0][0])[0]) / 1e3 if last else None
        return Seen(took_s, age_s)

    async def _see_where(self) -> None:
        """Begins again where the store has lost its entries: an older place is beyond its end."""
        last = await self._ask(self._client.xrevrange(self._records, count=1))
        if not last or _number(last[0][0]) < _number(self.place):
            self.place = "0-0"
        await self._ask(self._reader.xread({self._records: "$"}, count=1))  # whether it may

    def after(self, place: str) -> None:
        """See `Carrier`."""
        if _number(place) > _number(self.place):
            self.place = place

    async def send(self, batches: Sequence[bytes]) -> None:
        """See `Carrier`."""
        oldest = f"{max(0, int(self._now_ms()) - self._history_ms)}-0"
        pipe = self._client.pipeline(transaction=False)
        for data in batches:
            pipe.xadd(self._records, {"o": self._origin, "b": data}, minid=oldest, approximate=True)
        await self._ask(pipe.execute())

    async def receive(self) -> AsyncIterator[list[Received]]:
        """See `Carrier`."""
        while True:
            answer = await self._ask(
                self._reader.xread({self._records: self.place}, count=_AT_ONCE, block=_BLOCK_MS)
            )
            entries = answer[0][1] if answer else []
            received = []
            for entry, fields in entries:
                if fields and fields.get(b"o") != self._origin:
                    age_s = max(0.0, self._now_ms() - _number(entry)[0]) / 1e3
                    received.append(Received(fields.get(b"b", b""), age_s))
            yield received
            if entries:
                self.place = entries[-1][0].decode()
            if 0 < len(entries) < _AT_ONCE:
                # A read costs as much for one entry as for many: the next ones gather, as they do
                # at their sender. Where there is more to catch up with, the next read follows.
                await asyncio.sleep(self._gather_s)

    async def is_my_turn(self) -> bool:
        """See `Carrier`."""
        # A store that was emptied has lost the key, and a picker that starts brings another.
        if await self._agreed(self._used) != self._used:
            raise Away(f"the store {self._where} has another key for hashes")
        mine = self._client.set(self._turn, self._origin, nx=True, px=self._interval_ms)
        return bool(await self._ask(mine))

    async def put_snapshot(self, data: bytes) -> None:
        """See `Carrier`."""
        await self._ask(self._client.set(self._snapshot, data, ex=_KEPT_S))
        for name in (self._records, self._key):
            await self._ask(self._client.expire(name, _KEPT_S))

    async def close(self) -> None:
        """See `Carrier`."""
        for client in (self._client, self._reader):
            try:
                await client.aclose()
            except self._faults:
                continue

    def _now_ms(self) -> float:
        return self._clock_ms + asyncio.get_running_loop().time() * 1e3

    async def _ask(self, call: Awaitable[T]) -> T:
        # In a task of its own: the client may swallow a cancellation that comes with the answer.
        asking = asyncio.ensure_future(call)
        try:
            await asyncio.wait([asking])
        except asyncio.CancelledError:
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())
            asking.cancel()
            raise
        try:
            return asking.result()
        except self._faults as fault:
            text = str(fault).splitlines()[0][:200] if str(fault) else type(fault).__name__
            raise Away(f"the store {self._where} can't be used ({text})") from None


def _tls(share: Share) -> dict[str, Any]:
    """The client's options for TLS; the store's name and its authority are always checked.

    Raises:
        SettingError: a file cannot be used; otherwise each connection would fail for ever.
    """
    try:
        context = ssl.create_default_context(cafile=share.ca_file)
        if share.cert_file is not None:
            # Without a password a key that needs one would be asked for on the terminal.
            context.load_cert_chain(share.cert_file, share.key_file, password="")
    except (OSError, ValueError) as fault:
        files = {"ca_file": share.ca_file, "cert_file": share.cert_file, "key_file": share.key_file}
        named = ", ".join(f"share.{name} {path}" for name, path in files.items() if path)
        raise SettingError(f"{named}: can't be used for TLS: {fault}") from None
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_ca_certs": _path(share.ca_file),
        "ssl_certfile": _path(share.cert_file),
        "ssl_keyfile": _path(share.key_file or share.cert_file),
    }


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _read(share: Share) -> str | None:
    if share.password_file is None:
        return None
    try:
        return share.password_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise SettingError(f"share.password_file {share.password_file}: {fault}") from None


def _key(value: object) -> bytes:
    try:
        key = bytes.fromhex(value.decode() if isinstance(value, bytes) else "")
    except (ValueError, UnicodeDecodeError):
        key = b""
    if len(key) < 16:
        raise Away("the store's key for hashes is damaged; delete laar:{NAMESPACE}:key there")
    return key


def _number(place: bytes | str) -> tuple[int, int]:
    """A place as numbers; 0 where it is none."""
    text = place.decode() if isinstance(place, bytes) else place
    ms, _, count = text.partition("-")
    return (int(ms), int(count)) if ms.isdecimal() and count.isdecimal() else (0, 0)

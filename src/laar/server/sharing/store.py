"""Redis or Valkey as the transport between pickers: a stream of batches, a snapshot, a key.

All keys have the namespace as their hash tag, so that a cluster keeps them on one node:

    laar:{ns}:records    stream; entries older than `history_s` are trimmed
    laar:{ns}:snapshot   records that a starting picker needs before the stream's entries
    laar:{ns}:turn       expires when the next snapshot is due
    laar:{ns}:key        secret that keys the hashes, unless a `secret_file` is given

There are three connections: for sending, for receiving, and for other commands. Replies time out
after a second, except for snapshots and while a connection is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from laar.datalayer.files import read_file
from laar.errors import SettingError, install
from laar.settings.share import Share
from laar.sharing.settings import SNAPSHOT_INTERVAL_S, SharingSettings
from laar.sharing.snapshot import MAX_SNAPSHOT_BYTES

_LOG = logging.getLogger(__name__)

_TIMEOUT_S = 1.0
_OPEN_S = 2.0  # more while a connection is opened: up to four round trips after TCP and TLS
_FETCH_S = 5.0
"""Seconds that a starting picker waits for the snapshot before it starts without one."""
_OTHERS_S = 2.5
"""Seconds that a starting picker gives the others to provide a key: if the store was emptied, they
still use the key it lost, and offer it again within two seconds."""
_SLOWEST_BYTES_S = 1e6
"""Lowest speed expected for writing a snapshot, so that 20 MB on a slow link doesn't time out."""
_BLOCK_MS = 1000
_PAUSE_S = 0.003
"""Minimum seconds between reads, so that the batches of many pickers arrive together."""
_AT_ONCE = 64  # entries per read: 2 MB of a backlog, otherwise 0.1 MB
_KEPT_S = 86_400  # without pickers, keys expire after a day
_POSITION = re.compile("([0-9]{1,19})-([0-9]{1,19})")  # 64-bit numbers


class StoreError(Exception):
    """The store cannot be used now; the message gives the reason."""


class Store:
    """Transports batches in one order for all pickers, so a snapshot includes all earlier ones.

    Every method except `close` raises `StoreError` if the store cannot be used, and the constructor
    `SettingError` if the extra is not installed, or a file cannot be read.

    Args:
        share: the store's address and credentials.
        origin: name of this picker, whose entries are not received.
        secret: the hash secret from the settings; None means the store's.
    """

    def __init__(
        self, share: Share, settings: SharingSettings, *, origin: str, secret: bytes | None
    ) -> None:
        try:
            from redis.exceptions import RedisError
        except ImportError:
            raise SettingError(
                f"needs the Redis client; {install('share')}", setting="share.url"
            ) from None
        assert share.url is not None
        self._faults = (RedisError, OSError, TimeoutError)
        self._secret = secret
        self._origin = origin.encode()
        self._interval_ms = int(SNAPSHOT_INTERVAL_S * 1000)
        self._history_ms = int(settings.history_s * 1000)
        self._where = share.url.partition("://")[2]
        base = f"laar:{{{settings.namespace}}}:"
        self._records, self._snapshot = base + "records", base + "snapshot"
        self._turn, self._key = base + "turn", base + "key"
        self._share = share
        self._lookup: asyncio.Future[Any] | None = None  # the latest one of the store's name
        self._renew()
        self.position = "0-0"
        self._used = b""  # the key in use
        self._clock_ms = 0.0  # offset of the store's clock from the loop's
        self._sent: deque[tuple[float, str]] = deque()  # loop times and positions, for trimming

    def _renew(self) -> None:
        """Create new connections, with the current content of the password and TLS files."""
        from redis.asyncio import ConnectionPool
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        share = self._share
        options: dict[str, Any] = {
            "username": share.username,
            "password": _read(share),
            "socket_timeout": None,  # each call has its own timeout
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "client_name": "laar",
        }
        if str(share.url).startswith("rediss"):
            options |= _tls(share)
        pool: Any = ConnectionPool.from_url(str(share.url), **options)
        self._sender, self._reader, self._other = (pool.make_connection() for _ in range(3))

    async def open(self, key: bytes, *, starting: bool) -> tuple[bytes, bytes | None]:
        """Open the connections, and store `key` if there is none.

        If `starting`, fetch the snapshot; `receive` then begins with the oldest batches kept.

        Return the key that all pickers use, and the snapshot, if there is one.
        """
        await self.close()
        try:
            await asyncio.to_thread(self._renew)  # the password or a certificate may have changed
        except SettingError as fault:
            raise StoreError(str(fault)) from None
        seconds, micros = await self._ask("TIME")
        self._clock_ms += int(seconds) * 1e3 + int(micros) / 1e3 - self._now_ms()
        self._sent.clear()
        # Trim first: a full store accepts no entries, so old ones would keep it full.
        await self._ask("XTRIM", self._records, "MINID", "~", self._oldest)
        if starting and self._secret is None and not await self._ask("EXISTS", self._key):
            await asyncio.sleep(_OTHERS_S)
        self._used = await self._agreed(self._secret or key)
        snapshot = None
        if starting:
            snapshot = await self._fetched()
            self.position = self._oldest
        last = await self._last()
        if last is None or not (0, 0) < _number(self.position) <= last:
            self.position = "0-0"  # the store lost its entries; the position is beyond its end
        await self._ask("XREAD", "STREAMS", self._records, "$")  # check the permission
        return self._used, snapshot

    async def _fetched(self) -> bytes | None:
        """Return the snapshot; None if there is none, or it does not arrive in time."""
        if not 0 < await self._ask("STRLEN", self._snapshot) <= MAX_SNAPSHOT_BYTES:
            return None
        try:
            found: bytes | None = await self._ask("GET", self._snapshot, within_s=_FETCH_S)
        except StoreError as fault:
            _LOG.warning("starting without the others' snapshot: %s", fault)
            return None
        return found

    async def _agreed(self, key: bytes) -> bytes:
        """Return the key that all pickers use; store `key` if there is none."""
        if self._secret is not None:
            return key
        await self._ask("SET", self._key, key.hex(), "NX")
        return _key(await self._ask("GET", self._key))

    async def _last(self) -> tuple[int, int] | None:
        """Return the position of the last entry; None if there are no entries."""
        last = await self._ask("XREVRANGE", self._records, "+", "-", "COUNT", 1)
        return _number(last[0][0]) if last else None

    async def after(self, position: str) -> None:
        """Receive only batches after a snapshot's position, since it includes the earlier ones."""
        # From a position beyond the stream's end, nothing would ever be received.
        if _number(self.position) < _number(position) <= (await self._last() or (0, 0)):
            self.position = position

    async def send(self, batches: Sequence[bytes]) -> None:
        """Append the batches to the stream."""
        add = ("XADD", self._records, "MINID", "~", self._oldest, "*", "o", self._origin, "b")
        *_, position = await self._trip(self._sender, *((*add, data) for data in batches))
        # The store's clock drifts, and may be adjusted during the connection.
        self._clock_ms += _number(position)[0] - self._now_ms()
        self._note_sent(position.decode())

    async def receive(self) -> AsyncIterator[list[tuple[bytes, float]]]:
        """Yield the others' batches in order, each with its age in seconds, until `close`."""
        loop, within_s = asyncio.get_running_loop(), _TIMEOUT_S + _BLOCK_MS / 1e3
        while True:
            next_at = loop.time() + _PAUSE_S
            read = ("XREAD", "COUNT", _AT_ONCE, "BLOCK", _BLOCK_MS, "STREAMS", self._records)
            (found,) = await self._trip(self._reader, (*read, self.position), within_s=within_s)
            entries = found[0][1] if found else []
            self.is_behind = len(entries) >= _AT_ONCE
            yield [record for entry in entries for record in self._others(*entry)]
            if entries:
                self.position = entries[-1][0].decode()
            if (pause_s := next_at - loop.time()) > 0.0 and not self.is_behind:
                await asyncio.sleep(pause_s)

    def _others(self, position: bytes, parts: list[bytes]) -> Iterator[tuple[bytes, float]]:
        """Yield the batch in an entry and its age, unless this picker sent it."""
        fields = dict(zip(parts[::2], parts[1::2], strict=True))
        if fields.get(b"o") != self._origin:
            age_s = max(0.0, self._now_ms() - _number(position)[0]) / 1e3
            yield fields.get(b"b", b""), age_s

    async def is_my_turn(self) -> bool:
        """Return whether a snapshot is due and this picker should write it."""
        await self._other.disconnect(nowait=True)  # the store may have closed it when idle
        # If the store was emptied, a starting picker may have provided a different key.
        if await self._agreed(self._used) != self._used:
            raise StoreError(f"the store {self._where} has another hash key")
        return bool(await self._ask("SET", self._turn, self._origin, "NX", "PX", self._interval_ms))

    async def put_snapshot(self, data: bytes) -> None:
        """Store a snapshot for starting pickers."""
        within_s = _TIMEOUT_S + len(data) / _SLOWEST_BYTES_S
        await self._ask("SET", self._snapshot, data, "EX", _KEPT_S, within_s=within_s)
        for name in (self._records, self._key):
            await self._ask("EXPIRE", name, _KEPT_S)

    async def close(self) -> None:
        """Close the connections."""
        for connection in (self._sender, self._reader, self._other):
            with contextlib.suppress(*self._faults):
                await connection.disconnect()

    @property
    def _oldest(self) -> str:
        """Position of the oldest entry to keep."""
        now_s = asyncio.get_running_loop().time()
        if self._sent and self._sent[0][0] <= now_s - self._history_ms / 1e3:
            return self._sent[0][1]
        return f"{max(0, int(self._now_ms()) - self._history_ms)}-0"

    def _note_sent(self, position: str) -> None:
        """Remember a position each second, since the milliseconds in positions are not reliable.

        They stand still after the store's clock is set back, and jump when it is set ahead.
        """
        now_s, sent = asyncio.get_running_loop().time(), self._sent
        if sent and _number(position) < _number(sent[-1][1]):
            sent.clear()  # the store was emptied, after its clock had been ahead
            self.position = "0-0"
        if not sent or now_s - sent[-1][0] >= 1.0:
            sent.append((now_s, position))
        while len(sent) > 1 and sent[1][0] <= now_s - self._history_ms / 1e3:
            sent.popleft()

    def _now_ms(self) -> float:
        return self._clock_ms + asyncio.get_running_loop().time() * 1e3

    async def _ask(self, *command: Any, within_s: float = _TIMEOUT_S) -> Any:
        """Send a command other than a batch; return its reply."""
        (reply,) = await self._trip(self._other, command, within_s=within_s)
        return reply

    async def _trip(
        self, connection: Any, *commands: tuple[Any, ...], within_s: float = _TIMEOUT_S
    ) -> list[Any]:
        """Send commands together; return their replies. Reopen a closed connection."""
        try:
            async with asyncio.timeout(within_s + _OPEN_S * (not connection.is_connected)):
                if hasattr(connection, "host") and not connection.is_connected:
                    # A lookup continues after the timeout. Many would delay those of endpoints.
                    if self._lookup is None or self._lookup.done():
                        lookup = asyncio.get_running_loop().getaddrinfo(connection.host, None)
                        self._lookup = asyncio.ensure_future(lookup)
                        self._lookup.add_done_callback(lambda it: it.cancelled() or it.exception())
                    await asyncio.shield(self._lookup)
                await connection.send_packed_command(connection.pack_commands(commands))
                return [await connection.read_response() for _ in commands]
        except self._faults as fault:
            await connection.disconnect(nowait=True)  # or a late reply may be taken for the next
            text = str(fault).splitlines()[0][:200] if str(fault) else type(fault).__name__
            raise StoreError(f"the store {self._where} can't be used ({text})") from None


def _tls(share: Share) -> dict[str, Any]:
    """Return the client's TLS options; the store's certificate is always verified.

    Raise `SettingError` if a file cannot be used, so every connection would fail.
    """
    try:
        context = ssl.create_default_context(cafile=share.ca_file)
        if share.cert_file is not None:
            # Without a password OpenSSL would prompt on the terminal if the key needs one.
            context.load_cert_chain(share.cert_file, share.key_file, password="")
    except (OSError, ValueError) as fault:
        files = {"ca_file": share.ca_file, "cert_file": share.cert_file, "key_file": share.key_file}
        named = ", ".join(f"share.{name} {path}" for name, path in files.items() if path)
        raise SettingError(f"{named}: can't be used for TLS: {fault}") from None
    key_file = share.key_file or share.cert_file
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_exclude_verify_flags": [ssl.VERIFY_X509_STRICT],  # as in `verified` for engines
        "ssl_ca_certs": share.ca_file and str(share.ca_file),
        "ssl_certfile": share.cert_file and str(share.cert_file),
        "ssl_keyfile": key_file and str(key_file),
    }


def _read(share: Share) -> str | None:
    if share.password_file is None:
        return None
    try:
        return read_file(share.password_file).decode().strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise SettingError(f"share.password_file {share.password_file}: {fault}") from None


def _key(value: object) -> bytes:
    try:
        key = bytes.fromhex(value.decode() if isinstance(value, bytes) else "")
    except (ValueError, UnicodeDecodeError):
        key = b""
    if len(key) < 16:
        raise StoreError("the store's hash key is damaged; delete laar:{NAMESPACE}:key there")
    return key


def _number(position: bytes | str) -> tuple[int, int]:
    """Return a position as numbers; (0, 0) if it is invalid."""
    found = _POSITION.fullmatch(position.decode() if isinstance(position, bytes) else position)
    return (int(found[1]), int(found[2])) if found else (0, 0)

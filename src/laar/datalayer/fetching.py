"""A minimal HTTP client for collectors: GET requests over one persistent connection per host.

An idle picker does little but poll endpoints. With a general client, most of the cost is its
objects for URL, request, response, redirects and cookies. So a request to an IP address is written
directly to one of aiohttp's connections, which parses the response with all of aiohttp's limits.
URLs with a name, a password, a query or https, and engines with a key, go through aiohttp's
session.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import SERVER_SOFTWARE, HttpProcessingError

from laar.core.membership import PLAIN, EndpointSpec
from laar.datalayer.files import Stamp, stamp_of
from laar.datalayer.interface import Clock

_PLAIN = re.compile(r"http://(([0-9.]+|\[[0-9a-f:.]+\]):([0-9]+))((?:/[\w-]+)+)", re.ASCII)
"""Matches URLs with nothing to resolve, quote or normalize."""
_MAX_PORT = 65535
_KEPT_S = 75.0
"""Seconds for which an unused connection is kept: more than any idle picker's polling interval."""
_BROKEN = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)


def fault_of(error: Exception) -> str:
    """Return an error's type and text, without the ssl setting that aiohttp adds to plain HTTP."""
    return f"{type(error).__name__} {error}".replace(" ssl:default", "").strip()


def failed_rtt_s(error: Exception) -> float | None:
    """Return infinity for a refused connection, None for another error: that may be chance."""
    error = getattr(error, "os_error", error)
    return math.inf if isinstance(error, ConnectionRefusedError) else None


def options_for(spec: EndpointSpec, url: str = "", *, key: bool = True) -> dict[str, Any]:
    """Return aiohttp's request options for an engine: its key, unless not `key`, and TLS.

    Empty for a `url` on another host: the key is for the engine only.
    """
    way = spec.way
    if way is PLAIN or (url and not url.startswith(way.url(spec.address, "/"))):
        return {}
    headers = {"host": way.name} if way.name else {}
    if way.key and key:
        headers["authorization"] = f"Bearer {way.key}"
    if not way.tls:
        return {"headers": headers}
    verified = _verified(way.ca_file, stamp_of(Path(way.ca_file)), named=bool(way.name))
    return {"headers": headers, "ssl": verified, "server_hostname": way.name or None}


@lru_cache(64)
def _verified(ca_file: str, _stamp: Stamp, *, named: bool) -> ssl.SSLContext:
    """Return a TLS context that verifies as Envoy does: only the authority unless `named`."""
    context = verifying(ca_file)
    context.check_hostname = named
    return context


def verifying(ca_file: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the authorities in a file; the system's if it is empty.

    Python 3.13 would require extensions that cluster and private authorities often lack.
    """
    context = ssl.create_default_context(cafile=ca_file or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def visiting_session(
    timeout: aiohttp.ClientTimeout,
    *,
    headers: Mapping[str, str] | None = None,
    trace: aiohttp.TraceConfig | None = None,
) -> aiohttp.ClientSession:
    """Return a session for a collector: one persistent connection per endpoint, no cookies."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=1, keepalive_timeout=_KEPT_S),
        timeout=timeout,
        auto_decompress=False,
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=None if trace is None else [trace],
    )


class Answer:
    """A response whose headers have arrived.

    Attributes:
        status: the status code.
        after_s: seconds from sending the request's headers to receiving the response's; excludes
            opening a connection.
    """

    __slots__ = ("_content", "after_s", "status")

    def __init__(self, status: int, after_s: float, content: aiohttp.StreamReader) -> None:
        self.status = status
        self.after_s = after_s
        self._content = content

    async def read(self, max_bytes: int) -> bytes:
        """Return the body, up to slightly over `max_bytes`; a longer one closes the connection.

        Raises:
            ClientError: the body breaks off.
        """
        return await read_capped(self._content, max_bytes)


async def read_capped(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    """Return a body, up to slightly over `max_bytes`; leave the remainder unread."""
    body = await content.readany()
    if content.at_eof():  # nearly always true
        return body
    chunks, size = [body], len(body)
    while size <= max_bytes and (chunk := await content.readany()):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


class _Host:
    """The connection to one host.

    Attributes:
        turn: lock held by the request in flight.
        connection: the idle connection; None while a request uses it.
        used_at: end of the last request, by the event loop's clock.
    """

    __slots__ = ("connection", "turn", "used_at")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.connection: ResponseHandler | None = None
        self.used_at = 0.0


class Fetcher:
    """An async context manager that fetches pages for collectors. Create it on a running loop.

    Args:
        headers: headers sent with each request.
        clock: monotonic seconds.
    """

    def __init__(self, headers: Mapping[str, str], *, clock: Clock) -> None:
        headers = {"user-agent": SERVER_SOFTWARE, "accept-encoding": "identity", **headers}
        lines = [f"{name}: {value}" for name, value in headers.items()]
        self._head_end = "\r\n".join(["", *lines, "", ""])
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._connection = partial(ResponseHandler, self._loop)
        self._hosts: dict[str, _Host] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(self._headers_sent)
        self._session = visiting_session(aiohttp.ClientTimeout(), headers=headers, trace=trace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for host in self._hosts.values():
            if host.connection is not None:
                host.connection.close()
        await self._session.close()

    @asynccontextmanager
    async def get(
        self, url: str, spec: EndpointSpec | None = None, *, key: bool = True
    ) -> AsyncIterator[Answer]:
        """Get a page from an engine. Redirects are not followed: they could lead anywhere.

        The caller must set a timeout. Without `key` the engine's key is not sent.

        Raises:
            ClientError, OSError, ValueError: there is no response.
        """
        plain = _PLAIN.fullmatch(url)
        options = {} if spec is None or spec.way is PLAIN else options_for(spec, url, key=key)
        if plain is None or options or int(plain[3]) > _MAX_PORT:
            sent = SimpleNamespace(at=self._clock())
            options |= {"allow_redirects": False, "trace_request_ctx": sent}
            asked = self._session.get(url, **options)
            async with asked as came:
                yield Answer(came.status, self._clock() - sent.at, came.content)
            return
        netloc, ip, port, path = plain.groups()
        host = self._hosts.get(netloc)
        if host is None:
            host = self._hosts[netloc] = _Host()
            self._sweep_later()
        request = f"GET {path} HTTP/1.1\r\nhost: {netloc}{self._head_end}".encode()
        async with host.turn:
            try:
                connection, answer = await self._ask(host, ip.strip("[]"), int(port), request)
                try:
                    yield answer
                except BaseException:
                    connection.close()
                    raise
                if connection.should_close:
                    connection.close()
                else:
                    host.connection = connection
            finally:
                host.used_at = self._loop.time()

    async def _ask(
        self, host: _Host, ip: str, port: int, request: bytes
    ) -> tuple[ResponseHandler, Answer]:
        """Send a request; retry once if the connection breaks, as an idle one may be closed."""
        for last in (False, True):
            connection, host.connection = host.connection, None
            if connection is None or not connection.is_connected() or connection.should_close:
                if connection is not None:
                    connection.close()
                _, connection = await self._loop.create_connection(self._connection, ip, port)
            try:
                return connection, await self._answer(connection, request)
            except BaseException as error:
                connection.close()
                if last or not isinstance(error, _BROKEN):
                    raise
        raise AssertionError

    async def _answer(self, connection: ResponseHandler, request: bytes) -> Answer:
        if connection.transport is None:  # the host closed it right after opening
            raise aiohttp.ServerDisconnectedError
        connection.set_response_params(read_until_eof=True, auto_decompress=False)
        connection.transport.write(request)
        sent_at = self._clock()
        try:
            message, content = await connection.read()
            while 100 <= message.code < 200 and message.code != 101:
                message, content = await connection.read()
        except HttpProcessingError as error:
            raise aiohttp.ClientError(f"{error.code}, {error.message}") from error
        return Answer(message.code, self._clock() - sent_at, content)

    def _sweep_later(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_KEPT_S, self._sweep)

    def _sweep(self) -> None:
        """Drop hosts not used for `_KEPT_S`."""
        self._sweeping = None
        before = self._loop.time() - _KEPT_S
        for netloc, host in list(self._hosts.items()):
            if host.used_at < before and not host.turn.locked():
                if host.connection is not None:
                    host.connection.close()
                del self._hosts[netloc]
        if self._hosts:
            self._sweep_later()

    async def _headers_sent(
        self,
        _session: aiohttp.ClientSession,
        context: SimpleNamespace,
        _params: aiohttp.TraceRequestHeadersSentParams,
    ) -> None:
        # A request is resent if its kept-alive connection turns out dead: the last time counts.
        context.trace_request_ctx.at = self._clock()

"""HTTP for collectors: requests to engines over one persistent connection per endpoint."""

from __future__ import annotations

import math
import ssl
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import aiohttp

from laar.datalayer.files import Stamp, stamp_of
from laar.fleet.membership import PLAIN, EndpointSpec

_KEPT_S = 75.0
"""Seconds for which an unused connection is kept, more than an idle picker's polling interval."""


def fault_of(error: Exception) -> str:
    """Return an error's type and text, without the ssl setting that aiohttp adds even for HTTP."""
    return f"{type(error).__name__} {error}".replace(" ssl:default", "").strip()


def failed_rtt_s(error: Exception) -> float | None:
    """Return infinity for a refused connection; None for other errors, which may be transient."""
    error = getattr(error, "os_error", error)
    return math.inf if isinstance(error, ConnectionRefusedError) else None


def options_for(spec: EndpointSpec, url: str = "", *, key: bool = True) -> dict[str, Any]:
    """Return aiohttp's request options for an engine: TLS, and its key if `key` is true.

    They are empty if `url` is on a different host, since the key is only for the engine.
    """
    way = spec.way
    if way is PLAIN or (url and not url.startswith(way.url(spec.address, "/"))):
        return {}
    headers = {"host": way.name} if way.name else {}
    if way.key and key:
        headers["authorization"] = f"Bearer {way.key}"
    if not way.tls:
        return {"headers": headers}
    stamp = stamp_of(Path(way.ca_file)) if way.ca_file else ()
    context = verified(way.ca_file, stamp, named=bool(way.name))
    return {"headers": headers, "ssl": context, "server_hostname": way.name or None}


@lru_cache(64)
def verified(ca_file: str, _stamp: Stamp, *, named: bool) -> ssl.SSLContext:
    """Return a TLS context that trusts the CAs in a file; the system's CAs if `ca_file` is empty.

    As in Envoy, the host name is checked only if `named`. Extensions that cluster and private CAs
    often lack are not required, unlike in Python 3.13.
    """
    context = ssl.create_default_context(cafile=ca_file or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = named
    return context


def visiting_session(
    headers: Mapping[str, str], timeout: aiohttp.ClientTimeout | None = None
) -> aiohttp.ClientSession:
    """Return a session for a collector: one persistent connection per endpoint, no cookies."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=1, keepalive_timeout=_KEPT_S),
        timeout=timeout or aiohttp.ClientTimeout(),
        auto_decompress=False,
        headers={"accept-encoding": "identity", **headers},
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[_TRACE],
    )


def get(
    session: aiohttp.ClientSession,
    url: str,
    spec: EndpointSpec,
    *,
    key: bool = True,
    sent: Callable[[], object] | None = None,
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """Get a page from an engine. Redirects are not followed: they could lead anywhere.

    The caller must set a timeout. Without `key` the engine's key is not sent. `sent` is called once
    the request's headers are sent, and again if its kept-alive connection turns out to be dead.
    Raise `ClientError`, `OSError` or `ValueError` if there is no response.
    """
    options = options_for(spec, url, key=key)
    return session.get(url, allow_redirects=False, trace_request_ctx=sent, **options)


async def _headers_sent(_session: object, context: Any, _params: object) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx()


_TRACE = aiohttp.TraceConfig()
_TRACE.on_request_headers_sent.append(_headers_sent)


async def read_capped(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    """Return a body, up to slightly over `max_bytes`; leave the remainder unread.

    Some servers compress what nobody asked them to, which shows in the first bytes.
    """
    chunks: list[bytes] = []
    size = 0
    while size <= max_bytes and (chunk := await content.readany()):
        chunks.append(chunk)
        size += len(chunk)
    body = b"".join(chunks)
    if body[:2] in (b"\x1f\x8b", b"x\x01", b"x\x9c", b"x\xda"):
        with suppress(zlib.error):
            body = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, max_bytes + 1)
    return body

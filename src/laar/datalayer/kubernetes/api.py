"""The part of the Kubernetes API needed to list and watch, using plain aiohttp.

No client library is used. None of kubernetes-asyncio, lightkube and kr8s provides the laborious
part: a paged list that replaces the known objects, a watch resumed from bookmarks, a relist after
410 that also notices deletions (one of them keeps watching without a relist), and keeping the old
state through an outage. `Mirror` would be needed anyway; a library would only save this file, at
the cost of 48 MB on disk or a second HTTP stack.

Inside a cluster the token is reread for each request, since the kubelet replaces it about every
hour. Outside, point `ApiAccess` at a ``kubectl proxy``, which supports every way to log in.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import orjson

from laar.datalayer.endpoints_file import join_address
from laar.datalayer.fetching import fault_of, read_capped, verified
from laar.datalayer.files import stamp_of
from laar.errors import LaarError, SettingError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_PAGE_BYTES = 64 << 20
"""Maximum size of a list page: 1.3 MB for each of its 50 objects, close to the storage limit."""
MAX_EVENT_BYTES = 4 << 20
"""Maximum size of a watch event, above the storage limit of 1.5 MB per object."""
LIST_TIMEOUT_S = 30.0
WATCH_S = 60.0
"""Requested duration of a watch. Resuming one costs a request; a connection that dies silently is
noticed after this time plus `WATCH_GRACE_S`."""
WATCH_GRACE_S = 15.0


class ApiError(LaarError):
    """A request to the API server failed; `status` is the HTTP status, 0 without a response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """The API server's address and credentials.

    Args:
        url: ``https://host:port``, or ``http://127.0.0.1:8001`` for a ``kubectl proxy``.
        token_file: file with the bearer token, reread for each request; None if none is needed.
        ca_file: file with the CAs that verify the server; None means the system's CAs.
        namespace: namespace of the objects; laar's own by default.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    namespace: str = "default"


def in_cluster(account: Path = ACCOUNT) -> ApiAccess:
    """Return the address and credentials of the API server for a process in a pod.

    Raise `SettingError` if laar is not in a pod, or the pod has no service account token.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (account / "token").exists():
        raise SettingError(
            "not inside a Kubernetes pod with a service account token; run `kubectl proxy` and"
            " set `api_server: http://127.0.0.1:8001`"
        )
    return ApiAccess(
        url=f"https://{join_address(host, port)}",
        token_file=account / "token",
        ca_file=account / "ca.crt",
        namespace=(account / "namespace").read_text().strip(),
    )


class ApiServer:
    """An async context manager to list and watch objects."""

    def __init__(self, access: ApiAccess) -> None:
        self.access = access

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=MAX_EVENT_BYTES
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._session.close()

    async def list_page(self, path: str, query: Mapping[str, str]) -> Any:
        """Get one page of a list; raise `ApiError` if the request failed."""
        limits = aiohttp.ClientTimeout(total=LIST_TIMEOUT_S)
        async with self._get(path, query, limits) as content:
            body = await read_capped(content, MAX_PAGE_BYTES)
            if len(body) > MAX_PAGE_BYTES:
                raise ApiError(0, f"a page of {path} is over {MAX_PAGE_BYTES} bytes")
            return orjson.loads(body)

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[AsyncIterator[Any]]:
        """Open a watch; its events end when the server closes it.

        Raise `ApiError` if the watch could not be opened, or was aborted.
        """
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=LIST_TIMEOUT_S, sock_read=WATCH_S + WATCH_GRACE_S
        )
        query = {
            **query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": f"{WATCH_S:.0f}",
        }
        async with self._get(path, query, limits) as content:
            yield _events(content)

    @asynccontextmanager
    async def _get(
        self, path: str, query: Mapping[str, str], limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Send a request; errors while its answer is read become an `ApiError` too."""
        try:
            headers, context = await asyncio.to_thread(self._credentials)
            async with self._session.get(
                self.access.url + path,
                params=query,
                headers=headers,
                ssl=context or True,
                timeout=limits,
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    text = (await answer.content.read(4096)).decode(errors="replace")
                    said = text[:200]
                    with suppress(ValueError, KeyError, TypeError):
                        said = str(orjson.loads(text)["message"])
                    raise ApiError(answer.status, f"{path} answered {answer.status}: {said}")
                yield answer.content
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiError(0, f"{self.access.url}: {fault_of(error)}") from None

    def _credentials(self) -> tuple[dict[str, str], ssl.SSLContext | None]:
        headers = {"accept": "application/json"}
        if self.access.token_file:
            headers["authorization"] = f"Bearer {self.access.token_file.read_text().strip()}"
        file = self.access.ca_file
        return headers, verified(str(file), stamp_of(file), named=True) if file else None


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Any]:
    while line := await content.readline():
        yield orjson.loads(line)

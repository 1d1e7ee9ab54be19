"""Follow the tuner of a running picker through its admin port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import orjson

from laar.errors import LaarError

_POLL_S = 2.0
_TIMEOUT_S = 10.0
_PATIENCE_S = 120.0
"""Seconds without an answer before giving up; a restarted picker is back sooner."""


async def follow(
    picker: str,
    token: str | None,
    *,
    freeze: bool = False,
    wait: bool = False,
    on_window: Callable[[Mapping[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Return the state of a running picker's tuner.

    Args:
        picker: URL of the picker's admin port.
        token: token of the admin port; None if it needs none.
        freeze: end the climb first.
        wait: wait until the climb has ended.
        on_window: called with each window after it has ended.

    Raises:
        LaarError: no picker answers, or the picker has no tuner.
    """
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = f"{picker}/tuner"
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as http:
        if freeze:
            await _asked(http, "POST", f"{url}/freeze")
        shown, answered_s = 0, None
        while True:
            try:
                found = await _asked(http, "GET", url)
            except LaarError:
                if answered_s is None or time.monotonic() - answered_s > _PATIENCE_S:
                    raise
                await asyncio.sleep(_POLL_S)
                continue
            answered_s = time.monotonic()
            if on_window is not None:
                shown = _show_new(found["windows"], shown, on_window)
            if found["frozen"] or not wait:
                return found
            await asyncio.sleep(_POLL_S)


def _show_new(
    windows: list[dict[str, Any]], shown: int, on_window: Callable[[Mapping[str, Any]], None]
) -> int:
    """Show the windows after number `shown`; return the number of the last one."""
    last = windows[-1]["version"] if windows else 0
    if last < shown:
        shown = 0  # the picker was restarted without its state
    for window in windows:
        if window["version"] > shown:
            on_window(window)
    return last


async def _asked(http: aiohttp.ClientSession, method: str, url: str) -> dict[str, Any]:
    try:
        async with http.request(method, url) as answer:
            status, data = answer.status, await answer.read()
        found = orjson.loads(data) if status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
        raise LaarError(f"{url}: no picker's admin port answers there ({error})") from None
    if status != 200 or not isinstance(found, dict):
        raise LaarError(f"{url}: answered {status}; a token may be missing (--token-file)")
    if not found.get("enabled"):
        raise LaarError(f"{url}: this picker does not tune; set `tuner.enabled` in its settings")
    return found

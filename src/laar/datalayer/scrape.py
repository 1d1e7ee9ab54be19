"""Scrape the engines' metrics pages over kept-alive connections.

Once a second is enough. laar counts requests and tokens itself when it decides, so a page only
corrects these counts; an engine updates its gauges only once per step; and serving a page costs
vLLM's API process 4 to 5 ms: half a percent of its time at this rate, a tenth at 20 Hz.

A failed scrape yields no reading, so the endpoint's last reading ages, as its timestamp shows. A
refused connection is also recorded as a failed probe, since nothing listens there. The cap on a
page's size can't be evaded by compression, since compressed pages are not accepted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import ClassVar

import aiohttp
import orjson

from laar.datalayer.fetching import failed_rtt_s, fault_of, get, read_capped
from laar.datalayer.interface import GONE
from laar.datalayer.metrics_page import ENGINES, Counters, page_url, pages_by_rank, read_page
from laar.datalayer.visits import Visits, aside
from laar.faults import Fault
from laar.fleet.membership import EVENTS_LABEL, REPLAY_LABEL, EndpointSpec, key_of

INTERVAL_S = 1.0
TIMEOUT_S = 2.0
"""Timeout of a scrape: enough for another continent, short enough to notice a hanging engine."""
MAX_PAGE_BYTES = 4 << 20
"""Maximum size of a page: 64 data-parallel ranks need about 3 MB. More is cut off, and reported."""
_FEWER = 3
"""Pages that must lack a rank before it is considered gone: each report comes from a process of its
own, and what is known about a rank is lost with it."""
_LONG_BYTES = 256 << 10  # takes tens of milliseconds


@dataclass(slots=True)
class _Kept:
    counters: list[Counters | None] = field(default_factory=list)
    """The last known counters of each rank; None before its first page."""
    fewer: int = 0
    """Pages in a row with fewer ranks than before."""
    ranks: object = -1
    """Number of ranks that the engine reports; -1 before it is queried."""
    knows_events: bool = False
    """Whether the engine was asked where it publishes KV events, since it started."""


class Scraper(Visits):
    """Gets a `Reading` from each endpoint about every `interval_s` seconds."""

    kind = Fault.SCRAPE
    usual_s = INTERVAL_S
    remembers = True  # else a restart would go unnoticed while an endpoint is away
    headers: ClassVar = {"accept": "text/plain;version=0.0.4", "user-agent": "laar-metrics"}

    async def visit(self, spec: EndpointSpec) -> None:
        """Read one page, if the endpoint has one."""
        url, address = page_url(spec), spec.address
        if not url:
            self._sink.problem(self.kind, GONE, address)  # it may have had one before
            return
        try:
            visited = get(self.session, url, spec)
            async with asyncio.timeout(TIMEOUT_S), visited as answer:
                if answer.status != 200:
                    what = f"{url} answered {answer.status}, not 200"
                    self._sink.problem(self.kind, what, address)
                    return
                page = await read_capped(answer.content, MAX_PAGE_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            self._sink.problem(self.kind, f"{url}: {fault_of(error)}", address)
            if spec.has_own_page and (rtt_s := failed_rtt_s(error)):
                self._sink.round_trip(spec.address, rtt_s, self._clock())
            return
        kept: _Kept = self.kept.setdefault(spec.address, _Kept())
        is_long = len(page) > _LONG_BYTES
        pages = await aside(is_long, pages_by_rank, page, spec.engine)
        if not await self._has_all(spec, kept, len(pages)):
            pages = [page]
        kept.fewer = kept.fewer + 1 if len(pages) < len(kept.counters) else 0
        if 0 < kept.fewer < _FEWER:
            return
        if len(pages) != len(kept.counters):
            kept.counters = [None] * len(pages)
        found = map(read_page, pages, repeat(spec.engine), kept.counters)
        readings = await aside(is_long, list, found)
        if any(reading.asleep for reading, _ in readings) and await self._is_awake(spec):
            readings = [(replace(reading, asleep=0.0), known) for reading, known in readings]
        is_blank = all(math.isnan(it.waiting) and math.isnan(it.running) for it, _ in readings)
        if not is_blank:  # a proxy's page, for example, does not show that ranks are gone
            self._sink.ranked(spec.address, len(pages))
        for rank, (reading, kept.counters[rank]) in enumerate(readings):
            key = key_of(spec.address, rank if len(pages) > 1 else None)
            self._sink.reading(key, reading, self._clock())
        problem = None
        if len(page) > MAX_PAGE_BYTES:
            problem = f"{url} is longer than {MAX_PAGE_BYTES} bytes: cut off"
        elif is_blank:
            of = ENGINES[spec.engine]
            problem = f"{url} has no {of.waiting[0].decode()} and no {of.running[0].decode()}"
        self._sink.problem(self.kind, problem, address)
        if not kept.knows_events or any(reading.restarted for reading, _ in readings):
            kept.knows_events = is_blank or await self._ask_for_events(spec)

    async def _has_all(self, spec: EndpointSpec, kept: _Kept, ranks: int) -> bool:
        """Return whether a page with `ranks` ranks has all the ranks that the engine reports."""
        path = ENGINES[spec.engine].ranks_path
        if ranks == 1 or not path:
            kept.ranks = -1  # the engine may have restarted
            return True
        if kept.ranks == -1:
            status, said = await self._asked(spec, path)
            if status < 500:  # otherwise it may be starting: ask again
                kept.ranks = said.get("dp_size")
        return kept.ranks == ranks

    async def _ask_for_events(self, spec: EndpointSpec) -> bool:
        """Ask an engine where it publishes KV events, if no label says so; return if it answers."""
        path = ENGINES[spec.engine].events_path
        if not path or EVENTS_LABEL in spec.labels:
            return True
        status, said = await self._page(spec, path)
        if status < 500:
            labels = events_labels(said)
            self._sink.publishes(spec.address, labels)
            problem = f"{spec.url(path)} names publishers of KV events that can't be followed"
            says = orjson.dumps(said)
            unread = bool(said) and not labels and (isinstance(said, list) or b"zmq" in says)
            unread = unread and b'"enable_kv_cache_events":false' not in says
            self._sink.problem(Fault.KV_EVENTS, problem if unread else None, spec.address)
        return status < 500

    async def _is_awake(self, spec: EndpointSpec) -> bool:
        """Return whether an engine whose page says that it sleeps says otherwise itself.

        A page may be out of date, and an engine believed asleep gets no requests that would show.
        """
        _, said = await self._asked(spec, "/is_sleeping")
        return said.get("is_sleeping") is False

    async def _asked(self, spec: EndpointSpec, path: str) -> tuple[int, Mapping[str, object]]:
        """Return the status of an engine's page, as `_page`, and its object; empty if none."""
        status, said = await self._page(spec, path)
        return status, said if isinstance(said, dict) else {}

    async def _page(self, spec: EndpointSpec, path: str) -> tuple[int, object]:
        """Get JSON from an engine; return the status, 599 if there is no answer, and the value."""
        with suppress(TimeoutError, aiohttp.ClientError, OSError, ValueError):
            page = get(self.session, spec.url(path), spec)
            async with asyncio.timeout(TIMEOUT_S), page as answer:
                said = await read_capped(answer.content, MAX_PAGE_BYTES)
            with suppress(ValueError):
                return answer.status, orjson.loads(said)
            return answer.status, None
        return 599, None


def events_labels(said: object) -> dict[str, str]:
    """Return what labels would tell of an engine's KV events, as the engine describes them.

    vLLM lists its ranks, by number or each with its number, and SGLang the ports of its first one,
    or just its command's JSON. Only the ports are used: the engine's own host publishes, and no
    reply can make laar connect to another. Ranks have the listed ports, in the order of their
    numbers.
    """
    listed, ranks = isinstance(said, list), dict[int, object]()
    if isinstance(said, list):
        for at, each in enumerate(said):
            rank = each.get("data_parallel_rank", at) if isinstance(each, dict) else at
            ranks[rank if isinstance(rank, int) else at] = each
    elif isinstance(said, dict):
        ranks = {int(key): of for key, of in said.items() if _is_number(key)}
        ranks = ranks or {0: said.get("kv_events") or said.get("kv_events_config")}
    found: dict[str, list[int]] = {EVENTS_LABEL: [], REPLAY_LABEL: []}
    for rank in sorted(ranks):
        of = ranks[rank]
        if isinstance(of, str):
            with suppress(ValueError):
                of = orjson.loads(of)
        if not isinstance(of, dict) or of.get("publisher", listed and "zmq") != "zmq":
            return {}
        if not of.get("enable_kv_cache_events", True):
            return {}
        for label, member in ((EVENTS_LABEL, "endpoint"), (REPLAY_LABEL, "replay_endpoint")):
            port = str(of.get(f"{member}_port_base", of.get(member))).rpartition(":")[2]
            if _is_number(port) and int(port):  # 0: the engine's system chose one
                found[label].append(int(port))
    for label, ports in [*found.items()]:
        if len(ports) != len(ranks) or not found.get(EVENTS_LABEL):
            del found[label]
        elif len({*ports}) < len(ports):  # the first one's, for all
            found[label] = [port + rank for port, rank in zip(ports, sorted(ranks), strict=True)]
    return {label: ",".join(map(str, ports)) for label, ports in found.items()}


def _is_number(text: str) -> bool:
    """Return whether a text is a number with the digits of a port's at most."""
    return text.isascii() and text.isdigit() and len(text) <= 5

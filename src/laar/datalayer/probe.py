"""Measure raw round trips to the endpoints, and ask engines whether they work.

These are two questions. What `/health` takes says nothing about the distance: some engines generate
a token for it, which takes SGLang a second. So the round trip is that of a page that does no work:
whichever of a few answers first, and with any status under 500, so it need not exist. The time is
that from sending the request's headers to receiving the response's. Timing starts once a connection
is open, so connection setup is never included, even if the server closes the connection after each
response. Any sample may be late because of what else this process or the engine is doing, so an
endpoint's first visit takes several, and the next visits come soon, until there is a window of
samples; `laar.fleet.roundtrip` decides what they say together.

`/health` is asked rarely, and not while requests are answered, which proves more. A 5xx means that
the engine behind the server is dead (vLLM then answers 503); then it is asked at each visit. No
response at all is a failure, too. A refused connection is reported as an infinite round trip. The
engine's key is not sent: vLLM and SGLang need none, and LiteLLM would call each of its models if
given one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import aiohttp

from laar.datalayer.fetching import failed_rtt_s, fault_of, get, read_capped
from laar.datalayer.visits import Visits
from laar.faults import Fault
from laar.fleet.membership import EndpointSpec
from laar.fleet.roundtrip import WINDOW

INTERVAL_S = 5.0
"""Seconds between probes: round trips change slowly, and reconnecting does not affect them."""
MAX_PROBES_PER_S = 50.0
"""Maximum number of probes per second. 1,000 endpoints then take 20 s; GORGO probes every 30 s."""
TIMEOUT_S = 2.0
"""Timeout of a probe with connection setup, enough for six round trips halfway around the earth."""
HEALTH_TIMEOUT_S = 5.0
"""Timeout of `/health`, as an engine may have to generate a token among others."""
HEALTH_S = 30.0
HEALTH_VISITS = 6
"""An engine that answers no requests is asked about its health at every sixth visit, or after 30 s
if that is sooner."""
PAGES = ("/ping", "/version")
"""Pages that do no work, or that most engines lack."""
SAMPLES, APART_S, SOON_S = 4, 0.05, 0.5
"""Number of samples of each page at the first visit, the maximum seconds between two of them, and
those between the next visits: while a process starts, many things are late together."""
_MAX_ANSWER_BYTES = 64 << 10


@dataclass(slots=True)
class _Kept:
    page: str = ""
    """The page that is timed; empty before the first visit, and if it failed."""
    asked_at: float = -math.inf
    """When its engine last said that it is healthy."""
    taken: int = 0
    """Number of samples, and of visits without any."""


class Prober(Visits):
    """Measures a round trip to each endpoint about every `interval_s` seconds.

    Args:
        answered_at: returns when an endpoint last answered a request well; minus infinity if never.
    """

    kind = Fault.PROBE
    usual_s = INTERVAL_S
    headers: ClassVar = {"accept": "*/*", "user-agent": "laar-probe"}
    most_per_s = MAX_PROBES_PER_S
    phase = 0.5  # keeps the CPU time of scrapes out of the round trips

    def __init__(
        self,
        *visits: Any,
        answered_at: Callable[[EndpointSpec], float] = lambda _spec: -math.inf,
        **options: Any,
    ) -> None:
        super().__init__(*visits, **options)
        self._answered_at = answered_at

    def interval_s(self, spec: EndpointSpec) -> float:
        """Return the seconds until the next visit: fewer until there is a window of samples."""
        usual_s, kept = super().interval_s(spec), self.kept.get(spec.address)
        return min(usual_s, SOON_S) if kept is None or kept.taken < WINDOW else usual_s

    async def visit(self, spec: EndpointSpec) -> None:
        """Measure the round trip, and ask about the engine's health if that is due."""
        kept: _Kept = self.kept.setdefault(spec.address, _Kept())
        found, problem = await self._measure(spec, kept)
        kept.taken += len(found) or 1
        unproven_s = self._clock() - max(kept.asked_at, self._answered_at(spec))
        is_due = unproven_s >= min(HEALTH_VISITS * super().interval_s(spec), HEALTH_S)
        if problem is None and (is_due or not found):
            took_s, problem = await self._get(spec, "/health", HEALTH_TIMEOUT_S)
            if problem is None:
                kept.asked_at = self._clock()
            else:
                found = [took_s if took_s == math.inf else None]
        if problem is not None:
            kept.asked_at = -math.inf  # ask again at the next visit
        for sample_s in found or [math.nan]:
            self._sink.round_trip(spec.address, sample_s, self._clock())
        self._sink.problem(self.kind, problem, spec.address)

    async def _measure(
        self, spec: EndpointSpec, kept: _Kept
    ) -> tuple[list[float | None], str | None]:
        """Return new samples, and what is wrong; neither if only the engine's health can tell."""
        by_page: dict[str, list[float]] = {}
        silent: dict[str, str | None] = {}
        pages, kept.page = [kept.page] if kept.page else SAMPLES * PAGES, ""
        for page in pages:
            if page in silent:
                continue
            if by_page:
                await asyncio.sleep(self._rng.uniform(0.0, APART_S))
            took_s, problem = await self._get(spec, page, TIMEOUT_S)
            if took_s == math.inf:
                return [took_s], problem
            if took_s is None:
                silent[page] = problem
            elif problem is None:
                by_page.setdefault(page, []).append(took_s)
        if silent and not by_page:
            return [None], next(iter(silent.values()))
        kept.page = min(by_page, key=lambda page: min(by_page[page]), default="")
        return [*by_page.get(kept.page, ())], None

    async def _get(
        self, spec: EndpointSpec, path: str, timeout_s: float
    ) -> tuple[float | None, str | None]:
        """Return the seconds in which a page answers, and what is wrong, as a 5xx is.

        Without an answer, the seconds are infinite if the connection is refused, else None.
        """
        url, clock = spec.url(path), self._clock
        took_s: float | None = None
        problem: str | None = None
        sent_at: list[float] = []
        try:
            page = get(self.session, url, spec, key=False, sent=lambda: sent_at.append(clock()))
            async with asyncio.timeout(timeout_s), page as answer:
                took_s = clock() - sent_at[-1]
                if answer.status >= 500:
                    problem = f"{url} answered {answer.status}"
                await read_capped(answer.content, _MAX_ANSWER_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            if took_s is None:
                took_s, problem = failed_rtt_s(error), f"{url}: {fault_of(error)}"
        return took_s, problem

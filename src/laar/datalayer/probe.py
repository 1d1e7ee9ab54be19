"""Round trips to the endpoints, as raw samples: the clipping and averaging is done downstream.

The time from the end of the request's headers to the start of the answer's is one round trip plus
the half millisecond in which an engine answers ``/health``. It starts after a connection exists,
so setting one up never counts, also where the server closes the connection after each answer.
Any answer is a round trip, 404 and 405 too; but a 5xx says that the engine behind it is dead
(vLLM answers 503 then), and counts as a failure as no answer at all does.
"""

from __future__ import annotations

import asyncio
import random

import aiohttp

from laar.core.membership import EndpointSpec
from laar.datalayer.fetching import Fetcher, fault_of
from laar.datalayer.interface import GONE, Clock, ReadingSink, Targets
from laar.datalayer.visits import Interval, Visits

INTERVAL_S = 5.0
"""Round trips change slowly. To open a connection never counts, so it may close in between."""
MAX_PROBES_PER_S = 50.0
"""Probes a second at most: 1,000 endpoints in 20 s; GORGO probes each every 30 s."""
TIMEOUT_S = 2.0
"""Of a whole probe, connection included: six times the way to the far side of the earth."""
_MAX_ANSWER_BYTES = 64 << 10


class Prober:
    """The collector: a round trip to each endpoint, about once in `interval_s`.

    Args:
        targets: the endpoints to probe now.
        sink: takes round trips and problems.
        clock: monotonic seconds.
        rng: spreads the probes.
        interval_s: seconds between two probes of one endpoint, for all or by endpoint.
    """

    def __init__(
        self,
        targets: Targets,
        sink: ReadingSink,
        *,
        clock: Clock,
        rng: random.Random,
        interval_s: Interval = INTERVAL_S,
    ) -> None:
        self._sink = sink
        self._clock = clock
        self._visits = Visits(
            targets,
            self._probe,
            self._left,
            kind="probe",
            problems=sink,
            interval_s=interval_s,
            most_per_s=MAX_PROBES_PER_S,
            phase=0.5,  # the work of scrapes would count as a part of the round trip
            clock=clock,
            rng=rng,
        )
        self._pages: Fetcher | None = None

    async def run(self) -> None:
        """Probe until cancelled."""
        async with Fetcher({"accept": "*/*"}, clock=self._clock) as self._pages:
            await self._visits.run()

    def _left(self, address: str) -> None:
        self._sink.problem(f"probe {address}", GONE)

    async def _probe(self, spec: EndpointSpec) -> None:
        url = spec.url("/health")
        source = f"probe {spec.address}"
        rtt_s: float | None = None
        problem: str | None = None
        assert self._pages is not None
        try:
            async with asyncio.timeout(TIMEOUT_S), self._pages.get(url, spec) as answer:
                if answer.status < 500:
                    rtt_s = answer.after_s
                else:
                    problem = f"{url} answered {answer.status}"
                await answer.read(_MAX_ANSWER_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            if rtt_s is None:
                problem = f"{url}: {fault_of(error)}"
        self._sink.round_trip(spec.address, rtt_s, self._clock())
        self._sink.problem(source, problem)

"""Measure raw round trips to the endpoints; clipping and averaging happen downstream.

The time from sending the request's headers to receiving the response's is one round trip plus the
half millisecond an engine takes to answer ``/health``. Timing starts once a connection is open, so
connection setup is never included, even if the server closes the connection after each response.
Any response is a round trip, including 404 and 405. But a 5xx counts as a failure, since it means
that the engine behind the server is dead (vLLM then answers 503), as does the absence of a
response. A refused connection is reported as an infinite round trip. The engine's key is not sent:
vLLM and SGLang need none, and LiteLLM would call each of its models if given one.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import aiohttp

from laar.core.membership import EndpointSpec
from laar.datalayer.fetching import failed_rtt_s, fault_of, get, read_capped
from laar.datalayer.visits import Visits
from laar.faults import Fault

INTERVAL_S = 5.0
"""Seconds between probes: round trips change slowly, and reconnecting does not affect them."""
MAX_PROBES_PER_S = 50.0
"""Maximum number of probes per second. 1,000 endpoints then take 20 s; GORGO probes every 30 s."""
TIMEOUT_S = 2.0
"""Timeout of a probe with connection setup, enough for six round trips halfway around the earth."""
_MAX_ANSWER_BYTES = 64 << 10


class Prober(Visits):
    """Measures a round trip to each endpoint about every `interval_s` seconds."""

    kind = Fault.PROBE
    usual_s = INTERVAL_S
    headers: ClassVar = {"accept": "*/*"}
    most_per_s = MAX_PROBES_PER_S
    phase = 0.5  # keeps the CPU time of scrapes out of the round trips

    async def visit(self, spec: EndpointSpec) -> None:
        """Measure one round trip."""
        url = spec.url("/health")
        rtt_s: float | None = None
        problem: str | None = None
        sent_at: list[float] = []
        try:
            clock = self._clock
            page = get(self.session, url, spec, key=False, sent=lambda: sent_at.append(clock()))
            async with asyncio.timeout(TIMEOUT_S), page as answer:
                if answer.status < 500:
                    rtt_s = clock() - sent_at[-1]
                else:
                    problem = f"{url} answered {answer.status}"
                await read_capped(answer.content, _MAX_ANSWER_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            if rtt_s is None:
                rtt_s, problem = failed_rtt_s(error), f"{url}: {fault_of(error)}"
        self._sink.round_trip(spec.address, rtt_s, self._clock())
        self._sink.problem(self.kind, problem, spec.address)

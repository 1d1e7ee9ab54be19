"""Measure the picker's time from a received body to its answer, without gRPC.

Real messages pass through the real processor; only the transport is left out. Every body has a
different prompt after a shared system prompt, and every request is settled, so the counters, the
prefix index, garbage collection and the allocator work as in production. Times are CPU time of the
process, which excludes other processes but includes threads that parse long bodies. Use the p10 for
ratios on a busy machine.

The aged row follows a quarter of an hour of requests whose prompts share nothing, in virtual time,
so every memory is full and forgets as much as it learns.

The cold row is a small fleet with long prompts and two requests a second. Between requests the
process sleeps, then reads as much memory as the CPU caches hold, as engines on the same machine
would.

    python -m bench decision
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson

from bench.figures import Figures, print_table, rank
from bench.options import parser_for
from laar.accuracy.assessor import CapabilityAssessor, read_capability
from laar.core.cost import CostWeights
from laar.core.decision import DirectorSettings
from laar.core.director import Director
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import EndpointSpec
from laar.health import Health, HealthSettings
from laar.plugins import own
from laar.policies import build_policies
from laar.prefix.beliefs import PrefixBeliefs
from laar.protocol.agreed import ATTEMPTS
from laar.protocol.rules import GatewayRules
from laar.protocol.sampling import Sampler
from laar.protocol.stream import StreamSettings
from laar.server.extproc import ExternalProcessor
from laar.server.extproc.exchange import Exchange
from laar.server.h2 import Code, H2Call
from laar.server.memory import keep_freed, keep_young
from laar.settings.routing import Flow, Routing
from laar.telemetry.metrics import Metrics
from laar.wire import ext_proc_pb2 as pb

TARGET_P99_US = 1000.0
TARGET_COLD_US = 600.0
SIZES = ((1_000, "1 KB"), (16_000, "16 KB"), (400_000, "400 KB"))
FLEETS = (5, 100, 1000)
REQUESTS = 600
DISTINCT = 24
AGED_ENDPOINTS, AGED_SIZE, AGED_NAME = 100, 16_000, "16 KB, aged"
AGED_REQUESTS = 30_000
AGED_EVERY_S = 0.03
COLD_ENDPOINTS, COLD_SIZE, COLD_NAME = 4, 48_000, "48 KB, cold"
COLD_REQUESTS = 40
COLD_EVERY_S = 0.5
CACHES_BYTES = 128 << 20
MODELS = ("granite-3.1-2b", "granite-3.1-8b", "phi3-mini", "phi3-medium", "llama-3.1-swallow-8b")


class Caller:
    """An exchange's transport, which keeps the answers."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.is_over = False
        self._free = asyncio.Event()
        self._free.set()

    def send(self, message: bytes) -> None:
        """Keep an answer."""
        self.answers.append(message)

    def end(self, _code: Code = Code.OK, _text: str = "") -> None:
        """Record the end of the call."""
        self.is_over = True

    def hold(self) -> None:
        """Record that the exchange holds back messages."""
        self._free.clear()

    def release(self) -> None:
        """Record the end of the hold."""
        self._free.set()

    async def waited(self) -> None:
        """Wait until the exchange releases the hold."""
        await self._free.wait()


async def time_answer(picker: ExternalProcessor, messages: Sequence[bytes]) -> float:
    """Return the CPU seconds from the body, a native exchange's second message, to its answer."""
    caller = Caller()
    exchange = Exchange(picker, cast(H2Call, caller))
    taken = 0.0
    for number, message in enumerate(messages):
        began = time.process_time()
        exchange.receive(message)
        await caller.waited()
        if number == 1:
            taken = time.process_time() - began
    exchange.closed()
    await asyncio.sleep(0)  # run what was put off until after the answer
    return taken


def processor(endpoints: int, clock: Callable[[], float] = time.monotonic) -> ExternalProcessor:
    """Return a processor with a fleet of endpoints, without ports and background tasks."""
    table = EndpointTable()
    specs = [
        EndpointSpec(
            address=f"10.0.{n // 250}.{n % 250 + 1}:8000", models=(MODELS[n % len(MODELS)], "auto")
        )
        for n in range(endpoints)
    ]
    table.replace("bench", specs)
    rng = random.Random(1)
    metrics = Metrics()
    with as_file(files("laar_lab.sim") / "data" / "laar-fleet.capability.json") as path:
        capability = read_capability(path)
    prefixes = PrefixBeliefs(key=b"bench", max_bytes=128 << 20)
    director = Director(
        table,
        build_policies(CostWeights()),
        DirectorSettings(),
        plugins=own(),
        rng=rng,
        assessor=CapabilityAssessor(capability),
        prefixes=prefixes,
        health=Health(HealthSettings(), rng=rng),
    )
    director.watch(metrics.decided)
    parts: Any = SimpleNamespace(  # a picker's, except those that only report
        director=director,
        prefixes=prefixes,
        settings=SimpleNamespace(stream=StreamSettings(), flow=Flow(), routing=Routing()),
        sampler=Sampler(0.0, every_s=1.0, rng=rng),
        clock=clock,
        metrics=metrics,
        rules=GatewayRules(rng),
        held=None,
        with_route=lambda _route, _name: None,
        context=SimpleNamespace(in_use=None),
        observability=SimpleNamespace(spans=None),
    )
    return ExternalProcessor(parts)


def messages(size: int, number: int, trace: str = "") -> list[bytes]:
    """Return the messages of a native exchange: headers, body, response headers."""
    rng = random.Random(number)
    words = "".join(rng.choices("etaoinshrdlu   ", k=size // 2))
    shared = "You are careful. " * (size // 34)
    chat = {
        "model": "auto",
        "messages": [
            {"role": "system", "content": shared},
            {"role": "user", "content": words},
        ],
    }
    return request_messages(orjson.dumps(chat), number, trace)


def request_messages(content: bytes, number: int, trace: str = "") -> list[bytes]:
    """Return the messages of a native exchange with this body."""
    head = pb.ProcessingRequest(request_headers=pb.HttpHeaders())
    head.protocol_config.request_body_mode = pb.ProcessingMode.BUFFERED
    head.attributes["envoy.filters.http.ext_proc"].fields[ATTEMPTS].string_value = b"3"
    for name, value in (
        (":method", "POST"),
        (":path", "/v1/chat/completions"),
        (":authority", "gateway"),
        ("content-type", "application/json"),
        ("x-request-id", f"bench-{number}"),
        ("accept", "*/*"),
        ("user-agent", "bench"),
        ("content-length", str(len(content))),
        *((("traceparent", trace),) if trace else ()),
    ):
        head.request_headers.headers.headers.append(
            pb.HeaderValue(key=name, raw_value=value.encode())
        )
    body = pb.ProcessingRequest(request_body=pb.HttpBody(body=content, end_of_stream=True))
    answer = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
    answer.response_headers.headers.headers.append(pb.HeaderValue(key=":status", raw_value=b"200"))
    return [message.SerializeToString() for message in (head, body, answer)]


async def measure(endpoints: int, size: int) -> list[float]:
    """Return the microseconds from body to answer, sorted."""
    picker = processor(endpoints)
    exchanges = [messages(size, number) for number in range(DISTINCT)]
    taken = [
        await time_answer(picker, exchanges[number % DISTINCT]) * 1e6 for number in range(REQUESTS)
    ]
    return sorted(taken[REQUESTS // 10 :])


async def measure_aged() -> list[float]:
    """Measure as `measure` does, with different prompts and memories that are full."""
    now = time.monotonic()
    picker = processor(AGED_ENDPOINTS, lambda: now)
    filler = "You are careful. " * (AGED_SIZE // 17)
    taken = []
    for number in range(AGED_REQUESTS):
        now += AGED_EVERY_S
        chat = {"model": "auto", "messages": [{"role": "user", "content": f"{number} {filler}"}]}
        exchange = request_messages(orjson.dumps(chat), number)
        taken.append(await time_answer(picker, exchange) * 1e6)
    return sorted(taken[-REQUESTS:])


async def measure_cold() -> list[float]:
    """Measure as `measure` does, with cold CPU caches."""
    picker = processor(COLD_ENDPOINTS)
    exchanges = [messages(COLD_SIZE, number) for number in range(DISTINCT)]
    others = np.ones(CACHES_BYTES // 8)
    taken = []
    for number in range(COLD_REQUESTS):
        await asyncio.sleep(COLD_EVERY_S)
        others += 1.0
        taken.append(await time_answer(picker, exchanges[number % DISTINCT]) * 1e6)
    return sorted(taken[COLD_REQUESTS // 10 :])


def main(argv: Sequence[str] = ()) -> int:
    """Print a row for each fleet and body; return 3 if a target was missed."""
    parser_for("decision", __doc__).parse_args(argv)
    keep_freed()  # like a server after start-up
    keep_young()
    rows: list[tuple[int, str, float, float, float]] = []
    for endpoints, size, name in (
        *((endpoints, *size) for endpoints in FLEETS for size in SIZES),
        (AGED_ENDPOINTS, AGED_SIZE, AGED_NAME),
        (COLD_ENDPOINTS, COLD_SIZE, COLD_NAME),
    ):
        own = {AGED_NAME: measure_aged, COLD_NAME: measure_cold}.get(name)
        taken = asyncio.run(own() if own else measure(endpoints, size))
        p10, p50, p99 = (rank(taken, share) for share in (0.1, 0.5, 0.99))
        rows.append((endpoints, name, p10, p50, p99))
    columns = ("endpoints", "body", "p10, us", "p50, us", "p99, us")
    print_table("Time from a body to its answer", columns, rows, digits=0)
    figures = Figures()
    slowest_us = max(row[-1] for row in rows[: len(SIZES)])
    figures.add("", f"p99 with {FLEETS[0]} endpoints", slowest_us, "us", at_most=TARGET_P99_US)
    figures.add("", "p50 of the cold row", p50, "us", at_most=TARGET_COLD_US)
    return figures.conclude(None)

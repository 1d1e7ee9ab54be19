"""Measure the cost of collection: one metrics page, 100 endpoints every second, 5,000 pods."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from laar.core.endpoints import Reading
from laar.core.membership import EndpointSpec
from laar.datalayer.kubernetes.api import ApiAccess
from laar.datalayer.kubernetes.collector import KubernetesEndpoints
from laar.datalayer.kubernetes.settings import KubernetesSource
from laar.datalayer.metrics_page import read_page
from laar.datalayer.probe import Prober
from laar.datalayer.scrape import Scraper
from laar.protocol.rules import Rewrite

LABELS = 'engine="0",model_name="tiny"'
ENDPOINTS = 100
SECONDS = 5


class Nowhere:
    """A sink that only counts updates."""

    def __init__(self) -> None:
        self.count = 0

    def replace(self, source: str, specs: Sequence[EndpointSpec]) -> None:
        """Count endpoints."""
        self.count += len(specs)

    def ranked(self, address: str, ranks: int) -> None:
        """Ignore the number of ranks."""

    def reading(self, address: str, reading: Reading, now: float) -> None:
        """Count a reading."""
        self.count += 1

    def round_trip(self, address: str, rtt_s: float | None, now: float) -> None:
        """Count a round trip."""
        self.count += rtt_s is not None

    def problem(self, source: str, message: str | None) -> None:
        """Fail on any problem, which would invalidate the measurement."""
        if message is not None:
            raise AssertionError(message)


def vllm_page() -> bytes:
    """Return a 55 KB page like vLLM's, with the relevant metrics spread over it."""
    filler = "".join(
        f'vllm:histogram_{n}_seconds_bucket{{{LABELS},le="{le}"}} 4.0\n'
        for n in range(20)
        for le in range(33)
    )
    names = [
        f"vllm:{name}{{{LABELS}}} 2.0\n"
        for name in (
            "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
            "prefix_cache_queries_total", "prefix_cache_hits_total",
            "prompt_tokens_total", "prompt_tokens_created",
        )
    ]  # fmt: skip
    info = f'vllm:cache_config_info{{block_size="128",{LABELS},num_gpu_blocks="8192"}} 1.0\n'
    step = len(filler) // len(names)
    cut = [filler.rfind("\n", 0, (i + 1) * step) + 1 for i in range(len(names))]
    parts = [filler[a:b] for a, b in zip([0, *cut], cut, strict=False)]
    text = "".join(part + name for part, name in zip(parts, names, strict=True))
    return (text + info).encode()


def microseconds(function: Callable[[], object], calls: int) -> float:
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        rounds.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(rounds)


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


SERVER = """
import asyncio, itertools, sys
page = sys.stdin.buffer.read()
head = b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n"
numbers = (page.replace(b" 2.0", b" %d.0" % n) for n in range(1, 10))
pages = itertools.cycle([head % len(page) + page for page in numbers])
class Serve(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        if data.startswith(b"GET /metrics/same"):
            self.transport.write(head % len(page) + page)
        else:
            self.transport.write(next(pages) if data.startswith(b"GET /m") else head % 0)
async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Serve, "0.0.0.0", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


async def collecting(
    kind: type[Scraper] | type[Prober], port: int, path: str = ""
) -> tuple[float, float]:
    """Return the share of a core used, and visits per second, for `ENDPOINTS` on loopback."""
    addresses = [f"127.0.0.{n + 1}:{port}" for n in range(ENDPOINTS)]
    specs = [
        EndpointSpec(
            address=address,
            models=("tiny",),
            metrics_url=f"http://{address}{path}" if path else None,
        )
        for address in addresses
    ]
    sink: Any = Nowhere()
    collector = kind(lambda: specs, sink, clock=time.monotonic, rng=random.Random(1))
    task = asyncio.create_task(collector.run())
    await asyncio.sleep(2)
    start, used, count = time.monotonic(), cpu_s(), sink.count
    await asyncio.sleep(SECONDS)
    passed = time.monotonic() - start
    figures = (cpu_s() - used) / passed, (sink.count - count) / passed
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return figures


API_SERVER = """
import asyncio, json
from aiohttp import web
def pod(n):
    fields = [{"manager": "kubelet", "fieldsV1": {f"f:{i}": {} for i in range(300)}}]
    return {"metadata": {"name": f"vllm-{n:04}", "namespace": "ml", "uid": f"u{n}",
            "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": str(n),
            "labels": {"app": "vllm", "pod-template-hash": "5d4f", "zone": "z1"},
            "annotations": {"laar.dev/model": "org/tiny"}, "managedFields": fields},
        "spec": {"containers": [{"name": "vllm", "env": [{"name": f"E{i}", "value": "x" * 40}
            for i in range(30)]}]},
        "status": {"podIP": f"10.{n // 65536}.{n // 256 % 256}.{n % 256}",
            "conditions": [{"type": "Ready", "status": "True"}]}}
pods = [json.dumps(pod(n)) for n in range(5000)]
async def handle(request):
    if "watch" in request.query:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await asyncio.sleep(3600)
    start = int(request.query.get("continue") or 0)
    end = start + int(request.query["limit"])
    more = str(end) if end < len(pods) else ""
    meta = json.dumps({"resourceVersion": "9999", "continue": more})
    items = ",".join(pods[start:end])
    return web.Response(text='{"metadata":%s,"items":[%s]}' % (meta, items))
async def main():
    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


class Cluster(Nowhere):
    """A sink for the Kubernetes collector."""

    def objectives(self, source: str, pool: str, priorities: Mapping[str, int]) -> None:
        """Ignore the priorities."""

    def rewrites(self, source: str, pool: str, rewrites: Sequence[Rewrite]) -> None:
        """Ignore the rewrites."""


async def pods(port: int) -> None:
    """Measure the cost of listing 5,000 pods, and of watching them while nothing changes."""
    gc.freeze()  # like a server after start-up: modules are never garbage
    sink = Cluster()
    collector = KubernetesEndpoints(
        ApiAccess(url=f"http://127.0.0.1:{port}", namespace="ml"),
        sink,
        KubernetesSource(selector={"app": "vllm"}, ports=(8000,)),
    )
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    longest_s = 0.0
    start = time.monotonic()
    task = asyncio.create_task(collector.run())
    while not sink.count:
        tick = time.thread_time()  # excludes other work on the machine
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.thread_time() - tick)
    listed_s = time.monotonic() - start
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mib
    used = cpu_s()
    await asyncio.sleep(SECONDS)
    share = (cpu_s() - used) / SECONDS
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    print(f"{sink.count} pods listed in {listed_s:.2f} s, {peak_mib:.0f} MiB (target: under 200)")
    print(f"  longest pause {longest_s * 1e3:.1f} ms (target: under 10)")
    print(f"  {share:.2%} of a core while nothing changes (target: under 5 %)")


@contextmanager
def served(script: str, given: bytes = b"") -> Iterator[int]:
    """Run a server in a separate process, so that its CPU is not counted; yield its port."""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(given)
        server.stdin.close()
        yield int(server.stdout.readline())
        server.kill()


def main() -> None:
    page = vllm_page()
    ours = microseconds(lambda: read_page(page, "vllm", None), 1000)
    parser = microseconds(lambda: list(text_string_to_metric_families(page.decode())), 2)
    print(f"page of {len(page)} bytes: {ours:.0f} us, full parser {parser:.0f} us")
    print(f"  ratio {parser / ours:.0f} (target: over 100)")
    with served(SERVER, page) as port:
        for name, kind, path, target in (
            ("Scraper, busy engines", Scraper, "/metrics", "10 %"),
            ("Scraper, idle engines", Scraper, "/metrics/same", "10 %"),
            ("Prober", Prober, "", "5 %"),
        ):
            share, rate = asyncio.run(collecting(kind, port, path))
            print(
                f"{name}: {ENDPOINTS} endpoints, {rate:.0f} visits/s:"
                f" {share:.1%} of a core (target: under {target})"
            )
    with served(API_SERVER) as port:
        asyncio.run(pods(port))


if __name__ == "__main__":
    main()

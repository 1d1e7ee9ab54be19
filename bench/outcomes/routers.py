"""The routers to compare: laar behind a real Envoy, and other proxies, each with its defaults."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

from bench.outcomes.engines import MODEL
from laar.envoy.bootstrap import render
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess, dying_with_us
from laar_lab.live.processes import LaarProcess, free_ports, wait_for

PEERS = "LAAR_BENCH_PEERS"
"""Environment variable: directory with the programs `smg` and `vllm-router`; else PATH."""

_START_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Running:
    """A router that takes requests; `pids` are its processes."""

    url: str
    pids: tuple[int, ...]

    def cpu_s(self) -> float:
        """Processor seconds so far, threads included."""
        return sum(_cpu_s(pid) for pid in self.pids)


def _cpu_s(pid: int) -> float:
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(told[11]) + int(told[12])) / _TICKS


def peer(name: str) -> str | None:
    """The path of another project's program; None where it is not installed."""
    return shutil.which(name, path=os.environ.get(PEERS) or None)


@asynccontextmanager
async def engines(
    directory: Path, profile: str, count: int, time_scale: float, fault: str
) -> AsyncIterator[list[str]]:
    """Endpoints; yields their addresses."""
    ports = free_ports(count)
    told = [sys.executable, "-m", "bench.outcomes.engines", "--profile", profile]
    told += ["--time-scale", str(time_scale), "--fault", fault]
    for port in ports:
        told += ["--port", str(port)]
    async with _process(told, directory / "engines.log"):
        for port in ports:
            await _answers(f"http://127.0.0.1:{port}/health")
        yield [f"127.0.0.1:{port}" for port in ports]


@asynccontextmanager
async def laar(directory: Path, addresses: Sequence[str]) -> AsyncIterator[Running]:
    """The picker with its defaults, behind its own Envoy."""
    ext_proc, health, admin = free_ports(3)
    eds = directory / "endpoints.json"
    settings = {
        "listen": {
            "ext_proc": f"127.0.0.1:{ext_proc}",
            "health": f"127.0.0.1:{health}",
            "admin": f"127.0.0.1:{admin}",
        },
        "envoy": {"eds_file": str(eds)},
        "endpoints": [{"address": address, "models": [MODEL]} for address in addresses],
        "shutdown": {"drain_s": 0.0, "grace_s": 1.0},
    }
    path = directory / "laar.yaml"
    path.write_text(yaml.safe_dump(settings))
    async with LaarProcess(("serve", "-c", str(path)), directory / "laar.log") as picker:
        await wait_for(f"http://127.0.0.1:{admin}/readyz", picker)
        bootstrap = render(
            "standalone",
            BootstrapOptions(
                picker=f"127.0.0.1:{ext_proc}",
                listen_port=0,
                ready_port=0,
                admin_port=0,
                eds_path=str(eds),
            ),
        )
        async with EnvoyProcess(bootstrap, directory) as envoy:
            yield Running(envoy.url(), (picker.pid, envoy.pid))


@asynccontextmanager
async def smg(directory: Path, addresses: Sequence[str]) -> AsyncIterator[Running]:
    """SMG, cache_aware, its defaults."""
    port, metrics = free_ports(2)
    told = [peer("smg") or "smg", "launch", "--policy", "cache_aware", "--host", "127.0.0.1"]
    told += ["--port", str(port), "--prometheus-port", str(metrics), "--worker-urls"]
    async with _proxy(told, directory / "smg.log", addresses, port) as running:
        yield running


@asynccontextmanager
async def vllm_router(directory: Path, addresses: Sequence[str]) -> AsyncIterator[Running]:
    """VLLM router, cache_aware, its defaults."""
    port, metrics = free_ports(2)
    told = [peer("vllm-router") or "vllm-router", "--policy", "cache_aware"]
    told += ["--host", "127.0.0.1", "--port", str(port)]
    told += ["--prometheus-port", str(metrics), "--worker-urls"]
    async with _proxy(told, directory / "vllm-router.log", addresses, port) as running:
        yield running


@asynccontextmanager
async def _proxy(
    told: Sequence[str], log: Path, addresses: Sequence[str], port: int
) -> AsyncIterator[Running]:
    workers = [f"http://{address}" for address in addresses]
    async with _process([*told, *workers], log) as process:
        url = f"http://127.0.0.1:{port}"
        await _serves(url, log)
        yield Running(url, (process.pid,))


@asynccontextmanager
async def _process(told: Sequence[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *dying_with_us(tuple(told)), stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(10.0):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def _answers(url: str) -> None:
    ends = time.monotonic() + _START_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < ends:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise RuntimeError(f"{url} was not ready after {_START_S:g} s")


async def _serves(url: str, log: Path) -> None:
    """A proxy is ready when a request has an answer: workers may be found later than its port."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    ends = time.monotonic() + _START_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < ends:
            try:
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.3)
    raise RuntimeError(f"{url} served nothing in {_START_S:g} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]

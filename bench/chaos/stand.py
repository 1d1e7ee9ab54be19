"""A fleet on loopback for fault injection: endpoints, pickers and Envoy as child processes.

Two pickers run behind one Envoy, at two loopback addresses with the same ports, so that the
bootstrap's picker settings apply to both. The first one writes Envoy's endpoints file.
"""

from __future__ import annotations

import asyncio
import copy
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml

from bench.chaos.asking import Names
from bench.chaos.guard import Child, Guard
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import find_binary
from laar.settings import Settings
from laar_lab.live.bootstraps import AnyShape, render
from laar_lab.live.processes import free_ports

__all__ = ["Endpoint", "Plan", "Stand", "standing"]

START_TIMEOUT_S = 60.0
_CONTROL_TIMEOUT_S = 60.0
"""Limit of one control request; on a busy machine, an engine under load takes seconds for it."""
_PICKER_HOSTS = ("127.0.0.1", "127.0.0.2")
_POLL_S = 0.05
_DRAIN_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint to start.

    Args:
        model: model served and named in answers.
        names: accepted names. A fleet that can fail open accepts more than the picker knows.
        known: names that the picker knows.
    """

    model: str
    names: tuple[str, ...]
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts of a stand.

    Args:
        endpoints: the endpoints, in order.
        shape: shape of Envoy's bootstrap.
        pickers: number of pickers, 0 to 2.
        time_scale: real seconds per simulated second of the engines.
        settings: settings of the pickers, by section, other than addresses and files.
        all_files: whether to give the pickers an artifact and a decision log.
        engines: module that runs the endpoints; None if the caller runs them at the stand's
            addresses before it starts.
        labels: labels of each endpoint, in order; empty for no labels.
        change: modifies Envoy's bootstrap.
        clock: libfaketime library to set the pickers' clock; None for the real clock.
        store: Redis or Valkey server for sharing; None for no sharing.
        memory_bytes: Envoy's memory; None for the default.
    """

    endpoints: tuple[Endpoint, ...]
    shape: AnyShape = "standalone"
    pickers: int = 1
    time_scale: float = 1.0
    settings: Mapping[str, Mapping[str, object]] | None = None
    all_files: bool = False
    engines: str | None = "laar_lab.race.simulated"
    labels: tuple[Mapping[str, str], ...] = ()
    change: Callable[[dict[str, Any]], None] | None = None
    clock: Path | None = None
    store: Path | None = None
    memory_bytes: int | None = None


class Stand:
    """A running fleet; use `standing` to create one."""

    def __init__(self, plan: Plan, guard: Guard, http: aiohttp.ClientSession) -> None:
        self.plan = plan
        self.guard = guard
        self.http = http
        self.directory = guard.directory
        *ports, self.ext_proc_port, self._health, self._admin = free_ports(len(plan.endpoints) + 3)
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self.by_address = dict(zip(self.addresses, plan.endpoints, strict=True))
        self.endpoints_file = self.directory / "endpoints.yaml"
        self.artifact = self.directory / "capability.json"
        self.clock_file = self.directory / "clock"
        self.eds_directory = self.directory / "eds"
        self.eds_directory.mkdir()
        self.pickers: list[Child] = []
        self.envoy: Child | None = None
        self.engines: Child | None = None
        self.store: Child | None = None
        self.store_socket = self.directory / "store"
        self.url = ""
        self._envoy_admin = ""
        self._envoys = 0

    # Files.

    def names_of_one(self, model: str) -> Names:
        """Return the names of a fleet whose endpoints all serve one model."""
        return Names(
            model_at=dict.fromkeys(self.addresses, model), allowed={model: frozenset({model})}
        )

    def settings_file(self, index: int) -> Path:
        """Return the path of one picker's settings file."""
        return self.directory / f"laar-{index}.yaml"

    def settings(self, index: int, **changes: Mapping[str, object]) -> dict[str, Any]:
        """Return one picker's settings, with changes to its sections."""
        host = _PICKER_HOSTS[index]
        document: dict[str, Any] = {
            "endpoints_file": str(self.endpoints_file),
            "listen": {
                "ext_proc": f"{host}:{self.ext_proc_port}",
                "health": f"{host}:{self._health}",
                "admin": f"{host}:{self._admin}",
            },
        }
        if self.plan.all_files:
            log = self.directory / f"decisions-{index}.jsonl"
            document["accuracy"] = {"capability": str(self.artifact)}
            document["decisions"] = {"log": str(log)}
        if index == 0:
            document["envoy"] = {"eds_file": str(self.eds_directory / "endpoints.json")}
        if self.plan.store is not None:
            document["share"] = {"url": f"unix://{self.store_socket}", "lease_s": 2.0}
        for sections in (self.plan.settings or {}, changes):
            for name, values in sections.items():
                document[name] = {**document.get(name, {}), **values}
        return document

    def write(self, path: Path, text: str) -> None:
        """Replace a file atomically, by rename."""
        temporary = path.with_name(f".{path.name}.edited")
        temporary.write_text(text)
        temporary.replace(path)

    def write_settings(self, **changes: Mapping[str, object]) -> None:
        """Write all pickers' settings files, with changes to their sections."""
        for index in range(self.plan.pickers):
            document = self.settings(index, **changes)
            Settings.model_validate(document)  # a running picker only logs what it refuses
            self.write(self.settings_file(index), yaml.safe_dump(document, sort_keys=False))

    def members(self, *, without: Sequence[int] = ()) -> str:
        """Return the text of an endpoints file that leaves out some endpoints."""
        labels = self.plan.labels or ({},) * len(self.by_address)
        endpoints = [
            {"address": address, "models": list(endpoint.known), "labels": dict(labels[index])}
            for index, (address, endpoint) in enumerate(self.by_address.items())
            if index not in without
        ]
        return yaml.safe_dump({"endpoints": endpoints})

    def write_files(self) -> None:
        """Write all files with valid content."""
        self.write(self.endpoints_file, self.members())
        whole = files("laar_lab.sim") / "data" / "laar-fleet.capability.json"
        self.write(self.artifact, whole.read_text())
        self.write_settings()

    # Processes.

    async def start(self) -> None:
        """Start everything; return when Envoy and all pickers are ready."""
        spec = [
            {
                "model": endpoint.model,
                "served_names": endpoint.names,
                "port": int(address.rpartition(":")[2]),
                "time_scale": self.plan.time_scale,
                "echo": True,
            }
            for address, endpoint in self.by_address.items()
        ]
        path = self.directory / "engines.json"
        path.write_bytes(orjson.dumps(spec))
        self.write_files()
        self.clock_file.write_text("+0")
        if self.plan.engines is not None:
            command = [sys.executable, "-m", self.plan.engines, str(path)]
            self.engines = await self.guard.start("engines", command)
            for address in self.addresses:
                await self._ready(f"http://{address}/health", self.engines)
        await self.start_store()
        for index in range(self.plan.pickers):
            self.pickers.append(await self._picker(index))
        await asyncio.gather(*(self.picker_ready(index) for index in range(self.plan.pickers)))
        if self.plan.pickers:
            await self.start_envoy()

    async def start_store(self) -> None:
        """Start an empty store and wait until it listens; do nothing without a store."""
        if self.plan.store is None:
            return
        self.store_socket.unlink(missing_ok=True)
        options = ("--port", "0", "--unixsocket", self.store_socket, "--save", "")
        command: list[str | Path] = [self.plan.store, *options, "--dir", self.directory]
        self.store = await self.guard.start("store", command)
        async with asyncio.timeout(START_TIMEOUT_S):
            while not self.store_socket.exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(_POLL_S / 10)

    async def _picker(self, index: int) -> Child:
        environment = {}
        if self.plan.clock is not None:
            environment = {
                "LD_PRELOAD": str(self.plan.clock),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock_file),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
                # The "fix" breaks timed waits: a thread holds the GIL for seconds, which blocks the
                # event loop, and Envoy gives up on a healthy picker.
                "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            }
        settings = str(self.settings_file(index))
        command = [sys.executable, "-m", "laar.cli", "serve", "-c", settings]
        return await self.guard.start(f"picker-{index}", command, environment)

    async def restart_picker(self, index: int) -> None:
        """Restart a picker, and wait until it is ready."""
        await self.pickers[index].end()
        self.pickers[index] = await self._picker(index)
        await self.picker_ready(index)

    async def picker_ready(self, index: int) -> None:
        """Wait until a picker reports that it is ready."""
        await self._ready(self.admin_url(index) + "/readyz", self.pickers[index])

    def admin_url(self, index: int) -> str:
        """Return the admin URL of one picker."""
        return f"http://{_PICKER_HOSTS[index]}:{self._admin}"

    async def start_envoy(self) -> None:
        """Start an Envoy and direct requests to it; the caller stops the previous one."""
        listen, ready, admin = free_ports(3)
        options = BootstrapOptions(
            picker=f"{_PICKER_HOSTS[0]}:{self.ext_proc_port}",
            listen_port=listen,
            ready_port=ready,
            admin_port=admin,
            eds_path=str(self.eds_directory / "endpoints.json"),
        )
        bodies = (self.plan.settings or {}).get("bodies", {})
        if (limit := bodies.get("max_body_bytes")) is not None:
            options = replace(options, max_body_bytes=int(str(limit)))
        if self.plan.memory_bytes is not None:
            options = replace(options, memory_bytes=self.plan.memory_bytes)
        bootstrap = render(self.plan.shape, options)
        _spread_over(bootstrap, _PICKER_HOSTS[: self.plan.pickers])
        if self.plan.change is not None:
            self.plan.change(bootstrap)
        self._envoys += 1
        name = f"envoy-{self._envoys}"
        path = self.directory / f"{name}.json"
        path.write_bytes(orjson.dumps(bootstrap))
        own = ("--concurrency", "1", "--disable-hot-restart", "-l", "warning")
        command: list[str | Path] = [find_binary(), "-c", path, *own]
        envoy = await self.guard.start(name, command)
        await self._ready(f"http://127.0.0.1:{admin}/ready", envoy)
        # Readiness covers only listeners, not the health of endpoints and pickers.
        await self._clusters_warm(f"http://127.0.0.1:{admin}")
        self.envoy = envoy
        self.url = f"http://127.0.0.1:{listen}"
        self._envoy_admin = f"http://127.0.0.1:{admin}"

    async def _clusters_warm(self, admin_url: str) -> None:
        wanted = len(self.addresses) + self.plan.pickers
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                async with self.http.get(f"{admin_url}/clusters") as answer:
                    lines = (await answer.text()).splitlines()
                if sum(line.endswith("::health_flags::healthy") for line in lines) >= wanted:
                    return
                await asyncio.sleep(_POLL_S)

    async def replace_envoy(self, *, drain_s: float) -> None:
        """Replace Envoy with a new one; the old one drains its requests first."""
        old, admin_url = self.envoy, self._envoy_admin
        assert old is not None
        await self.start_envoy()
        async with self.http.post(f"{admin_url}/drain_listeners?graceful"):
            pass
        for _ in range(int(drain_s / _DRAIN_POLL_S)):
            if not await self._active(admin_url):
                break
            await asyncio.sleep(_DRAIN_POLL_S)
        await old.end()

    async def _active(self, admin_url: str) -> int:
        path = "/stats?filter=http.*downstream_rq_active&format=json"
        async with self.http.get(admin_url + path) as answer:
            stats = orjson.loads(await answer.read())["stats"]
        return sum(s.get("value", 0) for s in stats if "admin" not in s.get("name", "admin"))

    async def _ready(self, url: str, child: Child) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if not child.alive:
                break
            try:
                async with self.http.get(url) as answer:
                    if answer.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(_POLL_S)
        raise RuntimeError(f"{child.name} was not ready:\n{child.log_tail()}")

    # Faults and readings.

    async def set_faults(self, index: int, *faults: str) -> None:
        """Set one endpoint's faults; without any, the endpoint is healed."""
        url = f"http://{self.addresses[index]}/sim/faults"
        for _ in range(100):  # it may be in an outage
            try:
                async with self.http.put(url, json={"faults": faults}) as answer:
                    answer.raise_for_status()
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.1)
        raise RuntimeError(f"endpoint {index} takes no faults")

    async def outage(self, index: int, seconds: float, *, forget: bool) -> None:
        """Close an endpoint's port for a while."""
        body = {"seconds": seconds, "forget": forget}
        url = f"http://{self.addresses[index]}/sim/outage"
        async with self.http.post(url, json=body) as answer:
            answer.raise_for_status()

    async def faults_seen(self, index: int) -> tuple[int, int]:
        """Return an endpoint's requests since its faults were last set, and those that one hit."""
        async with self.http.get(f"http://{self.addresses[index]}/sim/faults") as answer:
            book = await answer.json()
            return int(book["requests"]), int(book["hit"])

    async def metrics(self, index: int) -> dict[str, float]:
        """Return one picker's metrics, summed over labels."""
        sums: dict[str, float] = {}
        async with self.http.get(self.admin_url(index) + "/metrics") as answer:
            for line in (await answer.text()).splitlines():
                if line and not line.startswith("#"):
                    head, _, value = line.rpartition(" ")
                    name = head.partition("{")[0]
                    sums[name] = sums.get(name, 0.0) + float(value)
        return sums


@asynccontextmanager
async def standing(
    plan: Plan,
    *,
    deadline_s: float,
    before: Callable[[Stand], Awaitable[None]] | None = None,
) -> AsyncIterator[Stand]:
    """Run a stand; remove everything afterwards.

    Args:
        plan: the parts to start.
        deadline_s: seconds until its processes are killed, even if this process hangs.
        before: called before anything starts, when the addresses are known.

    The environment variable LAAR_STAND_LOGS names a folder in which to keep the processes' logs.

    Raises:
        RuntimeError: a process did not start; the message includes the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="laar-stand-") as directory:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=_CONTROL_TIMEOUT_S)
        with Guard(Path(directory), deadline_s=deadline_s) as guard:
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
                try:
                    stand = Stand(plan, guard, http)
                    if before is not None:
                        await before(stand)
                    await stand.start()
                    yield stand
                finally:
                    await guard.kill_all()
                    if kept := os.environ.get("LAAR_STAND_LOGS"):
                        _keep_logs(Path(directory), Path(kept))


def _keep_logs(directory: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for log in directory.glob("*.log"):
        (target / log.name).write_bytes(log.read_bytes())


def _spread_over(bootstrap: dict[str, Any], hosts: Sequence[str]) -> None:
    """Give the picker's cluster several addresses, with unchanged ports."""
    for cluster in bootstrap["static_resources"]["clusters"]:
        if cluster["name"] != "laar-picker":
            continue
        group = cluster["load_assignment"]["endpoints"][0]
        (pattern,) = group["lb_endpoints"]
        group["lb_endpoints"] = []
        for host in hosts:
            one = copy.deepcopy(pattern)
            one["endpoint"]["address"]["socket_address"]["address"] = host
            group["lb_endpoints"].append(one)

"""Start the demo fleet, or a picker and Envoy before any engines, on free loopback ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import orjson
import yaml

from laar.envoy.bootstrap import render
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar_lab.live.processes import Program, cpu_s, free_ports, laar_process, wait_for
from laar_lab.sim.answers import AccuracySurface

ALIAS = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A router that accepts requests.

    Args:
        url: its URL, for laar that of Envoy.
        pids: its process ids if it was started here.
        admin_url: URL of the picker's admin port; empty for other routers.
        models: each endpoint's model by address, if this started the endpoints, too.
    """

    url: str
    pids: tuple[int, ...] = ()
    admin_url: str = ""
    models: Mapping[str, str] = field(default_factory=dict)

    def cpu_s(self) -> float:
        """Return the CPU seconds of its processes, threads included."""
        return sum(map(cpu_s, self.pids))


@asynccontextmanager
async def running_fleet(
    directory: Path,
    *,
    time_scale: float,
    each: int = 1,
    policies: Sequence[str] = (),
    port: int = 0,
    admin_port: int = 0,
    changes: Mapping[str, Mapping[str, object]] | None = None,
) -> AsyncIterator[Running]:
    """Start the fleet of `laar-fleet.yaml`, and stop it after the block.

    Args:
        directory: existing empty directory for settings, logs and the endpoints file.
        time_scale: real seconds per simulated second.
        each: number of endpoints per model.
        policies: policies that requests may name in addition to laar.
        port: Envoy's port; 0 for a free one.
        admin_port: the picker's admin port; 0 for a free one.
        changes: changes to the picker's settings, by section.

    Raises:
        LaarError: a process did not start; the message includes the end of its log.
    """
    served = [*AccuracySurface.load().models] * each
    ports = [port for port in free_ports(len(served) + 1) if port != admin_port][: len(served)]
    models = {f"127.0.0.1:{at}": model for at, model in zip(ports, served, strict=True)}
    with as_file(files("laar_lab.sim") / "data" / "laar-fleet.capability.json") as artifact:
        measured = directory / "capability.json"
        measured.write_bytes(_in_real_seconds(artifact.read_bytes(), time_scale))
    settings: dict[str, dict[str, object]] = {
        "accuracy": {"capability": str(measured.absolute())},
        # The fleet runs faster than real time, and load-aware must not rely on stale readings.
        "readings": {"scrape_interval_s": 0.2},
        # A plug-in's policy is available only if the settings list it.
        "routing": {
            "baselines": {name: {} for name in policies if name != "laar"},
            "allow_policy_header": True,
        },
    }
    for section, changed in (changes or {}).items():
        settings[section] = {**settings.get(section, {}), **changed}
    engines = {
        address: _engine(directory, address, model, time_scale) for address, model in models.items()
    }
    async with AsyncExitStack() as stack:
        for engine in engines.values():
            await stack.enter_async_context(engine)
        names = {address: (model, ALIAS) for address, model in models.items()}
        started = gateway(directory, names, settings, port=port, admin_port=admin_port)
        running = await stack.enter_async_context(started)
        for address, engine in engines.items():
            await wait_for(f"http://{address}/health", engine)
        yield replace(running, models=models)


def _engine(directory: Path, address: str, model: str, time_scale: float) -> Program:
    port = address.rpartition(":")[2]
    told = ("--fleet-model", model, "--served-name", model, "--served-name", ALIAS)
    return laar_process(
        ("sim-endpoint", "--port", port, *told, "--fault-header", "--time-scale", str(time_scale)),
        directory / f"endpoint-{port}.log",
    )


def _in_real_seconds(artifact: bytes, time_scale: float) -> bytes:
    """Return the artifact with its speeds in real seconds, as the picker measures them."""
    document = orjson.loads(artifact)
    for model in document["models"].values():
        for name in ("seconds_per_token", "spread_s_per_token", "fixed_s"):
            if model.get("speed"):
                model["speed"][name] *= time_scale
    return orjson.dumps(document)


@asynccontextmanager
async def gateway(
    directory: Path,
    names: Mapping[str, Sequence[str]],
    settings: Mapping[str, Any],
    *,
    port: int = 0,
    admin_port: int = 0,
) -> AsyncIterator[Running]:
    """Start a picker with these settings and its Envoy, and stop them after the block.

    Args:
        directory: directory for settings, logs and the endpoints file.
        names: models of each endpoint, by address.
        settings: the picker's settings, except for its ports and endpoints.
        port: Envoy's port; 0 for a free one.
        admin_port: the picker's admin port; 0 for a free one.

    Raises:
        LaarError: a process did not start; the message includes the end of its log.
    """
    ext_proc, health, admin = [port for port in free_ports(4) if port != admin_port][:3]
    admin = admin_port or admin
    eds = directory / "envoy" / "endpoints.json"
    eds.parent.mkdir()
    document = {
        **settings,
        "listen": {
            "ext_proc": f"127.0.0.1:{ext_proc}",
            "health": f"127.0.0.1:{health}",
            "admin": f"127.0.0.1:{admin}",
        },
        "envoy": {"eds_file": str(eds)},
        "endpoints": [{"address": at, "models": list(models)} for at, models in names.items()],
        "shutdown": {"drain_s": 0.0, "grace_s": 1.0},
    }
    path = directory / "laar.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    async with laar_process(("serve", "-c", str(path)), directory / "picker.log") as picker:
        await wait_for(f"http://127.0.0.1:{admin}/readyz", picker)
        options = BootstrapOptions(
            picker=f"127.0.0.1:{ext_proc}",
            listen_host="127.0.0.1",
            listen_port=port,
            ready_port=0,
            admin_port=0,
            eds_path=str(eds),
        )
        async with EnvoyProcess(render("standalone", options), directory) as envoy:
            yield Running(
                url=envoy.url(),
                admin_url=f"http://127.0.0.1:{admin}",
                pids=(picker.pid, envoy.pid),
            )

"""Start the demo fleet: simulated endpoints, the picker and a real Envoy on free loopback ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import orjson
import yaml

from laar.envoy.bootstrap import render
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar_lab.live.processes import LaarProcess, free_ports, start_all, wait_for
from laar_lab.sim.answers import AccuracySurface

ALIAS = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A running fleet.

    Args:
        url: URL of Envoy.
        admin_url: URL of the picker's admin port.
        models: each endpoint's model, by address.
    """

    url: str
    admin_url: str
    models: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A simulated endpoint to start.

    Args:
        model: the model it serves.
        arguments: arguments of `laar sim-endpoint`, without the port.
        names: models that the picker lists for the endpoint.
    """

    model: str
    arguments: Sequence[str]
    names: Sequence[str]


@asynccontextmanager
async def running_fleet(
    directory: Path,
    *,
    time_scale: float,
    policies: Sequence[str] = (),
    port: int = 0,
    admin_port: int = 0,
    changes: Mapping[str, Mapping[str, object]] | None = None,
) -> AsyncIterator[Fleet]:
    """Start the fleet of `laar-fleet.yaml`, one endpoint per model, and stop it after the block.

    Args:
        directory: existing empty directory for settings, logs and the endpoints file.
        time_scale: real seconds per simulated second.
        policies: policies that requests may name in addition to laar.
        port: Envoy's port; 0 for a free one.
        admin_port: the picker's admin port; 0 for a free one.
        changes: changes to the picker's settings, by section.

    Raises:
        LaarError: a process did not start; the message includes the end of its log.
    """
    endpoints = [
        Endpoint(
            model=model,
            arguments=(
                *("--fleet-model", model, "--served-name", model, "--served-name", ALIAS),
                *("--time-scale", str(time_scale)),
            ),
            names=(model, ALIAS),
        )
        for model in AccuracySurface.load().models
    ]
    with as_file(files("laar_lab.sim") / "data" / "laar-fleet.capability.json") as artifact:
        measured = directory / "capability.json"
        measured.write_bytes(_in_real_seconds(artifact.read_bytes(), time_scale))
        settings: dict[str, dict[str, object]] = {
            "accuracy": {"capability": str(measured.absolute())},
            # The fleet runs faster than real time, and load-aware must not rely on stale readings.
            "readings": {"scrape_interval_s": 0.2},
            # A plug-in's policy is available only if the settings list it.
            "routing": {"baselines": {name: {} for name in policies if name != "laar"}},
        }
        for section, changed in (changes or {}).items():
            settings[section] = {**settings.get(section, {}), **changed}
        async with started_fleet(
            directory, endpoints, settings, port=port, admin_port=admin_port
        ) as fleet:
            yield fleet


def _in_real_seconds(artifact: bytes, time_scale: float) -> bytes:
    """Return the artifact with its speeds in real seconds, as the picker measures them."""
    document = orjson.loads(artifact)
    for model in document["models"].values():
        for name in ("seconds_per_token", "spread_s_per_token", "fixed_s"):
            if model.get("speed"):
                model["speed"][name] *= time_scale
    return orjson.dumps(document)


@asynccontextmanager
async def started_fleet(
    directory: Path,
    endpoints: Sequence[Endpoint],
    settings: Mapping[str, Any],
    *,
    port: int = 0,
    admin_port: int = 0,
) -> AsyncIterator[Fleet]:
    """Start endpoints, Envoy and a picker with these settings, and stop them after the block.

    Raises:
        LaarError: a process did not start; the message includes the end of its log.
    """
    *endpoint_ports, ext_proc, health, admin = free_ports(len(endpoints) + 3)
    admin = admin_port or admin
    by_address = {
        f"127.0.0.1:{endpoint_port}": endpoint
        for endpoint_port, endpoint in zip(endpoint_ports, endpoints, strict=True)
    }
    processes = [
        LaarProcess(
            ("sim-endpoint", "--port", address.rpartition(":")[2], *endpoint.arguments),
            directory / f"endpoint-{address.rpartition(':')[2]}.log",
        )
        for address, endpoint in by_address.items()
    ]
    envoy_directory = directory / "envoy"
    envoy_directory.mkdir()
    written = _write_settings(
        directory,
        {address: endpoint.names for address, endpoint in by_address.items()},
        {
            "listen": {
                "ext_proc": f"127.0.0.1:{ext_proc}",
                "health": f"127.0.0.1:{health}",
                "admin": f"127.0.0.1:{admin}",
                **settings.get("listen", {}),
            },
            "envoy": {"eds_file": str(envoy_directory / "endpoints.json")},
            "shutdown": {"drain_s": 0.0, "grace_s": 2.0},
            **{name: given for name, given in settings.items() if name != "listen"},
        },
    )
    picker = LaarProcess(("serve", "-c", str(written)), directory / "picker.log")
    async with AsyncExitStack() as stack:
        await start_all(stack, [*processes, picker])
        for address, process in zip(by_address, processes, strict=True):
            await wait_for(f"http://{address}/health", process)
        await wait_for(f"http://127.0.0.1:{admin}/readyz", picker)
        bootstrap = render(
            "standalone",
            BootstrapOptions(
                picker=f"127.0.0.1:{ext_proc}",
                listen_host="127.0.0.1",
                listen_port=port,
                ready_port=0,
                admin_port=0,
                eds_path=str(envoy_directory / "endpoints.json"),
            ),
        )
        envoy = await stack.enter_async_context(EnvoyProcess(bootstrap, directory))
        yield Fleet(
            url=envoy.url(),
            admin_url=f"http://127.0.0.1:{admin}",
            models={address: endpoint.model for address, endpoint in by_address.items()},
        )


def _write_settings(
    directory: Path, names: Mapping[str, Sequence[str]], settings: Mapping[str, object]
) -> Path:
    """Write an endpoints file and the settings, as a user would."""
    endpoints_file = directory / "endpoints.yaml"
    listed = [{"address": address, "models": list(models)} for address, models in names.items()]
    endpoints_file.write_text(yaml.safe_dump({"endpoints": listed}))
    path = directory / "laar.yaml"
    document = {"endpoints_file": str(endpoints_file), **settings}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path

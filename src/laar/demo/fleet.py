"""The demo's fleet: simulated endpoints, the picker and a real Envoy, on free loopback ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import yaml

from laar.demo.processes import LaarProcess, free_ports, start_all, wait_for
from laar.envoy import BootstrapOptions, EnvoyProcess, render
from laar.lab.answers import AccuracySurface

__all__ = ["Fleet", "running_fleet"]

ALIAS = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A running fleet.

    Args:
        url: of Envoy.
        admin_url: of the picker.
        models: model of each endpoint, by address.
        envoy: the process.
        picker: the process.
    """

    url: str
    admin_url: str
    models: dict[str, str]
    envoy: EnvoyProcess
    picker: LaarProcess


@asynccontextmanager
async def running_fleet(
    directory: Path, *, time_scale: float, port: int = 0, capability: Path | None = None
) -> AsyncIterator[Fleet]:
    """Starts the fleet of `laar-fleet.yaml`, one endpoint for each model, and stops it.

    Args:
        directory: existing and empty; for settings, logs and the endpoints file.
        time_scale: real seconds for a simulated one.
        port: Envoy's; 0 takes a free one.
        capability: artifact of the picker; None for the one that comes with the package.

    Raises:
        LaarError: something did not start; the text holds the end of its log.
    """
    surface = AccuracySurface.load()
    names = list(surface.models)
    *endpoint_ports, ext_proc, health, admin = free_ports(len(names) + 3)
    models = {
        f"127.0.0.1:{endpoint_port}": name
        for endpoint_port, name in zip(endpoint_ports, names, strict=True)
    }
    endpoints = [
        LaarProcess(
            [
                *("sim-endpoint", "--port", address.rpartition(":")[2], "--fleet-model", model),
                *("--served-name", model, "--served-name", ALIAS),
                *("--time-scale", str(time_scale)),
            ],
            directory / f"{model}.log",
        )
        for address, model in models.items()
    ]
    envoy_directory = directory / "envoy"
    envoy_directory.mkdir()
    with as_file(files("laar.lab") / "data" / "laar-fleet.capability.json") as artifact:
        settings = _write_settings(
            directory,
            models,
            listen={
                "ext_proc": f"127.0.0.1:{ext_proc}",
                "health": f"127.0.0.1:{health}",
                "admin": f"127.0.0.1:{admin}",
            },
            artifact=capability or artifact,
            eds_file=envoy_directory / "endpoints.json",
        )
        picker = LaarProcess(("serve", "-c", str(settings)), directory / "picker.log")
        async with AsyncExitStack() as stack:
            await start_all(stack, [*endpoints, picker])
            for address, endpoint in zip(models, endpoints, strict=True):
                await wait_for(f"http://{address}/health", endpoint)
            await wait_for(f"http://127.0.0.1:{admin}/readyz", picker)
            bootstrap = render(
                "standalone",
                BootstrapOptions(
                    picker=f"127.0.0.1:{ext_proc}",
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
                models=models,
                envoy=envoy,
                picker=picker,
            )


def _write_settings(
    directory: Path,
    models: dict[str, str],
    *,
    listen: dict[str, str],
    artifact: Path,
    eds_file: Path,
) -> Path:
    """Writes what a user would write: an endpoints file and the settings."""
    endpoints_file = directory / "endpoints.yaml"
    endpoints_file.write_text(
        yaml.safe_dump(
            {
                "endpoints": [
                    {"address": address, "models": [model, ALIAS]}
                    for address, model in models.items()
                ]
            }
        )
    )
    settings = directory / "laar.yaml"
    settings.write_text(
        yaml.safe_dump(
            {
                "endpoints_file": str(endpoints_file),
                "listen": listen,
                "accuracy": {"capability": str(artifact.absolute())},
                # The fleet runs faster than real; load-aware must not see it through old readings.
                "readings": {"scrape_interval_s": 0.2},
                "envoy": {"eds_file": str(eds_file)},
                "shutdown": {"drain_s": 0.0, "grace_s": 2.0},
            },
            sort_keys=False,
        )
    )
    return settings

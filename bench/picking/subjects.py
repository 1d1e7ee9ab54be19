"""The pickers to measure, each behind its own Envoy, with shared instant endpoints."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import yaml

from laar.envoy.endpoints_file import write_eds
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar.errors import SettingError
from laar.fleet.membership import EndpointSpec
from laar_lab.live.bootstraps import AnyShape, render
from laar_lab.live.processes import START_TIMEOUT_S, Program, cpu_s, free_ports

__all__ = [
    "ALONE",
    "LAAR",
    "NOOP",
    "NOOP_USUAL",
    "Place",
    "Running",
    "Subject",
    "endpoints",
    "laar_with",
    "other_sources",
    "running",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A picker's directory, ports and endpoints."""

    directory: Path
    endpoints: Sequence[int]  # ports on loopback
    port: int  # ext_proc
    health_port: int
    admin_port: int

    @property
    def addresses(self) -> list[str]:
        """Return ``ip:port`` of every endpoint."""
        return [f"127.0.0.1:{port}" for port in self.endpoints]


Argv = Callable[[Place], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A picker to measure.

    Args:
        name: name in the figures.
        argv: returns its command; None for Envoy without a picker.
        usual: whether, in the native shape, its Envoy sends the headers before the body, as is
            usual for pickers.
    """

    name: str
    argv: Argv | None
    usual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running picker and its Envoy."""

    name: str
    url: str
    picker: int | None  # process id
    envoy: int

    def spent_s(self) -> tuple[float, float]:
        """Return the CPU seconds used by the picker and by Envoy."""
        return (0.0 if self.picker is None else cpu_s(self.picker)), cpu_s(self.envoy)

    def picker_bytes(self) -> int:
        """Return the resident memory of the picker."""
        pages = Path(f"/proc/{self.picker}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _noop_argv(place: Place) -> Sequence[str]:
    module = [sys.executable, "-m", "bench.noop_picker"]
    return [*module, "--port", str(place.port), "--endpoint", ",".join(place.addresses[:2])]


def laar_argv(
    place: Place, settings: Mapping[str, Mapping[str, object]] | None = None
) -> Sequence[str]:
    """Return laar's command, with minimal settings for the endpoints and any others given."""
    path = place.directory / "laar.yaml"
    settings = dict(settings or {})
    document: dict[str, object] = {
        "listen": {
            "ext_proc": f"127.0.0.1:{place.port}",
            "health": f"127.0.0.1:{place.health_port}",
            "admin": f"127.0.0.1:{place.admin_port}",
            **settings.pop("listen", {}),
        },
        "endpoints": [{"address": address, "models": ["m"]} for address in place.addresses],
        **settings,
    }
    path.write_text(yaml.safe_dump(document))
    return [sys.executable, "-m", "laar.cli", "serve", "-c", str(path)]


ALONE = Subject(name="Envoy alone", argv=None)
NOOP_USUAL = Subject(name="no-op, usual Envoy", argv=_noop_argv, usual=True)
NOOP = Subject(name="no-op, our Envoy", argv=_noop_argv)
LAAR = Subject(name="laar", argv=laar_argv)


def laar_with(name: str, **settings: Mapping[str, object]) -> Subject:
    """Return laar as a subject, with additional settings sections."""
    return Subject(name=name, argv=partial(laar_argv, settings=settings))


def other_sources(named: str, **settings: Mapping[str, object]) -> Subject:
    """Return laar from other sources as a subject, given as ``name=src``."""
    name, path = _named(named)
    if not Path(path, "laar").is_dir():
        raise SettingError(f"{path} has no directory laar: name the directory above it")
    begin = ["env", f"PYTHONPATH={path}"]
    return Subject(name=name, argv=lambda place: [*begin, *laar_argv(place, settings)])


def _named(text: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not (name and is_there and value):
        raise SettingError(f"{text!r} is not NAME=VALUE")
    return name, value


@asynccontextmanager
async def endpoints(directory: Path, count: int) -> AsyncIterator[list[int]]:
    """Run instant endpoints in another process; yield their ports."""
    ports = free_ports(count)
    spec = directory / "endpoints-spec.json"
    spec.write_bytes(orjson.dumps([{"port": port} for port in ports]))
    command = [sys.executable, "-m", "bench.instant", str(spec)]
    async with _listening(command, directory / "endpoints.log", ports[-1]):
        yield ports


@asynccontextmanager
async def running(
    shape: AnyShape, subject: Subject, directory: Path, ports: Sequence[int]
) -> AsyncIterator[Running]:
    """Run a picker with its own Envoy; yield when both are ready."""
    directory.mkdir()  # noqa: ASYNC240 - before anything is measured
    own = free_ports(3)
    place = Place(
        directory=directory, endpoints=ports, port=own[0], health_port=own[1], admin_port=own[2]
    )
    eds_path = directory / "endpoints.json"
    specs = [EndpointSpec(address=f"127.0.0.1:{port}", models=("m",)) for port in ports]
    write_eds(eds_path, specs)
    options = BootstrapOptions(
        picker=f"127.0.0.1:{place.port}",
        eds_path=str(eds_path),
        listen_port=0,
        ready_port=0,
        admin_port=0,
        listen_host="127.0.0.1",
        fail_open=False,  # a picker that fails must not look fast
    )
    bootstrap = render(shape, options)
    if subject.argv is None:
        _without_picker(bootstrap)
        async with EnvoyProcess(bootstrap, directory) as envoy:
            yield _as_running(subject, envoy, None)
        return
    if subject.usual and shape != "full-duplex":
        _send_headers_first(bootstrap)
    command = subject.argv(place)
    async with (
        _listening(command, directory / "picker.log", place.port) as pid,
        EnvoyProcess(bootstrap, directory) as envoy,
    ):
        yield _as_running(subject, envoy, pid)


def _as_running(subject: Subject, envoy: EnvoyProcess, pid: int | None) -> Running:
    return Running(
        name=subject.name,
        url=envoy.url(),
        picker=pid,
        envoy=envoy.pid,
    )


_AS_ALL_ROUTES = {
    "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
    "overrides": {},
}


def _filters(bootstrap: dict[str, Any], at: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a listener's connection manager, by default the data listener's, and its ext_proc."""
    listener = bootstrap["static_resources"]["listeners"][at]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    found = next(one for one in manager["http_filters"] if one["name"].endswith("ext_proc"))
    return manager, found


def _without_picker(bootstrap: dict[str, Any]) -> None:
    """Remove the picker from a bootstrap, so that Envoy chooses alone."""
    for at in (0, -1):  # also that of long bodies
        manager, ext_proc = _filters(bootstrap, at)
        manager["http_filters"] = [f for f in manager["http_filters"] if f is not ext_proc]


def _send_headers_first(bootstrap: dict[str, Any]) -> None:
    """Change a native bootstrap to send the headers before the body, for every path."""
    manager, ext_proc = _filters(bootstrap)
    manager["http_filters"] = [f for f in manager["http_filters"] if "buffer" not in f["name"]]
    ext_proc["typed_config"]["processing_mode"]["request_header_mode"] = "SEND"
    ext_proc["typed_config"]["request_attributes"] = []
    host = manager["route_config"]["virtual_hosts"][0]
    longest = _filters(bootstrap, -1)[0]["route_config"]["virtual_hosts"][0]
    host["request_body_buffer_limit"] = longest["request_body_buffer_limit"]
    host["routes"] = host["routes"][-1:]
    host["routes"][0]["typed_per_filter_config"] = {ext_proc["name"]: _AS_ALL_ROUTES}


@asynccontextmanager
async def _listening(command: Sequence[str], log_path: Path, port: int) -> AsyncIterator[int]:
    """Run a process that listens at a port; yield its id."""
    program = shutil.which(command[0]) or command[0]
    async with Program([program, *command[1:]], log_path) as started:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await _listens(port):
                started.check_alive()
                await asyncio.sleep(0.05)
        yield started.pid


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True

"""The routers of a race: laar behind a real Envoy, its other policies, and other projects.

All run with their defaults. SMG and vLLM router are complete proxies from PyPI; they depend on old
libraries, so they are best installed into a separate environment.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml

from laar.envoy.process import EnvoyProcess
from laar.errors import SettingError
from laar.settings.settings import load
from laar_lab.live.fleet import Running, gateway
from laar_lab.live.processes import Program, free_ports, wait_for
from laar_lab.policy_text import parse_policy
from laar_lab.race.engines import Engines

OURS = "laar"
PROXIES = ("smg", "vllm-router")
"""Programs of other projects that a race can start."""

_PROGRAMS = "--enable-program-scheduling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A router as named on the command line.

    Args:
        name: name in tables, as given.
        kind: `policy` for a laar policy, `settings` for laar with a settings file, `envoy` for
            Envoy without a picker, one of `PROXIES`, or `url`.
        argument: its policy, settings file, command-line options or URL.
        program: path of the program, for one of `PROXIES`.
    """

    name: str
    kind: str
    argument: str
    program: str = ""

    @property
    def wants_programs(self) -> bool:
        """Whether request bodies must name their session."""
        return _PROGRAMS in self.argument

    def running(
        self, directory: Path, engines: Engines, admin_port: int = 0
    ) -> AbstractAsyncContextManager[Running]:
        """Start the router in front of the engines, and stop it at the end of the block."""
        if self.kind == "url":
            return _elsewhere(self.argument)
        if self.kind == "settings":
            return _laar(directory, engines, _of_file(Path(self.argument)), admin_port)
        if self.kind == "envoy":
            return _envoy(directory, engines)
        if self.kind == "policy":
            return _laar(directory, engines, _of_policy(self.argument), admin_port)
        return _proxy(self, directory, engines)


def named(text: str, programs: Path | None = None) -> Router:
    """Return the router with this name: a laar policy, a settings file, a proxy or a URL.

    Args:
        text: the name; a settings file ends in `.yaml`, options of a proxy follow a colon.
        programs: directory with the programs of proxies; None searches PATH.

    Raises:
        SettingError: there is no such router, it is not installed, or its settings are invalid.
    """
    if text.startswith(("http://", "https://")):
        return Router(name=text, kind="url", argument=text.rstrip("/"))
    if text.endswith((".yaml", ".yml")):
        load(Path(text))
        return Router(name=text, kind="settings", argument=text)
    kind, _, options = text.partition(":")
    if kind not in PROXIES:
        parse_policy(text)
        return Router(name=text, kind="policy", argument=text)
    program = shutil.which(kind, path=str(programs) if programs else None)
    if program is None:
        raise SettingError(
            f"--with {kind}: no such program; run `python -m venv peers && peers/bin/pip "
            f"install {kind}` and pass --programs peers/bin"
        )
    return Router(name=text, kind=kind, argument=options, program=program)


@asynccontextmanager
async def _elsewhere(url: str) -> AsyncIterator[Running]:
    yield Running(url=url)


def _of_policy(policy: str) -> dict[str, object]:
    """Return the settings of laar with this policy and defaults for the rest."""
    name, parameters = parse_policy(policy)
    if name == OURS:
        return {}
    return {"routing": {"policy": name, "baselines": {name: dict(parameters)}}}


def _of_file(path: Path) -> dict[str, object]:
    """Return what a settings file sets, except for the fleet, the store and learned state.

    Raises:
        SettingError: the settings are invalid.
    """
    left_out = {"endpoints_file", "kubernetes", "share"}
    return load(path).settings.model_dump(mode="json", exclude_defaults=True, exclude=left_out)


def _laar(
    directory: Path, engines: Engines, chosen: Mapping[str, object], admin_port: int
) -> AbstractAsyncContextManager[Running]:
    names = {url.removeprefix("http://"): (engines.model,) for url in engines.urls}
    return gateway(directory, names, chosen, admin_port=admin_port)


@asynccontextmanager
async def _envoy(directory: Path, engines: Engines) -> AsyncIterator[Running]:
    """Run Envoy without a picker: least request, and two retries of a 5xx at other engines."""
    text = (files("laar_lab.race") / "envoy.yaml").read_text("utf-8")
    document = yaml.safe_load(text)
    [cluster] = document["static_resources"]["clusters"]
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
        for host, _, port in (url.removeprefix("http://").rpartition(":") for url in engines.urls)
    ]
    async with EnvoyProcess(document, directory) as envoy:
        yield Running(url=envoy.url(), pids=(envoy.pid,))


@asynccontextmanager
async def _proxy(router: Router, directory: Path, engines: Engines) -> AsyncIterator[Running]:
    port, metrics = free_ports(2)
    command = [router.program, *(["launch"] if router.kind == "smg" else [])]
    command += ["--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-port", str(metrics), *shlex.split(router.argument)]
    command += ["--worker-urls", *engines.urls]
    url = f"http://127.0.0.1:{port}"
    hello = {
        "model": engines.model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 1,
    }
    async with Program(command, directory / f"{router.kind}.log") as started:
        # Wait for an answered request, as workers may be discovered after the port has opened.
        chats = f"{url}/v1/chat/completions"
        await wait_for(chats, started, body=hello, headers=engines.headers)
        yield Running(url=url, pids=(started.pid,))

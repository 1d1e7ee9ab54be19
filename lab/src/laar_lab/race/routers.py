"""The routers of a race: laar behind a real Envoy, other policies in its place, other projects.

All have their defaults. SMG and vLLM router are whole proxies from PyPI; they bring old libraries,
so they are best installed into an environment of their own.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from laar.envoy.bootstrap import render
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar.errors import SettingError
from laar.policies import parse_policy
from laar_lab.live.processes import LaarProcess, free_ports, wait_for
from laar_lab.race.engines import Engines
from laar_lab.race.processes import answers, cpu_s, process

OURS = "laar"
PROXIES = ("smg", "vllm-router")
"""Other projects' programs that can be started here."""

_PROGRAMS = "--enable-program-scheduling"


@dataclass(frozen=True, slots=True)
class Running:
    """A router that takes requests; `pids` are its processes, none where they are not ours."""

    url: str
    pids: tuple[int, ...] = ()

    def cpu_s(self) -> float:
        """Return the processor seconds so far, threads included."""
        return sum(map(cpu_s, self.pids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A router as it is named on the command line.

    Args:
        name: the name in tables: as given.
        kind: `laar` or one of its policies, one of `PROXIES`, or `url`.
        argument: its policy, its own options, or its URL.
        program: path of the program of one of `PROXIES`.
    """

    name: str
    kind: str
    argument: str
    program: str = ""

    @property
    def wants_programs(self) -> bool:
        """Whether a request's body has to name its session."""
        return _PROGRAMS in self.argument

    def running(self, directory: Path, engines: Engines) -> AbstractAsyncContextManager[Running]:
        """Start it in front of the engines; it stops with the block."""
        if self.kind == "url":
            return _elsewhere(self.argument)
        if self.kind == "policy":
            return _laar(directory, engines, self.argument)
        return _proxy(self, directory, engines)


def named(text: str, programs: Path | None = None) -> Router:
    """Return a router by its name: laar's policies, `smg`, `vllm-router` or a URL.

    Args:
        text: the name; options of a proxy follow a colon.
        programs: directory with the programs of proxies; None for those of PATH.

    Raises:
        SettingError: there is none of that name, or it is not installed.
    """
    if text.startswith(("http://", "https://")):
        return Router(name=text, kind="url", argument=text.rstrip("/"))
    kind, _, options = text.partition(":")
    if kind not in PROXIES:
        parse_policy(text)
        return Router(name=text, kind="policy", argument=text)
    program = shutil.which(kind, path=str(programs) if programs else None)
    if program is None:
        raise SettingError(
            f"--with {kind}: no such program; `python -m venv peers && peers/bin/pip install "
            f"{kind}`, then --programs peers/bin"
        )
    return Router(name=text, kind=kind, argument=options, program=program)


@asynccontextmanager
async def _elsewhere(url: str) -> AsyncIterator[Running]:
    yield Running(url)


@asynccontextmanager
async def _laar(directory: Path, engines: Engines, policy: str) -> AsyncIterator[Running]:
    ext_proc, health, admin = free_ports(3)
    eds = directory / "endpoints.json"
    name, parameters = parse_policy(policy)
    settings = {
        "listen": {
            "ext_proc": f"127.0.0.1:{ext_proc}",
            "health": f"127.0.0.1:{health}",
            "admin": f"127.0.0.1:{admin}",
        },
        "envoy": {"eds_file": str(eds)},
        "endpoints": [
            {"address": url.removeprefix("http://"), "models": [engines.model]}
            for url in engines.urls
        ],
        "shutdown": {"drain_s": 0.0, "grace_s": 1.0},
    }
    if name != OURS:
        settings["routing"] = {"policy": name, "baselines": {name: dict(parameters)}}
    path = directory / "laar.yaml"
    path.write_text(yaml.safe_dump(settings))
    async with LaarProcess(("serve", "-c", str(path)), directory / "laar.log") as picker:
        await wait_for(f"http://127.0.0.1:{admin}/readyz", picker)
        bootstrap = render(
            "standalone",
            BootstrapOptions(
                picker=f"127.0.0.1:{ext_proc}",
                listen_host="127.0.0.1",
                listen_port=0,
                ready_port=0,
                admin_port=0,
                eds_path=str(eds),
            ),
        )
        async with EnvoyProcess(bootstrap, directory) as envoy:
            yield Running(envoy.url(), (picker.pid, envoy.pid))


@asynccontextmanager
async def _proxy(router: Router, directory: Path, engines: Engines) -> AsyncIterator[Running]:
    port, metrics = free_ports(2)
    command = [router.program, *(["launch"] if router.kind == "smg" else [])]
    command += ["--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-port", str(metrics), *shlex.split(router.argument)]
    command += ["--worker-urls", *engines.urls]
    log = directory / f"{router.kind}.log"
    url = f"http://127.0.0.1:{port}"
    hello = {
        "model": engines.model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 1,
    }
    async with process(command, log) as started:
        # Ready is what answers a request: workers may be found later than the port.
        chats = f"{url}/v1/chat/completions"
        await answers(chats, hello, headers=engines.headers, log=log, of=started)
        yield Running(url, (started.pid,))

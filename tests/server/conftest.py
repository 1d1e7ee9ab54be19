"""A real picker and a real Envoy in front of recording upstreams."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import yaml

from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar.fleet.membership import DRAIN_LABEL
from laar.server.runner import Runner
from laar.settings import load
from laar_lab.sim.endpoint import EndpointSettings, SimulatedEndpoint
from support import RecordingUpstream, free_port
from support.bootstraps import be_patient, rendered


def pytest_addoption(parser):
    parser.addoption("--write-pages", action="store_true", help="write docs/reference/engines.md")


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """Let the context hook take its time: a busy machine must not make it skip a body."""
    monkeypatch.setattr("laar.context.hook.MAX_ADDED_MS", 1000.0)


class Gateway:
    """Upstreams, a picker in this process, and Envoy, for one test."""

    def __init__(self, directory, stack):
        self.directory = directory
        self._stack = stack
        self.settings_file = directory / "laar.yaml"
        self.eds = directory / "eds" / "endpoints.json"
        self.eds.parent.mkdir()
        self.endpoints_file = directory / "endpoints.yaml"
        self.runner = None
        self._running = None

    async def enter(self, context):
        """Enter a context that outlives picker and Envoy, which may still connect to it.

        A server that closes while it accepts a connection leaves that socket open
        (`asyncio.Server` in Python 3.11).
        """
        return await self._stack.enter_async_context(context)

    async def upstream(self, host="127.0.0.1", port=0):
        return await self.enter(RecordingUpstream(host=host, port=port))

    async def simulated(self, **settings):
        """Start a simulated engine of the model `m`."""
        endpoint = SimulatedEndpoint(EndpointSettings(model="m", **settings))
        await endpoint.start()
        self._stack.push_async_callback(endpoint.stop)
        return endpoint

    def members(self, *endpoints, draining=()):
        """Write the endpoints file; each endpoint is a tuple of address and models."""
        document = {
            "endpoints": [
                {
                    "address": a,
                    "models": models,
                    "labels": {DRAIN_LABEL: "true"} if a in draining else {},
                }
                for a, *models in endpoints
            ]
        }
        temporary = self.endpoints_file.with_suffix(".new")
        temporary.write_text(yaml.safe_dump(document))
        temporary.replace(self.endpoints_file)

    async def picker(self, **sections):
        """Start the picker on free ports; return its runner."""
        document = {
            "endpoints_file": str(self.endpoints_file),
            "listen": {
                **{name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")},
            },
            "readings": {"scrape_interval_s": 0.1, "probe_interval_s": 0.1},
            "envoy": {"eds_file": str(self.eds)},
            "shutdown": {"drain_s": 0.0, "grace_s": 1.0},
            "routing": {"allow_policy_header": True},  # tests choose endpoints by policies
        }
        self.document = document
        await self.stop_picker()
        self.change(**sections)
        loaded = load(self.settings_file)
        self.settings = loaded.settings
        self.runner = Runner(loaded, seed=5)
        self.runner.reloader.poll_s = 0.05
        started = asyncio.Event()
        self._running = asyncio.create_task(self.runner.run(started=started))
        self._stack.push_async_callback(self.stop_picker)
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait([self._running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if self._running.done():
            waiting.cancel()
            failed, self._running = self._running, None
            await failed
        return self.runner

    def change(self, **sections):
        """Rewrite the settings file with some settings changed."""
        for name, values in sections.items():
            if isinstance(values, dict):
                values = {**self.document.get(name, {}), **values}
            self.document[name] = values
        temporary = self.settings_file.with_suffix(".new")
        temporary.write_text(yaml.safe_dump(self.document, sort_keys=False))
        temporary.replace(self.settings_file)

    async def stop_picker(self):
        """Stop gracefully; a second call is harmless."""
        if self._running is not None:
            self.runner.stop()
            running, self._running = self._running, None
            await running

    def url(self, name, path):
        """Return the URL of a path on one of the picker's ports."""
        return f"http://{getattr(self.settings.listen, name)}{path}"

    async def envoy(
        self,
        shape="standalone",
        change=lambda _bootstrap: None,
        *,
        patient=True,
        **options,
    ):
        """Start Envoy; `change` may alter its bootstrap.

        On a busy machine, Envoy may give up on the picker and decide alone unless it is `patient`.
        """
        bootstrap = rendered(
            shape,
            replace(
                BootstrapOptions(
                    picker=self.settings.listen.ext_proc,
                    listen_port=0,
                    ready_port=0,
                    admin_port=0,
                    eds_path=str(self.eds),
                ),
                **options,
            ),
        )
        if patient:
            be_patient(bootstrap)
        change(bootstrap)
        directory = self.directory / "envoy"
        directory.mkdir()
        return await self.enter(EnvoyProcess(bootstrap, directory))


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """Yield a browser's session, in which each test opens a window."""
    from browser import browsing  # here, as tests outside this directory lack `browser`

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        running = browsing(tmp_path_factory.mktemp("browser") / "profile")
        yield runner.run(running.__aenter__()).session
        runner.run(running.__aexit__(None, None, None))


@pytest.fixture
async def gateway(tmp_path, envoy_binary):
    """Yield a gateway for a test; stop all of its parts after the test."""
    async with AsyncExitStack() as stack:
        yield Gateway(tmp_path, stack)

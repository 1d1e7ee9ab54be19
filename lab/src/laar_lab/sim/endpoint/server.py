"""Start and stop a simulated endpoint: sockets, engine, signals and simulated crashes.

uvicorn serves HTTP. At the socket level, a crash is real: all connections are reset and the port is
closed for a while, then a new server without any state listens on the same port. A shutdown follows
vLLM: by default streams are immediately ended with an error event; with a timeout they may finish;
meanwhile `/health` succeeds and new requests get odd answers (see `app`).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import struct
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from starlette.types import Scope

from laar.errors import SettingError
from laar_lab.sim.answers import AccuracySurface, Answerer
from laar_lab.sim.endpoint.app import EndpointApp
from laar_lab.sim.endpoint.driver import Lost
from laar_lab.sim.endpoint.serving import Serving
from laar_lab.sim.endpoint.settings import EndpointSettings
from laar_lab.sim.engine import (
    EngineProfile,
    EngineSettings,
    LinearCost,
    build_engine,
    load_profile,
)

if TYPE_CHECKING:
    from laar_lab.sim.endpoint.kv_events import KvEventPublisher

CUT_GRACE_S = 1
"""Whole seconds that streams ended by a shutdown have to send their last event."""


class _Server(uvicorn.Server):
    """uvicorn without signal handlers or polling, but with a way to reset connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self._ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    async def main_loop(self) -> None:
        # Once a second, for the date header; uvicorn polls its exit flag ten times a second.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._ending.wait()

    def end(self, *, force: bool = False) -> None:
        """Stop listening; `serve` returns when all answers are sent, or soon if forced."""
        for listener in self.servers:
            listener.close()
        self.force_exit = force
        self.should_exit = True
        self._ending.set()

    def close(self, client: object) -> None:
        """Close a client's connection gracefully, after all written bytes are sent."""
        for connection in list(self.server_state.connections):
            if getattr(connection, "client", None) == client:
                connection.transport.close()

    def cut(self, client: object = None) -> None:
        """Reset one client's connection, or all connections."""
        for connection in list(self.server_state.connections):
            if client is None or getattr(connection, "client", None) == client:
                raw = connection.transport.get_extra_info("socket")
                # A linger time of 0 resets the connection instead of closing it gracefully.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.transport.abort()


class SimulatedEndpoint:
    """An endpoint that runs in the current event loop: call `start`, then `stop` or `wait`.

    Raises:
        SettingError: the profile or model is unknown, or the address can't be bound.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        profile, answerer = _engine_of(settings)
        self._settings = settings
        self._socket = _bind(settings.host, settings.port)
        try:
            publisher = _publisher_of(settings, profile)
        except SettingError:
            self._socket.close()
            raise
        self.serving = Serving(
            settings,
            build_engine=lambda: build_engine(profile),
            block_size=profile.settings.block_size,
            num_blocks=profile.settings.num_blocks,
            answerer=answerer,
            publisher=publisher,
        )
        host, self._port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"
        self._app = EndpointApp(self.serving, self, self.address)
        self._server = self._new_server()
        self._outage_s: float | None = None
        self._forgets = True
        self._main: asyncio.Task[None] | None = None
        self._shutdown: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """URL of the endpoint, without a path."""
        return f"http://{self.address}"

    async def start(self) -> None:
        """Start the endpoint; return when it listens."""
        self._main = asyncio.create_task(self._serve(), name=f"sim-endpoint {self.address}")
        await self._server.listens.wait()

    async def wait(self) -> None:
        """Wait until it has shut down."""
        assert self._main is not None, "start comes first"
        await self._main

    async def stop(self) -> None:
        """Shut down, and wait until the server has stopped."""
        self.shut_down()
        await self.wait()

    def shut_down(self) -> None:
        """Shut down as on SIGTERM; a second call forces it."""
        if self._shutdown is None:
            self._shutdown = asyncio.create_task(self._drain(), name="sim-endpoint drain")
        else:
            self._server.end(force=True)

    def reset(self, scope: Scope) -> None:
        """Reset the connection of a request."""
        self._server.cut(scope["client"])

    def close(self, scope: Scope) -> None:
        """Close a request's connection gracefully, at any point of the answer."""
        self._server.close(scope["client"])

    def crash(self, down_s: float, forget: bool = True) -> None:
        """Reset every connection and refuse new ones for `down_s` seconds; then restart.

        Without `forget`, cache and counters survive. Calls during an outage are ignored.
        """
        if self._outage_s is not None:
            return
        self._outage_s = down_s
        self._forgets = forget
        self.serving.driver.lose_all(Lost.CRASH)
        self._server.cut()
        self._server.end(force=True)

    async def _drain(self) -> None:
        self.serving.draining = True
        try:
            async with asyncio.timeout(self._settings.shutdown_timeout_s):
                await self.serving.driver.emptied()
        except TimeoutError:
            self.serving.driver.lose_all(Lost.SHUTDOWN)
        self._server.end()

    async def _serve(self) -> None:
        engine = asyncio.create_task(self.serving.driver.run(), name="sim-endpoint engine")
        engine.add_done_callback(self._engine_ended)
        try:
            while True:
                await self._server.serve(sockets=[self._socket])
                if self._outage_s is None or self._shutdown is not None:
                    return
                await asyncio.sleep(self._outage_s)
                if self._shutdown is not None:
                    return
                self._outage_s = None
                if self._forgets:
                    self.serving.restart()
                self._socket = _bind(self._settings.host, self._port)
                self._server = self._new_server()
        finally:
            engine.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await engine
            if self.serving.publisher is not None:
                await self.serving.publisher.close()

    def _engine_ended(self, engine: asyncio.Task[None]) -> None:
        if not engine.cancelled():  # the engine failed; `wait` raises the error
            self._server.cut()
            self._server.end(force=True)

    def _new_server(self) -> _Server:
        return _Server(
            uvicorn.Config(
                self._app,
                access_log=False,
                interface="asgi3",
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                timeout_graceful_shutdown=CUT_GRACE_S,
                ws="none",
            )
        )


def run(settings: EndpointSettings, on_start: Callable[[SimulatedEndpoint], object]) -> None:
    """Run one endpoint until SIGTERM or SIGINT.

    Args:
        settings: settings of the endpoint.
        on_start: called once it listens.

    Raises:
        SettingError: as for `SimulatedEndpoint`.
    """

    async def serve() -> None:
        endpoint = SimulatedEndpoint(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, endpoint.shut_down)
        await endpoint.start()
        on_start(endpoint)
        await endpoint.wait()

    uvloop.run(serve())


def _engine_of(settings: EndpointSettings) -> tuple[EngineProfile, Answerer | None]:
    profile, answerer = load_profile(settings.profile), None
    if settings.fleet_model is not None:
        answerer = Answerer(AccuracySurface.load(settings.fleet), settings.fleet_model)
        cost = LinearCost(
            seconds_per_token=answerer.seconds_per_token,
            decode_s_per_token=answerer.decode_s_per_token,
        )
        memory = EngineSettings(num_blocks=profile.settings.num_blocks)
        profile = EngineProfile(name=settings.fleet_model, cost=cost, settings=memory)
    engine = replace(profile.settings, kv_events=settings.kv_events is not None)
    if settings.scheduler is not None:
        engine = replace(engine, scheduler=settings.scheduler)
    if settings.max_waiting is not None:
        engine = replace(engine, max_num_queued=settings.max_waiting)
    if settings.num_blocks is not None:
        engine = replace(engine, num_blocks=settings.num_blocks)
    return replace(profile, settings=engine), answerer


def _publisher_of(settings: EndpointSettings, profile: EngineProfile) -> KvEventPublisher | None:
    if settings.kv_events is None:
        return None
    # Only this needs pyzmq, which the `lab` extra installs.
    from laar_lab.sim.endpoint.kv_events import KvEventPublisher

    return KvEventPublisher(settings.kv_events, block_size=profile.settings.block_size)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be named: asyncio disables Nagle's algorithm only for sockets that name TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as fault:
        listener.close()
        raise SettingError(f"cannot listen on {host}:{port}: {fault.strerror}") from fault
    return listener

"""Run a picker: open its ports, start its parts, watch its settings files, and drain it.

Stopping has three steps. First the picker reports not ready but still accepts streams (for
`drain_s`, or less if laar's own Envoys check its health). Then it accepts no new streams and closes
those that Envoy can finish without it; the others, undecided or full-duplex, have `grace_s` to
finish. Finally it cuts off streams that are still open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from laar.datalayer.chat_templates import TemplateProbes
from laar.datalayer.visits import cancel
from laar.envoy.options import MESSAGE_TIMEOUT_S
from laar.health.lateness import TICK_S, Lateness
from laar.server.admin.port import AdminPort
from laar.server.admin.server import AdminServer
from laar.server.collectors import Collectors
from laar.server.extproc import ExternalProcessor
from laar.server.fleet import FleetState
from laar.server.flow_control import FlowControl
from laar.server.health_service import HealthService
from laar.server.memory import collect_at_rest, keep_freed, keep_young
from laar.server.picker import Picker
from laar.server.ports import bind, picking_server, server_of
from laar.server.reload import Parts, SettingsReloader
from laar.server.tasks import Tasks
from laar.settings import Loaded, Settings
from laar.settings.ignored import remarks

if TYPE_CHECKING:
    from laar.server.h2 import H2Server
    from laar.server.supervisor import Home
    from laar.server.tls import ServerTls

_LOG = logging.getLogger(__name__)

_ADMIN_STOP_S = 3.0
_LISTS_S = 0.8
"""Seconds to wait for all clusters' lists before restoring a snapshot, which names endpoints."""
_NOTICED_S = 0.3
"""Seconds within which all of laar's own Envoys will have checked the picker's health."""
_QUIET_S = 0.1
"""Seconds without new streams after which Envoys are assumed to send no more."""
_LET_GO_EVERY_S = 0.05
_PROBES = 100
"""Maximum number of concurrent probes per connection: the health port may be open to anyone."""
_PROBE_BYTES = 4096
"""Maximum length of a probe's message, which is a service name."""


class Runner:
    """Runs one picker.

    Raise `SettingError` if an artifact, token, export or store in the settings cannot be used.

    Args:
        settings: the settings; the files they were loaded from are watched.
        seed: seed of all random draws; None means a random seed.
        home: directory of the process that restarts this picker, if there is one.
    """

    def __init__(
        self,
        settings: Settings | Loaded,
        *,
        seed: int | None = None,
        home: Home | None = None,
    ) -> None:
        loaded = Loaded(settings=settings) if isinstance(settings, Settings) else settings
        self._home = home
        snapshot = home.snapshot if home else None
        picker = self.picker = Picker(loaded.settings, seed=seed, snapshot=snapshot)
        self.reloader = picker.reloader = SettingsReloader(loaded, problems=picker.problems)
        self.health = HealthService()
        self.admin = AdminPort(picker, self.health)
        self.fleet = FleetState(picker, on_change=self._endpoints_changed)
        director, clock = picker.director, picker.clock
        self.collectors = Collectors(
            loaded.settings, director, self.fleet, clock=clock, is_at_rest=picker.is_at_rest
        )
        picker.doubt_names = self.collectors.names.doubt
        picker.with_route = self.collectors.with_route
        self._loaded = loaded
        self._tls: ServerTls | None = None
        self.tasks = Tasks(picker.problems)
        self._flow: FlowControl | None = None
        if (admission := picker.admission) is not None:
            self._flow = FlowControl(admission, director, clock=clock, waited=picker.waited)
        self.processor = ExternalProcessor(picker, self._flow)
        self._stopping = asyncio.Event()
        self._is_warm = False

    # -- life ----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Read all files that the settings name, without opening a port; `run` calls it.

        Raise `SettingError` if a file cannot be used.
        """
        settings = self.picker.settings
        if settings.listen.tls is not None:
            from laar.server.tls import ServerTls

            self._tls = ServerTls(settings.listen.tls, self.picker.problems)
        self.collectors.prepare()

    async def run(self, *, started: asyncio.Event | None = None) -> None:
        """Set `started` once serving, serve until `stop` is called, then drain.

        Raise `SettingError` if an address cannot be bound, or a file cannot be used.
        """
        picker, settings = self.picker, self.picker.settings
        loop = asyncio.get_running_loop()
        picker.context.later = lambda call: loop.call_later(0.0, call)  # runs after all writes
        self.prepare()
        for remark in remarks(self._loaded):
            _LOG.warning("%s", remark)
        listen = settings.listen
        picking = picking_server(self.processor, settings.stream.max_body_bytes)
        probed = server_of(longest_bytes=_PROBE_BYTES, max_streams=_PROBES, port="health")
        for server in (picking, probed):
            self.health.serve_on(server)
        admin = self.admin.open()
        serving_admin = None
        try:
            self.collectors.start(self.tasks)
            await self._follow_tls(picking)
            port = bind(picking, "ext_proc", listen.ext_proc)
            bind(probed, "health", listen.health)
            await self.fleet.publish()
            await picking.start()
            await probed.start()
            serving_admin = self.tasks.spawn("admin", admin.run_until_stopped)
            await self._start_parts()
            _LOG.info("serving %d endpoints on port %d", len(picker.table), port)
            if started is not None:
                started.set()
            if self._home is not None:
                self.tasks.spawn("beat", self._home.keep_beating)
            await self._stopping.wait()
            await self._drain(picking)
            if picker.sharer is not None:
                await picker.sharer.stop()
        finally:
            await self._close(admin, serving_admin)
            await picking.stop(0)
            await probed.stop(0)

    def stop(self) -> None:
        """Start draining; further calls have no effect."""
        self._stopping.set()

    async def _start_parts(self) -> None:
        picker, tasks = self.picker, self.tasks
        tasks.spawn("eds", self.fleet.run)
        if picker.sharer is not None:
            for name, part in picker.sharer.tasks().items():
                tasks.spawn(name, part)
            await picker.sharer.warmed()
        self._is_warm = True
        self._set_ready()
        tasks.spawn("token files", self.admin.follow_tokens)
        tasks.spawn("templates", TemplateProbes(picker.prefixes, picker.table).run)
        tasks.spawn("lateness", partial(_note_lateness, picker.clock, picker.table.lateness))
        picker.observability.start(tasks.spawn)
        tasks.spawn("settings", lambda: self.reloader.follow(self.apply))

    async def _drain(self, server: H2Server) -> None:
        shutdown = self.picker.settings.shutdown
        self.health.leave()
        _LOG.info("no longer ready; serving for at most %g s more", shutdown.drain_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(shutdown.drain_s):
                await self._left_alone()
        if self._flow is not None:
            self._flow.drain()
        _LOG.info("open streams have %g s to finish", shutdown.grace_s)
        stopping = asyncio.ensure_future(server.stop(shutdown.grace_s))
        while not stopping.done():
            self.processor.let_go()
            await asyncio.wait([stopping], timeout=_LET_GO_EVERY_S)
        await stopping

    async def _left_alone(self) -> None:
        """Wait until laar's own Envoys have noticed the drain and no new streams arrive."""
        await asyncio.sleep(_NOTICED_S)
        begun = -1
        while not self.health.own_check or begun != self.processor.begun:
            begun = self.processor.begun
            await asyncio.sleep(_QUIET_S)

    async def _close(self, admin: AdminServer, serving: asyncio.Task[None] | None) -> None:
        self.picker.observability.close()
        admin.stop()
        if serving is not None:
            await asyncio.wait([serving], timeout=_ADMIN_STOP_S)
        admin.close()
        await self.tasks.cancel()

    # -- while it runs -------------------------------------------------------------------------

    def apply(self, settings: Settings, parts: Parts) -> None:
        """Apply new settings. Synchronous: no request sees a partial change."""
        endpoints, capability, policies = parts
        self.picker.apply(settings, capability, policies)
        self.processor.apply_settings()
        self.collectors.declare(endpoints)  # their keys may have changed, too

    def _endpoints_changed(self) -> None:
        table = self.picker.table
        if self.picker.sharer is not None and len(table):
            known = self.picker.sharer.endpoints_known
            if self.collectors.have_listed():
                known.set()
            elif not known.is_set():
                asyncio.get_running_loop().call_later(_LISTS_S, known.set)
        if self.collectors.have_listed():
            self.picker.check_artifact()
        if self._flow is not None:
            self._flow.endpoints_changed(known=len(table) > 0)
        self._set_ready()

    def _set_ready(self) -> None:
        """Report ready if an endpoint is known, or if flow control holds requests until then."""
        if self._is_warm and not self._stopping.is_set():
            holds = self._flow is not None and self._flow.by_load
            self.health.set_ready(len(self.picker.table) > 0 or holds)

    async def _follow_tls(self, server: H2Server) -> None:
        """Serve with the certificate, and with the new certificate once it is renewed."""
        tls = self._tls
        if tls is not None:
            self.picker.metrics.certificate_expires_at_s = lambda: tls.shown.expires_at.timestamp()
            await server.use_tls(tls.shown)
            self.tasks.spawn("tls", partial(tls.run, server.use_tls))


def serve(settings: Loaded, *, home: Home | None = None) -> None:
    """Run a picker until SIGTERM or SIGINT, then exit the process; SIGHUP rereads the settings.

    Raise `LaarError` if the picker cannot start.

    Args:
        settings: the loaded settings.
        home: directory of the process that restarts this picker, if there is one.
    """
    import uvloop

    async def main() -> None:
        with settings.located():
            runner = Runner(settings, home=home)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop)
        loop.add_signal_handler(signal.SIGHUP, runner.reloader.look)
        started = asyncio.Event()
        collecting = asyncio.create_task(_collect(runner.picker.is_at_rest, started))
        running = asyncio.create_task(runner.run(started=started))
        try:
            with settings.located():
                await running
        finally:
            await cancel([collecting, running])
        os._exit(0)  # not waiting for threads, which a name server may block for a minute

    uvloop.run(main())


async def _note_lateness(clock: Callable[[], float], lateness: Lateness) -> None:
    """Note how late this process is, and log it if Envoy may have gone on without an answer."""
    while True:
        if (late_s := lateness.tick(clock())) > MESSAGE_TIMEOUT_S - TICK_S:
            _LOG.warning(
                "this picker answered nobody for %.1f s: Envoy waits %g s (message_timeout), then "
                "requests go on without the picker's choice. Was it suspended, or out of CPU?",
                late_s,
                MESSAGE_TIMEOUT_S,
            )
        await asyncio.sleep(TICK_S)


async def _collect(is_at_rest: Callable[[], bool], started: asyncio.Event) -> None:
    await started.wait()
    keep_freed()
    keep_young()
    await collect_at_rest(is_at_rest)

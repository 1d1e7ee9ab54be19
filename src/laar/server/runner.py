"""The composition root: builds the picker from its settings, runs it, and drains it.

Stopping is in three steps: readiness says no while streams are still taken (`drain_s`), then no
new streams are taken and open ones finish (`grace_s`), then the rest is let go. In the native shape
that loses nothing, since answers do not pass through the picker; in the gateway shape an answer
longer than both ends there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import random
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.util import find_spec

import grpc

from laar.accuracy.capability import CapabilityModel
from laar.core.beliefs import BYTES_PER_TOKEN, PrefixBeliefs
from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.core.endpoints import EndpointSpec, EndpointTable, Reading
from laar.core.interfaces import NoPrefixes
from laar.core.shadow import EnforcedShare
from laar.datalayer import EndpointsFile, Prober, Resolver, Scraper, split_address
from laar.datalayer.asking import Asked, Asker
from laar.datalayer.kubernetes import KubernetesEndpoints
from laar.envoy import EnvoyProcess
from laar.errors import LaarError, SettingError
from laar.flow.admission import Admission
from laar.health import Health as EndpointHealth
from laar.policies import build_policies
from laar.protocol.sampling import Sampler
from laar.protocol.stream import HeldBytes
from laar.server.admin.app import AdminServer, admin_app
from laar.server.admin.auth import Attempts, Viewers, read_viewers_token
from laar.server.admin.context import ContextRoutes
from laar.server.admin.outcomes import grpc_handler, read_token, routes
from laar.server.admin.tuner import TunerKeeper
from laar.server.admin.tuner import routes as tuner_routes
from laar.server.admin.watch import Watch
from laar.server.browsers import BrowserGuard, is_loopback
from laar.server.cluster_rules import ClusterRules
from laar.server.extproc import ExternalProcessor
from laar.server.fleet import FleetSink
from laar.server.flow_control import Gate
from laar.server.health import Health
from laar.server.learning import Learning
from laar.server.reload import LiveSettings
from laar.server.tls import ServerTls
from laar.settings import Loaded, Settings
from laar.telemetry.context import ContextMetrics
from laar.telemetry.flow import FlowMetrics
from laar.telemetry.health import HealthMetrics
from laar.telemetry.learning import LearningMetrics
from laar.telemetry.metrics import Metrics

__all__ = ["Runner", "serve"]

_LOG = logging.getLogger(__name__)

_ADMIN_STOP_S = 3.0
_BEGIN_AGAIN_S = 5.0
_LET_GO_S = 0.5
"""Beyond the grace, for closing what needs no more of us before the rest is cut."""

_LONGEST_MESSAGE_BYTES = 64 << 20
_INT32_MAX = 2**31 - 1
_ALONE = ("grpc.so_reuseport", 0)
"""Two pickers on one port would split the state, and probes would ask either."""
_GRPC_OPTIONS = (
    _ALONE,
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),  # an Envoy of the gateway shape asks often if we are there
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
    # An Envoy whose machine has gone sends no reset; its requests would count for two hours.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # the one that newer gRPC goes by
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(slots=True)
class _Ports:
    ext_proc: int = 0
    health: int = 0
    admin: int = 0


class Runner:
    """One picker.

    Args:
        settings: what to run; the files they were loaded from are followed.
        seed: of every random draw; None for chance.
    """

    def __init__(self, settings: Settings | Loaded, *, seed: int | None = None) -> None:
        loaded = Loaded(settings=settings) if isinstance(settings, Settings) else settings
        self.live = LiveSettings(
            loaded, problem=lambda source, message: self._sink.problem(source, message)
        )
        settings = self._settings = loaded.settings
        rng = random.Random(seed)
        self._clock = time.monotonic
        self.metrics = Metrics()
        self._held = HeldBytes(settings.bodies.max_held_bytes)
        self.metrics.held_body_bytes = lambda: self._held.now_bytes
        self.health = Health()
        self.table = EndpointTable()
        self.learning = Learning(
            settings.accuracy,
            clock=self._clock,
            wall_clock=time.time,
            problem=lambda source, message: self._sink.problem(source, message),
        )
        self._token = read_token(settings.accuracy.outcomes_token_file)
        self._viewers_token = read_viewers_token(settings.decisions.viewers_token_file)
        prefixes = (
            PrefixBeliefs(key=rng.randbytes(16), max_bytes=settings.prefix.max_bytes)
            if settings.prefix.enabled
            else NoPrefixes()
        )
        weights = settings.routing.weights
        self._tuner = (
            TunerKeeper(
                settings.tuner,
                weights.tunable(),
                problem=lambda source, message: self._sink.problem(source, message),
            )
            if settings.tuner.enabled
            else None
        )
        self.endpoint_health = EndpointHealth(settings.health.breaker, rng=rng)
        self.endpoint_health.reads = settings.bodies.sample_answers > 0
        self.director = Director(
            self.table,
            build_policies(weights, settings.routing.baselines),
            settings.routing.director,
            rng=rng,
            new_id=lambda: secrets.token_hex(16),
            assessor=self.learning.assessor,
            prefixes=prefixes,
            tuner=self._tuner.tuner if self._tuner else None,
            health=self.endpoint_health,
            on_decided=self._decided,
            on_settled=self._settled,
        )
        self.metrics.director = self.director
        self.metrics.add(HealthMetrics(self.endpoint_health, self.table, clock=self._clock))
        self.metrics.add(
            LearningMetrics(
                self.learning.reports,
                self.learning.online,
                self.learning.latency,
                self.learning.assessor.task_names,
            )
        )
        rules = ClusterRules(rng)
        self.watch = Watch(
            settings,
            self.director,
            self.metrics,
            self.learning.reports,
            rules,
            clock=self._clock,
            rng=rng,
            problem=lambda source, message: self._sink.problem(source, message),
        )
        self._context = ContextRoutes(
            settings.context,
            clock=self._clock,
            rng=rng,
            degraded=self.director.degraded,
            problem=lambda source, message: self._sink.problem(source, message),
        )
        self._sink = FleetSink(
            self.table,
            prefixes,
            self.metrics,
            rules,
            eds_file=settings.envoy.eds_file,
            on_change=self._endpoints_changed,
            on_reading=self._read,
            on_empty=self._context.forget,
        )
        self._admission: Admission | None = None
        self._gate = self._flow_control() if settings.flow.enabled else None
        self.metrics.add(ContextMetrics(self._context.tallies))
        self.metrics.add(self.live)
        self._sampler = Sampler(
            settings.bodies.sample_answers, every_s=settings.bodies.sample_every_s, rng=rng
        )
        self._enforced = EnforcedShare(settings.routing.enforcement.share)
        self._processor = ExternalProcessor(
            self.director,
            settings.stream,
            sampler=self._sampler,
            clock=self._clock,
            metrics=self.metrics,
            rules=rules,
            enforced=self._enforced,
            gate=self._gate,
            hook=self._context.in_use,
            held=self._held,
            spans=self.watch.exports.spans,
        )
        self._processor.longest_hold_s = settings.flow.admission.limits.max_hold_s
        self._rng = rng
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._resolver = Resolver(
            self._sink, clock=self._clock, interval_s=settings.readings.resolve_interval_s
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.ports = _Ports()

    # -- life ----------------------------------------------------------------------------------

    async def run(self, *, started: asyncio.Event | None = None) -> None:
        """Serves until `stop` is called, then drains.

        Raises:
            SettingError: an address that cannot be listened on, or a bad endpoints file.
        """
        # A buffered body is one message, with metadata beside it.
        longest = max(_LONGEST_MESSAGE_BYTES, self._settings.stream.max_body_bytes + (1 << 20))
        lengths = [
            (f"grpc.max_{way}_message_length", min(longest, _INT32_MAX))
            for way in ("receive", "send")
        ]
        server = grpc.aio.server(options=(*_GRPC_OPTIONS, *lengths))
        server.add_generic_rpc_handlers((self._processor.handler(),))
        self.health.add_to(server)
        health_server = grpc.aio.server(options=[_ALONE])
        self.health.add_to(health_server)
        if self.learning.online is not None:
            handler = grpc_handler(
                self.learning.reports,
                clock=self._clock,
                token=self._token,
                listen=self._settings.listen.health,
                told=self._context.reported,
            )
            health_server.add_generic_rpc_handlers((handler,))
        self.learning.restore()
        admin = self._admin()
        self.ports.admin = admin.port
        serving_admin = None
        try:
            await self.health.start()
            self._start_collectors()
            self.ports.ext_proc = _bind(
                server, "ext_proc", self._settings.listen.ext_proc, self._credentials()
            )
            self.ports.health = _bind(health_server, "health", self._settings.listen.health)
            await self._sink.publish()
            await server.start()
            await health_server.start()
            serving_admin = self._spawn("admin", admin.run_until_stopped)
            self._spawn("eds", self._sink.run)
            await self._readiness(once=True)
            self._spawn("readiness", self._readiness)
            self._spawn("state", self.learning.state_file.keep_saving)
            if self._tuner is not None:
                self._spawn("tuner", self._tuner.state_file.keep_saving)
            for name, run in self.watch.tasks():
                self._spawn(name, run)
            self._spawn("settings", lambda: self.live.follow(self._use))
            _LOG.info("picking for %d endpoints on port %d", len(self.table), self.ports.ext_proc)
            if started is not None:
                started.set()
            await self._stopping.wait()
            await self._drain(server)
            await self.learning.state_file.save()
            if self._tuner is not None:
                await self._tuner.state_file.save()
        finally:
            self.watch.feed.close()
            admin.should_exit = True
            if serving_admin is not None:
                await asyncio.wait([serving_admin], timeout=_ADMIN_STOP_S)
            admin.close()
            await _cancel(self._tasks)
            await server.stop(0)
            await health_server.stop(0)

    def stop(self) -> None:
        """Begins the drain; a second call changes nothing."""
        self._stopping.set()

    async def _drain(self, server: grpc.aio.Server) -> None:
        shutdown = self._settings.shutdown
        await self.health.leave()
        _LOG.info("not ready any more; serving on for %g s", shutdown.drain_s)
        await asyncio.sleep(shutdown.drain_s)
        if self._gate is not None:
            self._gate.drain()
        _LOG.info("open streams have %g s to finish", shutdown.grace_s)
        stopping = asyncio.ensure_future(server.stop(shutdown.grace_s + _LET_GO_S))
        await asyncio.wait([stopping], timeout=shutdown.grace_s)
        self._processor.let_go()
        await stopping

    # -- changed settings ----------------------------------------------------------------------

    def _use(self, settings: Settings, capability: CapabilityModel | None) -> None:
        """Goes by other settings; without an await, so that no request sees half of a change."""
        before, self._settings = self._settings, settings
        self._context.use(settings.context)
        policies = self.director.policies
        old, new = before.routing, settings.routing
        changed = {
            name
            for name in old.baselines.keys() | new.baselines.keys()
            if old.baselines.get(name) != new.baselines.get(name)
        }
        if new.weights != old.weights:
            changed.add("laar")
        if changed:  # the others keep what they know
            fresh = build_policies(new.weights, new.baselines)
            policies = {**policies, **{name: fresh[name] for name in changed}}
        self.director.use(settings.routing.director, policies)
        if capability is not None:
            self.learning.use(capability)
        self._processor.settings = settings.stream
        self._enforced.share = settings.routing.enforcement.share
        self._held.limit_bytes = settings.bodies.max_held_bytes
        self._processor.hook = self._context.in_use
        self.endpoint_health.settings = settings.health.breaker
        self.endpoint_health.reads = settings.bodies.sample_answers > 0
        self._sampler.share = settings.bodies.sample_answers
        self._sampler.every_s = settings.bodies.sample_every_s
        if self._admission is not None:
            self._admission.use(settings.flow.admission)
            self._processor.longest_hold_s = settings.flow.admission.limits.max_hold_s
        self.watch.use(settings)
        if settings.endpoints != before.endpoints:
            self._use_endpoints()

    def _use_endpoints(self) -> None:
        specs = [endpoint.spec() for endpoint in self._settings.endpoints]
        self._resolver.replace("settings", specs)

    # -- parts ---------------------------------------------------------------------------------

    def _listen_to_caches(self) -> None:
        """Follows the KV events of endpoints whose label says where they publish.

        Only with the packages of the extra `kv-events`, since few fleets publish.
        """
        if find_spec("zmq") and find_spec("msgpack"):
            from laar.datalayer.kv_events import KvEvents

            self._spawn("kv-events", KvEvents(self._targets, self._sink).run)

    def _start_collectors(self) -> None:
        settings, readings = self._settings, self._settings.readings
        self._use_endpoints()
        self._spawn("resolve", self._resolver.run)
        self._listen_to_caches()
        if settings.endpoints_file is not None:
            file = EndpointsFile(settings.endpoints_file, self._resolver)
            file.load()
            self._spawn("endpoints file", file.run)
        for source in settings.kubernetes:
            access = source.access()
            cluster = KubernetesEndpoints(
                access,
                self._sink,
                source.of,
                namespace=source.namespace or access.namespace,
                rules=source.rules,
                clock=self._clock,
                rng=self._rng,
            )
            self._spawn(cluster.source, cluster.run)
        scraper = Scraper(
            self._targets,
            self._sink,
            clock=self._clock,
            rng=self._rng,
            interval_s=readings.scrape_interval_s,
            timeout_s=readings.scrape_timeout_s,
        )
        self._spawn("scrape", scraper.run)
        prober = Prober(
            self._targets,
            self._sink,
            clock=self._clock,
            rng=self._rng,
            interval_s=readings.probe_interval_s,
            timeout_s=readings.probe_timeout_s,
        )
        self._spawn("probe", prober.run)
        self._spawn("ask", Asker(self._to_ask, self._asked, clock=self._clock).run)

    def _to_ask(self, most: int) -> list[EndpointSpec]:
        slots = self.endpoint_health.probes_due(self._clock(), most)
        return [self.table.spec(slot) for slot in slots if slot in self.table.active]

    def _asked(self, address: str, asked: Asked) -> None:
        slot, now = self.table.slot(address), self._clock()
        if slot >= 0:
            self.endpoint_health.probed(slot, asked.reply, now, failed=asked.failed)

    def _flow_control(self) -> Gate:
        admission = self._admission = Admission(self.director, self._settings.flow.admission)
        metrics = FlowMetrics(admission)
        self.metrics.add(metrics)
        return Gate(admission, self.director, clock=self._clock, on_outcome=metrics.waited)

    def _targets(self) -> list[EndpointSpec]:
        return self.table.specs()

    def _credentials(self) -> grpc.ServerCredentials | None:
        settings = self._settings.listen.tls
        if settings is None:
            return None
        tls = ServerTls(settings, lambda message: self._sink.problem("tls", message))
        self.metrics.certificate_expires_at_s = lambda: tls.expires_at_s
        self._spawn("tls", tls.run)
        return tls.credentials()

    def _admin(self) -> AdminServer:
        address = self._settings.listen.admin
        host, port = split_address(address)
        attempts = Attempts(self._clock)
        try:
            parts = [
                *routes(
                    self.learning,
                    self.table,
                    clock=self._clock,
                    token=self._token,
                    listen=address,
                    attempts=attempts,
                    told=self._context.reported,
                ),
                *self.watch.routes(),
                *self._context.routes(),
                *tuner_routes(self._tuner),
            ]
            app = admin_app(self.live.shown, self.metrics, self.health, parts)
            viewers = Viewers(app, self._viewers_token, attempts, others=not is_loopback(address))
            hosts = [host, *self._settings.listen.admin_hosts]
            return AdminServer(BrowserGuard(viewers, hosts), host, port)
        except OSError:
            raise _cannot_listen("admin", address) from None

    def _decided(self, decision: Decision) -> None:
        self.metrics.decided(decision)
        self.learning.decided(decision)
        self.watch.decided(decision)

    def _settled(self, decision: Decision, end: Completion) -> None:
        self.metrics.settled(decision, end)
        self.learning.settled(decision, end)
        self.watch.settled(decision, end)

    def _read(self, address: str, reading: Reading) -> None:
        self.watch.hit_rates.read(address, reading)
        if self._context.in_use is not None:  # all endpoints are summed up for each one's reading
            tokens = self.table.cache_tokens()
            self._context.set_capacity(None if math.isnan(tokens) else tokens * BYTES_PER_TOKEN)

    def _endpoints_changed(self) -> None:
        self.watch.hit_rates.keep(spec.address for spec in self.table.specs())
        if self._gate is not None:
            self._gate.endpoints_changed(known=len(self.table) > 0)
        self._changed.set()

    async def _readiness(self, *, once: bool = False) -> None:
        """Ready while some endpoint is known, or requests may wait for one."""
        while True:
            self._changed.clear()
            if not self._stopping.is_set():
                await self.health.set_ready(len(self.table) > 0 or self._gate is not None)
            if once:
                return
            await self._changed.wait()

    def _spawn(self, name: str, endless: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guard(name, endless), name=name)
        self._tasks.append(task)
        return task

    async def _guard(self, name: str, endless: Callable[[], Awaitable[None]]) -> None:
        """A part that dies must not take the picker along, nor die in silence, nor stay dead."""
        while True:
            try:
                await endless()
                return
            except Exception:  # noqa: BLE001 - the guard of a task
                _LOG.exception("%s stopped; it begins again in %g s", name, _BEGIN_AGAIN_S)
                self.metrics.problem(name, "stopped by a fault; see the log")
            await asyncio.sleep(_BEGIN_AGAIN_S)
            self.metrics.problem(name, None)


def serve(settings: Loaded, *, envoy: EnvoyProcess | None = None) -> None:
    """Runs a picker until SIGTERM or SIGINT; SIGHUP reads the settings again; blocks.

    Args:
        settings: as loaded.
        envoy: a process to run beside the picker. It starts once the picker serves, and it is
            drained before the picker stops.

    Raises:
        LaarError: the picker or Envoy cannot start, or Envoy ended by itself.
    """
    import uvloop

    async def main() -> None:
        runner = Runner(settings)
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop if envoy is None else stop.set)
        loop.add_signal_handler(signal.SIGHUP, runner.live.look)
        started = asyncio.Event()
        freezing = asyncio.create_task(_freeze(started))
        running = asyncio.create_task(runner.run(started=started))
        try:
            if envoy is not None:
                await _run_envoy(envoy, settings.settings.shutdown.grace_s, running, started, stop)
                runner.stop()
            await running
        finally:
            await _cancel([freezing, running])

    uvloop.run(main())


async def _run_envoy(
    envoy: EnvoyProcess,
    grace_s: float,
    picker: asyncio.Task[None],
    started: asyncio.Event,
    stop: asyncio.Event,
) -> None:
    """Keeps Envoy running while the picker runs and no stop is asked for; drains it then."""
    starting = asyncio.create_task(started.wait())
    await asyncio.wait([starting, picker], return_when=asyncio.FIRST_COMPLETED)
    if picker.done():
        starting.cancel()
        return
    async with envoy:
        _LOG.info("Envoy listens on %s; its log is %s", envoy.url(), envoy.log_path)
        ended = asyncio.create_task(envoy.wait())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([ended, stopping, picker], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if ended.done():
            raise LaarError(f"Envoy ended by itself:\n{envoy.log_tail()}")
        ended.cancel()
        await envoy.drain(grace_s)


async def _freeze(started: asyncio.Event) -> None:
    """Leaves what lives for ever out of later collections, each of which stops the loop."""
    await started.wait()
    gc.collect()
    gc.freeze()


def _bind(
    server: grpc.aio.Server,
    name: str,
    address: str,
    credentials: grpc.ServerCredentials | None = None,
) -> int:
    try:
        port = (
            server.add_secure_port(address, credentials)
            if credentials
            else server.add_insecure_port(address)
        )
    except RuntimeError:
        port = 0
    if not port:
        raise _cannot_listen(name, address)
    return int(port)


def _cannot_listen(name: str, address: str) -> SettingError:
    return SettingError(
        f"listen.{name}: can't listen on {address}; is another picker running there, or is the "
        "address not this machine's?"
    )


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)

"""The ext_proc server: one stream for each request, driven through the sans-IO machine.

What costs is grpc.aio's own loop, about 100 us for a message in and out. So there is one `read` and
at most one `write` for a message, and nothing is spawned for a stream.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import orjson
from google.protobuf.message import DecodeError

from laar.core.catalog import catalog
from laar.core.director import Director
from laar.core.request import Request, Trace
from laar.errors import RequestError
from laar.protocol.events import (
    Action,
    Answering,
    Ask,
    Attempted,
    Closed,
    Decided,
    Ended,
    Event,
    Failed,
    HasRead,
    Immediate,
    Noted,
    Read,
    Refused,
    Replied,
    Served,
)
from laar.protocol.openai import try_read
from laar.protocol.ports import BodyHook, GatewayRules, IsEnforced
from laar.protocol.sampling import Sampler
from laar.protocol.since import Since
from laar.protocol.stream import HeldBytes, Stream, StreamSettings
from laar.server.extproc.messages import event_of, message_of, patience, try_read_message
from laar.server.flow_control import FlowControl
from laar.telemetry.metrics import Metrics
from laar.wire import ext_proc_pb2 as pb

if TYPE_CHECKING:
    from laar.telemetry.tracing import Spans

__all__ = ["SERVICE", "ExternalProcessor"]

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_LOG = logging.getLogger(__name__)
DECISION_MARGIN_S = 10.0
"""What a decision may take beyond the longest hold; `laar envoy` allows as much."""

_LOG_FAULTS_EVERY_S = 10.0
"""A fault that meets every request would fill a disk; the counter counts them all."""


class _GoneError(Exception):
    """The stream ended while an answer was written."""


async def _write(context: grpc.aio.ServicerContext[Any, Any], answer: bytes) -> None:
    try:
        await context.write(answer)
    except (grpc.aio.AbortError, grpc.aio.UsageError):
        raise
    except Exception as fault:  # gRPC has no public name for what it raises here
        raise _GoneError from fault


class ExternalProcessor:
    """Serves `Process`, one stream for each HTTP request.

    Args:
        director: decides and settles.
        settings: of the streams.
        sampler: says which native requests have their answer read.
        clock: monotonic seconds.
        metrics: what is counted.
        rules: the cluster's priorities and model rewrites.
        enforced: says whose decisions count; None: all do.
        flow: holds requests while the fleet is full; None sends each at once.
        hook: may change request bodies; None leaves all as they are.
        held: counts unfinished bodies of the gateway shape; None sets no limit.
        spans: of the decisions whose clients trace; None when nothing is traced.
        longest_hold_s: for which flow control may hold a request.
    """

    def __init__(
        self,
        director: Director,
        settings: StreamSettings,
        *,
        sampler: Sampler,
        clock: Callable[[], float],
        metrics: Metrics,
        rules: GatewayRules,
        enforced: IsEnforced | None = None,
        flow: FlowControl | None = None,
        hook: BodyHook | None = None,
        held: HeldBytes | None = None,
        spans: Spans | None = None,
        longest_hold_s: float = 0.0,
    ) -> None:
        self._spans = spans
        self._flow = flow
        self._hook = hook
        self._held = held
        self._since = Since()
        self._director = director
        self._settings = settings
        self._sampler = sampler
        self._clock = clock
        self._metrics = metrics
        self._rules = rules
        self._enforced = enforced
        self._log_faults_at = -math.inf
        self._streams: dict[asyncio.Task[None], Stream] = {}
        self._queued: set[asyncio.Task[None]] = set()
        self._longest_hold_s = longest_hold_s
        # One thread: they would only take turns, and the loop has to get its own.
        self._reader = ThreadPoolExecutor(1, "laar-bodies")

    def handler(self) -> grpc.GenericRpcHandler:
        """The generic handler to add to a grpc.aio server."""
        method = grpc.stream_stream_rpc_method_handler(
            self._serve,
            request_deserializer=try_read_message,
            response_serializer=None,  # answers are bytes already
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})

    def apply(
        self, settings: StreamSettings, *, hook: BodyHook | None, longest_hold_s: float
    ) -> None:
        """Applies new settings to the streams that begin from now on."""
        self._settings, self._hook, self._longest_hold_s = settings, hook, longest_hold_s

    def _listed(self, pool: str) -> bytes | None:
        """The models of a pool, or of all; None where there is no endpoint."""
        aliases = self._director.settings.aliases
        listed = catalog(self._director.table, aliases, pool)
        return orjson.dumps(listed) if listed["data"] else None

    def let_go(self) -> None:
        """Closes the streams that only wait for their exchange to end.

        Envoy takes that as the end of our part. To be cut off it takes as a fault, and where it
        fails closed it then cuts the client's answer as well.
        """
        for task, stream in self._streams.items():
            if stream.only_watches:
                task.cancel()

    async def _serve(self, _requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Runs a stream in a task of its own, which a reset by Envoy does not cancel.

        Envoy resets each stream at its end, and gRPC then cancels this coroutine. A read that is
        cancelled never frees its operations (about 100 bytes, in all versions of grpc.aio so far);
        left alone it ends by itself. Only a request that waits in the queue is cancelled.
        """
        task = asyncio.create_task(self._process(context))
        try:
            await asyncio.wait((task,))
            task.result()
        except asyncio.CancelledError:
            if task in self._queued:
                task.cancel()
            await asyncio.wait((task,))

    async def _process(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        stream = Stream(
            self._settings,
            read_answer=self._sampler.draw(self._clock()),
            new_id=lambda: str(uuid.uuid4()),
            enforced=self._enforced,
            rules=self._rules,
            hook=self._hook,
            held=self._held,
            catalog=self._listed,
            join=None if self._spans is None else self._joining(self._spans, context),
            since=self._since,
        )
        self._metrics.streams_open += 1
        task = asyncio.current_task()
        assert task is not None
        self._streams[task] = stream
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                if isinstance(message, DecodeError):
                    self._fault("a message that is none of Envoy's ended its stream")
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unreadable message")
                try:
                    going_on = await self._message(stream, message, context)
                except (grpc.aio.AbortError, grpc.aio.UsageError, _GoneError):
                    raise
                except Exception:  # noqa: BLE001 - a stream's guard
                    going_on = await self._go_on_without(stream, context)
                del message  # a body is not to be held for as long as its answer takes
                if not going_on:
                    break
        except (asyncio.CancelledError, grpc.aio.AbortError, grpc.aio.UsageError, _GoneError):
            pass  # Envoy reset the stream: the exchange is over, which `finally` settles
        finally:
            del self._streams[task]
            self._metrics.streams_open -= 1
            self._metrics.ignored_messages += stream.ignored
            self._metrics.stream_faults += stream.unspliced
            now = self._clock()
            for action in stream.receive(Closed(), now):
                self._note(action, now)

    async def _message(
        self,
        stream: Stream,
        message: pb.ProcessingRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> bool:
        """Takes one message through the machine; False when the stream is to be closed."""
        event = event_of(message)
        if event is None:
            return True
        now = self._clock()
        pending: Event | None = event
        going_on = True
        while pending is not None:
            actions, pending = stream.receive(pending, now), None
            for action in actions:
                if type(action) is Read:
                    pending = HasRead(
                        await asyncio.get_running_loop().run_in_executor(
                            self._reader, try_read, action.api, action.body
                        )
                    )
                    now = self._clock()
                elif type(action) is Ask:
                    pending = (
                        self._decide(action, now)
                        if self._flow is None
                        else await self._decide_in_turn(self._flow, action, now, context)
                    )
                elif type(action) is Served:
                    self._note(action, now)
                    pending = Noted()
                elif (answer := message_of(action)) is not None:
                    await _write(context, answer)
                    going_on = type(action) is not Immediate
                else:
                    self._note(action, now)
        return going_on

    async def _go_on_without(
        self, stream: Stream, context: grpc.aio.ServicerContext[Any, Any]
    ) -> bool:
        """After an internal error: lets the request go on; False when closing the stream does."""
        self._fault("a stream failed; its request goes on without the picker", trace=True)
        actions = stream.receive(Failed(), self._clock())
        answers = [message for action in actions if (message := message_of(action))]
        for answer in answers:
            await _write(context, answer)
        return bool(answers)

    def _fault(self, what: str, *, trace: bool = False) -> None:
        """Counts a fault, and logs it once in a while."""
        now = self._clock()
        self._metrics.stream_faults += 1
        if now >= self._log_faults_at:
            self._log_faults_at = now + _LOG_FAULTS_EVERY_S
            _LOG.error(what, exc_info=trace)

    def _decide(self, ask: Ask, received: float) -> Decided | Refused:
        try:
            decision = self._director.decide(ask.request, self._clock())
        except RequestError as error:
            return self._refused(ask.request, error)
        overhead_s = self._clock() - received
        self._metrics.overhead(overhead_s)
        return Decided(decision, round(overhead_s * 1e6))

    async def _decide_in_turn(
        self,
        flow: FlowControl,
        ask: Ask,
        received: float,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> Decided | Refused:
        async def held() -> None:
            await _write(context, patience(self._longest_hold_s + DECISION_MARGIN_S))

        task = asyncio.current_task()
        assert task is not None
        self._queued.add(task)
        try:
            decision, waited_s = await flow.decide(ask.request, held)
        except RequestError as error:
            return self._refused(ask.request, error)
        finally:
            self._queued.discard(task)
        overhead_s = max(0.0, self._clock() - received - waited_s)
        self._metrics.overhead(overhead_s)
        return Decided(decision, round(overhead_s * 1e6))

    def _refused(self, request: Request, error: RequestError) -> Refused:
        self._metrics.refused(error.status, error.reason)
        if self._spans is not None:
            self._spans.refused(request, error)
        return Refused(error)

    @staticmethod
    def _joining(
        spans: Spans, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Callable[[str, str], Trace | None]:
        return lambda parent, state: spans.join(context.invocation_metadata() or (), parent, state)

    def _note(self, action: Action, now: float) -> None:
        if type(action) is Replied:
            self._director.replied(action.decision, action.reply, now, read=action.read)
            return
        match action:
            case Attempted(decision, failed):
                self._metrics.failed_attempts += len(failed)
                self._director.attempted(decision, failed, now)
            case Served(decision, address):
                self._metrics.moved += not decision.request.shadow
                self._director.served_by(decision, address, now)
                if self._flow is not None:
                    self._flow.moved(decision)
            case Answering(decision, ok):
                self._director.answering(decision, now, ok=ok)
                if self._flow is not None:
                    self._flow.answering(decision, ok=ok)
            case Ended(decision, completion):
                self._director.settle(decision, completion)
                if self._flow is not None:
                    self._flow.ended(decision)

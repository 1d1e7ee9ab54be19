"""The ext_proc server: one stream for each request, driven through the sans-IO machine.

The transports are in `over_h2` and `over_grpc`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import orjson

from laar.core.catalog import catalog, no_such_model
from laar.core.decision import Decision
from laar.core.director import Director
from laar.core.request import Request, Trace
from laar.errors import RequestError
from laar.protocol import headers as names
from laar.protocol.agreed import DECISION_MARGIN_S
from laar.protocol.events import (
    Action,
    Answering,
    Ask,
    Attempted,
    Closed,
    Decided,
    Ended,
    Immediate,
    Refused,
    Replied,
    Served,
    Stored,
)
from laar.protocol.ports import BodyHook, GatewayRules, IsEnforced
from laar.protocol.sampling import Sampler
from laar.protocol.since import Since
from laar.protocol.stream import HeldBytes, Stream, StreamSettings
from laar.server.extproc.exchange import Exchange
from laar.server.flow_control import FlowControl, Waiting
from laar.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from laar.telemetry.tracing import Spans

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
Metadata = Sequence[tuple[str, str | bytes]]
_LOG = logging.getLogger(__name__)
UNREADABLE = "unreadable message"
_LOG_FAULTS_EVERY_S = 10.0
"""A fault that meets every request would fill a disk; the counter counts them all."""


class ExternalProcessor:
    """Serves `Process`, one stream for each HTTP request.

    Args:
        director: decides and settles.
        settings: settings of the streams.
        sampler: draws the native requests whose answers are read.
        clock: monotonic seconds.
        metrics: the counters.
        rules: the cluster's priorities and model rewrites.
        enforced: selects the requests whose decisions count; None: all do.
        flow: holds requests while the fleet is full; None sends each at once.
        hook: may change request bodies; None leaves all as they are.
        held: counts unfinished bodies of the gateway shape; None sets no limit.
        spans: writes the spans of decisions whose clients trace; None when nothing is traced.
        longest_hold_s: seconds for which flow control may hold a request.
        unknown_model: called when a request names a model that no endpoint is known to have.
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
        unknown_model: Callable[[], None] = lambda: None,
    ) -> None:
        self._spans = spans
        self._unknown_model = unknown_model
        self._flow = flow
        self._hook = hook
        self._held = held
        self._since = Since()
        self._director = director
        self._settings = settings
        self.sampler = sampler
        self.clock = clock
        self._metrics = metrics
        self._rules = rules
        self._enforced = enforced
        self._log_faults_at = -math.inf
        self._exchanges: set[Exchange] = set()
        self.begun = 0
        """Streams so far."""
        self._longest_hold_s = longest_hold_s
        # One thread: they would only take turns, and the loop has to get its own.
        self.reader = ThreadPoolExecutor(1, "laar-bodies")
        self.reading = asyncio.Lock()

    # -- for transports ------------------------------------------------------------------------

    def open(self, metadata: Callable[[], Metadata], let_go: Callable[[], None]) -> Exchange:
        """Begins a stream.

        Args:
            metadata: returns that of the call.
            let_go: has the transport close the stream as a success.
        """
        stream = Stream(
            self._settings,
            new_id=lambda: str(uuid.uuid4()),
            sampled=self.sampler.draw,
            enforced=self._enforced,
            rules=self._rules,
            hook=self._hook,
            held=self._held,
            catalog=self._listed,
            join=None if self._spans is None else self._joining(self._spans, metadata),
            since=self._since,
        )
        exchange = Exchange(self, stream, let_go)
        self._metrics.streams_open += 1
        self.begun += 1
        self._exchanges.add(exchange)
        return exchange

    def apply(self, settings: StreamSettings, *, hook: BodyHook | None) -> None:
        """Applies new settings to the streams that begin from now on."""
        self._settings, self._hook = settings, hook

    def _listed(self, pool: str, name: str) -> bytes | None:
        """The models of a pool, or of all, or one of these; None where there is no endpoint.

        Raises:
            RequestError: there is no model of that name.
        """
        aliases = self._director.settings.aliases
        listed = catalog(self._director.table, aliases, pool)
        if not name or not listed["data"]:
            return orjson.dumps(listed) if listed["data"] else None
        for entry in listed["data"]:
            if entry["id"] == name:
                return orjson.dumps(entry)
        self._unknown_model()
        raise no_such_model(name)

    def let_go(self) -> None:
        """Closes the streams that Envoy can finish without the picker.

        Envoy takes that as the end of our part. To be cut off it takes as a fault, and where it
        fails closed it then cuts the client's answer as well.
        """
        for exchange in tuple(self._exchanges):
            if exchange.can_be_let_go:
                exchange.let_go()

    # -- for exchanges -------------------------------------------------------------------------

    @property
    def longest_decision_s(self) -> float:
        """How long Envoy is to wait for a decision that takes a while."""
        hold_s = 0.0 if self._flow is None else self._longest_hold_s
        return hold_s + DECISION_MARGIN_S

    def closed(self, exchange: Exchange, stream: Stream) -> None:
        """Settles a stream that is over."""
        self._exchanges.discard(exchange)
        self._metrics.streams_open -= 1
        self._metrics.ignored_messages += stream.ignored
        self._metrics.stream_faults += stream.unspliced
        now = self.clock()
        for action in stream.receive(Closed(), now):
            self.note(action, now)

    def fault(self, what: str, *, trace: bool = False) -> None:
        """Counts a fault, and logs it once in a while."""
        now = self.clock()
        self._metrics.stream_faults += 1
        if now >= self._log_faults_at:
            self._log_faults_at = now + _LOG_FAULTS_EVERY_S
            _LOG.error(what, exc_info=trace)

    def decide(self, ask: Ask, received: float) -> Decided | Refused | Waiting:
        """Decides now, or has the request wait for its turn.

        Args:
            ask: the request.
            received: when it was whole, by the clock.
        """
        try:
            if self._flow is None:
                decision = self._director.decide(ask.request, self.clock())
            else:
                answer = self._flow.ask(ask.request)
                if isinstance(answer, Waiting):
                    return answer
                decision = answer
        except RequestError as error:
            return self.refused(ask.request, error)
        return self.decided(decision, received)

    def decided(self, decision: Decision, received: float) -> Decided:
        """Counts the time of a decision; the caller adds its wait to `received`."""
        overhead_s = max(0.0, self.clock() - received)
        self._metrics.overhead(overhead_s)
        return Decided(decision, round(overhead_s * 1e6))

    def refused(self, request: Request, error: RequestError) -> Refused:
        """Takes a refusal to decide."""
        if error.reason == "unknown-model":
            self._unknown_model()
        if self._spans is not None:
            self._spans.refused(request, error)
        return Refused(error.with_traceback(None))  # whose frames hold the error

    def answered(self, answer: Immediate) -> None:
        """Counts an answer of laar's own, unless it is a list of models."""
        reason = dict(answer.headers).get(names.REASON)
        if reason is not None:
            self._metrics.refused(answer.status, reason)

    @staticmethod
    def _joining(
        spans: Spans, metadata: Callable[[], Metadata]
    ) -> Callable[[str, str], Trace | None]:
        return lambda parent, state: spans.join(metadata(), parent, state)

    def note(self, action: Action, now: float) -> None:
        """Takes an action of a stream: for the director, flow control and the counters."""
        match action:
            case Ended(decision, completion):  # first those that every request has
                self._director.settle(decision, completion)
                if self._flow is not None:
                    self._flow.ended(decision)
            case Replied(decision, reply, read):
                self._director.replied(decision, reply, now, read=read)
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
            case Stored(decision, response_id):
                self._director.keeps(decision, response_id)

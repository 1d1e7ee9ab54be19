"""The ext_proc server: one stream per HTTP request, driven through the sans-IO machine."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from laar.core.catalog import catalog, no_such_model
from laar.core.decision import Decision
from laar.core.director import Director
from laar.core.request import Request
from laar.errors import RequestError
from laar.protocol import headers as names
from laar.protocol.agreed import DECISION_MARGIN_S
from laar.protocol.events import (
    Action,
    Answering,
    Attempted,
    Ended,
    Immediate,
    Refused,
    Served,
    Stored,
)
from laar.protocol.ports import BodyHook, IsEnforced
from laar.protocol.rules import GatewayRules
from laar.protocol.sampling import Sampler
from laar.protocol.since import Since
from laar.protocol.stream import Environment, HeldBytes, StreamSettings
from laar.server.extproc.exchange import Exchange
from laar.server.flow_control import FlowControl, Waiting
from laar.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from laar.telemetry.tracing import Spans

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_LOG = logging.getLogger(__name__)
_LOG_FAULTS_EVERY_S = 10.0
"""Minimum seconds between logged faults (all are counted), lest they fill the disk."""


class ExternalProcessor:
    """The state shared by the exchanges of `Process`, one exchange per HTTP request.

    Args:
        sampler: chooses the native requests whose responses are read.
        clock: monotonic seconds.
        rules: the cluster's priorities and model rewrites.
        enforced: selects the requests whose decisions are applied; None for all.
        flow: holds requests while the fleet is full; None to send each at once.
        hook: may change request bodies; None to leave all unchanged.
        held: counts incomplete bodies of the gateway shape; None for no limit.
        spans: creates spans for traced clients' decisions; None if tracing is disabled.
        longest_hold_s: maximum seconds that flow control may hold a request.
        unknown_model: called when a request names a model not known to be served.
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
        self.director = director
        self.sampler = sampler
        self.clock = clock
        self.metrics = metrics
        self.flow = flow
        self.spans = spans
        self.env = Environment(
            settings=settings,
            new_id=lambda: str(uuid.uuid4()),
            sampled=sampler.draw,
            enforced=enforced,
            rules=rules,
            hook=hook,
            held=held,
            since=Since(),
            catalog=self._listed,
        )
        """State shared by new streams."""
        self.ask_turn: Callable[[Request, float], Decision | Waiting] = (
            director.decide if flow is None else flow.ask
        )
        """Decides on a session's turn now, or enqueues it; may raise `RequestError`."""
        self.ask = self.ask_turn if flow is None or flow.by_load else director.decide
        """Like `ask_turn`, for a request without a session."""
        self.exchanges: set[Exchange] = set()
        self.begun = 0
        """Number of streams begun."""
        self.longest_decision_s = DECISION_MARGIN_S + (0.0 if flow is None else longest_hold_s)
        """Seconds that Envoy should wait for a slow decision."""
        self._unknown_model = unknown_model
        self._log_faults_at = -math.inf
        # One thread: more would only take turns, and the event loop needs its share of the GIL.
        self.reader = ThreadPoolExecutor(1, "laar-bodies")
        self.reading = asyncio.Lock()

    def apply(
        self, settings: StreamSettings, *, hook: BodyHook | None, enforced: IsEnforced | None
    ) -> None:
        """Apply new settings to new streams."""
        self.env = replace(self.env, settings=settings, hook=hook, enforced=enforced)

    def let_go(self) -> None:
        """Close the streams of requests that Envoy can finish without the picker.

        Envoy then considers the picker done. It would treat a lost connection as a failure and, if
        it fails closed, also truncate the client's response.
        """
        for exchange in tuple(self.exchanges):
            exchange.let_go()

    def _listed(self, pool: str, name: str) -> bytes | None:
        """Return the models of a pool or of all pools, or a single model; None without endpoints.

        Raises:
            RequestError: there is no model of that name.
        """
        aliases = self.director.settings.aliases
        listed = catalog(self.director.table, aliases, pool)
        if not name or not listed["data"]:
            return orjson.dumps(listed) if listed["data"] else None
        for entry in listed["data"]:
            if entry["id"] == name:
                return orjson.dumps(entry)
        self._unknown_model()
        raise no_such_model(name)

    # -- for exchanges -------------------------------------------------------------------------

    def fault(self, what: str, *, trace: bool = False) -> None:
        """Count a fault, and log at most one per `_LOG_FAULTS_EVERY_S`."""
        now = self.clock()
        self.metrics.stream_faults += 1
        if now >= self._log_faults_at:
            self._log_faults_at = now + _LOG_FAULTS_EVERY_S
            _LOG.error(what, exc_info=trace)

    def refused(self, request: Request, error: RequestError) -> Refused:
        """Record a refused request."""
        if error.reason == "unknown-model":
            self._unknown_model()
        if self.spans is not None:
            self.spans.refused(request, error)
        return Refused(error.with_traceback(None))  # its frames and the error form a cycle

    def answered(self, answer: Immediate) -> None:
        """Count an answer made by laar, unless it is a list of models."""
        reason = dict(answer.headers).get(names.REASON)
        if reason is not None:
            self.metrics.refused(answer.status, reason)

    def note(self, action: Action, now: float) -> None:
        """Pass a stream's action on to the director, flow control and the counters."""
        match action:
            case Ended(decision, completion):
                self.director.settle(decision, completion)
                if self.flow is not None and decision.flight.admitted:
                    self.flow.ended(decision)
            case Attempted(decision, failed):
                self.metrics.failed_attempts += len(failed)
                self.director.attempted(decision, failed, now)
            case Served(decision, address):
                self.metrics.moved += not decision.request.shadow
                self.director.served_by(decision, address, now)
                if self.flow is not None and decision.flight.admitted:
                    self.flow.moved(decision)
            case Answering(decision, ok):
                self.director.answering(decision, now, ok=ok)
                if self.flow is not None and decision.flight.admitted:
                    self.flow.answering(decision, ok=ok)
            case Stored(decision, stored_id):
                self.director.keeps(decision, stored_id)

"""The ext_proc server: one stream per HTTP request, each driven by a state machine without I/O."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import orjson

from laar.core.decision import Decision
from laar.errors import RequestError
from laar.fleet.away import is_away
from laar.fleet.catalog import catalog, no_such_model
from laar.flow.queue import NO_ROOM
from laar.plugins.modes import kept_members
from laar.plugins.stored import StoredObjects
from laar.protocol import headers as names
from laar.protocol.agreed import DECISION_MARGIN_S
from laar.protocol.events import Immediate, Refused
from laar.protocol.ports import Recorder
from laar.protocol.stream import Environment
from laar.request import Request
from laar.server.flow_control import FlowControl, Waiting

if TYPE_CHECKING:
    from laar.server.picker import Picker

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_LOG = logging.getLogger(__name__)
_LOG_FAULTS_EVERY_S = 10.0
"""Minimum seconds between logged faults, which could fill the disk; all of them are counted."""

_OPEN_S = 0.3
"""Time after the last event of an answer in which nearly all streams end."""

_MAX_LISTS = 16
"""Maximum number of pools whose lists of models are kept until the fleet changes. Making one for
1,000 endpoints with 33 names each takes 11 ms, and any client may ask."""


class ExternalProcessor(Recorder):
    """The state shared by the exchanges of `Process`, one exchange per HTTP request.

    Args:
        picker: makes the decisions, and counts events.
        flow: holds requests while the fleet is full; None to send each at once.
    """

    def __init__(self, picker: Picker, flow: FlowControl | None = None) -> None:
        self._picker = picker
        self.director = director = picker.director
        self.sampler = picker.sampler
        self.clock = picker.clock
        self.metrics = picker.metrics
        self.flow = flow
        # Not methods that only pass on a call: these are called for each request.
        self.replied, self.ended = director.replied, director.settle  # type: ignore[method-assign]
        self.stored = director.plugins.get(StoredObjects).keeps  # type: ignore[method-assign]
        self.later: Callable[[float, Callable[[], object]], object] = _later
        """Calls a function after seconds."""
        self.tickets: dict[str, Decision] = {}
        """Decisions of other gateways' requests that await an answer; no more than open streams."""
        self.apply_settings()
        self.ask_turn: Callable[[Request, float], Decision | Waiting] = (
            director.decide if flow is None else flow.ask
        )
        """Function that decides on a session's turn or enqueues it; may raise `RequestError`."""
        self.ask = self.ask_turn if flow is None or flow.by_load else director.decide
        """Like `ask_turn`, for a request without a session, while all caches have room."""
        self.index = picker.prefixes.index
        self._lists = lru_cache(_MAX_LISTS)(self._list)
        self._lists_of: object = None
        self.leaving: set[Callable[[], None]] = set()
        """The `let_go` of each open exchange."""
        self.begun = 0
        """Number of streams that have begun."""
        longest_hold_s = picker.settings.flow.admission.max_hold_s
        self.longest_decision_s = DECISION_MARGIN_S + (0.0 if flow is None else longest_hold_s)
        """Seconds that Envoy should wait for a slow decision."""
        self._log_faults_at = -math.inf
        # One thread: more would only take turns, and the event loop needs its share of the GIL.
        self.reader = ThreadPoolExecutor(1, "laar-bodies")
        self.reading = asyncio.Lock()

    def apply_settings(self) -> None:
        """Apply the picker's settings to new streams."""
        picker, settings = self._picker, self._picker.settings
        self.env = Environment(
            settings=settings.stream,
            new_id=lambda: str(uuid.uuid4()),
            sampled=picker.sampler.draw,
            enforced=(enforcement := settings.routing.enforcement).draw,
            resolved=None if enforcement.mode == "shadow" else settings.routing.director.aliases,
            rules=picker.rules,
            kept_members=kept_members(settings.routing.asking.modes),
            hook=picker.context.in_use,
            held=picker.held,
            catalog=self._listed,
            with_route=lambda route, name: picker.with_route(route, name),
            recorder=self,
            tickets=self.tickets,
        )
        """State shared by new streams."""

    def let_go(self) -> None:
        """Close the streams whose requests Envoy can finish without the picker.

        Envoy then considers the picker done. If the connection were lost instead, Envoy would treat
        that as a failure and, when failing closed, also truncate the client's response.
        """
        for let_go in tuple(self.leaving):
            let_go()

    def _listed(self, pool: str, name: str) -> bytes | None:
        """Return the models of a pool or of all pools, or a single model; None without endpoints.

        Raise `RequestError` if there is no model of that name, or not now.
        """
        table = self.director.table
        table.away.look(self.clock())
        made_of = table.version, table.away.version, table.aliases
        if made_of != self._lists_of:
            self._lists_of = made_of
            self._lists.cache_clear()
        body, known = self._lists(pool)
        if not name or not known:
            return body if known else None
        if name not in known:
            self._picker.doubt_names("")
            raise no_such_model(name) if table.away.get(name) is None else is_away(name)
        return orjson.dumps(known[name])  # not cached: each name would take 4 KB

    def _list(self, pool: str) -> tuple[bytes, dict[str, Any]]:
        """Return the body that lists the models of a pool, and each model by its name."""
        listed = catalog(self.director.table, pool)
        return orjson.dumps(listed), {entry["id"]: entry for entry in listed["data"]}

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
        if error.reason in ("unknown-model", "model-away"):
            self._picker.doubt_names("")
        if error.reason in NO_ROOM:
            self.metrics.full.refused(request.model, time.time())
        return Refused(error.with_traceback(None))  # its frames and the error form a cycle

    def answered(self, answer: Immediate) -> None:
        """Count an answer made by laar, unless it is a list of models."""
        if (reason := dict(answer.headers).get(names.REASON)) is not None:
            self.metrics.refused(answer.status, reason)

    # -- for streams: what happens to a decided request ----------------------------------------

    def attempted(self, decision: Decision, failed: tuple[str, ...], now: float) -> None:
        """Count failed attempts, and tell the director."""
        self.metrics.failed_attempts += len(failed)
        self.director.attempted(decision, failed, now)

    def served(self, decision: Decision, address: str, now: float) -> None:
        """Count a move, and move the place in flow control."""
        self.metrics.moved += address != decision.address and not decision.request.shadow
        self.director.served_by(decision, address, now)
        if self.flow is not None and decision.flight.admitted:
            self.flow.moved(decision)

    def answering(
        self, decision: Decision, now: float, *, ok: bool, full: bool, said: bool
    ) -> None:
        """Tell the director and flow control."""
        self.director.answering(decision, now, ok=ok, said=said)
        if said and self.flow is not None and decision.flight.admitted:
            self.flow.answering(decision, ok=ok, full=full)

    def finished(self, decision: Decision, now: float) -> None:
        """Tell the director, and again if the stream does not end."""
        if self.director.finished(decision):
            self.later(_OPEN_S, partial(self.director.expect_no_end, decision, now + _OPEN_S))


def _later(seconds: float, call: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_later(seconds, call)

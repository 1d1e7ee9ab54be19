"""Decisions as spans of their clients' traces, and as log records: what OpenTelemetry is sent.

A span is made when its request has ended, so that it can say what came of the decision; it lasts
from the request for a decision to the decision, waiting in the queue included. Both kinds are made
from the record that `/decisions` shows, so all three say the same, and nothing of a prompt.

W3C Trace Context, level 1, for what is read; names by OpenTelemetry's conventions where there are
any (``gen_ai.*``, ``http.*``, ``error.type``).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from laar.core.account import Account
from laar.core.explain import record
from laar.core.request import Request, Trace
from laar.errors import RequestError
from laar.telemetry.otlp import Sender, tell

__all__ = ["NAME", "RUNNERS_UP", "LogRecords", "Spans"]

NAME = "laar.decision"
RUNNERS_UP = 3
"""Candidates behind the chosen one that a span tells of."""

Metadata = Iterable[tuple[str, str | bytes]]

_PARENT = re.compile(
    r"(?!ff|00.{53}-)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})"
    r"-([0-9a-f]{2})(?:-.*)?"
)
_MAX_STATE_CHARS = 512
_SAMPLED = 0x01
_PARENT_IS_REMOTE = 0x300  # known to be, and it is
_SPAN = trace_pb2.Span

_DECISION = {
    "id": "laar.decision.id",
    "mode": "laar.decision.mode",
    "policy": "laar.decision.policy",
    "reason": "laar.decision.reason",
    "endpoint": "laar.decision.endpoint",
    "model": "laar.decision.model",
    "candidates_total": "laar.decision.candidates",
    "exhausted": "laar.decision.exhausted",
    "tried_models": "laar.request.tried_models",
    "request_id": "laar.request.id",
    "language": "laar.request.language",
    "bucket_tokens": "laar.request.bucket_tokens",
    "task": "laar.request.task",
    "body_bytes": "http.request.body.size",
    "asked_model": "gen_ai.request.model",
}
_END = {
    "status": "http.response.status_code",
    "cause": "laar.end.cause",
    "served": "laar.end.endpoint",
    "latency_s": "laar.end.latency_s",
    "ttft_s": "gen_ai.response.time_to_first_chunk",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}


class Spans:
    """Makes spans of the decisions whose trace is sampled.

    Args:
        sender: takes them.
        share: of the requests without a trace, for which one is begun; may be changed.
        rng: draws that share, and ids.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        share: float,
        rng: random.Random,
        wall_clock: Callable[[], float],
    ) -> None:
        self._sender = sender
        self.share = share
        self._rng = rng
        self._wall_clock = wall_clock

    def join(self, caller: Metadata, parent: str, state: str) -> Trace | None:
        """The trace that a decision asked for now is seen in; None when it is seen in none.

        Args:
            caller: metadata of the call. A proxy that traces names its own span of the call there,
                which is in the client's trace, or knows that nobody wants it.
            parent: ``traceparent`` of the client's request.
            state: its ``tracestate``.
        """
        found = _of_caller(caller)
        if found is not None:
            parent, state = found
        if parent and (read := _PARENT.fullmatch(parent)):
            trace_id, parent_id, flags = read.groups()
            if not int(flags, 16) & _SAMPLED:
                return None
            good = len(state) <= _MAX_STATE_CHARS and state.isascii() and state.isprintable()
            return Trace(
                trace_id=trace_id,
                span_id=self._id(64),
                parent_id=parent_id,
                state=state if good else "",
                by_caller=found is not None,
                asked_s=self._wall_clock(),
            )
        if self.share and self._rng.random() < self.share:
            return Trace(trace_id=self._id(128), span_id=self._id(64), asked_s=self._wall_clock())
        return None

    def _id(self, bits: int) -> str:
        return f"{self._rng.getrandbits(bits) or 1:0{bits // 4}x}"

    def settled(self, account: Account) -> None:
        """Makes a span of a decision whose request has ended, where it has a trace."""
        trace = account.trace
        if trace is not None:
            self._sender.offer(lambda: self._decided(account, trace))

    def refused(self, request: Request, error: RequestError) -> None:
        """Makes a span of a request that got no endpoint, where it has a trace."""
        trace = request.trace
        if trace is not None:
            self._sender.offer(lambda: self._refused(request, trace, error))

    def _decided(self, account: Account, trace: Trace) -> bytes:
        told = attributes(record(account, ranked=True))
        return self._span(trace, account.time_s, told).SerializeToString()

    def _refused(self, request: Request, trace: Trace, error: RequestError) -> bytes:
        told = {
            "gen_ai.request.model": request.model,
            "laar.request.id": request.id,
            "http.response.status_code": error.status,
            "error.type": error.reason,
        }
        span = self._span(trace, self._wall_clock(), told)
        span.status.code = trace_pb2.Status.STATUS_CODE_ERROR
        return span.SerializeToString()

    def _span(self, trace: Trace, end_s: float, told: Mapping[str, object]) -> trace_pb2.Span:
        span = _SPAN(
            trace_id=bytes.fromhex(trace.trace_id),
            span_id=bytes.fromhex(trace.span_id),
            parent_span_id=bytes.fromhex(trace.parent_id),
            trace_state=trace.state,
            flags=_SAMPLED | (_PARENT_IS_REMOTE if trace.parent_id else 0),
            name=NAME,
            kind=_SPAN.SPAN_KIND_SERVER if trace.by_caller else _SPAN.SPAN_KIND_INTERNAL,
            start_time_unix_nano=round(trace.asked_s * 1e9),
            end_time_unix_nano=round(max(trace.asked_s, end_s) * 1e9),
        )
        tell(span, told)
        return span


class LogRecords:
    """Makes log records of decisions: the decision log's line, and what one selects lines by.

    Args:
        sender: takes them.
        share: of the decisions; may be changed.
        rng: draws it.
    """

    def __init__(self, sender: Sender, *, share: float, rng: random.Random) -> None:
        self._sender = sender
        self.share = share
        self._rng = rng

    def settled(self, account: Account) -> None:
        """Makes a record of a decision whose request has ended, if it is drawn."""
        if self.share >= 1.0 or self._rng.random() < self.share:
            self._sender.offer(lambda: self._record(account))

    def _record(self, account: Account) -> bytes:
        shown = record(account)
        trace = account.trace
        made = logs_pb2.LogRecord(
            time_unix_nano=round(account.time_s * 1e9),
            severity_number=logs_pb2.SEVERITY_NUMBER_INFO,
            event_name=NAME,
            body=common.AnyValue(string_value=orjson.dumps(shown).decode()),
        )
        tell(made, _renamed(shown, _DECISION))
        if trace is not None:
            made.trace_id = bytes.fromhex(trace.trace_id)
            made.span_id = bytes.fromhex(trace.span_id)
            made.flags = _SAMPLED
        return made.SerializeToString()


def attributes(shown: Mapping[str, Any]) -> dict[str, object]:
    """A span's attributes, from a ranked record; `laar.chosen.*` and arrays `laar.runners_up.*`."""
    told = _renamed(shown, _DECISION)
    chosen, *others = shown["candidates"][: 1 + RUNNERS_UP]
    told |= {f"laar.chosen.{name}": value for name, value in chosen.items() if name not in _SAID}
    if others:
        told |= {
            f"laar.runners_up.{name}": [row[name] for row in others]
            for name in chosen
            if name not in _NOT_OF_OTHERS
        }
    end = shown.get("completion")
    if end is not None:
        told |= _renamed(end, _END)
        told["http.response.status_code"] = end["status"] or None
        if end["served"] == shown["endpoint"]:
            told["gen_ai.response.model"] = shown["model"]
    return told


_SAID = frozenset({"endpoint", "model", "rank", "why"})
_NOT_OF_OTHERS = frozenset({"rank", "why", "region", "evidence", "tokens", "base_s"})


def _renamed(shown: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, object]:
    return {names[name]: value for name, value in shown.items() if name in names}


def _of_caller(metadata: Metadata) -> tuple[str, str] | None:
    parent = state = ""
    for name, value in metadata:
        if name == "traceparent":
            parent = str(value)
        elif name == "tracestate":
            state = str(value)
    return (parent, state) if parent else None

"""State shared by all streams of a picker, and by both halves of one stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from laar.core.decision import Decision
from laar.core.request import Api, Trace
from laar.protocol.ports import BodyHook, GatewayRules, IsEnforced, NoRules, Rework
from laar.protocol.settings import StreamSettings
from laar.protocol.since import Since
from laar.protocol.stream.answer import Answer
from laar.protocol.stream.body import Collected, HeldBytes
from laar.protocol.stream.dialect import NATIVE, Dialect

_NO_RULES = NoRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """State shared by all streams of a picker: rebuilt when settings change, read per request.

    Args:
        settings: limits.
        new_id: creates a request id if the client sent none.
        sampled: decides, given the time, whether to read the answer. Called for inference requests
            in the native shape; the gateway shape shows every answer anyway.
        enforced: returns whether a request's decision is enforced; None enforces all. Otherwise the
            decision is made and recorded, but the request passes as if there were no picker.
        rules: priorities and model rewrites.
        hook: may change request bodies; None changes none.
        held: counter of the bytes that all streams collect in the gateway shape; None for no limit.
        since: returns when a question was first asked; None: every question is new.
        catalog: returns the models of the fleet or a pool, or the entry of one name, as JSON; None
            for no list. Raises `RequestError` for an unknown name.
    """

    settings: StreamSettings
    new_id: Callable[[], str]
    sampled: Callable[[float], bool] = lambda _now: False
    enforced: IsEnforced | None = None
    rules: GatewayRules = _NO_RULES
    hook: BodyHook | None = None
    held: HeldBytes | None = None
    since: Since | None = None
    catalog: Callable[[str, str], bytes | None] = lambda _pool, _name: None


Join = Callable[[str, str], Trace | None]
"""Returns a decision's trace from ``traceparent`` and ``tracestate``."""


class StreamState:
    """One stream's state, shared by both halves.

    Most streams keep most of the class-level defaults, which makes opening one cheap.

    Args:
        env: what all streams share.
        join: joins a client's trace; None if tracing is off.
    """

    dialect: Dialect = NATIVE
    """The dialect of this Envoy."""
    read_answer = False
    """The answer's body is read in the native shape."""
    api = Api.OPAQUE
    """The body's format."""
    asked = ""
    """The requested model's name in the client's body."""
    asked_at = 0.0
    """When this question was first asked."""
    target: str | None = None
    """The name that replaced the model's; None if unchanged."""
    rework: Rework | None = None
    """The hook's result for the body; None when no longer needed."""
    taken = False
    """An endpoint has accepted the request."""
    shadow = False
    """The decision is not enforced, and the request passes unchanged."""
    decision: Decision | None = None
    """The decision; None until there is one."""
    overhead_us = 0
    """Microseconds that the decision took."""
    hurried_at = math.inf
    """Time from which Envoy hedges to other endpoints."""

    def __init__(self, env: Environment, join: Join | None = None) -> None:
        self.env = env
        self.join = join
        self.body = Collected(env.held)
        self.answer = Answer()

    def refuse_rework(self) -> None:
        """Tell the hook that no endpoint accepted the request."""
        if self.rework is not None:
            self.rework.refused()
            self.rework = None

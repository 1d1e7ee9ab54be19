"""What all streams of a picker share, and what both halves of one share."""

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
    """What all streams of a picker share: made when settings change, and read by each request.

    Args:
        settings: limits.
        new_id: makes a request id when the client sent none.
        sampled: decides, at a time, whether the answer is read. Asked of a model's work in the
            native shape: the gateway shape shows every answer anyway.
        enforced: decides whether a request's decision counts; None: all do. One that does not is
            made and recorded, and the request passes as if there were no picker.
        rules: priorities and model rewrites.
        hook: may change request bodies; None leaves all as they are.
        held: counts the bytes that all streams collect in the gateway shape; None sets no limit.
        since: returns when a question was first asked; None: every question is new.
        catalog: returns the list of the fleet's models, or of a pool's, or its entry of a name, as
            JSON; None where there is no list. Raises `RequestError` for an unknown name.
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
"""Returns the trace that a decision is seen in, by ``traceparent`` and ``tracestate``."""


class StreamState:
    """One stream's state, as both halves use it.

    Most of it stays for most streams as it stands in the class, so that to open one is cheap.

    Args:
        env: what all streams share.
        join: joins a client's trace; None when nothing is traced.
    """

    dialect: Dialect = NATIVE
    """The dialect of this Envoy."""
    read_answer = False
    """The answer's body is read in the native shape."""
    api = Api.OPAQUE
    """The body's format."""
    asked = ""
    """The model's name in the client's body."""
    asked_at = 0.0
    """When this question was first asked."""
    target: str | None = None
    """The name that took the model's place; None where it stays."""
    rework: Rework | None = None
    """The hook's result for the body; None once it is of no more use."""
    taken = False
    """An endpoint has accepted the request."""
    shadow = False
    """The decision does not count, and the request passes unchanged."""
    decision: Decision | None = None
    """The decision; None until there is one."""
    overhead_us = 0
    """Microseconds that it took."""
    hurried_at = math.inf
    """From then on Envoy asks other endpoints beside the chosen one."""

    def __init__(self, env: Environment, join: Join | None = None) -> None:
        self.env = env
        self.join = join
        self.body = Collected(env.held)
        self.answer = Answer()

    def refuse_rework(self) -> None:
        """Report to the hook that no endpoint took its result."""
        if self.rework is not None:
            self.rework.refused()
            self.rework = None

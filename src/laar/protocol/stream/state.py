"""The state that all streams of a picker share, and the state of one stream."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from laar.core.decision import Decision
from laar.protocol.events import Shape
from laar.protocol.paths import PathFacts, facts_reader
from laar.protocol.ports import BodyHook, Recorder, Rework
from laar.protocol.rules import GatewayRules
from laar.protocol.settings import StreamSettings
from laar.protocol.stream.answer import Answer
from laar.protocol.stream.body import Collected, HeldBytes
from laar.protocol.stream.dialect import OF_OTHERS, Dialect
from laar.request import Api

_NO_RULES = GatewayRules(random.Random())
_NO_RECORDER = Recorder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """State shared by all streams of a picker, rebuilt when settings change.

    Args:
        new_id: creates ids that nobody can guess, of requests without one and of tickets.
        sampled: returns, given the time, whether to read the answer. Called for inference requests
            in the native shape; the gateway shape shows every answer anyway.
        enforced: returns whether a decision is enforced, given the session that headers name, else
            the request's id; None enforces all. If not, the decision is made and recorded, but the
            request passes as if there were no picker.
        resolved: aliases. Decisions are enforced for these and all other names that the picker
            replaces; None if for none.
        kept_members: members with which a body sets a mode itself; None if there are no modes.
        hook: may change request bodies; None: bodies stay unchanged.
        held: counts the bytes of unfinished bodies and of those to be read; None means no limit.
        catalog: returns the models of the fleet or a pool, or the entry of one name, as JSON; None
            if there is no list. Raises `RequestError` for an unknown name.
        with_route: returns the endpoints that may serve an API route, given the model's name;
            None if that excludes none.
        recorder: records what happens to decided requests.
        tickets: the decisions that await an answer, by the tickets that other gateways got.
    """

    settings: StreamSettings
    new_id: Callable[[], str]
    sampled: Callable[[float], bool] = lambda _now: False
    enforced: Callable[[str], bool] | None = None
    resolved: Container[str] | None = None
    rules: GatewayRules = _NO_RULES
    kept_members: frozenset[str] | None = None
    hook: BodyHook | None = None
    held: HeldBytes | None = None
    catalog: Callable[[str, str], bytes | None] = lambda _pool, _name: None
    with_route: Callable[[str, str], frozenset[str] | None] = lambda _route, _name: None
    recorder: Recorder = _NO_RECORDER
    tickets: dict[str, Decision] = field(default_factory=dict)
    facts_of: Callable[[str], PathFacts] = field(init=False)
    """Returns the properties of a path, by the settings."""

    def __post_init__(self) -> None:
        read = facts_reader(
            self.settings.denied_paths, self.settings.opaque_paths, self.settings.any_model_paths
        )
        object.__setattr__(self, "facts_of", read)


class StreamState:
    """One stream's state, shared by both halves.

    Defaults are class attributes, so opening a stream is cheap: most streams change few of them.

    Args:
        env: the state shared by all streams.
    """

    dialect: Dialect = OF_OTHERS[Shape.NATIVE]
    """The dialect of the stream's Envoy."""
    read_answer = False
    """Whether the answer's body is read in the native shape."""
    stores_answer = False
    """Whether the engine stores its answer, which can be retrieved by id."""
    ignored_header = ""
    """A header of the client that the settings do not allow, named in the answer."""
    acts = True
    """Whether the request may do more than compute an answer, so that it may not be sent twice."""
    begun = False
    """Whether the picker has seen the request."""
    longest_hold_s = 0.0
    """Seconds for which Envoy lets a request be held, if it says so."""
    may_ask_plainly = False
    """Whether a client may ask over plain HTTP for what it opens a WebSocket for."""
    api = Api.OPAQUE
    """The body's format."""
    asked = ""
    """The model's name in the client's body."""
    target: str | None = None
    """The name that replaced the model's name; None if unchanged."""
    rework: Rework | None = None
    """The hook's result for the body; None if there is none or it is no longer needed."""
    shadow = False
    """Whether the decision is not enforced, so the request passes unchanged."""
    decision: Decision | None = None
    """The decision; None until there is one."""
    overhead_us = 0
    """Microseconds that the decision took, without waits and a long body's reading."""
    held_s = 0.0
    """Seconds for which the request was held before the decision."""
    ticket = ""
    """The ticket by which a further question about this request is recognized."""
    hurried_at = math.inf
    """Time after which Envoy hedges to other endpoints."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.body = Collected(env.held)
        self.answer = Answer()

    def refuse_rework(self) -> None:
        """Tell the hook that no endpoint accepted the request."""
        if self.rework is not None:
            self.rework.refused()
            self.rework = None

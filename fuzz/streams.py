"""Messages of one ext_proc stream in any order, in process: no fault, and the books balance."""

from __future__ import annotations

import random

from google.protobuf.message import DecodeError

from fuzz.choices import Choices, json_text
from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.core.cost import CostWeights
from laar.core.decision import Completion, Decision, DirectorSettings, Enforcement
from laar.core.director import Director
from laar.errors import RequestError
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import POOL_LABEL, EndpointSpec
from laar.health import Reply
from laar.policies import build_policies
from laar.prefix.beliefs import PrefixBeliefs
from laar.protocol import headers as names
from laar.protocol.events import (
    Ask,
    Closed,
    Decided,
    Event,
    HasRead,
    Immediate,
    Read,
    Refused,
)
from laar.protocol.openai import try_read
from laar.protocol.ports import Recorder
from laar.protocol.stream import Environment, HeldBytes, Stream, StreamSettings
from laar.server.extproc.messages import ANSWERS, event_of
from laar.wire import ext_proc_pb2 as pb

__all__ = ["ADDRESSES", "message", "streams"]

ADDRESSES = ("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")
_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/tokenize",
    "/v1/files",
    "/sleep",
    "",
    "*",
)
_HEADER_NAMES = (*sorted(names.CONTROL_HEADERS), "upgrade", "content-length", "x-request-id", "x")
_HEADER_VALUES = (
    b"",
    b"a",
    b"m",
    b"auto",
    b"1000",
    b"laar",
    b"\xff",
    b"a,b",
    b"x" * 300,
    b"10.0.0.9:1",
)
_STATUSES = (b"200", b"503", b"404", b"", b"abc", b"99999999", b"204")
_MODES = (
    pb.ProcessingMode.NONE,
    pb.ProcessingMode.STREAMED,
    pb.ProcessingMode.BUFFERED,
    pb.ProcessingMode.FULL_DUPLEX_STREAMED,
)


def make_director() -> Director:
    """Three endpoints in two pools."""
    table = EndpointTable()
    table.replace(
        "fuzz",
        [
            EndpointSpec(address=a, models=(m, "auto")[: 1 + (i % 2)], labels={POOL_LABEL: p})
            for i, (a, m, p) in enumerate(zip(ADDRESSES, "mno", "aab", strict=True))
        ],
    )
    return Director(
        table,
        build_policies(CostWeights()),
        DirectorSettings(),
        rng=random.Random(1),
        assessor=CapabilityAssessor(CapabilityModel()),
        prefixes=PrefixBeliefs(key=b"k" * 16, max_bytes=1 << 20),
    )


_director = make_director()


class _Recording(Recorder):
    """Records in the director, and counts the ends."""

    def __init__(self) -> None:
        self.ended_times = 0

    def attempted(self, decision: Decision, failed: tuple[str, ...], now: float) -> None:
        _director.attempted(decision, failed, now)

    def served(self, decision: Decision, address: str, now: float) -> None:
        _director.served_by(decision, address, now)

    def replied(self, decision: Decision, reply: Reply, now: float, *, read: bool) -> None:
        _director.replied(decision, reply, now, read=read)

    def answering(
        self, decision: Decision, now: float, *, ok: bool, full: bool, said: bool
    ) -> None:
        _director.answering(decision, now, ok=ok, said=said)

    def finished(self, decision: Decision, now: float) -> None:
        _director.finished(decision)

    def ended(self, decision: Decision, end: Completion) -> None:
        self.ended_times += 1
        _director.settle(decision, end)
        assert end.status is None or 100 <= end.status <= 599


def message(choices: Choices) -> bytes:
    """One message, as Envoy or nobody would send it."""
    made = pb.ProcessingRequest()
    kind = choices.number(8)
    end = bool(choices.number(2))
    if choices.number(3) == 1:
        made.protocol_config.request_body_mode = _MODES[choices.number(4)]
        made.protocol_config.response_body_mode = _MODES[choices.number(4)]
    if choices.number(4) == 1:
        attributes = made.attributes["envoy.filters.http.ext_proc"].fields
        attributes[names.POOL].string_value = (b"a", b"b", b"c")[choices.number(3)]
        attributes["request.path"].string_value = choices.one(
            [*(path.encode() for path in _PATHS), b"\xff"]
        )
    if choices.number(8) == 1:
        known = made.metadata_context.filter_metadata["envoy.lb"].fields
        known[names.SERVED].string_value = ADDRESSES[choices.number(3)].encode()
    if choices.number(8) == 1:
        hint = made.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields
        subset = hint[names.SUBSET].list_value.values
        subset.add().string_value = ADDRESSES[choices.number(3)].encode()
    if kind == 0:
        _head(made.request_headers, choices, b":path", _PATHS[choices.number(len(_PATHS))].encode())
        made.request_headers.end_of_stream = end
    elif kind in (1, 2):
        made.request_body.body = json_text(choices) if kind == 1 else choices.some(30)
        made.request_body.end_of_stream = end
    elif kind == 3:
        made.request_trailers.SetInParent()
    elif kind == 4:
        _head(made.response_headers, choices, b":status", choices.one(_STATUSES))
        made.response_headers.end_of_stream = end
    elif kind == 5:
        made.response_body.body = choices.some(40)
        made.response_body.end_of_stream = end
    elif kind == 6:
        made.response_trailers.SetInParent()
    data = made.SerializeToString()
    if choices.number(16) == 1:
        at = choices.number(max(1, len(data)))
        data = data[:at] + choices.some(3) + data[at + choices.number(3) :]
    return data


def _head(into: pb.HttpHeaders, choices: Choices, name: bytes, value: bytes) -> None:
    into.headers.headers.add(key=name.decode(), raw_value=value)
    for _ in range(choices.number(5)):
        into.headers.headers.add(
            key=_HEADER_NAMES[choices.number(len(_HEADER_NAMES))],
            raw_value=choices.one(_HEADER_VALUES),
        )


def streams(data: bytes) -> None:
    """One stream from its first message to its end."""
    choices = Choices(data)
    director, held, recorder = _director, HeldBytes(500), _Recording()
    share = Enforcement(enforce_share=(1.0, 0.0)[choices.number(2)])
    settings = StreamSettings(
        max_body_bytes=400,
        answers=list(names.Answers)[choices.number(4)],
        by_tenant=bool(choices.number(2)),
    )
    is_sampled = bool(choices.number(2))
    machine = Stream(
        Environment(
            settings=settings,
            sampled=lambda _now: is_sampled,
            new_id=lambda: "id",
            enforced=share.draw,
            held=held,
            recorder=recorder,
        )
    )
    now, decided = 0.0, 0
    events: list[Event] = []
    for _ in range(1 + choices.number(10)):
        try:
            read = pb.ProcessingRequest.FromString(message(choices))
        except DecodeError:
            break
        if (event := event_of(read)) is not None:
            events.append(event)
    events.append(Closed())
    for event in events:
        pending: Event | None = event
        now += 1.0
        while pending is not None:
            actions, pending = machine.receive(pending, now), None
            for action in actions:
                match action:
                    case Read(api, body):
                        pending = HasRead(try_read(api, body))
                    case Ask(request):
                        try:
                            decision = director.decide(request, now)
                        except RequestError as error:
                            pending = Refused(error)
                        else:
                            decided += 1
                            pool = director.table.spec(decision.slot).labels[POOL_LABEL]
                            assert not request.pool or pool == request.pool
                            if request.subset is not None:
                                assert decision.address in request.subset
                            pending = Decided(decision, 1)
                    case _:
                        assert ANSWERS[type(action)](action)
                        if isinstance(action, Immediate):
                            assert 400 <= action.status <= 599
    assert held.now_bytes == 0
    assert not decided or recorder.ended_times
    assert not director.table.in_flight.any()
    assert abs(float(director.table.queued_tokens.sum())) < 1e-6

"""The middle of a long answer bypasses the state machine, with the same results."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from bench.bench_road import recorded
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from laar.protocol.agreed import ATTEMPTS
from laar.protocol.stream.answer import Answer
from laar.server.extproc import ExternalProcessor
from laar.server.extproc.exchange import Exchange
from laar.server.extproc.messages import chunk_of
from laar.server.picker import Picker
from laar.settings import Settings
from laar.wire import ext_proc_pb2 as pb

MODE = pb.ProcessingMode
SHAPES = {
    "native": (MODE.BUFFERED, MODE.NONE),
    "streamed": (MODE.BUFFERED, MODE.STREAMED),
    "gateway": (MODE.FULL_DUPLEX_STREAMED, MODE.FULL_DUPLEX_STREAMED),
}
DELTA = b'data: {"id":"a","choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
OTHERS = (
    b": still here\n\n",
    b'data: {"choices":[{"delta":{"content":"an error"},"finish_reason":"length"}]}\n\n',
    b'data: {"error":{"message":"out of memory","code":500}}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3}}\n\n',
    DELTA * 80,
)
DONE = b"data: [DONE]\n\n"
ENDS = ("end", "trailers", "client leaves")


class Call:
    """The transport of one stream, which records what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def end(self, *_args: object) -> None: ...


class Served:
    """A picker with one endpoint and its own clock, which reads all answers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ended: list[object] = []
        settings = Settings.model_validate(
            {
                "endpoints": [{"address": "10.0.0.1:80", "model": "m"}],
                "bodies": {"sample_answers": 1.0, "sample_every_s": 1.0},
            }
        )
        picker = Picker(settings, seed=1, clock=lambda: self.now)
        picker.table.replace("test", settings.listed())
        picker.director.watch(settled=lambda _decision, end: self.ended.append(end))
        self.sampler = picker.sampler
        self._processor = ExternalProcessor(picker)
        self._processor.later = lambda _seconds, _call: None

    def begin(self, shape: str) -> tuple[Exchange, Call]:
        """Start a stream; return it once its answer begins."""
        call = Call()
        stream = Exchange(self._processor, call)
        head = pb.ProcessingRequest()
        modes = head.protocol_config
        modes.request_body_mode, modes.response_body_mode = SHAPES[shape]
        head.attributes["ext_proc"].fields[ATTEMPTS].string_value = b"1"  # laar's own Envoy
        for name, value in ((":method", b"POST"), (":path", b"/v1/chat/completions")):
            head.request_headers.headers.headers.add(key=name, raw_value=value)
        body = orjson.dumps({"model": "m", "messages": [], "stream": True})
        asked = pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True))
        answer = pb.ProcessingRequest()
        for name, value in ((":status", b"200"), ("content-type", b"text/event-stream")):
            answer.response_headers.headers.headers.add(key=name, raw_value=value)
        for message in (head, asked, answer):
            stream.receive(message.SerializeToString())
        call.sent.clear()
        return stream, call


def piece(data: bytes, *, end: bool = False) -> bytes:
    body = pb.HttpBody(body=data, end_of_stream=end)
    return pb.ProcessingRequest(response_body=body).SerializeToString()


def passed(shape: str, pieces: list[bytes], gap_s: float, end: str) -> tuple[object, ...]:
    """Pass an answer; return all messages sent, how it ended, and when the next may be read."""
    picker = Served()
    stream, call = picker.begin(shape)
    for number, data in enumerate(pieces):
        picker.now += gap_s
        is_last = end == "end" and number == len(pieces) - 1
        stream.receive(piece(data, end=is_last))
    if end == "trailers":
        trailers = pb.ProcessingRequest(response_trailers=pb.HttpTrailers())
        stream.receive(trailers.SerializeToString())
    stream.closed()
    return call.sent, picker.ended, picker.sampler._paid_at


@example("gateway", [0, 2], [101], 0.01, "client leaves")  # an error split over the last two chunks
@given(
    st.sampled_from(sorted(SHAPES)),
    st.lists(st.integers(0, 12), max_size=40),
    st.lists(st.integers(1, 8_000), max_size=20),
    st.sampled_from([0.001, 0.01, 0.2]),
    st.sampled_from(ENDS),
)
def test_passing_a_chunk_directly_has_the_effect_of_the_state_machine(
    shape, kinds, cuts, gap_s, end
):
    text = DELTA + b"".join(OTHERS[kind] if kind < len(OTHERS) else DELTA for kind in kinds) + DONE
    ends = [at for at in range(1, len(text) + 1) if text[at - 2 : at] == b"\n\n"]
    marks = sorted({0, len(text), *ends[: 2 * len(ends) // 3], *(cut % len(text) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(marks)]
    found = passed(shape, pieces, gap_s, end)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Answer, "put_by", lambda *_args: False)
        assert found == passed(shape, pieces, gap_s, end)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_chunk_in_the_middle_of_an_answer_takes_few_calls(shape):
    stream, _ = Served().begin(shape)
    for _ in range(20):  # the beginning is read for health
        stream.receive(piece(DELTA))
    trail: list[tuple[str, str]] = []
    recorded(lambda: stream.receive(piece(DELTA)), trail)
    assert len(trail) <= 6


def with_metadata(message: pb.ProcessingRequest) -> bytes:
    """Return a message as Envoy sends it in the middle of a stream."""
    known = message.metadata_context.filter_metadata["envoy.lb"].fields
    known["x-gateway-destination-endpoint"].string_value = b"10.0.0.1:80"
    return message.SerializeToString()


@given(
    st.integers(0, 400) | st.integers(0, 20_000),
    st.booleans(),
    st.sampled_from(["", "request_body", "response_body", "response_headers", "response_trailers"]),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(max_size=2)), max_size=3),
    st.integers(0, 40),
)
def test_a_chunk_is_read_directly_only_as_protobuf_would_read_it(size, end, more, changes, cut):
    """It may be damaged, cut off, or followed by a message of any kind."""
    body = pb.HttpBody(body=bytes(range(256)) * (size // 256 + 1), end_of_stream=end)
    body.body = body.body[:size]
    sent = bytearray(with_metadata(pb.ProcessingRequest(response_body=body)))
    if more:
        following = pb.ProcessingRequest()
        getattr(following, more).SetInParent()
        sent += following.SerializeToString()
    for at, changed in changes:
        at %= min(len(sent), 300)
        sent[at : at + 1] = changed
    message = bytes(sent[: len(sent) - cut] if cut < 20 else sent)
    try:
        found = chunk_of(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            pb.ProcessingRequest.FromString(message)
        return
    if found is not None:
        read = pb.ProcessingRequest.FromString(message)
        assert read.WhichOneof("request") == "response_body"
        assert read.response_body == pb.HttpBody(body=found)

"""gRPC messages split anywhere, and limits on frames for any sequence of reads."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from h2_peers import PREFACE, frame, framed
from hypothesis import given
from hypothesis import strategies as st

from laar.server.h2.framing import CallError, Code, Unframer
from laar.server.h2.guard import MAX_FRAME_BYTES, PAID_FRAMES, FloodError, Guard

messages = st.lists(st.binary(max_size=300), max_size=8)


def cut(data, cuts):
    """Return the data in chunks."""
    marks = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@given(messages, st.lists(st.integers(0, 5000), max_size=40))
def test_messages_are_the_same_for_any_split(sent, cuts):
    unframer = Unframer(300)
    stream = b"".join(framed(message) for message in sent)
    got = [message for piece in cut(stream, cuts) for message in unframer.feed(piece)]
    assert got == sent
    assert not unframer.held


@given(st.binary(min_size=1, max_size=300), st.integers(0, 400))
def test_an_incomplete_message_is_noticed(message, at):
    unframer = Unframer(300)
    stream = framed(message)
    list(unframer.feed(stream[: at % len(stream)]))
    assert len(unframer.held) == at % len(stream)


def test_single_bytes_do_not_take_an_object_each():
    unframer = Unframer(1 << 20)
    stream = framed(b"x" * 100_000)
    tracemalloc.start()
    for number in range(len(stream) - 1):
        assert not list(unframer.feed(stream[number : number + 1]))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2 * len(stream)
    assert list(unframer.feed(stream[-1:])) == [b"x" * 100_000]


@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        (b"\x01\0\0\0\0", Code.UNIMPLEMENTED),
        (b"\xff\0\0\0\0", Code.UNIMPLEMENTED),
        (b"\0\0\0\0\x0b", Code.RESOURCE_EXHAUSTED),
        (b"\0\xff\xff\xff\xff", Code.RESOURCE_EXHAUSTED),
    ],
)
def test_invalid_frames_cause_a_grpc_status(prefix, code):
    with pytest.raises(CallError) as found:
        list(Unframer(10).feed(prefix))
    assert found.value.code is code


# -- the guard ---------------------------------------------------------------------------------

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
kinds = st.sampled_from([DATA, HEADERS, RST, PING, GOAWAY, WINDOW, 0x20])
frames = st.lists(
    st.builds(lambda kind, payload: frame(kind, 0x4, 1, payload), kinds, st.binary(max_size=40)),
    max_size=12,
)


@given(frames, st.lists(st.integers(0, 5000), max_size=40))
def test_the_library_gets_all_frames_except_goaway_for_any_split(sent, cuts):
    guard = Guard(0.0, lambda *_frame: False)
    pieces = cut(PREFACE + b"".join(sent), cuts)
    seen = b"".join(part for piece in pieces for *_, part in guard.feed(piece, 0.0))
    assert seen == PREFACE + b"".join(one for one in sent if one[3] != GOAWAY)
    assert guard.leaving is any(one[3] == GOAWAY for one in sent)


def test_changes_of_settings_in_one_read_are_passed_on_one_by_one():
    """A change of the window applies to every stream, so a read with many may take seconds."""
    guard = Guard(0.0, lambda *_frame: False)
    list(guard.feed(PREFACE, 0.0))
    change = frame(SETTINGS, 0, 0, b"\0\4\0\0\0\1")
    assert max(len(part) for *_, part in guard.feed(change * 50, 0.0)) <= len(change)


def flood(*frames, times=1, now=0.0):
    guard = Guard(0.0, lambda *_frame: False)
    for one in (PREFACE, *frames * times):
        list(guard.feed(one, now))


def test_a_long_frame_is_refused_by_its_header_alone():
    flood(frame(DATA, 0, 1, length=MAX_FRAME_BYTES))
    with pytest.raises(FloodError):
        flood(frame(DATA, 0, 1, length=MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize(
    "one",
    [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS),
        frame(WINDOW, 0, 1, b"\0\0\0\1"),
        frame(DATA, 0, 1),
        frame(DATA, 0, 1, b"x"),
        frame(0x20, 0, 0, b"?"),
        frame(2, 0, 1, b"\0\0\0\0\1"),  # PRIORITY
    ],
)
def test_empty_frames_are_limited(one):
    flood(one, times=90)
    with pytest.raises(FloodError):
        flood(one, times=9000)


def test_the_length_of_a_header_block_is_limited():
    flood(frame(HEADERS, 0, 1, b"x" * 16384), frame(CONTINUATION, 4, 1, b"x" * 16384))
    with pytest.raises(FloodError):
        flood(frame(HEADERS, 0, 1), *[frame(CONTINUATION, 0, 1)] * 9)
    with pytest.raises(FloodError):
        flood(frame(HEADERS, 0, 1, b"x" * 40_000), frame(CONTINUATION, 0, 1, b"x" * 40_000))


def test_the_frame_budget_recovers_with_time_and_messages():
    guard = Guard(0.0, lambda *_frame: False)
    list(guard.feed(PREFACE, 0.0))
    one = frame(WINDOW, 0, 1, b"\0\0\0\1")
    for number in range(20_000):
        list(guard.feed(one, number / 1000))
    for _ in range(20_000):
        guard.paid_frames += PAID_FRAMES
        list(guard.feed(one, 20.0))

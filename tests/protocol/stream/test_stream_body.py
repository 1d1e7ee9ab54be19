"""A request's body is collected, counted for all streams, and sent in chunks."""

from hypothesis import given
from hypothesis import strategies as st

from laar.protocol.events import Direction
from laar.protocol.stream import CHUNK_BYTES, HeldBytes
from laar.protocol.stream.body import Collected, send_chunks


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(0, 200))
def test_chunks_are_joined_and_counted_while_held(pieces, limit_bytes):
    held = HeldBytes(limit_bytes)
    body = Collected(held)
    counted = 0
    for piece in pieces:
        body.add(piece)
        room = counted + len(piece) <= limit_bytes
        assert body.hold(len(piece), 0.0) is room
        counted += len(piece) * room
        assert held.now_bytes == counted
    assert bytes(body.data or b"") == b"".join(pieces)
    assert body.size_bytes == len(b"".join(pieces))
    body.release()
    assert held.now_bytes == 0


def test_a_missing_body_is_distinguished_from_an_empty_one():
    body = Collected(None)
    assert body.data is None
    body.add(b"")
    assert body.data == b""
    assert body.take() == b""
    assert body.take() is None


@given(st.integers(0, 3 * CHUNK_BYTES), st.booleans())
def test_chunks_are_within_the_limit_and_only_the_last_one_ends_the_body(size, end):
    data = bytes(range(256)) * (size // 256 + 1)
    out = []
    send_chunks(Direction.RESPONSE, data[:size], end=end, out=out)
    assert b"".join(piece.data for piece in out) == data[:size]
    assert all(len(piece.data) <= CHUNK_BYTES for piece in out)
    assert [piece.end for piece in out] == [False] * (len(out) - 1) + [end]

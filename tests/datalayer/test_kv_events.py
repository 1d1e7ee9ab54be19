from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

zmq = pytest.importorskip("zmq")

from laar.datalayer import kv_batches, kv_events  # noqa: E402
from laar.datalayer.kv_batches import (  # noqa: E402
    Cleared,
    Event,
    Groups,
    decode_batch,
    in_pieces,
)
from laar.datalayer.kv_events import KvEvents  # noqa: E402
from laar.fleet.endpoints import EndpointSpec  # noqa: E402
from laar.fleet.membership import EVENTS_LABEL, REPLAY_LABEL  # noqa: E402
from laar.prefix.tokens import Stored, TokenBlocks  # noqa: E402
from support import free_port  # noqa: E402
from support.exploring import examples  # noqa: E402

HASH = 632339284846874487
STORED = {
    "type": "BlockStored",
    "block_hashes": [HASH, 17941534128146751913],
    "parent_block_hash": None,
    "token_ids": list(range(256)),
    "block_size": 128,
    "medium": "GPU",
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [HASH], "medium": "GPU", "group_idx": 0}


def batch(*events: Any) -> bytes:
    packed: bytes = msgspec.msgpack.encode([1_780_000_000.0, list(events), 0])
    return packed


def decoded(payload: bytes) -> list[Event]:
    """Return the events of an engine's first message."""
    return decode_batch(payload, Groups())


def plain(event: Any) -> tuple[Any, ...]:
    """Return an event as a comparable tuple."""
    if not isinstance(event, Stored):
        return tuple(event)
    return (
        *(list(event.hashes), event.parent, event.ids.tolist()),
        *(event.block_size, event.adapter, tuple(event.extra)),
    )


def test_both_forms_of_events_are_read() -> None:
    maps = batch(STORED, REMOVED, {"type": "AllBlocksCleared"})
    arrays = batch(
        ["BlockStored", [HASH, 17941534128146751913], None, list(range(256)), 128, None],
        ["BlockRemoved", [HASH]],
        ["AllBlocksCleared"],
    )
    expected = [
        ([HASH, 17941534128146751913], None, list(range(256)), 128, "", ()),
        ([HASH], 0, False),
        (1_780_000_000.0,),
    ]
    assert [plain(event) for event in decoded(maps)] == expected
    assert [plain(event) for event in decoded(arrays)] == expected


def test_salts_and_adapters_of_blocks_are_read() -> None:
    salted = {**STORED, "extra_keys": [["tenant-a"], None]}
    adapted = {**STORED, "lora_name": "sql", "extra_keys": [["sql", "tenant-a"], ["sql"]]}
    sglang = ["BlockStored", [1], None, [5, 6], 2, None, "GPU", {"cache_salt": "tenant-a"}]
    older = ["BlockStored", [1], None, [5, 6], 2, 3]
    newer = {**STORED, "cache_salt": "tenant-a"}
    read = [plain(event)[4:] for event in decoded(batch(salted, adapted, sglang, older, newer))]
    assert read == [
        ("", ("tenant-a", "")),
        ("sql", ("tenant-a", "")),
        ("", ("tenant-a",)),
        ("3", ()),
        ("", ("tenant-a", "")),
    ]


@pytest.mark.parametrize("metadata", [True, False], ids=["metadata", "fields"])
def test_salted_pages_yield_the_same_blocks_however_sglang_joins_them(metadata: bool) -> None:
    def event(names: list[int], parent: int | None) -> Any:
        ids = [name % 7 for name in names]
        if metadata:
            salt = {"cache_salt": "tenant-a"}
            return ["BlockStored", names, parent, ids, 1, None, "GPU", salt]
        return {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": parent,
            "token_ids": ids,
            "block_size": 1,
            "cache_salt": "tenant-a",
        }

    def held(*events: Any) -> Any:
        blocks = TokenBlocks()
        for stored in decoded(batch(*events)):
            assert isinstance(stored, Stored)
            blocks.stored(0, "m", stored)
        return blocks._slots[0].own

    joined = held(event([11, 12], None), event([13, 14], 12))
    assert len(joined) == 4
    assert joined == held(*(event([n], n - 1 if n > 11 else None) for n in range(11, 15)))
    unsalted = held(["BlockStored", [11, 12, 13, 14], None, [4, 5, 6, 0], 1, None, "GPU"])
    assert not set(joined.values()) & set(unsalted.values())


@settings(max_examples=examples(100))
@given(st.lists(st.builds(
    dict,
    type=st.just("BlockStored"),
    block_hashes=st.lists(st.integers(0, 5), max_size=3),
    parent_block_hash=st.none() | st.integers(0, 5),
    token_ids=st.lists(st.integers(0, 2), max_size=3),
    block_size=st.integers(-1, 2),
    medium=st.sampled_from(["GPU", "CPU", "DISK"]),
    extra_keys=st.none() | st.lists(st.none() | st.just(["x"]), max_size=3),
    cache_salt=st.none() | st.just("s"),
), max_size=6))  # fmt: skip
def test_every_decoded_batch_can_be_stored(events: list[Any]) -> None:
    """An error while storing would stop the events of all other engines."""
    blocks = TokenBlocks()
    for event in events:
        with contextlib.suppress(ValueError):
            read = decoded(batch(event))
            try:
                for stored in read:
                    assert isinstance(stored, Stored)
                    blocks.stored(0, "m", stored)
            except ValueError as error:
                raise AssertionError from error


def of_group(event: dict[str, Any], group: int, kind: str | None = None) -> dict[str, Any]:
    return {**event, "group_idx": group} | ({"kv_cache_spec_kind": kind} if kind else {})


def test_states_of_recurrent_layers_are_tracked_by_their_hashes() -> None:
    state = {**STORED, "block_hashes": [HASH], "token_ids": list(range(1_152))}
    events = decoded(
        batch(
            of_group(STORED, 0, "full_attention"),
            *(of_group(state, group, "mamba") for group in (1, 2)),
            *(of_group(REMOVED, group) for group in (0, 1, 2)),
        )
    )
    is_state = [event.is_state for event in events if not isinstance(event, Cleared)]
    assert is_state == [False, True, False, True]
    assert [len(event.ids) for event in events if isinstance(event, Stored)] == [256, 0]


@pytest.mark.parametrize("kind", ["full_attention", "mla_attention"])
def test_the_layer_group_with_full_attention_is_tracked_at_any_index(kind: str) -> None:
    # vLLM numbers groups by their first layers; in Gemma 3 and gpt-oss, the first has a window.
    windows = [of_group(STORED, group, "sliding_window") for group in (0, 1)]
    whole = of_group({**STORED, "block_hashes": [1, 2]}, 2, kind)
    further = of_group({**STORED, "block_hashes": [3, 4]}, 3, kind)
    removed = [of_group({**REMOVED, "block_hashes": [g]}, g) for g in range(4)]
    read = decoded(batch(*windows, whole, further, *removed))
    assert [list(event.hashes) for event in read] == [[1, 2], [2]]


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({"medium": "GPU"}, 0),
        ({"medium": "CPU_PINNED"}, 1),
        ({"medium": "CPU", "locality": "LOCAL"}, 1),
        ({"medium": "CPU", "locality": "REMOTE"}, 2),
        *[({"medium": name}, 2) for name in ("STORAGE", "DISK", "EXTERNAL")],
    ],
)
def test_events_show_the_memory_tier_of_blocks(fields, tier) -> None:
    stored, removed = decoded(batch({**STORED, **fields}, {**REMOVED, **fields}))
    assert (stored.tier, removed.tier) == (tier, tier)


def test_copies_in_the_hosts_memory_are_marked() -> None:
    # vLLM may leave out the tokens.
    placeholder = {**STORED, "medium": "CPU", "token_ids": [], "block_size": 0}
    sglang = ["BlockRemoved", [1], "CPU_PINNED"]
    stored, whole, removed = decoded(batch(placeholder, {**STORED, "medium": "CPU"}, sglang))
    assert isinstance(stored, Stored)
    assert isinstance(whole, Stored)
    assert stored.tier == 1
    assert whole.tier == 1
    assert list(stored.hashes) == list(whole.hashes) == STORED["block_hashes"]
    assert removed == ([1], 1, False)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"x", batch()[:-1], batch({}), batch([]), batch(7),
     batch({"type": "BlockStored"}), batch({**STORED, "block_hashes": ["x"]}),
     batch({**STORED, "token_ids": [-1]}), batch({**STORED, "token_ids": ["x"]}),
     batch({**STORED, "extra_keys": [["x"]]}), batch({**STORED, "extra_keys": [["x"], None, None]}),
     msgspec.msgpack.encode([1]), msgspec.msgpack.encode({"a": 1}),
     msgspec.msgpack.encode({"ts": 1.0, "events": [STORED]}), msgspec.msgpack.encode([1.0, "ab"]),
     batch(["BlockRemoved"]), b"\x91" * 5000,
     batch({**STORED, "block_hashes": [b"x" * 65, 1]})],
)  # fmt: skip
def test_an_invalid_batch_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the text
        decoded(payload)


@pytest.mark.parametrize("kind", ["BlockStored", "BlockRemoved"])
def test_an_event_of_too_many_blocks_is_an_error(kind: str) -> None:
    hashes = list(range(131_072))
    assert len(decoded(batch([kind, hashes]))) == 1
    with pytest.raises(ValueError, match="more than 131072 blocks"):
        decoded(batch([kind, [*hashes, 7]]))


class Engine:
    """A publisher on loopback, like vLLM's."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.XPUB)
        self.socket.set(zmq.SNDHWM, 0)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.number = 0

    def subscribed(self) -> bool:
        """Return whether a subscriber has joined since the last call."""
        return bool(self.socket.poll(0)) and self.socket.recv() == b"\x01"

    def publish(self, *events: Any) -> None:
        self.publish_bytes(batch(*events))

    def publish_bytes(self, payload: bytes) -> None:
        self.socket.send_multipart([b"kv@pod@tiny", self.number.to_bytes(8, "big"), payload])
        self.number += 1

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(kv_events, "LOOK_S", 0.01)
    made = Engine()
    yield made
    made.close()


def spec(engine: Engine, label: str | None = None, *, replay: Replay | None = None) -> EndpointSpec:
    labels = {EVENTS_LABEL: label or str(engine.port)}
    if replay is not None:
        labels[REPLAY_LABEL] = str(replay.port)
    return EndpointSpec(address="127.0.0.1:8000", models=("tiny",), labels=labels)


def kinds(recorder: Any) -> list[str]:
    """Return the names of the sink's calls."""
    return [kind for kind, *_ in recorder.kv_events]


def heard(replay: Replay, recorder: Any) -> list[str]:
    """Let the replay socket answer; return the kinds of events so far."""
    replay.answer()
    return kinds(recorder)


@pytest.mark.parametrize("whole", [True, False])
async def test_events_reach_the_sink_in_order(
    engine: Engine, recorder: Any, start: Any, until: Any, whole: bool
) -> None:
    label = f"tcp://127.0.0.1:{engine.port}" if whole else None
    plain = EndpointSpec(address="10.0.0.1:1", models=("tiny",))
    start(KvEvents(lambda: [spec(engine, label), plain], recorder).run())
    await until(engine.subscribed)
    engine.publish(STORED, REMOVED)
    engine.publish({"type": "AllBlocksCleared"})
    await until(lambda: len(recorder.kv_events) == 5)
    assert recorder.kv_events == [
        ("lost", "127.0.0.1:8000"),
        ("cleared", "127.0.0.1:8000"),
        ("stored", "127.0.0.1:8000", (HASH, 17941534128146751913), None),
        ("removed", "127.0.0.1:8000", (HASH,)),
        ("cleared", "127.0.0.1:8000"),
    ]
    assert recorder.kv_emptied_s == [1_780_000_000.0] * 2
    assert recorder.past_problems == []


@pytest.mark.parametrize(("jump", "found"), [(7, ["lost"]), (-3, ["cleared", "lost"])])
async def test_a_gap_or_a_restart_is_reported_before_the_events_that_follow(
    engine: Engine, recorder: Any, start: Any, until: Any, jump: int, found: list[str]
) -> None:
    engine.number = 100  # any number may be the first that is seen
    start(KvEvents(lambda: [spec(engine)], recorder).run())
    await until(engine.subscribed)
    engine.publish(REMOVED)
    engine.number += jump
    engine.publish(REMOVED)
    engine.publish(REMOVED)
    await until(lambda: len(recorder.kv_events) == 4 + len(found))
    assert kinds(recorder) == ["lost", "removed", *found, "removed", "removed"]


@pytest.mark.parametrize("number", [None, b"", b"\0", b"\x01" * 9, b"\x02" * 20])
async def test_an_unreadable_batch_is_reported_and_the_next_one_is_used(
    engine: Engine, recorder: Any, start: Any, until: Any, number: bytes | None
) -> None:
    start(KvEvents(lambda: [spec(engine)], recorder).run())
    await until(engine.subscribed)
    engine.publish_bytes(b"\xc1garbage")
    frames = [b"one frame"] if number is None else [b"kv@pod@tiny", number, batch(REMOVED)]
    engine.socket.send_multipart(frames)
    await until(lambda: len(recorder.kv_events) == 4)
    assert "can't be read" in recorder.problems["kv-events 127.0.0.1:8000"]
    engine.publish(REMOVED)
    await until(lambda: len(recorder.kv_events) == 5)
    # Number 0 means that the cache began empty, even if its batch can't be read.
    assert kinds(recorder) == ["lost", "cleared", "lost", "lost", "removed"]
    assert recorder.problems == {}


async def test_too_many_endpoints_are_a_problem_until_enough_are_removed(
    engine: Engine, recorder: Any, start: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "MAX_ENDPOINTS", 1)
    specs = [spec(engine), dataclasses.replace(spec(engine), address="127.0.0.1:8001")]
    start(KvEvents(lambda: specs, recorder).run())
    await until(lambda: "more than 1 endpoints" in recorder.problems.get("kv-events", ""))
    await until(lambda: len(recorder.kv_events) == 1)
    del specs[1]
    await until(lambda: recorder.problems == {})


async def test_a_removed_endpoint_is_unsubscribed_and_subscribed_when_it_returns(
    engine: Engine, recorder: Any, start: Any, until: Any
) -> None:
    specs = [spec(engine)]
    start(KvEvents(lambda: specs, recorder).run())
    await until(engine.subscribed)
    left = specs.pop()
    await until(lambda: engine.socket.poll(0) and engine.socket.recv() == b"\x00")
    specs.append(left)
    await until(engine.subscribed)
    engine.publish(REMOVED)
    await until(lambda: "removed" in kinds(recorder))


@pytest.mark.parametrize(
    ("label", "text"), [(EVENTS_LABEL, "ipc:///x"), (REPLAY_LABEL, "tcp://*:1")]
)
async def test_an_invalid_label_is_reported_by_its_name(
    engine: Engine, recorder: Any, start: Any, until: Any, label: str, text: str
) -> None:
    labeled = spec(engine)
    labeled = dataclasses.replace(labeled, labels={**labeled.labels, label: text})
    start(KvEvents(lambda: [labeled], recorder).run())
    await until(lambda: recorder.problems)
    assert f"the label {label} says {text!r}" in recorder.problems["kv-events 127.0.0.1:8000"]


class Replay:
    """The socket on which an engine resends batches."""

    def __init__(self, engine: Engine) -> None:
        self.kept: list[tuple[int, bytes]] = []
        self.topics = True
        self.ends = True
        self.socket = engine.context.socket(zmq.ROUTER)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")

    def answer(self) -> None:
        """Answer a request, if there is one."""
        if self.socket.poll(0):
            client, _, start = self.socket.recv_multipart()
            for number, payload in self.kept:
                if number >= int.from_bytes(start, "big"):
                    self.send(client, b"kv", number.to_bytes(8, "big"), payload)
            if self.ends:
                self.send(client, b"", b"\xff" * 8, b"")

    def send(self, client: bytes, topic: bytes, number: bytes, payload: bytes) -> None:
        topics = [topic] if self.topics else []
        self.socket.send_multipart([client, b"", *topics, number, payload])


@pytest.fixture
def replay(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replay]:
    monkeypatch.setattr(kv_events, "REPLAY_S", 60.0)  # `answer` is called only now and then
    made = Replay(engine)
    yield made
    made.socket.close(linger=0)


def removal(number: int) -> bytes:
    return batch({**REMOVED, "block_hashes": [number]})


@pytest.mark.parametrize("topics", [True, False], ids=["topics", "no-topics"])
@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (range(20), ["removed 10", "removed 11", "removed 12", "removed 13"]),
        (range(12, 20), ["removed 10", "lost", "removed 12", "removed 13"]),
        ([11], ["removed 10", "removed 11", "lost", "removed 13"]),
        ([], ["removed 10", "lost", "removed 13"]),
    ],
)
async def test_a_gap_is_filled_by_what_the_engine_still_has(
    engine: Engine,
    replay: Replay,
    recorder: Any,
    start: Any,
    until: Any,
    kept: Any,
    expected: list[str],
    topics: bool,
) -> None:
    replay.topics = topics
    start(KvEvents(lambda: [spec(engine, replay=replay)], recorder).run())
    await until(engine.subscribed)

    def seen() -> list[str]:
        replay.answer()
        return [
            " ".join(map(str, (kind, *(hashes[0] for hashes in more))))
            # The first event only says that listening began.
            for kind, _, *more in recorder.kv_events[1:]
        ]

    engine.number = 10
    engine.publish_bytes(removal(10))
    await until(lambda: seen() == ["removed 10"])
    replay.kept = [(number, removal(number)) for number in kept]
    engine.number = 13
    engine.publish_bytes(removal(13))
    await until(lambda: seen() == expected)


async def test_a_repeated_unreadable_batch_is_a_problem_until_one_can_be_read(
    engine: Engine, replay: Replay, recorder: Any, start: Any, until: Any
) -> None:
    start(KvEvents(lambda: [spec(engine, replay=replay)], recorder).run())
    await until(engine.subscribed)

    def removals() -> int:
        return heard(replay, recorder).count("removed")

    engine.publish_bytes(removal(0))
    await until(lambda: removals() == 1)
    replay.kept = [(1, b"\xc1garbage")]
    engine.number = 2
    engine.publish_bytes(removal(2))
    await until(lambda: removals() == 2)
    assert (
        "does not replay missed events: DecodeError"
        in recorder.problems["kv-events 127.0.0.1:8000 replay"]
    )
    replay.kept = [(3, removal(3))]
    engine.number = 4
    engine.publish_bytes(removal(4))
    await until(lambda: removals() == 4)
    assert recorder.problems == {}


async def test_batches_after_an_unreadable_one_are_taken_from_a_replay(
    engine: Engine, replay: Replay, recorder: Any, start: Any, until: Any
) -> None:
    replay.kept = [(0, removal(0)), (1, b"\xc1garbage"), (2, removal(2))]
    start(KvEvents(lambda: [spec(engine, replay=replay)], recorder).run())
    await until(engine.subscribed)
    engine.number = 3
    engine.publish_bytes(removal(3))
    expected = ["lost", "cleared", "removed", "lost", "removed", "removed"]
    await until(lambda: heard(replay, recorder) == expected)
    assert (
        "does not replay missed events: DecodeError"
        in recorder.problems["kv-events 127.0.0.1:8000 replay"]
    )


async def test_requests_are_served_while_a_long_batch_is_decoded_and_applied(
    engine: Engine, recorder: Any, start: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, served = asyncio.get_running_loop(), threading.Event()

    def slowly(payload: bytes, groups: Groups) -> list[Event]:
        loop.call_soon_threadsafe(served.set)
        assert served.wait(5.0), "the event loop is blocked"
        return decode_batch(payload, groups)

    monkeypatch.setattr(kv_events, "decode_batch", slowly)
    monkeypatch.setattr("laar.slices.SLICE_S", 0.0)
    start(KvEvents(lambda: [spec(engine)], recorder).run())
    await until(engine.subscribed)
    engine.publish(*[REMOVED] * 5000)
    at: set[int] = set()
    async with asyncio.timeout(20.0):
        while len(recorder.kv_events) < 5002:
            at.add(len(recorder.kv_events))
            await asyncio.sleep(0)
    assert len(at) > 100


async def test_events_arrive_again_after_a_connection_died(
    engine: Engine, recorder: Any, start: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a host goes down, its connection stays open, but no more bytes arrive."""
    monkeypatch.setattr(kv_events, "PING_S", 0.5)
    open_pipes: list[asyncio.Event] = []
    ends: list[asyncio.StreamWriter] = []

    async def pipe(reader: Any, writer: Any, is_open: asyncio.Event) -> None:
        while data := await reader.read(65536):
            if is_open.is_set():
                writer.write(data)

    async def between(reader: Any, writer: Any) -> None:
        open_pipes.append(asyncio.Event())
        open_pipes[-1].set()
        reader_there, writer_there = await asyncio.open_connection("127.0.0.1", engine.port)
        ends.extend((writer, writer_there))
        start(pipe(reader, writer_there, open_pipes[-1]))
        start(pipe(reader_there, writer, open_pipes[-1]))

    async with await asyncio.start_server(between, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        start(KvEvents(lambda: [spec(engine, str(port))], recorder).run())
        await until(engine.subscribed)
        engine.publish(REMOVED)
        await until(lambda: "removed" in kinds(recorder))
        open_pipes[0].clear()
        engine.number += 1  # as if a batch had been sent into the dead connection

        def heard_again() -> bool:
            engine.publish(REMOVED)
            return kinds(recorder).count("removed") > 1

        await until(heard_again)
        assert kinds(recorder)[:5] == ["lost", "cleared", "removed", "lost", "removed"]
        for end in ends:
            end.close()
            with contextlib.suppress(ConnectionError):
                await end.wait_closed()


async def test_a_publisher_that_cannot_be_reached_is_a_problem_until_it_can(
    engine: Engine, recorder: Any, start: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "REACH_S", 0.2)
    port = free_port()
    start(KvEvents(lambda: [spec(engine, str(port))], recorder).run())
    source = "kv-events 127.0.0.1:8000"
    await until(lambda: source in recorder.problems)
    assert f"tcp://127.0.0.1:{port} (label laar.dev/kv-events) can't" in (recorder.problems[source])
    engine.socket.bind(f"tcp://127.0.0.1:{port}")
    await until(engine.subscribed)
    await until(lambda: recorder.problems == {})
    engine.publish(REMOVED)
    await until(lambda: "removed" in kinds(recorder))


@pytest.mark.parametrize("kind", ["replays", "silent"])
async def test_a_socket_that_publishes_nothing_is_a_problem(
    engine: Engine,
    replay: Replay,
    recorder: Any,
    start: Any,
    until: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """This happens if the two labels are swapped, or name the port of the API."""
    monkeypatch.setattr(kv_events, "REACH_S", 0.2)

    is_open: set[asyncio.StreamWriter] = set()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_open.add(writer)
        with contextlib.suppress(ConnectionError):
            await reader.read()
            writer.close()
            await writer.wait_closed()
        is_open.discard(writer)

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = replay.port if kind == "replays" else server.sockets[0].getsockname()[1]
        listening = start(KvEvents(lambda: [spec(engine, str(port))], recorder).run())
        source = "kv-events 127.0.0.1:8000"
        await until(lambda: source in recorder.problems)
        assert "or does not publish events" in recorder.problems[source]
        listening.cancel()
        await asyncio.wait([listening])
        await until(lambda: not is_open)


async def test_an_unanswered_replay_is_a_problem(
    engine: Engine, recorder: Any, start: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "REPLAY_S", 0.2)
    labeled = spec(engine)
    labels = {**labeled.labels, REPLAY_LABEL: str(free_port())}
    labeled = dataclasses.replace(labeled, labels=labels)
    start(KvEvents(lambda: [labeled], recorder).run())
    await until(engine.subscribed)
    engine.number = 5
    engine.publish(REMOVED)
    await until(lambda: "removed" in kinds(recorder))
    problem = recorder.problems["kv-events 127.0.0.1:8000 replay"]
    assert "from the label laar.dev/kv-events-replay" in problem
    assert problem.endswith("timeout")


async def test_a_replay_that_stops_midway_means_lost_events(
    engine: Engine,
    replay: Replay,
    recorder: Any,
    start: Any,
    until: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine's socket drops messages that it can't send immediately, such as the end mark."""
    monkeypatch.setattr(kv_events, "REPLAY_S", 0.2)
    replay.ends = False
    replay.kept = [(number, removal(number)) for number in range(3)]
    start(KvEvents(lambda: [spec(engine, replay=replay)], recorder).run())
    await until(engine.subscribed)
    engine.number = 5
    engine.publish_bytes(removal(5))
    expected = ["lost", "cleared", *["removed"] * 3, "lost", "removed"]
    await until(lambda: heard(replay, recorder) == expected)
    assert recorder.past_problems == []


@settings(max_examples=examples(100))
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=4), data=st.data())
def test_long_events_leave_the_same_whether_or_not_they_are_applied_in_pieces(counts, data) -> None:
    names, events = 0, list[Event]()
    for count in counts:
        stored = {
            **STORED,
            "block_hashes": list(range(names + 1, names + count + 1)),
            "parent_block_hash": names or None,
            "token_ids": list(range(2 * names, 2 * (names + count))),
            "block_size": 2,
            "extra_keys": data.draw(st.just(None) | st.just([["salt"], *[None] * (count - 1)])),
        }
        names += count
        gone = data.draw(st.lists(st.integers(1, names), unique=True, max_size=9))
        events += decoded(batch(stored, {**REMOVED, "block_hashes": gone}))
    whole, pieces = TokenBlocks(), TokenBlocks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_batches, "_PIECE_BLOCKS", data.draw(st.integers(1, 4)))
        for held, parts in ((whole, [[e] for e in events]), (pieces, map(in_pieces, events))):
            held.emptied(0, "m")
            for part in itertools.chain.from_iterable(parts):
                if isinstance(part, Stored):
                    held.stored(0, "m", part)
                else:
                    held.removed(0, part.hashes)
    assert (whole._holders, whole._parents) == (pieces._holders, pieces._parents)

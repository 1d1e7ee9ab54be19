"""The queue's guarantees, one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from laar.errors import RequestError
from laar.flow.queue import Item, Queue
from laar.flow.settings import FlowSettings

RELAXED = FlowSettings(min_hold_s=60.0, max_hold_s=600.0)


def item(name: str, **fields: object) -> Item:
    """Return a short request that arrived at 0 s and is due at 10 s."""
    values: dict[str, object] = {
        "id": name,
        "arrival_s": 0.0,
        "objective_s": 10.0,
        "work_s": 1.0,
        "tokens": 100,
        "body_bytes": 1000,
    }
    return Item(**(values | fields))  # type: ignore[arg-type]


def filled(*items: Item, limits: FlowSettings = RELAXED) -> Queue[str]:
    queue: Queue[str] = Queue(limits)
    for one in items:
        assert queue.enqueue(one, one.arrival_s) is None
    return queue


def anywhere(one: Item, shorts_wait: bool) -> str:
    """Admit everything."""
    return "endpoint"


def one_place() -> Callable[[Item, bool], str | None]:
    """Admit only one request."""
    room = iter(["endpoint"])
    return lambda one, shorts_wait: next(room, None)


def nowhere(one: Item, shorts_wait: bool) -> None:
    """Admit nothing."""


def order(queue: Queue[str], now: float) -> list[object]:
    """Return the order in which requests leave if there is room for all."""
    return [one.id for one, _ in queue.dispatch(now, anywhere)]


def answer(refusal: object) -> tuple[object, ...]:
    """Return the status, reason and delay of the answer to a refused request."""
    assert isinstance(refusal, RequestError)
    return refusal.status, refusal.reason, refusal.retry_after_s


def test_a_request_that_may_not_wait_is_refused_immediately():
    queue: Queue[str] = Queue(FlowSettings(max_hold_s=0.0))
    assert answer(queue.enqueue(item("late"), 0.0)) == (503, "rejected-ttl-expired", 1)
    assert queue.waiting == 0


def test_a_full_queue_refuses_with_429_and_a_retry_delay():
    queue: Queue[str] = Queue(FlowSettings(max_waiting=2))
    for name in "ab":
        queue.enqueue(item(name), 0.0)
    assert answer(queue.enqueue(item("c"), 0.0)) == (429, "rejected-saturated", 1)
    assert queue.sheds == {"rejected-saturated": 1}


def test_the_retry_delay_follows_the_speed_of_the_queue():
    queue: Queue[str] = Queue(FlowSettings(max_waiting=30, min_hold_s=1e3, max_hold_s=1e3))
    for i in range(60):
        queue.enqueue(item(str(i)), i * 0.5)
        if queue.waiting == 30:
            queue.dispatch(i * 0.5, one_place())
    queue.enqueue(item("filler"), 30.0)
    shed = queue.enqueue(item("last"), 30.0)
    assert isinstance(shed, RequestError)
    assert shed.retry_after_s is not None
    assert 10 <= shed.retry_after_s <= 15  # 30 wait, and two are sent per second


def test_a_pause_in_which_nothing_waited_does_not_make_the_queue_look_slow():
    queue = filled(item("first"), limits=FlowSettings(max_waiting=2))
    order(queue, 1.0)
    for name in "abc":  # the first of a burst is sent half a second after it came
        queue.enqueue(item(name, arrival_s=3600.0), 3600.0)
        queue.dispatch(3600.5, one_place() if name == "a" else nowhere)
    assert answer(queue.enqueue(item("d", arrival_s=3600.5), 3600.5))[2] == 1


def test_a_full_queue_drops_a_request_of_a_lower_band_for_a_higher_one():
    queue: Queue[str] = Queue(FlowSettings(max_waiting=2))
    queue.enqueue(item("old", band=-1), 0.0)
    queue.enqueue(item("new", band=-1), 0.0)
    assert queue.enqueue(item("vip", band=3), 0.0) is None
    assert queue.next_wakeup_s(0.0) == 0.0, "the verdict on the dropped request is due at once"
    ((one, verdict),) = queue.dispatch(0.0, nowhere)
    assert (one.id, verdict.reason, verdict.status) == ("new", "evicted-priority", 429)
    assert isinstance(queue.enqueue(item("low", band=-2), 0.0), RequestError)


def test_a_tenant_whose_bodies_fill_the_memory_yields_instead_of_others():
    queue: Queue[str] = Queue(FlowSettings(max_held_bytes=1_000_000))
    for i in range(20):
        queue.enqueue(item(f"big {i}", tenant="big", body_bytes=49_000), 0.0)
    small = [item(f"{t} {i}", tenant=t) for i in range(100) for t in ("a", "b")]
    assert all(queue.enqueue(one, 0.0) is None for one in small)
    evicted = {one.tenant for one, _ in queue.dispatch(0.0, nowhere)}
    assert evicted == {"big"}
    # A tenant with larger requests gets as many bytes as the others together, but no more.
    larger = [item(f"c {i}", tenant="c", body_bytes=100_000) for i in range(9)]
    held = [queue.enqueue(one, 0.0) is None for one in larger]
    assert held == [True] * 4 + [False] * 5
    assert {one.tenant for one, _ in queue.dispatch(0.0, nowhere)} == {"big"}
    assert queue.held_bytes <= 1_000_000


def test_no_request_is_dropped_for_a_body_that_would_not_fit_anyway():
    queue: Queue[str] = Queue(FlowSettings(max_held_bytes=3000))
    queue.enqueue(item("a"), 0.0)
    assert isinstance(queue.enqueue(item("huge", body_bytes=4000, band=9), 0.0), RequestError)
    assert queue.waiting == 1


def test_a_request_past_its_objective_yields_before_another_is_refused():
    queue: Queue[str] = Queue(FlowSettings(max_waiting=1, min_hold_s=1.0, patience=1.0))
    queue.enqueue(item("old", objective_s=2.0), 0.0)
    assert queue.enqueue(item("new", arrival_s=3.0), 3.0) is None
    assert queue.dispatch(3.0, nowhere)[0][0].id == "old"


def test_cancelled_requests_leave_no_memory_while_another_one_waits():
    queue = filled(item("stays", tenant="t"))
    for i in range(5000):
        queue.enqueue(item(str(i), tenant=str(i)), 0.0)
        queue.cancel(str(i))
    lane = queue._bands[0].lanes[""]
    assert len(lane) == 1
    assert len(lane._idle) == 0
    assert len(queue._expiries) == 1


def test_a_fleet_that_comes_up_gets_requests_in_slices_without_pauses():
    queue = filled(*(item(str(i)) for i in range(150)))
    sizes, now = [], 0.0
    while queue.waiting:
        sizes.append(len(queue.dispatch(now, anywhere)))
        assert queue.next_wakeup_s(now) == (0.0 if queue.waiting else None)
    assert sizes == [64, 64, 22]


def test_no_verdict_is_lost_if_admission_fails():
    queue = filled(item("a", objective_s=2.0), item("b", objective_s=3.0))

    def faulty(one: Item, shorts_wait: bool) -> str:
        if one.id == "b":
            raise RuntimeError("a scorer broke")
        return "endpoint"

    with pytest.raises(RuntimeError):
        queue.dispatch(0.0, faulty)
    assert queue.next_wakeup_s(0.0) == 0.0
    assert order(queue, 0.0) == ["a", "b"]

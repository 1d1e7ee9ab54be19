"""Requests that share a context leave the queue together, at no cost to the others."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from laar.flow.item import Held, Item, Limits
from laar.flow.queue import Queue
from laar.flow.together import MAX_PASSED, Together

PATIENT = Limits(together=True, min_hold_s=3000.0, max_hold_s=3500.0, patience=1000.0)
CONTEXTS = ((), (1,), (1, 11), (1, 11, 111), (1, 12), (2,), (2, 21), (3, 31))


def item(name: object, context: tuple[int, ...] = (), **fields: object) -> Item:
    values: dict[str, object] = {
        "id": name,
        "arrival_s": 0.0,
        "objective_s": 100.0,
        "work_s": 1.0,
        "tokens": 100,
        "body_bytes": 1000,
        "context": context,
    }
    return Item(**(values | fields))  # type: ignore[arg-type]


def filled(*items: Item, limits: Limits = PATIENT) -> Queue[str]:
    queue: Queue[str] = Queue(limits)
    for one in items:
        assert isinstance(queue.enqueue(one, one.arrival_s), Held)
    return queue


def served(queue: Queue[str], now: float, last: tuple[int, ...] = ()) -> list[object]:
    """The order in which one endpoint gets them, which was sent `last` before."""
    sent = [last] if last else []

    def admit(one: Item, _shorts_wait: bool) -> str:
        sent.insert(0, one.context)
        return "endpoint"

    return [one.id for one, _ in queue.dispatch(now, admit, near=lambda: sent)]


def test_what_begins_like_the_last_goes_next_and_the_longest_shared_part_first():
    queue = filled(
        item("other", (2, 21)),
        item("near", (1, 12)),
        item("nearer", (1, 11)),
        item("none"),
        item("nearest", (1, 11, 111)),
    )
    # "none" comes by slack, which is the same for all, and so in any order with "other".
    order = served(queue, 0.0, last=(1, 11, 111))
    assert order[:3] == ["nearest", "nearer", "near"]
    assert set(order[3:]) == {"other", "none"}


def test_an_urgent_request_goes_before_company():
    urgent = item("urgent", objective_s=1.5)
    assert served(filled(item("mate", (1,)), urgent), 0.0, last=(1,)) == ["urgent", "mate"]
    roomy = item("roomy", objective_s=2.5)
    assert served(filled(item("mate", (1,)), roomy), 0.0, last=(1,)) == ["mate", "roomy"]


def test_other_orders_and_tenants_know_no_company():
    fcfs = Limits(order="fcfs", min_hold_s=3000.0, max_hold_s=3500.0)
    mates = item("first", arrival_s=5.0), item("mate", (1,), arrival_s=6.0)
    assert served(filled(*mates, limits=fcfs), 6.0, last=(1,)) == ["first", "mate"]
    theirs = item("mate", (1,), tenant="b")
    assert served(filled(item("first"), theirs), 0.0, last=(1,)) == ["first", "mate"]


def test_a_late_request_waits_for_so_many_and_no_more():
    queue = filled(item("late", objective_s=1.0))
    for number in range(50):
        queue.enqueue(item(number, (1,), arrival_s=90.0), 90.0)
    assert served(queue, 90.0, last=(1,)).index("late") <= MAX_PASSED


def test_the_index_forgets_what_left():
    together: Together[str] = Together()
    together.put("a", (1, 11))
    together.put("b", (1, 12))
    assert together.nearest([(1, 12)]) == "b"
    assert together.nearest([(5,), (1, 13)]) == "a"
    together.remove("a", (1, 11))
    together.remove("b", (1, 12))
    assert not together
    assert together.nearest([(1,)]) is None


requests = st.lists(
    st.tuples(st.sampled_from(CONTEXTS), st.floats(0.0, 60.0), st.floats(0.01, 8.0), st.booleans()),
    min_size=1,
    max_size=25,
)


@given(requests, st.sampled_from(CONTEXTS), st.integers(1, 4), st.data())
@settings(max_examples=100, deadline=None)
def test_all_leave_once(drawn, last, servers, data):
    items = [
        item(
            number,
            context,
            objective_s=work_s + spare,
            work_s=work_s,
            servers=servers,
            tenant="ab"[second],
        )
        for number, (context, spare, work_s, second) in enumerate(drawn)
    ]
    company = filled(*items)
    waiting = {one.id: one for one in items}
    now, sent, left = 0.0, [last], []
    while waiting:
        got: list[Item] = []

        def one_place(one: Item, _shorts_wait: bool, got: list[Item] = got) -> str | None:
            if got:
                return None
            got.append(one)
            return "endpoint"

        company.dispatch(now, one_place, near=lambda: sent)
        (one,) = got
        del waiting[one.id]
        left.append(one.id)
        sent.insert(0, one.context)
        now += data.draw(st.sampled_from((0.0, one.work_s / servers)))
    assert sorted(left) == list(range(len(items)))

"""Admission sends requests immediately or holds them, and its counters return to zero."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.accuracy.assessment import SpeedPrior
from laar.core.decision import Completion, Decision
from laar.errors import RequestError
from laar.fleet.endpoints import Reading
from laar.fleet.membership import ROLE_LABEL, EndpointSpec
from laar.flow.admission import Admission
from laar.flow.settings import FlowSettings
from laar.plugins.apart import PrefillApart
from laar.plugins.stored import StoredObjects
from laar.request import Api, Request
from support.directors import director_of
from support.exploring import examples

GONE = Completion(status=None, cause="disconnect", latency_s=0.0)


def fleet(names=("a", "b")):
    return director_of(*names)


def request(number, tokens=100, **fields):
    fields.setdefault("model", "m")
    return Request(id=str(number), api=Api.CHAT, chars=4 * tokens, body_bytes=4 * tokens, **fields)


def admission(director, *, max_requests=1, max_hold_s=60.0, **settings):
    settings |= {"max_requests": max_requests, "max_hold_s": max_hold_s}
    return Admission(director, FlowSettings(**settings))


def end(gate, director, decision, now=0.0):
    director.settle(decision, GONE)
    gate.ended(decision, now)


def sent(outcomes):
    return [o.verdict.request.id for o in outcomes if isinstance(o.verdict, Decision)]


def test_every_endpoint_is_filled_before_any_request_waits():
    director = fleet()
    gate = admission(director)
    first, second = gate.ask(request(1), 0.0), gate.ask(request(2), 0.0)
    assert {first.address, second.address} == {"a", "b"}
    assert not isinstance(gate.ask(request(3), 0.0), Decision)
    assert gate.dispatch(0.0) == []
    end(gate, director, first)
    (outcome,) = gate.dispatch(1.5)
    assert outcome.verdict.address == first.address
    assert outcome.waited_s == 1.5


def test_requests_no_longer_waiting_take_no_memory_while_an_earlier_one_waits():
    """Otherwise `flow.max_held_bytes` would not limit what clients that hang up leave behind."""
    gate = admission(fleet(("a",)))
    gate.ask(request(1), 0.0)
    gate.ask(request(2), 0.0)
    tracemalloc.start()
    try:
        for number in range(20):
            prompt = "x" * (1 << 20)
            gate.queue.cancel(gate.ask(request(number, spans=(prompt,)), 1.0))
        assert gate.queue.waiting == 1
        assert tracemalloc.get_traced_memory()[0] < 3 << 20
    finally:
        tracemalloc.stop()


def test_changed_limits_apply_immediately_and_evict_no_waiting_request():
    director = fleet(("a",))
    gate = admission(director)
    gate.ask(request(1), 0.0)
    for number in (2, 3, 4):
        assert not isinstance(gate.ask(request(number), 0.0), Decision)
    limits = {"max_hold_s": 60.0, "max_waiting": 1}
    gate.use(FlowSettings(**limits, max_requests=1))
    with pytest.raises(RequestError, match="so is the queue"):
        gate.ask(request(5), 0.0)
    assert gate.queue.waiting == 3
    gate.use(FlowSettings(**limits, max_requests=3))
    assert len(sent(gate.dispatch(0.0))) == 2
    assert gate.queue.waiting == 1


def test_a_full_model_does_not_hold_up_a_free_one():
    director = fleet(())
    specs = [EndpointSpec(address=x, models=(x,)) for x in "ab"]
    director.table.replace("t", specs)
    gate = admission(director)
    gate.ask(request(1, model="a"), 0.0)
    gate.ask(request(2, model="a"), 0.0)
    gate.ask(request(3, model="b"), 0.0)
    assert sent(gate.dispatch(0.0)) == ["3"]


def two_models(*models, **windows):
    """Return a fleet of two models with a common name in addition to their own."""
    specs = (
        EndpointSpec(address=name, models=(name,), max_model_len=windows.get(name, 131_072))
        for name in models
    )
    return director_of(*specs, aliases={"any": models})


@pytest.mark.parametrize("first", ["m", "any"])
def test_none_of_a_models_names_starves_another(first):
    """One name means one model, another means two; requests for each exceed the capacity."""
    director = two_models("m", "n")
    gate = admission(director)
    running = [gate.ask(request(0, model=name), 0.0) for name in ("m", "n")]
    turns = []
    for number in range(12):
        for name in (first, "m", "any"):
            gate.ask(request(number, model=name), 0.0)
        if running[0].address != "m":
            running.reverse()
        end(gate, director, running.pop(0))  # frees the endpoint that serves both names
        (outcome,) = gate.dispatch(0.1)
        running.append(outcome.verdict)
        turns.append(outcome.verdict.request.model)
    assert turns.count("m") == turns.count("any") == 6


def test_a_long_prompt_that_fits_only_one_endpoint_does_not_delay_short_ones():
    gate = admission(two_models("short", "wide", short=4096))
    assert gate.ask(request(1, 6000, model="any"), 0.0).address == "wide"
    assert not isinstance(gate.ask(request(2, 6000, model="any"), 0.1), Decision)
    gate.ask(request(3, model="any"), 0.2)
    (outcome,) = gate.dispatch(0.2)
    assert (outcome.verdict.request.id, outcome.verdict.address) == ("3", "short")


def test_a_continuation_waiting_for_a_full_endpoint_delays_no_other_request():
    director = fleet()
    director.plugins.get(StoredObjects).note("resp_1", "a", "")
    gate = admission(director)
    continued = {"response_id": "resp_1"}
    first = gate.ask(request(1, **continued), 0.0)
    assert first.address == "a"
    assert not isinstance(gate.ask(request(2, **continued), 0.1), Decision)
    gate.ask(request(3), 0.2)
    (outcome,) = gate.dispatch(0.2)
    assert (outcome.verdict.request.id, outcome.verdict.address) == ("3", "b")
    end(gate, director, first)
    assert sent(gate.dispatch(0.3)) == ["2"]


@pytest.mark.parametrize("shorts", [0, 1])
def test_no_second_long_prompt_joins_one_while_short_ones_wait(shorts):
    director = fleet(("a",))
    gate = admission(director, max_requests=2, max_prefill_s=100.0)
    long = gate.ask(request(1, 20_000), 0.0)
    short = gate.ask(request(2), 0.0)
    gate.ask(request(3, 20_000, ttft_objective_s=4.0), 0.0)
    for number in range(shorts):
        gate.ask(request(4 + number, ttft_objective_s=3600.0), 0.0)
    assert gate.dispatch(0.0) == []
    end(gate, director, short)
    # The long prompt is more urgent, but has to let a waiting short one go first.
    assert sent(gate.dispatch(0.0)) == (["4"] if shorts else ["3"])
    end(gate, director, long)
    gate.dispatch(0.0)
    assert gate.queue.waiting == 0


def test_the_work_of_a_waiting_prompt_grows_faster_than_its_length():
    gate = admission(fleet(("a",)), max_requests=1)
    gate.ask(request(0), 0.0)
    for number, tokens in enumerate((10_000, 100_000), 1):
        gate.ask(request(number, tokens, ttft_objective_s=3600.0), 0.0)
    short, long = (item.work_s for item in gate.queue.items())
    assert long > 12.0 * short  # attention: ten times as long, and more


def test_only_fresh_readings_can_fill_an_endpoint():
    director = fleet(("a",))
    gate = admission(director, max_requests=10)
    director.table.read("a", Reading(running=10, waiting=3, kv_usage=0.5), 0.0)
    assert not isinstance(gate.ask(request(1), 0.1), Decision)
    assert gate.dispatch(1.0) == []
    assert sent(gate.dispatch(3.5)) == ["1"]


def test_requests_wait_for_an_empty_fleet_and_finally_get_a_503():
    director = fleet(())
    gate = admission(director, min_hold_s=1.0, max_hold_s=5.0)
    gate.ask(request(1), 0.0)
    gate.ask(request(2), 4.0)
    assert gate.dispatch(4.9) == []
    (late,) = gate.dispatch(5.0)
    assert (late.verdict.status, late.verdict.reason) == (503, "rejected-no-endpoint")
    director.table.replace("t", [EndpointSpec(address="a", models=("m",))])
    assert sent(gate.dispatch(6.0)) == ["2"]


def test_requests_wait_for_a_model_whose_endpoints_are_all_away():
    director = fleet(("a",))
    gate = admission(director)
    gate.ask(request(1), 0.0)
    gate.ask(request(2), 0.0)
    other = EndpointSpec(address="b", models=("other",))
    director.table.replace("t", [other])
    assert gate.dispatch(0.0) == []
    gate.ask(request(3), 0.0)
    director.table.replace("t", [EndpointSpec(address="c", models=("m",)), other])
    assert sent(gate.dispatch(1.0)) == ["2"]


@pytest.mark.parametrize("model", ["other", ""])
def test_a_request_that_cannot_be_helped_by_waiting_is_refused_immediately(model):
    gate = admission(fleet())
    fault = request(1, model=model or "m", subset=None if model else frozenset(["nobody"]))
    with pytest.raises(RequestError) as refused:
        gate.ask(fault, 0.0)
    assert refused.value.status in (404, 503)
    assert gate.queue.waiting == 0


def test_an_objective_header_overrides_class_and_length():
    director = fleet(("a",))
    gate = Admission(
        director,
        FlowSettings(max_requests=1, objectives_s={"batch": 500.0, "chat": 0.5}),
    )
    running = gate.ask(request(0), 0.0)
    gate.ask(request("batch", objective="batch"), 0.0)
    gate.ask(request("none"), 0.0)
    gate.ask(request("chat", objective="chat"), 0.0)
    gate.ask(request("header", objective="batch", ttft_objective_s=0.1), 0.0)
    order = []
    while gate.queue.waiting:
        end(gate, director, running)
        (outcome,) = gate.dispatch(0.0)
        running = outcome.verdict
        order.append(running.request.id)
    assert order == ["header", "chat", "none", "batch"]


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "first", "end", "move", "cancel", "tick", "members"]),
            st.integers(0, 9),
            st.sampled_from([10, 500, 9000, 400_000]),
        ),
        max_size=80,
    )
)
def test_each_request_gets_one_answer_and_leaves_nothing_behind(events):
    director = fleet()
    gate = admission(director, max_requests=2, max_waiting=4, min_hold_s=1.0, patience=1.0)
    now, number = 0.0, 0
    running: list[Decision] = []
    waiting: dict[object, str] = {}
    answered: list[str] = []

    def take(outcomes):
        for outcome in outcomes:
            answered.append(waiting.pop(outcome.ticket))
            if isinstance(outcome.verdict, Decision):
                running.append(outcome.verdict)

    for what, which, tokens in events:
        now += 0.3
        if what == "ask":
            number += 1
            try:
                one = request(number, tokens, tenant=str(which % 3))
                one.first_token_seen = which % 2 == 0
                answer = gate.ask(one, now)
            except RequestError:
                answered.append(str(number))
            else:
                if isinstance(answer, Decision):
                    running.append(answer)
                    answered.append(str(number))
                else:
                    waiting[answer] = str(number)
        elif what == "cancel" and waiting:
            ticket = list(waiting)[which % len(waiting)]
            if gate.queue.cancel(ticket):
                answered.append(waiting.pop(ticket))
        elif what == "members":
            names = "ab"[: which % 3]
            director.table.replace("t", [EndpointSpec(address=n, models=("m",)) for n in names])
        elif running:
            decision = running[which % len(running)]
            if what == "first":
                director.answering(decision, now)
                gate.answering(decision)
            elif what == "move":
                director.served_by(decision, "ab"[which % 2], now)
                gate.moved(decision, now)
            elif what == "end":
                running.remove(decision)
                end(gate, director, decision)
        take(gate.dispatch(now))
    gate.draining = True
    take(gate.dispatch(now))
    for decision in running:
        end(gate, director, decision)
    assert sorted(answered, key=int) == [str(n + 1) for n in range(number)]
    assert not waiting
    assert not gate.load.longs
    assert gate.queue.held_bytes == 0
    traffic = director.engines.traffic
    for seconds in (traffic.own_ahead_s, traffic.unseen_s, traffic.free_at - now):
        assert seconds.max(initial=0.0) < 1e-9
    assert not director.table.in_flight.any()


def test_short_prompts_wait_for_an_endpoint_without_a_long_one():
    director = fleet()
    gate = admission(director, max_requests=2, max_prefill_s=100.0)
    long = gate.ask(request(1, 20_000), 0.0)
    shorts = [gate.ask(request(n), 0.0) for n in (2, 3)]
    assert {s.address for s in shorts} == {"a", "b"} - {long.address}
    gate.ask(request(4), 0.0)
    assert gate.dispatch(0.0) == []
    end(gate, director, shorts[0])
    (outcome,) = gate.dispatch(0.0)
    assert outcome.verdict.address == shorts[0].address


@pytest.mark.parametrize(("objective_s", "goes"), [(60.0, False), (2.1, True)])
def test_a_long_prompt_with_slack_leaves_the_last_endpoint_to_short_ones(objective_s, goes):
    director = fleet()
    gate = admission(director, max_requests=9, max_prefill_s=1.0)
    end(gate, director, gate.ask(request(1), 0.0))  # after it, more short prompts are expected
    gate.ask(request(2, 20_000), 0.0)
    answer = gate.ask(request(3, 20_000, ttft_objective_s=objective_s), 0.0)
    assert isinstance(answer, Decision) is goes
    if not goes:  # goes once its slack is used up, or no short prompt has come for a while
        assert gate.dispatch(4.9) == []
        assert sent(gate.dispatch(5.1)) == ["3"]


def test_long_prompts_with_slack_leave_half_of_the_endpoints_to_short_ones():
    director = fleet(("a", "b", "c", "d"))
    gate = admission(director, max_requests=9, max_prefill_s=1.0)
    end(gate, director, gate.ask(request(1), 0.0))  # after it, more short prompts are expected
    *gone, held = (gate.ask(request(n, 20_000, ttft_objective_s=60.0), 0.0) for n in (2, 3, 4))
    assert len({decision.address for decision in gone}) == 2
    assert not isinstance(held, Decision)
    for number in (5, 6):
        gate.ask(request(number), 0.0)
    outcomes = gate.dispatch(0.0)
    assert sent(outcomes) == ["5", "6"]
    assert {o.verdict.address for o in outcomes}.isdisjoint(d.address for d in gone)


@pytest.mark.long
def test_endpoints_that_come_and_go_leave_nothing_behind():
    director = fleet(["0"])
    gate = admission(director, max_requests=100)
    taken = []
    tracemalloc.start()
    try:
        for name in range(20):
            director.table.replace("t", [EndpointSpec(address=str(name), models=("m",))])
            for number in range(16):
                prompt = request(number, spans=(f"{name} {number}",))
                end(gate, director, gate.ask(prompt, float(name)))
            taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert taken[-1] - taken[9] < 10 * 5000


def test_a_prefill_whose_first_token_is_not_seen_ends_after_its_estimate():
    director = fleet(("a",))
    gate = admission(director, max_requests=9, max_prefill_s=0.01)
    for number in (1, 2):
        gate.ask(request(number, 10_000, first_token_seen=False), 0.0)
    assert gate.dispatch(1.1) == []  # c(m) says 1 s, but attention takes a little longer
    assert sent(gate.dispatch(1.2)) == ["2"]


def test_unseen_prefills_end_one_after_another_and_idle_time_gives_no_credit():
    gate = admission(fleet(("a",)), max_requests=9, max_prefill_s=1.0)
    for number in (1, 2):  # 0.52 s each
        assert isinstance(gate.ask(request(number, 5000, first_token_seen=False), 100.0), Decision)
    gate.ask(request(3, first_token_seen=False), 100.0)
    assert gate.dispatch(100.01) == []
    assert sent(gate.dispatch(100.1)) == ["3"]


@pytest.mark.parametrize("end_early", [False, True])
def test_a_first_token_or_the_end_of_an_answer_makes_room(end_early):
    director = fleet(("a",))
    gate = admission(director, max_requests=9, max_prefill_s=1.0)
    first = gate.ask(request(1, 10_000, first_token_seen=not end_early), 0.0)
    gate.ask(request(2, 10_000), 0.0)
    if not end_early:
        assert gate.dispatch(4.0) == []  # the prompt counts until its first token is seen
        director.answering(first, 4.0)
        gate.answering(first)
        assert sent(gate.dispatch(4.0)) == ["2"]
    else:
        assert gate.dispatch(0.01) == []
        end(gate, director, first, 0.01)
        assert sent(gate.dispatch(0.01)) == ["2"]


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("tokens", [5000, 20_000])
def test_a_request_that_moved_counts_where_it_went(shown, tokens):
    director = fleet()
    gate = admission(director, max_requests=9, max_prefill_s=0.3)
    moved = gate.ask(request(1, tokens, first_token_seen=shown), 0.0)
    other = "b" if moved.address == "a" else "a"
    director.served_by(moved, other, 0.0)
    gate.moved(moved, 0.0)
    assert gate.ask(request(2, 5000), 0.0).address == moved.address
    assert not isinstance(gate.ask(request(3, 5000), 0.0), Decision)


def test_a_long_prompt_that_is_served_where_it_was_sent_keeps_its_expected_end():
    director = fleet(("a",))
    gate = admission(director, max_requests=9, max_prefill_s=100.0)
    long = gate.ask(request(1, 10_000, first_token_seen=False), 0.0)
    gate.ask(request(2, 20_000, first_token_seen=False), 0.0)
    (before, _) = gate.load.longs.values()
    director.served_by(long, "a", 1.0)
    gate.moved(long, 1.0)
    assert gate.load.longs[long.id] == before
    assert 1.0 < before.until < 1.2


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("shown", [False, True])
def test_a_long_prompt_leaves_half_of_its_endpoint_to_short_ones(shadow, shown):
    director = fleet(("a",))
    gate = admission(director, max_requests=9, max_prefill_s=2.0)
    long = gate.ask(request(1, 400_000, first_token_seen=shown, shadow=shadow), 0.0)
    for number, goes in ((2, True), (3, True), (4, False)):
        answer = gate.ask(request(number, 5000, first_token_seen=shown), 0.0)
        assert isinstance(answer, Decision) is goes
    assert not isinstance(gate.ask(request(5, 9000), 0.0), Decision)
    assert long.flight.admitted  # so its first token and its end are reported
    end(gate, director, long)
    assert not gate.load.longs


def test_a_long_prompt_leaves_half_of_its_prefiller_to_short_ones():
    specs = (EndpointSpec(address=a, models=("m",), labels={ROLE_LABEL: "both"}) for a in "ab")
    director = director_of(*specs, apart="always")
    gate = admission(director, max_requests=9, max_prefill_s=2.0)
    long = gate.ask(request(1, 400_000), 0.0)
    director.served_by(long, long.address, 0.0)
    gate.moved(long, 0.0)
    only = {"subset": frozenset([PrefillApart.of(long).address])}
    for number, goes in ((2, True), (3, True), (4, False)):
        assert isinstance(gate.ask(request(number, 5000, **only), 0.0), Decision) is goes
    director.answering(long, 1.0)
    gate.answering(long)
    assert not gate.load.longs
    assert sent(gate.dispatch(1.0)) == ["4"]


@pytest.mark.parametrize("claimed", ["one", "one,one,one,one", "one,one,nobody,ghost"])
def test_a_retry_has_less_slack_but_no_more_urgency_than_a_request_without_any(claimed):
    director = director_of(*(EndpointSpec(address=m, models=(m,)) for m in ("one", "two")))
    director.engines.reassess(lambda _model: SpeedPrior(answer_s=5.0))
    gate = admission(director, objective_base_s=20.0)
    busy = [gate.ask(request(at, model=m), 0.0) for at, m in enumerate(("one", "two"))]
    for at in (2, 3):
        gate.ask(request(at, model="auto"), 0.0)
    gate.ask(request("retry", model="auto", tried=claimed), 1.0)
    gate.ask(request("urgent", model="auto", ttft_objective_s=0.001), 1.0)
    order = []
    for _ in range(4):
        end(gate, director, busy.pop(), 1.5)
        (outcome,) = gate.dispatch(1.5)
        order.append(outcome.verdict.request.id)
        busy.append(outcome.verdict)
    assert order == ["urgent", "retry", "2", "3"]

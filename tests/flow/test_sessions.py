"""Turns wait if their contexts have no place in a cache; other sessions continue immediately."""

from __future__ import annotations

import math
import random
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest

from laar.core.decision import Completion, Decision
from laar.errors import RequestError
from laar.fleet.endpoints import EndpointSpec, Reading
from laar.flow.admission import Admission
from laar.flow.settings import FlowSettings
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.index import Cut
from laar.request import Api, Request
from support.directors import director_of

DONE = Completion(status=200, cause="complete", latency_s=1.0)
CACHE_TOKENS = 6_500
"""Seconds per token without measurements: 6,000 tokens take 0.6 s, and a place costs 1.2 s."""


def turn_of(session, text, tokens=6_000, **fields):
    """Return a request of a session; it counts as so many tokens, whatever its text."""
    fields = {"id": "r", "api": Api.CHAT, "model": "m"} | fields
    return Request(spans=(text[: 4 * tokens],), chars=4 * tokens, session=session, **fields)


class Picker:
    """Flow control in front of endpoints with small caches; time is an argument."""

    def __init__(self, *names, cache_tokens=CACHE_TOKENS, by_load=True, max_hold_s=60.0):
        names = names or ("a",)
        self.director = director_of(*names, prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 20))
        for name in names:
            reading = Reading(waiting=0, running=0, kv_usage=0.0, capacity_tokens=cache_tokens)
            self.director.table.read(name, reading, -math.inf)
            slot = self.director.table.slot(name)
            self.director.prefixes.set_capacity(slot, cache_tokens)
        settings = FlowSettings(max_hold_s=max_hold_s)
        self.flow = Admission(self.director, settings, by_load=by_load)
        self.asked = 0

    def ask(self, now, *, session="", tokens=6_000, text="", **fields):
        """Ask for a turn; return its decision, or its ticket if it waits."""
        self.asked += 1
        text = text or f"{session} {self.asked:06} " * (tokens // 2)
        answer = self.flow.ask(turn_of(session, text, tokens, **fields), now)
        if not isinstance(answer, Decision):
            assert not self.dispatch(now)
        return answer

    def dispatch(self, now):
        return [each.verdict for each in self.flow.dispatch(now)]

    def end(self, decision, now, done=DONE):
        full = done.status == 429 or done.status >= 500
        self.flow.answering(decision, ok=done.status == 200, full=full)
        self.director.settle(decision, done)
        self.flow.ended(decision, now)


def sent(picker, name, now, tokens=16, slot=0):
    """Send a turn to an endpoint without a decision; return its place and what ends it."""
    beliefs, sessions = picker.director.prefixes, picker.flow.sessions
    chain = beliefs.chain(turn_of(name, f"{name} " * 4 * tokens, tokens))
    receipt = beliefs.insert(slot, chain, now)
    place = sessions.begin(name, chain, slot, float(tokens), 0.0, tokens / 5_000.0, now)

    def end(now):
        beliefs.settle(receipt, None)
        sessions.end(place, now)

    return place, end


@cache
def story(name):
    """Return a text of some 70,000 tokens, for turns that all begin with it."""
    return "".join(f"{name} line {n}\n" for n in range(20_000))


def test_a_session_without_a_place_waits_until_another_pauses_long_enough():
    picker = Picker()
    first = picker.ask(0.0, session="one")
    assert not isinstance(picker.ask(0.1, session="two"), Decision)  # the cache holds one session
    picker.end(first, 1.0)
    assert picker.dispatch(1.5) == []  # the first session may return at any moment
    (second,) = picker.dispatch(6.0)
    assert second.request.session == "two"


def test_without_load_limits_only_sessions_are_held():
    picker = Picker(by_load=False)
    first = picker.ask(0.0, session="one")
    for _ in range(300):  # more than the load limits allow at an endpoint
        assert isinstance(picker.ask(0.0, tokens=100), Decision)
    assert not isinstance(picker.ask(0.1, session="two"), Decision)
    picker.end(first, 1.0)
    (second,) = picker.dispatch(6.0)
    assert second.request.session == "two"
    assert second.engine_priority is None


def test_a_session_with_a_place_overtakes_those_that_wait():
    picker = Picker()
    picker.end(picker.ask(0.0, session="one"), 1.0)
    waiting = picker.ask(1.0, session="two")
    assert isinstance(picker.ask(1.1, session="one"), Decision)
    assert picker.flow.queue.cancel(waiting)


@pytest.mark.parametrize("by_load", [True, False])
@pytest.mark.parametrize("answered", [True, False])
def test_a_user_who_interrupts_a_turn_before_its_answer_keeps_the_session_s_place(
    answered, by_load
):
    """A session without any answer has nothing in the cache to keep."""
    picker = Picker(by_load=by_load)
    first = picker.ask(0.0, session="one", text=story("one"), tokens=5_000)
    if answered:
        picker.end(first, 1.0)
        first = picker.ask(1.5, session="one", text=story("one"), tokens=6_000)
    picker.ask(1.6, session="two")
    picker.director.settle(first, Completion(status=None, cause="disconnect", latency_s=0.5))
    picker.flow.ended(first, 2.0, begun=False)
    assert bool(picker.dispatch(2.0)) is not answered
    again = picker.ask(2.5, session="one", text=story("one"), tokens=6_100)
    assert isinstance(again, Decision) is answered


@pytest.mark.parametrize("by_load", [True, False])
def test_requests_outside_sessions_neither_wait_for_sessions_nor_delay_them(by_load):
    picker = Picker(by_load=by_load)
    picker.end(picker.ask(0.0, session="one"), 1.0)
    for text in ("a document ", "another one "):  # the cache has no room for it
        assert isinstance(picker.ask(1.0, text=text * 5_000), Decision)
    assert isinstance(picker.ask(1.1, session="two"), Decision)


def test_no_session_waits_while_all_contexts_fit():
    picker = Picker("a", "b")
    for turn in range(3):
        now = float(turn)
        decisions = [picker.ask(now, session=name) for name in ("one", "two")]
        assert {each.address for each in decisions} == {"a", "b"}
        for each in decisions:
            picker.end(each, now + 0.5)


def test_a_session_stays_at_its_place_while_another_endpoint_is_full():
    picker = Picker("a", "b")
    one, two = (picker.ask(0.0, session=name) for name in ("one", "two"))
    picker.end(one, 0.1)  # the other endpoint is busy and full
    assert one.address != two.address
    assert picker.ask(0.2, session="one").address == one.address


def test_a_session_name_shared_by_many_is_not_tied_to_one_endpoint():
    picker = Picker("a", "b")
    addresses = [picker.ask(0.0, session="everybody").address for _ in range(6)]
    assert addresses.count("a") == addresses.count("b")


def test_a_session_waiting_for_a_place_is_admitted_after_the_longest_hold():
    picker = Picker()
    picker.ask(0.0, session="one")  # a turn that never ends
    picker.ask(0.0, session="two")
    assert picker.dispatch(59.0) == []
    (decision,) = picker.dispatch(60.0)
    assert isinstance(decision, Decision)
    assert not picker.flow.queue.sheds


def test_turns_that_expire_together_are_let_in_between_other_work_but_all_of_them():
    picker = Picker(by_load=False)
    for number in range(6):  # the first never ends
        picker.ask(0.0, session=f"{number}")
    assert [len(picker.flow.dispatch(60.0, lambda: True)) for _ in range(6)] == [1] * 5 + [0]


def let_in(picker, number, **fields):
    """Hold `number` new sessions while others fill all caches; return where they are let in."""
    for name in "abc":  # turns that never end
        picker.director.answering(picker.ask(0.0, session=name), 0.7)
    for at in range(number):
        assert not isinstance(picker.ask(1.0, session=f"new {at}", **fields), Decision)
    return [decision.address for decision in picker.dispatch(61.0)]


def test_turns_admitted_without_room_go_to_a_single_endpoint():
    assert len(set(let_in(Picker("a", "b", "c", by_load=False), 3))) == 1


def test_turns_admitted_without_room_go_elsewhere_if_the_wait_would_be_too_long():
    picker = Picker("a", "b", "c", by_load=False, max_hold_s=0.5)  # prefill takes 0.6 s
    assert sorted(let_in(picker, 3)) == ["a", "b", "c"]


def test_turns_admitted_without_room_are_spread_over_engines_that_prefill_in_parallel(monkeypatch):
    picker = Picker("a", "b", "c", by_load=False)
    learned = picker.director.engines.constants
    in_parallel = {"w": np.zeros(3)}
    monkeypatch.setattr(
        picker.director.engines,
        "constants",
        lambda *asked, **given: replace(learned(*asked, **given), **in_parallel),
    )
    assert sorted(let_in(picker, 3)) == ["a", "b", "c"]


def test_a_turn_with_an_objective_goes_where_it_is_served_soonest():
    addresses = let_in(Picker("a", "b", "c", by_load=False), 3, ttft_objective_s=30.0)
    assert sorted(addresses) == ["a", "b", "c"]


def test_a_client_that_disconnects_releases_its_place_immediately():
    picker = Picker()
    one = picker.ask(0.0, session="one")
    two = picker.ask(0.0, session="two")
    assert picker.flow.queue.cancel(two)
    gone = Completion(status=None, cause="disconnect", latency_s=0.0)
    picker.director.settle(one, gone)
    picker.flow.ended(one, 1.0)
    assert isinstance(picker.ask(3.0, session="three"), Decision)
    assert not picker.flow.queue.waiting


def test_sessions_known_never_to_return_delay_nothing():
    picker = Picker()
    now = 0.0
    for number in range(40):  # long pauses, so that each session is alone
        picker.end(picker.ask(now, session=f"once {number}"), now + 1.0)
        now += 300.0
    picker.end(picker.ask(now, session="last"), now + 1.0)
    # Otherwise it would wait for the last one.
    assert isinstance(picker.ask(now + 1.0, session="next"), Decision)


def test_a_cache_of_unknown_or_too_small_a_size_delays_no_session():
    unknown = Picker(cache_tokens=math.nan)
    small = Picker(cache_tokens=1_000)
    for name in ("one", "two", "three"):
        assert isinstance(unknown.ask(0.0, session=name), Decision)
    assert isinstance(small.ask(0.0, session="one"), Decision)


def test_a_turn_that_needs_little_room_is_not_held_for_a_large_context():
    picker = Picker()
    picker.end(picker.ask(0.0, session="one"), 1.0)
    assert isinstance(picker.ask(1.0, session="two", tokens=800), Decision)


@pytest.mark.parametrize("asked_at", [1.0, 1.2, 1.5, 2.0, 2.4])
def test_an_explanation_shows_the_price_that_holds_a_turn(asked_at):
    picker = Picker()
    first = picker.ask(0.0, session="one")
    picker.ask(0.1, session="two")
    picker.end(first, 1.0)
    preview = picker.director.choose(turn_of("three", "q" * 24_000), asked_at)
    is_held = picker.flow.explained(preview, asked_at)["price"] > 1.0
    assert is_held == (picker.dispatch(asked_at) == [])


def returning(picker, name, now, turns=3):
    """Run short turns of a session, which returns for each but the first; return when they end."""
    for _ in range(turns):
        picker.end(picker.ask(now, session=name, text=story(name)), now + 0.1)
        now += 0.2
    return now - 0.1


def busy(prompts=4):
    """Return a picker whose endpoint answers so many prompts without a session."""
    picker = Picker(by_load=False)
    for _ in range(prompts):
        picker.ask(0.0, tokens=1)
    return picker


def test_a_session_that_has_returned_twice_keeps_its_place_for_longer():
    picker = busy()
    ended_at = returning(picker, "agent", 0.0)
    picker.ask(ended_at, session="two")
    assert picker.dispatch(ended_at + 8.0) == []  # for a new session the wait would end after 5 s
    assert isinstance(picker.ask(ended_at + 8.0, session="agent", text=story("agent")), Decision)


def test_the_place_of_a_returning_session_is_worth_less_if_prefills_run_in_parallel():
    picker = busy()
    ended_at = returning(picker, "agent", 0.0)
    in_turn, in_parallel = (price_of_the_place_of_another(picker, w, ended_at) for w in (1.0, 0.0))
    assert in_turn > 4.0 * in_parallel > 0.0


def price_of_the_place_of_another(picker, turns, now):
    view = picker.director.choose(turn_of("two", story("two")), now).view
    return next(picker.flow.sessions.prices(view, np.array([turns]), now))


def test_a_session_that_has_returned_once_is_not_certain_to_return():
    prices = []
    for turns in (2, 3):
        picker = busy()
        ended_at = returning(picker, "agent", 0.0, turns)
        prices.append(price_of_the_place_of_another(picker, 1.0, ended_at))
    assert prices[1] > 3.0 * prices[0] > 0.0


def test_at_most_five_turns_are_assumed_to_be_delayed_by_a_return():
    prices = []
    for prompts in (1, 4, 40):
        picker = busy(prompts)
        ended_at = returning(picker, "agent", 0.0)
        prices.append(price_of_the_place_of_another(picker, 1.0, ended_at))
    assert prices[0] < prices[1] == pytest.approx(prices[2])


def test_a_place_is_worth_half_as_much_if_prefills_run_in_parallel():
    picker = Picker(by_load=False)
    turn = picker.ask(0.0, session="one")
    picker.end(turn, 1.0)
    in_turn, in_parallel = (price_of_the_place_of_another(picker, w, 2.0) for w in (1.0, 0.0))
    assert in_turn == pytest.approx(2.0 * in_parallel)
    refused = Completion(status=429, cause="complete", latency_s=0.1)
    picker.end(picker.ask(2.0, session="three", tokens=100), 2.0, refused)
    assert price_of_the_place_of_another(picker, 0.0, 2.0) == pytest.approx(in_turn)


@pytest.mark.parametrize("status", [429, 500])
def test_a_single_refusal_is_eventually_forgotten(status):
    picker = Picker(by_load=False)
    picker.end(picker.ask(0.0, session="one"), 1.0)
    refused = Completion(status=status, cause="complete", latency_s=0.1)
    picker.end(picker.ask(1.0, session="three", tokens=100), 1.0, refused)
    for turn in range(1_000):
        now = 1.0 + turn / 10_000.0
        picker.end(picker.ask(now, session="three", tokens=100, text=story("three")), now)
    in_turn, in_parallel = (price_of_the_place_of_another(picker, w, 2.0) for w in (1.0, 0.0))
    assert in_turn == pytest.approx(2.0 * in_parallel, rel=0.02) != 0.0


def test_text_that_a_session_left_in_a_cache_takes_room_when_it_returns():
    picker = Picker(by_load=False)
    # Each session evicts the other.
    for now, name in ((0.0, "one"), (300.0, "two"), (600.0, "one")):
        turn = picker.ask(now, session=name, text=story(name))
        picker.end(turn, now + 1.0)
    assert [each["session"] for each in picker.flow.shown(601.0)["inside"]] == ["one"]


def test_text_that_sessions_share_takes_room_once():
    picker = Picker(by_load=False, cache_tokens=8_500)
    shared = story("system")[:20_000]
    for number, name in enumerate(("one", "two", "three")):
        turn = picker.ask(float(number), session=name, text=shared + story(name))
        picker.end(turn, number + 0.5)
    inside = picker.flow.shown(3.0)["inside"]
    assert {each["session"] for each in inside} == {"one", "two", "three"}


def test_a_name_for_unrelated_prompts_does_not_keep_its_place_for_longer():
    picker = Picker(by_load=False)
    ended_at = 0.0
    for prompt in "abcd":
        turn = picker.ask(ended_at, session="application", text=story(prompt))
        picker.end(turn, ended_at + 1.0)
        ended_at += 2.0
    picker.ask(ended_at - 1.0, session="two")
    assert len(picker.dispatch(ended_at + 7.0)) == 1


def test_a_session_that_stops_returning_delays_others_for_at_most_a_minute():
    picker = Picker(by_load=False)
    ended_at = 0.0
    for _ in range(20):
        ended_at = returning(picker, "agent", ended_at)
    picker.ask(ended_at, session="two")
    (two,) = picker.dispatch(ended_at + 60.0)
    picker.end(two, ended_at + 61.0)
    assert isinstance(picker.ask(ended_at + 66.0, session="three"), Decision)


def test_a_return_is_remembered_until_too_many_others_have_returned(monkeypatch):
    monkeypatch.setattr("laar.flow.sessions._MAX_GONE", 1_000)
    picker = Picker(by_load=False)

    def price(now):
        picker.end(picker.ask(now, session="agent", text=story("agent")), now + 0.1)
        decision = picker.director.choose(turn_of("other", story("other")), now + 0.1)
        return picker.flow.explained(decision, now + 0.1)["price"]

    def others_return(count, now):
        for number in range(count):
            for _ in range(2):
                sent(picker, f"{number}", now)[1](now)
            picker.director.prefixes.clear(0)

    for now in (0.0, 0.2, 0.4):
        price(now)
    others_return(400, 1.0)  # afterwards the agent has no place
    sure = price(100.0)
    others_return(1_100, 200.0)
    assert 0.0 < price(300.0) < sure


def test_the_waits_of_a_client_that_gives_up_and_retries_add_up():
    picker = Picker(by_load=False)
    picker.ask(0.0, session="one")  # a turn that never ends
    first = picker.ask(0.0, session="two")
    assert picker.dispatch(30.0) == []
    assert picker.flow.queue.cancel(first)
    picker.ask(31.0, session="two")
    assert picker.dispatch(59.0) == []
    (second,) = picker.dispatch(60.0)
    assert second.request.session == "two"


def test_a_client_with_a_timeout_of_its_own_is_held_for_less_once_it_has_asked_again():
    picker = Picker(by_load=False)
    picker.ask(0.0, session="one")  # stays in flight
    at, held = 1.0, []
    for digest in range(1, 5):
        while not isinstance(
            answer := picker.ask(at, session=f"{digest}", digest=digest), Decision
        ):
            (waiting,) = picker.flow.waiting_contexts()
            limit_s = waiting.hold_s - waiting.earlier_s
            if limit_s < 20.0:
                (answer,) = picker.dispatch(at + limit_s)
                break
            picker.flow.left(answer, at + 20.0)
            at += 20.5
            held.append(digest)
        picker.end(answer, at + 20.0)
        at += 500.0
    assert held == [1]


@pytest.mark.parametrize("seed", range(6))
def test_no_turn_is_held_for_long_while_all_contexts_fit_somewhere(seed):
    rng, most = random.Random(seed), dict[str, int]()
    picker = Picker(*"abcd"[: rng.randint(2, 4)], by_load=False)
    room = 0.75 * picker.director.table.cache_tokens()
    while sum(most.values()) + (size := rng.randint(500, 5_000)) <= room:
        most[f"{len(most)}"] = size
    due, sizes = {name: rng.uniform(0.0, 5.0) for name in most}, dict.fromkeys(most, 200)
    held, running, longest_s = {}, [], 0.0
    for now in np.arange(0.0, 120.0, 0.25).tolist():
        begun = [(*held.pop(each.ticket), each.verdict) for each in picker.flow.dispatch(now)]
        for name in [name for name, at in due.items() if at <= now]:
            del due[name]
            answer = picker.flow.ask(turn_of(name, story(name), sizes[name]), now)
            if isinstance(answer, Decision):
                begun.append((name, now, answer))
            else:
                held[answer] = name, now
        for name, since, decision in begun:
            longest_s = max(longest_s, now - since)
            running.append((now + rng.uniform(0.5, 4.0), name, decision))
        for turn in [turn for turn in running if turn[0] <= now]:
            running.remove(turn)
            picker.end(turn[2], now)
            due[turn[1]] = now + rng.choice((0.1, rng.uniform(0.0, 20.0)))
            sizes[turn[1]] = min(most[turn[1]], sizes[turn[1]] * 3 // 2)
    longest_s = max([longest_s, *(now - since for _, since in held.values())])
    assert longest_s <= 5.25  # `min_hold_s`, and a step


def test_a_clients_objective_bounds_its_wait():
    picker = Picker(by_load=False)
    picker.ask(0.0, session="one")
    picker.ask(0.0, session="two", ttft_objective_s=4.0)
    assert picker.dispatch(3.0) == []
    assert len(picker.dispatch(4.0)) == 1


def test_a_short_request_in_parallel_does_not_move_its_session():
    picker = Picker("a", "b", cache_tokens=65_000, by_load=False)
    main = picker.ask(0.0, session="one", text=story("one"), tokens=55_000)
    title = picker.ask(0.1, session="one", tokens=200)
    assert main.address != title.address
    picker.end(title, 0.5)
    picker.end(main, 1.0)
    picker.ask(1.1, session="two", tokens=9_500)
    picker.ask(1.2, session="three", tokens=60_000)  # now both caches are full
    again = picker.ask(2.0, session="one", text=story("one"), tokens=60_000)
    assert again.address == main.address


def test_a_title_request_between_turns_does_not_release_the_place_of_its_session():
    picker = Picker(cache_tokens=65_000, by_load=False)
    picker.end(picker.ask(0.0, session="one", text=story("one"), tokens=55_000), 1.0)
    picker.end(picker.ask(1.1, session="one", tokens=200), 1.2)
    assert not isinstance(picker.ask(1.3, session="two", tokens=60_000), Decision)
    assert isinstance(picker.ask(1.4, session="one", text=story("one"), tokens=56_000), Decision)


def test_a_sub_agent_with_the_name_of_its_session_has_a_place_of_its_own():
    picker = Picker(cache_tokens=65_000, by_load=False)
    for now in (0.0, 2.0, 4.0):
        for text, tokens in (("main", 40_000), ("sub-agent", 20_000)):
            more = 100 * int(now)
            turn = picker.ask(now, session="one", text=story(text), tokens=tokens + more)
            picker.end(turn, now + 0.5)
    inside = picker.flow.shown(5.0)["inside"]
    assert sorted(each["tokens"] for each in inside) == [20_400, 40_400]
    assert not isinstance(picker.ask(5.0, session="two", tokens=15_000), Decision)


def test_a_session_that_is_compacted_gives_up_the_rest_of_its_place():
    picker = Picker(cache_tokens=65_000, by_load=False)
    picker.end(picker.ask(0.0, session="one", text=story("one"), tokens=55_000), 1.0)
    summary = story("one")[:40_000] + story("summary")
    picker.end(picker.ask(1.1, session="one", text=summary, tokens=20_000), 1.2)
    assert isinstance(picker.ask(1.3, session="two", tokens=40_000), Decision)


def test_after_a_refusal_new_turns_wait_until_one_ends_at_the_engine():
    picker = Picker(by_load=False, cache_tokens=20_000)
    first = picker.ask(0.0, session="one")
    picker.end(picker.ask(0.1, session="two"), 0.2, replace(DONE, status=429))
    assert not isinstance(picker.ask(0.3, session="three"), Decision)
    assert picker.dispatch(0.4) == []
    picker.end(first, 1.0)
    (third,) = picker.dispatch(1.0)
    assert third.request.session == "three"


def test_no_turn_waits_for_an_engine_that_is_idle_after_a_refusal():
    picker = Picker("a", "b", by_load=False, cache_tokens=20_000)
    for name in "ab":  # one session at each endpoint
        picker.end(picker.ask(0.0, session=name, subset=frozenset({name})), 0.5)
    turn = picker.ask(1.0, session="three")
    refuser, other = turn.address, "b" if turn.address == "a" else "a"
    moved(picker, turn, other, 1.1)  # the engine that refused the turn has no other in flight
    picker.end(turn, 2.0)
    assert isinstance(picker.ask(3.0, session="four", subset=frozenset({refuser})), Decision)


def moved(picker, turn, address, now):
    picker.director.served_by(turn, address, now)
    picker.flow.moved(turn, now)


def test_an_engine_reopens_once_its_last_turn_moved_elsewhere():
    picker = Picker("a", "b", by_load=False, cache_tokens=20_000)
    sent(picker, "gone", 0.0, 1_000)[1](0.1)
    _, end = sent(picker, "one", 300.0, 5_000)
    picker.flow.sessions.full(0)
    _, end_longer = sent(picker, "one", 300.2, 6_000, slot=1)  # in parallel
    for now, ends in ((301.0, end), (302.0, end_longer)):
        ends(now)
    sent(picker, "busy", 303.0, 19_000, slot=1)
    assert isinstance(picker.ask(600.0, session="two"), Decision)


def test_a_moved_session_that_returns_takes_no_room_for_what_others_share():
    picker = Picker("a", by_load=False, cache_tokens=8_500)
    table, system = picker.director.table, story("system")[:20_000]

    def turn(now, name, served="a"):
        asked = picker.ask(now, session=name, text=system + story(name))
        moved(picker, asked, served, now)
        picker.end(asked, now + 0.1)

    for now, name in enumerate(("one", "two", "three")):
        turn(float(now), name)
    table.replace("t", [EndpointSpec(address=name, models=("m",)) for name in "ab"])
    reading = Reading(waiting=0, running=0, kv_usage=0.0, capacity_tokens=8_500)
    table.read("b", reading, 3.0)
    turn(4.0, "two", "b")
    table.replace("t", [EndpointSpec(address="a", models=("m",))])
    turn(6.0, "two")
    inside = picker.flow.shown(7.0)["inside"]
    assert {each["session"] for each in inside} == {"one", "two", "three"}


def test_sessions_share_text_again_after_their_engine_was_emptied():
    picker = Picker(by_load=False, cache_tokens=8_500)
    system = story("system")[:20_000]
    for now, name in enumerate(("one", "two", "three", "two", "three", "one")):
        if now == 3:
            picker.director.prefixes.clear(0)
        picker.end(picker.ask(float(now), session=name, text=system + story(name)), now + 0.1)
    inside = picker.flow.shown(6.0)["inside"]
    assert {each["session"] for each in inside} == {"one", "two", "three"}


def test_removing_endpoints_takes_less_time_than_the_turns_of_remembered_sessions():
    names = [f"10.0.{n // 250}.{n % 250}:1" for n in range(300)]
    picker = Picker(*names, by_load=False)
    sessions, table = picker.flow.sessions, picker.director.table
    began = time.process_time()
    for n in range(4_000):  # each displaces another
        sent(picker, f"s{n}", 0.0, 6_000, n % 300)[1](0.0)
    filled = time.process_time()
    table.replace("t", [])
    assert len(sessions) == len(table) == 0
    assert time.process_time() - filled < filled - began


@pytest.mark.parametrize("status", [400, 404, 422])
def test_the_refusal_of_a_bad_request_holds_no_others(status):
    picker = Picker(by_load=False, cache_tokens=1_000_000)
    picker.ask(0.0, session="one")
    picker.end(picker.ask(0.1, session="wrong", tokens=10), 0.2, replace(DONE, status=status))
    assert isinstance(picker.ask(0.3, session="two"), Decision)


def test_the_end_of_a_refused_turn_admits_no_others():
    picker = Picker(by_load=False, cache_tokens=65_000)
    picker.ask(0.0, session="one", tokens=9_000)
    picker.end(picker.ask(0.1, session="one", tokens=8_000), 0.2, replace(DONE, status=429))
    assert not isinstance(picker.ask(0.3, session="two"), Decision)


def test_names_used_once_do_not_displace_a_session_that_returned():
    picker = Picker(by_load=False)
    for now in (0.0, 1.0, 2.0):
        sent(picker, "agent", now, 6_000)[1](now + 0.1)
    for number in range(10_500):
        sent(picker, f"{number}", 3.0)[1](3.0)
    again, _ = sent(picker, "agent", 4.0, 6_000)
    assert again.is_sure


def test_a_turn_with_a_useless_answer_keeps_no_place():
    picker = Picker(by_load=False)
    turn = picker.ask(0.0, session="one")
    turn.flight.attempt = SimpleNamespace(useless=True)
    picker.end(turn, 0.5, replace(DONE))
    assert picker.flow.session_counts()["placed"] == 0


@pytest.mark.parametrize("tokens", [5_500, 200_000])
def test_a_turn_that_its_engine_refuses_costs_other_sessions_nothing(tokens):
    picker = Picker(by_load=False, cache_tokens=13_000)
    for name in ("one", "two"):
        picker.end(picker.ask(0.0, session=name, text=story(name)), 0.5)
    refused = Completion(status=400, cause="complete", latency_s=0.01)
    for number in range(50):
        turn = picker.ask(20.0, session=f"wrong {number}", tokens=tokens)
        picker.end(turn, 20.0, refused)
    inside = picker.flow.shown(20.0)["inside"]
    assert not [place for place in inside if place["session"].startswith("wrong")]
    for name in ("one", "two"):
        assert isinstance(picker.ask(20.1, session=name, text=story(name)), Decision)


def test_all_waiting_turns_of_a_name_are_sent_once_one_of_them_has_a_place():
    picker = Picker(by_load=False)
    picker.ask(0.0, session="one")  # a turn that never ends
    for at in (0.0, 10.0, 20.0):
        picker.ask(at, session="all", text=story("all"))
    assert picker.dispatch(59.0) == []
    assert len(picker.dispatch(60.0)) == 3


@pytest.mark.parametrize("other", [{"tenant": "other"}, {"model": "n"}])
def test_a_name_means_a_different_session_for_each_tenant_and_model(other):
    picker = Picker(by_load=False)
    spec = EndpointSpec(address="a", models=("m", "n"))
    picker.director.table.replace("t", [spec])
    picker.end(picker.ask(0.0, session="1"), 1.0)
    assert not isinstance(picker.ask(1.1, session="1", **other), Decision)
    assert isinstance(picker.ask(1.2, session="1"), Decision)


def test_a_request_without_a_context_to_keep_neither_waits_nor_delays_others():
    picker = Picker(by_load=False)
    picker.ask(0.0, session="one")
    vectors = picker.ask(0.1, session="two", api=Api.EMBEDDINGS)
    assert isinstance(vectors, Decision)
    assert len(picker.flow.sessions) == 1


def test_a_context_that_another_picker_sent_to_an_engine_needs_no_room_there():
    picker = Picker(by_load=False, cache_tokens=11_500)
    first = picker.director.decide(
        Request(id="0", api=Api.CHAT, model="m", spans=(story("one")[:20_000],), chars=20_000), 0.0
    )
    picker.director.settle(first, DONE)
    picker.ask(0.1, session="two")
    assert not isinstance(picker.ask(0.2, session="three"), Decision)
    assert isinstance(picker.ask(0.3, session="one", text=story("one"), tokens=5_200), Decision)


def test_a_session_name_does_not_bypass_the_load_limits():
    picker = Picker(cache_tokens=65_000)
    picker.flow.use(FlowSettings(max_hold_s=60.0, max_waiting=5, max_requests=4))
    picker.ask(0.0, session="one", tokens=64_000)
    sent = 1
    for number in range(20):
        with suppress(RequestError):
            sent += isinstance(picker.ask(0.1, session=f"{number}", tokens=9_000), Decision)
    assert sent <= 4


def test_a_waiting_turn_is_answered_immediately_if_all_endpoints_are_removed():
    picker = Picker(by_load=False)
    picker.ask(0.0, session="one")
    picker.ask(0.0, session="two")
    picker.director.table.replace("t", [])
    (error,) = picker.dispatch(1.0)
    assert isinstance(error, RequestError)


@pytest.mark.parametrize("sessions", [False, True])
def test_requests_that_wait_for_load_expire_although_one_arrived_as_another_ended(sessions):
    picker = Picker(cache_tokens=10**6)
    picker.flow.use(FlowSettings(max_hold_s=60.0, max_requests=2, min_hold_s=1.0))

    def ask(number, now):
        name = f"{number}" if sessions else ""
        return picker.flow.ask(turn_of(name, f"{number} " * 400, tokens=100), now)

    first, *_ = [ask(number, 0.0) for number in range(4)]
    picker.end(first, 0.1)
    for number in range(4, 8):  # there is room for one of those that wait
        ask(number, 0.1)
    assert picker.flow.session_counts()["waiting"] == 0  # none waits for a context
    assert len(picker.dispatch(0.1)) == 1
    assert {error.status for error in picker.dispatch(10.0)} == {503}
    assert picker.flow.queue.sheds["rejected-ttl-expired"] == 5


def test_a_turn_in_parallel_does_not_wait_for_those_that_need_a_place():
    picker = Picker()
    picker.ask(0.0, session="one")
    picker.ask(0.1, session="two")  # waits for a place
    assert isinstance(picker.ask(0.2, session="one", tokens=100), Decision)


def test_a_client_with_an_objective_does_not_overtake_those_that_have_waited_longer():
    picker = Picker(by_load=False)
    first = picker.ask(0.0, session="one")
    picker.ask(0.0, session="patient")
    picker.ask(20.0, session="hurried", ttft_objective_s=3.0)
    picker.end(first, 20.0)
    (next_turn,) = picker.dispatch(22.9)  # "one" may not return in time to be worth its place
    assert next_turn.request.session == "patient"


@pytest.mark.parametrize("tenant", ["a", "b"])
def test_requests_that_need_no_place_do_not_wait_for_those_that_need_one(tenant):
    picker = Picker()
    picker.flow.use(FlowSettings(max_requests=2))
    picker.ask(0.0, session="one", tenant="a")
    picker.ask(0.1, session="two", tenant="a")  # waits for a place
    first, *later = [picker.flow.ask(turn_of("", "hi", 100, tenant=tenant), 9.0) for _ in range(3)]
    assert isinstance(first, Decision)
    assert not any(isinstance(each, Decision) for each in later)  # the engine has enough requests
    picker.end(first, 9.1)
    assert len(picker.dispatch(9.1)) == 1


def test_a_turn_that_cannot_be_admitted_is_counted_as_refused():
    picker = Picker()
    picker.flow.use(FlowSettings(max_requests=1))
    picker.ask(0.0, session="one")
    picker.ask(0.1, session="two")
    assert [error.status for error in picker.dispatch(61.0)] == [429]
    assert picker.flow.queue.sheds == {"rejected-saturated": 1}


def conversation(picker, name, now, turns=3, first=5_000, **fields):
    """Run turns that continue each other; return the last decision, and when it ended."""
    for turn in range(turns):
        tokens = first + 400 * turn
        decision = picker.ask(now, text=story(name), tokens=tokens, **fields)
        picker.end(decision, now + 0.1)
        now += 0.2
    return decision, now


def full(picker):
    """Fill the cache with prompts that nobody continues."""
    for number in range(10):
        picker.end(picker.ask(0.0, text=f"{number} " * 8_000, tokens=3_000), 0.0)
    return picker


def test_a_conversation_without_a_name_has_a_place_and_waits_for_one():
    picker = full(Picker(by_load=False))
    _, now = conversation(picker, "one", 1.0)
    assert [each["session"] for each in picker.flow.shown(now)["inside"]] == [""]
    assert not isinstance(picker.ask(now, session="two"), Decision)
    assert isinstance(picker.ask(now, text=story("one"), tokens=6_200), Decision)


def test_a_conversation_without_a_name_waits_if_its_context_was_evicted():
    picker = full(Picker(by_load=False))
    _, now = conversation(picker, "one", 1.0)
    picker.end(picker.ask(now, tokens=6_400), now)  # a prompt of no conversation is never held
    _, now = conversation(picker, "two", now)
    assert not isinstance(picker.ask(now, text=story("one"), tokens=6_200), Decision)
    assert isinstance(picker.ask(now, text=story("two"), tokens=6_200), Decision)


def test_a_conversation_without_a_name_is_the_same_after_it_was_let_in_without_room():
    picker = full(Picker(by_load=False))
    _, now = conversation(picker, "one", 1.0)
    picker.end(picker.ask(now, tokens=6_400), now)
    _, now = conversation(picker, "two", now)
    turn = {"text": story("one"), "tokens": 6_200, "ttft_objective_s": 5.0}
    assert not isinstance(picker.ask(now, **turn), Decision)
    (decision,) = picker.dispatch(now + 70.0)
    assert picker.flow._turns[decision.id].has_returned


def test_a_context_evicted_while_its_turn_ran_and_again_later_has_no_place():
    picker = full(Picker(by_load=False))
    _, now = conversation(picker, "one", 1.0)
    turn = picker.ask(now, text=story("one"), tokens=6_200)
    (place,) = picker.flow._turns.values()
    picker.flow.sessions.index.on_cut(Cut(turn.slot, place.end, 1, 1, for_room=True))
    picker.end(turn, now + 1.0)
    assert picker.flow.session_counts()["placed"] == 1
    picker.end(picker.ask(now + 1.0, tokens=6_400), now + 2.0)
    assert picker.flow.session_counts()["placed"] == 0


def test_a_key_of_an_application_is_no_name_once_one_of_its_conversations_has_left():
    picker = full(Picker(by_load=False, cache_tokens=13_000))
    ask = partial(picker.ask, session="app")
    for turn in range(3):
        for at, name in enumerate(("one", "two", "three")):
            now, tokens = 1.0 + turn + 0.1 * at, 2_000 + 400 * turn
            picker.end(ask(now, text=story(name), tokens=tokens), now + 0.05)
    for now in range(4, 9):  # two conversations go on, and take the room of the third
        for at, name in enumerate(("one", "two")):
            tokens = int(2_800 * 1.15 ** (now - 3))
            preview = picker.director.choose(turn_of("app", story(name), tokens), now)
            assert picker.flow.explained(preview, now)["has_place"]
            picker.end(ask(now + 0.1 * at, text=story(name), tokens=tokens), now + 0.1 * at + 0.05)
    preview = picker.director.choose(turn_of("app", story("three"), 6_400), 24.0)
    assert not picker.flow.explained(preview, 24.0)["has_place"]


@pytest.mark.parametrize("seed", range(6))
def test_conversations_keep_one_place_each_whatever_their_turns_are_called(seed):
    """Clients name each request, some requests, or resume a session under a new name."""
    draw = random.Random(seed)
    picker = full(Picker(by_load=False, cache_tokens=25_000))
    tokens = dict.fromkeys("abc", 1_500)
    for turn in range(40):
        of = draw.choice("abc")
        tokens[of] += draw.choice([100, 600])
        name = draw.choice([[of], ["", f"{turn}"], [of, ""], [of, "", f"{turn}"]][seed % 4])
        sent = picker.ask(1.0 + turn, session=name, text=story(of), tokens=tokens[of])
        picker.end(sent, 1.5 + turn)
    inside = picker.flow.shown(42.0)["inside"]
    assert sorted(each["tokens"] for each in inside) == sorted(tokens.values())
    assert all(place.has_returned for place in picker.flow.sessions._places.values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("names", "contexts", "alike", "stays"),
    [(2, 3, 5_000, 0.5), (1, 2, 2_000, 0.5), (1, 6, 2_000, 0.0), (3, 3, 0, 0.7)],
    ids=["branches", "two users", "application", "keys of users"],
)
def test_contexts_with_one_name_have_a_place_each_and_others_keep_their_names(
    names, contexts, alike, stays, seed
):
    draw, now = random.Random(seed), 1.0
    picker = full(Picker("a", "b", by_load=False, cache_tokens=45_000))
    tokens = {(f"n{name}", n): 1_800 for name in range(names) for n in range(contexts)}
    of = draw.choice(list(tokens))
    for turn in range(50 + 2 * len(tokens)):
        of = of if draw.random() < stays else draw.choice(list(tokens))
        of = of if turn < 50 else list(tokens)[(turn - 50) % len(tokens)]
        tokens[of] += draw.choice([100, 300])
        text = story(of[0])[:alike] + story(f"{of}")
        if draw.random() < 0.4:  # agents replace the end of their prompts
            text = text[: 4 * tokens[of] - 200] + f"it is {now} " * 30
        picker.end(picker.ask(now, session=of[0], text=text, tokens=tokens[of]), now + 0.1)
        now += 0.2
    _, now = conversation(picker, "own", now, session="own", first=500)
    inside = picker.flow.shown(now)["inside"]
    assert sorted(each["tokens"] for each in inside) == sorted([*tokens.values(), 1_300])
    assert "own" in {each["session"] for each in inside}


def test_names_that_each_request_has_anew_are_ignored_also_if_prompts_are_edited():
    picker, now = full(Picker(by_load=False, cache_tokens=20_000)), 1.0
    for turn in range(30):  # each prompt contains the one before
        sent = picker.ask(now, session=f"{turn}", text=story("one"), tokens=2_000 + 100 * turn)
        picker.end(sent, now + 0.1)
        now += 0.2
    edited = story("one")[: 4 * 4_600] + story("edited")
    picker.end(picker.ask(now, session="next", text=edited, tokens=5_200), now + 0.1)
    assert [each["tokens"] for each in picker.flow.shown(now + 1.0)["inside"]] == [5_200]


@pytest.mark.parametrize("seed", range(6))
def test_a_turn_that_fits_is_not_held_by_one_twice_as_long_of_another_tenant(seed):
    rng, picker = random.Random(seed), Picker(by_load=False, cache_tokens=13_000)
    for turn in range(9):
        picker.end(
            picker.ask(0.5 * turn, session="one", tokens=7_000, text=story("one")), 0.5 * turn
        )
    long = rng.randrange(7_000, 8_000)
    assert not isinstance(picker.ask(4.6, session="x", tokens=long, tenant="x"), Decision)
    short = turn_of("y", story("y"), rng.randrange(500, 3_500), tenant="y")
    assert isinstance(picker.flow.ask(short, 4.7), Decision) or picker.dispatch(4.7)


@pytest.mark.parametrize("at_once", [3, 12, 40])
def test_clients_that_begin_at_once_are_sessions_as_soon_as_one_goes_on(at_once):
    picker = Picker(by_load=False, cache_tokens=6_000 * at_once)
    for number in range(at_once):
        begun = picker.ask(0.0, text=story(f"{number}"), tokens=3_000)
    picker.end(begun, 1.0)
    picker.ask(1.0, text=story(f"{number}"), tokens=3_400)
    picker.ask(2.0, text=story("another"), tokens=3_000)
    assert picker.flow.session_counts()["placed"] == 2


@pytest.mark.parametrize("system_share", [0.0, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("seed", range(4))
def test_single_prompts_are_held_only_if_a_quarter_goes_on(seed, system_share):
    """To repeat a system prompt, whatever its share of a prompt, is not to go on."""
    rng, now = random.Random(seed), 0.0
    share, picker = rng.choice([0.1, 0.8]), full(Picker(by_load=rng.random() < 0.5))
    system = story("system")[: int(8_000 * system_share)]
    for number in range(150):
        for turn in range(2 if rng.random() < share else 1):
            text, tokens = system + story(f"{number}"), 2_000 + 400 * turn
            answer = picker.ask(now, text=text, tokens=tokens, tenant="t")
            now += 62.0
            picker.end(answer if isinstance(answer, Decision) else picker.dispatch(now)[0], now)
    now += 600.0  # all of them are gone
    picker.end(picker.ask(now, session="one"), now + 0.1)
    last = turn_of("", system + story("next"), tenant="t")
    assert isinstance(picker.flow.ask(last, now + 0.2), Decision) == (share < 0.5)
    first = turn_of("", system + story("another"), tenant="new")
    assert isinstance(picker.flow.ask(first, now + 0.3), Decision)


def test_a_tenant_can_not_take_the_place_of_another_with_its_prompt_or_name():
    picker = full(Picker(by_load=False))
    _, now = conversation(picker, "one", 1.0, session="s", tenant="a")
    conversation(picker, "one", now, session="s", tenant="b")
    conversation(picker, "one", now + 1.0, tenant="b")
    again = picker.ask(now + 2.0, session="s", text=story("one"), tokens=6_200, tenant="a")
    assert isinstance(again, Decision)
    assert picker.flow.sessions.place("a\0m\0s").busy == 1


def test_the_same_prompt_again_and_again_is_no_session():
    picker = full(Picker(by_load=False))
    for turn in range(5):
        picker.end(picker.ask(1.0 + turn, text=story("cron"), tokens=3_000), 1.5 + turn)
    assert picker.flow.session_counts()["placed"] == 0


def test_one_prompt_under_many_names_takes_one_place_and_no_value_from_others():
    picker = full(Picker(by_load=False))
    _, now = conversation(picker, "one", 1.0, session="one")
    before = picker.flow.explained(picker.director.choose(turn_of("x", story("x")), now), now)
    for number in range(300):
        turn = picker.ask(now, session=f"{number}", text="hello " * 100, tokens=150)
        picker.end(turn, now)
    assert picker.flow.session_counts()["placed"] == 2
    after = picker.flow.explained(picker.director.choose(turn_of("x", story("x")), now), now)
    assert after["price"] >= 0.9 * before["price"]


@pytest.mark.parametrize("seed", range(12))
def test_a_place_lasts_as_long_as_its_context_in_the_cache(seed):
    draw = random.Random(seed)
    room = draw.choice([6_500, 20_000])
    picker = Picker("a", "b", by_load=False, cache_tokens=room)
    sessions, table, open_, lengths, now = picker.flow.sessions, picker.director.table, [], {}, 0.0
    for _ in range(120):
        now += draw.choice([0.1, 1.0, 30.0])
        if draw.random() < 0.55:
            name, of = draw.choice(["", "", "s", "t", "u", "v"]), draw.choice("wxyz")
            tokens = lengths[of] = draw.choice([lengths.get(of, 0) + 300, 300, 1_500]) % 6_000
            text = story("system")[:2_000] + story(of)
            turn = picker.ask(now, session=name, text=text, tokens=tokens, tenant=draw.choice("ab"))
            open_ += [turn] if isinstance(turn, Decision) else []
        elif open_:
            turn = open_.pop(draw.randrange(len(open_)))
            if draw.random() < 0.1 and turn.flight.slot == turn.slot:
                other = table.address(1 - turn.slot)
                picker.director.served_by(turn, other, now)
                picker.flow.moved(turn, now)
            if draw.random() < 0.1:  # its engine restarted, or its endpoint was removed
                beliefs, slot = picker.director.prefixes, turn.flight.slot
                if draw.random() < 0.5:
                    beliefs.clear(slot)
                else:
                    sessions.drop(slot)
                    beliefs.drop(slot)
                    beliefs.set_capacity(slot, room)
            status, cause = draw.choice(
                [(200, "complete")] * 3 + [(429, "complete"), (200, "error")]
            )
            picker.end(turn, now, replace(DONE, status=status, cause=cause))
        open_ += [each for each in picker.dispatch(now) if isinstance(each, Decision)]
    for turn in open_:
        picker.end(turn, now)
    for number in range(60):  # others take all of the room
        chain = picker.director.prefixes.chain(turn_of("", story(f"{number}"), 1_000))
        for slot in range(2):
            receipt = sessions.index.insert(slot, chain, now + 1.0 + number)
            sessions.index.settle(receipt)
    assert len(sessions) == 0
    assert not any(sessions._busy.values())
    assert not picker.flow._turns

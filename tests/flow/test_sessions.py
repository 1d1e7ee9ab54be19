"""Turns whose contexts have no place in a cache wait for one, and go home without waiting."""

from __future__ import annotations

import math
import random

import pytest

from laar.core.cost import CostWeights
from laar.core.decision import Completion, Decision, DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointSpec, EndpointTable, Reading
from laar.core.request import Api, Request
from laar.flow.admission import Admission
from laar.flow.item import Limits
from laar.flow.settings import FlowSettings
from laar.policies import build_policies
from laar.prefix.beliefs import PrefixBeliefs

DONE = Completion(status=200, cause="complete", latency_s=1.0)
CACHE_TOKENS = 6_500
SPEED = 1e-4
"""Seconds a token where nothing was measured: 6,000 tokens are .6 s, and a place costs 1.2 s."""


class Picker:
    """Flow control in front of endpoints with small caches; time is an argument."""

    def __init__(self, *names, cache_tokens=CACHE_TOKENS, by_load=True):
        table = EndpointTable()
        table.replace("t", [EndpointSpec(address=n, models=("m",)) for n in names or ("a",)])
        for name in names or ("a",):
            reading = Reading(waiting=0, running=0, kv_usage=0.0, capacity_tokens=cache_tokens)
            table.read(name, reading, -math.inf)
        self.director = Director(
            table,
            build_policies(CostWeights()),
            DirectorSettings(),
            rng=random.Random(1),
            prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 20),
        )
        settings = FlowSettings(limits=Limits(max_hold_s=60.0))
        self.flow = Admission(self.director, settings, by_load=by_load)
        self.asked = 0

    def ask(self, now, *, session="", tokens=6_000, text=""):
        """Ask for a turn; its decision, or its ticket where it waits."""
        self.asked += 1
        text = text or f"{session} {self.asked:06} " * (tokens // 2)
        request = Request(
            id=str(self.asked),
            api=Api.CHAT,
            model="m",
            spans=(text[: 4 * tokens],),
            chars=4 * tokens,
            session=session,
        )
        answer = self.flow.ask(request, now)
        if not isinstance(answer, Decision):
            assert not self.dispatch(now)
        return answer

    def dispatch(self, now):
        return [each.verdict for each in self.flow.dispatch(now)]

    def end(self, decision, now):
        self.flow.answering(decision, now)
        self.director.settle(decision, DONE)
        self.flow.ended(decision, now)


def test_a_session_without_a_place_waits_until_another_has_paused_for_its_price():
    picker = Picker()
    first = picker.ask(0.0, session="one")
    assert not isinstance(picker.ask(0.1, session="two"), Decision)  # the cache holds one of them
    picker.end(first, 1.0)
    assert picker.dispatch(1.5) == []  # it may be back at any moment
    (second,) = picker.dispatch(6.0)
    assert second.request.session == "two"


def test_sessions_alone_are_held_where_load_holds_nothing():
    picker = Picker(by_load=False)
    first = picker.ask(0.0, session="one")
    for _ in range(300):  # more than an endpoint may have by load
        assert isinstance(picker.ask(0.0, tokens=100), Decision)
    assert not isinstance(picker.ask(0.1, session="two"), Decision)
    picker.end(first, 1.0)
    (second,) = picker.dispatch(6.0)
    assert second.request.session == "two"
    assert second.engine_priority is None


def test_a_session_with_a_place_goes_home_past_those_that_wait():
    picker = Picker()
    picker.end(picker.ask(0.0, session="one"), 1.0)
    waiting = picker.ask(1.0, session="two")
    assert isinstance(picker.ask(1.1, session="one"), Decision)
    assert picker.flow.cancel(waiting)


def test_prompts_that_go_on_are_one_session_without_a_name():
    picker = Picker()
    text = "".join(f"line {n}\n" for n in range(5_000))
    picker.end(picker.ask(0.0, text=text, tokens=5_000), 1.0)
    picker.end(picker.ask(1.5, text=text, tokens=6_000), 2.0)  # it goes on: it may again
    assert not isinstance(picker.ask(2.0, session="two"), Decision)
    assert isinstance(picker.ask(2.1, text=text, tokens=7_000), Decision)


def test_requests_outside_sessions_neither_wait_for_sessions_nor_delay_them():
    picker = Picker()
    picker.end(picker.ask(0.0, session="one"), 1.0)
    first = picker.ask(1.0, text="a document " * 5_000)  # there is no room for it
    second = picker.ask(1.0, text="another one " * 5_000)
    assert isinstance(first, Decision)
    assert isinstance(second, Decision)
    assert isinstance(picker.ask(1.1, session="two"), Decision)


def test_no_session_waits_while_all_contexts_fit():
    picker = Picker("a", "b")
    for turn in range(3):
        now = float(turn)
        decisions = [picker.ask(now, session=name) for name in ("one", "two")]
        assert {each.address for each in decisions} == {"a", "b"}
        for each in decisions:
            picker.end(each, now + 0.5)


def test_a_session_stays_at_its_place_while_another_endpoint_is_full_of_others():
    picker = Picker("a", "b")
    one, two = (picker.ask(0.0, session=name) for name in ("one", "two"))
    picker.end(one, 0.1)  # the other endpoint is busy and has no room
    assert one.address != two.address
    assert picker.ask(0.2, session="one").address == one.address


def test_a_name_that_many_share_is_not_bound_to_one_endpoint():
    picker = Picker("a", "b")
    addresses = [picker.ask(0.0, session="everybody").address for _ in range(6)]
    assert addresses.count("a") == addresses.count("b")


def test_who_waits_for_a_place_is_let_in_after_the_longest_hold_and_not_refused():
    picker = Picker()
    picker.ask(0.0, session="one")  # never ends
    picker.ask(0.0, session="two")
    assert picker.dispatch(59.0) == []
    (decision,) = picker.dispatch(60.0)
    assert isinstance(decision, Decision)
    assert not picker.flow.queue.sheds


def test_a_client_that_leaves_frees_its_place_at_once():
    picker = Picker()
    one = picker.ask(0.0, session="one")
    two = picker.ask(0.0, session="two")
    assert picker.flow.cancel(two)
    gone = Completion(status=None, cause="disconnect", latency_s=0.0)
    picker.director.settle(one, gone)
    picker.flow.ended(one, 1.0)
    assert isinstance(picker.ask(3.0, session="three"), Decision)
    assert not picker.flow.queue.waiting


def test_sessions_that_never_return_cost_nothing_once_that_is_known():
    picker = Picker()
    now = 0.0
    for number in range(40):  # each is alone, and leaves room for the next after a long time
        picker.end(picker.ask(now, session=f"once {number}"), now + 1.0)
        now += 300.0
    picker.end(picker.ask(now, session="last"), now + 1.0)
    assert isinstance(picker.ask(now + 1.0, session="next"), Decision)  # else it waits for the last


def test_a_cache_of_unknown_or_too_small_a_size_delays_no_session():
    unknown = Picker(cache_tokens=math.nan)
    small = Picker(cache_tokens=1_000)
    for name in ("one", "two", "three"):
        assert isinstance(unknown.ask(0.0, session=name), Decision)
    assert isinstance(small.ask(0.0, session="one"), Decision)


def test_an_engine_that_fetches_contexts_from_slower_memory_delays_no_session():
    picker = Picker()
    reading = Reading(waiting=0, running=0, kv_usage=0.0, capacity_tokens=6_500, has_tiers=True)
    picker.director.table.read("a", reading, 0.0)
    for name in ("one", "two", "three"):
        assert isinstance(picker.ask(0.0, session=name), Decision)


def test_a_turn_that_needs_little_room_is_not_held_for_a_large_context():
    picker = Picker()
    picker.end(picker.ask(0.0, session="one"), 1.0)
    assert isinstance(picker.ask(1.0, session="two", tokens=800), Decision)


def test_an_endpoint_that_leaves_takes_its_places_with_it():
    picker = Picker("a")
    picker.end(picker.ask(0.0, session="one"), 1.0)
    picker.director.table.replace("t", [EndpointSpec(address="b", models=("m",))])
    assert isinstance(picker.ask(1.0, session="two"), Decision)
    assert len(picker.flow.sessions) == 0  # the size of b's cache is not known yet


@pytest.mark.parametrize("asked_at", [1.0, 1.2, 1.5, 2.0, 2.4])
def test_an_explanation_says_for_how_long_a_session_would_wait(asked_at):
    picker = Picker()
    first = picker.ask(0.0, session="one")
    picker.ask(0.1, session="two")
    picker.end(first, 1.0)
    request = Request(
        id="?", api=Api.CHAT, model="m", spans=("q" * 24_000,), chars=24_000, session="three"
    )
    shown = picker.flow.explained(picker.director.preview(request, asked_at), asked_at)
    assert shown["price_s"] > 0.0
    assert picker.dispatch(asked_at + shown["wait_s"] - 0.01) == []
    assert len(picker.dispatch(asked_at + shown["wait_s"] + 0.01)) == 1

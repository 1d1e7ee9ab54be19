"""Pickers that share a store count each other's sessions in the endpoints' caches."""

import math

import pytest

from laar.core.decision import Completion, Decision
from laar.fleet.endpoints import Reading
from laar.flow.admission import Admission
from laar.flow.settings import FlowSettings
from laar.prefix.match import Context
from laar.sharing.batches import SCHEMA, Batch, write_batch
from laar.sharing.records import Turn
from support.pickers import Network, sharing_picker
from support.requests import request_of

DONE = Completion(status=200, cause="complete", latency_s=1.0)


class Picker:
    """A picker that holds turns for room in caches of 6,500 tokens, and informs the others."""

    def __init__(self, name, addresses=("a:1",)):
        self.sharing = sharing_picker(name, addresses)
        self.director = self.sharing.director
        for address in addresses:
            reading = Reading(waiting=0, running=0, kv_usage=0.0, capacity_tokens=6_500)
            self.director.table.read(address, reading, -math.inf)
            self.director.prefixes.set_capacity(self.director.table.slot(address), 6_500)
        settings = FlowSettings(max_hold_s=60.0)
        self.flow = Admission(self.director, settings, by_load=False)
        self.flow.on_turn = self.sharing.prefixes.turn
        self.sharing.prefixes.on_turn = self.flow.heard
        self.asked = 0

    def ask(self, now, session, tokens=6_000):
        self.asked += 1
        text = f"{self.sharing.origin} {session} {self.asked:06} " * tokens
        asked = request_of(text[: 4 * tokens], id=str(self.asked), session=session)
        return self.flow.ask(asked, now)

    def end(self, decision, now, done=DONE):
        self.flow.answering(decision, ok=done.status == 200)
        self.director.settle(decision, done)
        self.flow.ended(decision, now)

    def dispatch(self, now):
        return [outcome.verdict for outcome in self.flow.dispatch(now)]


@pytest.fixture
def pickers():
    return Picker("one"), Picker("two")


@pytest.fixture
def network(pickers):
    return Network([picker.sharing for picker in pickers])


def test_a_turn_waits_for_a_session_that_another_picker_serves(pickers, network):
    one, two = pickers
    first = one.ask(0.0, "x")
    network.exchange(0.1)
    assert not isinstance(two.ask(0.2, "y"), Decision)  # the cache has room for only one session
    one.end(first, 1.0)
    network.exchange(1.1)
    assert two.dispatch(1.5) == []  # session x may return at any moment
    (second,) = two.dispatch(6.0)
    assert second.request.session == "y"


def test_a_session_returns_to_its_place_through_any_picker():
    one, two = Picker("one", ("a:1", "b:1")), Picker("two", ("a:1", "b:1"))
    network = Network([one.sharing, two.sharing])
    first = [one.ask(0.0, session) for session in ("x", "y")]
    homes = {decision.request.session: decision.slot for decision in first}
    assert len(set(homes.values())) == 2
    for decision in first:
        one.end(decision, 0.5)
    network.exchange(0.6)
    for session, slot in homes.items():
        decision = two.ask(0.7, session, tokens=6_100)
        assert isinstance(decision, Decision)
        assert decision.slot == slot


def test_a_picker_that_dies_during_a_turn_delays_nobody(pickers, network):
    one, two = pickers
    one.ask(0.0, "x")
    network.exchange(0.1)
    assert not isinstance(two.ask(0.2, "y"), Decision)
    dead_s = 0.1 + two.sharing.settings.lease_s + 0.1
    two.sharing.poll(dead_s)
    (second,) = two.dispatch(dead_s + 6.0)
    assert second.request.session == "y"


def test_a_lost_end_is_inferred_from_the_next_batch(pickers, network):
    one, two = pickers
    first = one.ask(0.0, "x")
    network.exchange(0.1)
    assert not isinstance(two.ask(0.2, "y"), Decision)
    one.end(first, 1.0)
    one.sharing.batches(1.1)  # lost before delivery
    one.ask(1.2, "", tokens=100)
    network.exchange(1.3)
    (second,) = two.dispatch(8.0)
    assert second.request.session == "y"


@pytest.mark.parametrize(
    "context",
    [
        Context("x" * 5_000, 10.0, 0.0, 1.0),
        Context("x", -1.0, 0.0, 1.0),
        Context("x", 10.0, 0.0, 1e300),
        ("x", "many", 0.0, 1.0),
    ],
)
def test_an_impossible_context_is_refused_and_counted(pickers, network, context):
    one, two = pickers
    one.ask(0.0, "x", tokens=100)
    network.exchange(0.1)
    records = [Turn(1, "a:1", context)]
    namespace, key_id = two.sharing.settings.namespace, two.sharing.key_id
    batch = Batch(SCHEMA, namespace, "evil", 1, key_id, 0.0, 0, False, {}, records)
    two.sharing.take(write_batch(batch), 0.2)
    assert two.sharing.refused["record"] == 1
    assert [place["session"] for place in two.flow.sessions.shown(0.2, 9)] == ["x"]

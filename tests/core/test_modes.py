"""A mode of a model, such as how hard it thinks, is a candidate: its accuracy and time decide."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from laar.accuracy.assessment import Assessment, PlainAssessor, SpeedPrior
from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.core.interfaces import View
from laar.core.plugin import Core, Part, Plugin
from laar.errors import RequestError
from laar.fleet.membership import ROLE_LABEL, EndpointSpec
from laar.flow.admission import Admission
from laar.flow.settings import FlowSettings
from laar.plugins import own
from laar.plugins.adapters import Adapters
from laar.plugins.apart import PrefillApart
from laar.plugins.companions import beside
from laar.plugins.modes import Modes, ModeSettings, ModesSettings
from laar.plugins.shares import FairShares
from laar.prefix.beliefs import PrefixBeliefs
from laar.request import Api, Request
from support.directors import director_of

FAST = ModeSettings(chat={"enable_thinking": False})
LOW = ModeSettings(chat={"reasoning_effort": "low"}, own_prefix=True)
MODES = {"big": {"fast": FAST, "low": LOW}, "small": {"fast": FAST}}
NAMES = ("big", "small", "big:fast", "big:low", "small:fast")
SECONDS = {"big": 60.0, "big:fast": 3.0, "big:low": 20.0, "small": 30.0, "small:fast": 2.0}


class Measured(PlainAssessor):
    """Knows how often each model and mode is right."""

    def __init__(self, right: Mapping[str, float]) -> None:
        super().__init__()
        self.right = right
        self.measured = tuple(right)
        self.fails = False

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        if self.fails:
            raise ValueError
        plain = super().assess(request, models, tried, now)
        right = np.array([self.right.get(model, 0.5) for model in models])
        return replace(plain, probability=right, evidence=np.full(len(models), 99.0))


def director(right: Mapping[str, float], **given: object) -> Director:
    specs = [
        EndpointSpec(address=f"{model}{n}:80", models=(model,))
        for model in ("big", "small")
        for n in (1, 2)
    ]
    made = director_of(*specs, assessor=Measured(right), modes=MODES, **given)
    made.engines.reassess(lambda name: SpeedPrior(answer_s=SECONDS[name]))
    return made


def asked(number: int = 0, text: str = "why?", **said: object) -> Request:
    given = {"api": Api.CHAT, "model": "auto", "any_mode": True, "question": text, **said}
    return Request(id=f"r{number}", spans=(text,), chars=len(text), **given)


RIGHT = {"big": 0.97, "big:fast": 0.6, "big:low": 0.9, "small": 0.8, "small:fast": 0.5}


def test_the_mode_with_the_least_time_to_a_correct_answer_is_chosen() -> None:
    rng = random.Random(3)
    for _ in range(60):
        right = {name: rng.uniform(0.05, 0.99) for name in NAMES}
        wrong_s = 10.0 ** rng.uniform(0.0, 3.5)
        retries = rng.random() < 0.5
        model = rng.choice(["auto", "big", "small"])
        said = {"retries": True} if retries else {"wrong_answer_s": wrong_s}
        costs = {
            name: SECONDS[name] / q if retries else SECONDS[name] + (1.0 - q) * wrong_s
            for name, q in right.items()
            if model in ("auto", name.partition(":")[0])
        }
        chosen = director(right).choose(asked(model=model, **said), 0.0)
        assert costs[chosen.model] <= 1.02 * min(costs.values()) + 0.1
        assert chosen.address.startswith(chosen.model.partition(":")[0])
        assert (Modes.of(chosen) is None) == (":" not in chosen.model)


def test_clients_that_do_not_ask_again_get_the_mode_that_is_right_most_often() -> None:
    d = director(RIGHT)
    assert (
        d.choose(asked(model="big", wrong_answer_s=3600.0), 0.0).model == "big"
    )  # a concrete name, too
    assert d.choose(asked(model="big", retries=True), 0.0).model == "big:fast"


@pytest.mark.parametrize(
    "said",
    [
        {"any_mode": False},
        {"api": Api.RESPONSES},
        {"api": Api.EMBEDDINGS},
        {"policy": "least-loaded"},
        {"policy": "round-robin"},
    ],
)
def test_requests_that_no_mode_applies_to_are_as_without_modes(said: Mapping[str, object]) -> None:
    d = director(RIGHT)
    plain = director(RIGHT)
    plain.plugins.use(ModesSettings())
    for number in range(8):
        request = asked(number, retries=True, **said)
        one, other = d.decide(request, 0.0), plain.decide(request, 0.0)
        assert (Modes.of(one), one.model, one.address) == (None, other.model, other.address)
        assert one.fallbacks == other.fallbacks


def test_a_mode_is_not_used_while_nothing_says_how_often_it_is_right() -> None:
    measured = {name: q for name, q in RIGHT.items() if name != "small:fast"}
    assert "small:fast" not in {asked_of(director(measured), n).model for n in range(9)}
    for lacking in (["big"], []):
        d = director({name: RIGHT[name] for name in lacking})
        assert Modes.of(d.choose(asked(retries=True), 0.0)) is None
    broken = director(RIGHT)
    broken.chooser.assessor.fails = True
    decision = broken.choose(asked(retries=True), 0.0)
    assert (Modes.of(decision), decision.reason) == (None, "degraded-assessor")


def asked_of(d: Director, number: int) -> Decision:
    return d.decide(asked(number, retries=True), 0.0)


def test_modes_share_their_endpoints_queue_and_load() -> None:
    d = director(RIGHT)
    places = Counter(asked_of(d, number).address for number in range(12))
    assert set(places.values()) == {6}, "the two endpoints with the fastest mode take turns"
    view = d.choose(asked(retries=True), 0.0).view
    assert view is not None
    at = {address: d.table.slot(address) for address in places}
    for address, count in places.items():
        assert set(view.in_flight[view.slots == at[address]]) == {count}


def test_fallbacks_have_the_mode_that_the_body_has() -> None:
    right = {**RIGHT, "big:fast": 0.99, "big": 0.98, "small": 0.97}
    d = director(right, fallbacks=8)
    decision = d.choose(asked(retries=True), 0.0)
    assert decision.model == "big:fast"
    addresses = (decision.address, *decision.fallbacks)
    assert sorted(addresses) == ["big1:80", "big2:80"]
    served = d.decide(asked(retries=True), 0.0)
    d.served_by(served, served.fallbacks[0], 0.1)
    assert (served.flight.model, served.flight.tried) == ("big:fast", ("big:fast",))


@pytest.mark.parametrize("model", ["auto", "big"])
def test_retries_avoid_the_modes_that_failed_until_all_are_exhausted(model: str) -> None:
    d = director(RIGHT)
    tried: tuple[str, ...] = ()
    own = [name for name in NAMES if model in ("auto", name.partition(":")[0])]
    for number in range(len(own)):
        decision = d.decide(asked(number, model=model, tried=",".join(tried)), 0.0)
        assert decision.model not in tried
        assert decision.exhausted == (number == len(own) - 1)
        tried = decision.tried
    assert sorted(tried) == sorted(own)


def answer(d: Director, decision: Decision, now: float, seconds: float, tokens: int | None) -> None:
    d.answering(decision, now + 0.05)
    end = Completion(
        status=200, cause="complete", latency_s=seconds, ttft_s=0.05,
        prompt_tokens=1, completion_tokens=tokens,
    )  # fmt: skip
    d.settle(decision, end)


@pytest.mark.parametrize("counts", [True, False], ids=["lengths known", "not known"])
@pytest.mark.parametrize("seed", range(3))
def test_any_mix_of_modes_teaches_the_pace_and_none_their_lengths(seed: int, counts: bool) -> None:
    """Most questions go to one mode, as hard ones do, and no mix changes how modes compare."""
    rng = random.Random(seed)
    d = director(RIGHT)
    names, now, pace = ("big", "big:fast", "big:low"), 0.0, rng.uniform(0.4, 2.5)
    usual = rng.choice(names)
    d.chooser.settings = replace(d.settings, wrong_answer_s=None)
    for number in range(120):
        name = usual if number % 8 else rng.choice(names)
        tried = ",".join(other for other in names if other != name)
        decision = d.decide(asked(number, model="big", tried=tried), now)
        assert decision.model == name
        seconds = pace * SECONDS[name] * rng.uniform(0.8, 1.25)
        answer(d, decision, now, seconds, round(50 * seconds) if counts else None)
        now += 200.0
    view = d.choose(asked(model="big"), now).view
    assert view is not None
    assert view.terms is not None
    judged = [view.judged[at] for at in view.model_id.tolist()]
    own = dict(zip(judged, view.terms.base_s.tolist(), strict=True))
    assert own == pytest.approx({name: pace * SECONDS[name] for name in names}, rel=0.25)
    assert own["big:fast"] / own["big"] == pytest.approx(3.0 / 60.0, rel=0.05)
    assert not d.plugins.get(FairShares).held
    assert d.engines.paces.rest[:2] == pytest.approx(1.0, rel=0.2)
    restored = director(RIGHT)
    restored.engines.restore(d.engines.state(), 0.0)
    again = restored.choose(asked(model="big"), now).view
    assert again is not None
    assert again.terms is not None
    assert again.terms.latency_s == pytest.approx(view.terms.latency_s, rel=0.05)


def test_only_modes_that_begin_differently_have_prefixes_of_their_own() -> None:
    text = "x" * 60_000
    for first, shared in (("big:fast", {"big", "big:fast"}), ("big:low", {"big:low"})):
        others = ",".join(name for name in NAMES if name != first)
        d = director(RIGHT, prefixes=PrefixBeliefs(key=b"k" * 16, max_bytes=1 << 20))
        decision = d.decide(asked(text=text, tried=others), 0.0)
        assert decision.model == first
        answer(d, decision, 0.0, 1.0, 9)
        view = d.choose(asked(text=text, tried=others), 5.0).view
        assert view is not None
        share = view.cached_tokens / view.tokens
        there = view.slots == decision.slot
        cached = {view.judged[at] for at in view.model_id[there & (share > 0.9)].tolist()}
        assert cached == shared
        assert not share[~there].any()


def test_a_mode_never_takes_a_name_that_something_else_has() -> None:
    spec = EndpointSpec(address="e:80", models=("big", "big:fast"), adapters=("big:fast",))
    other = EndpointSpec(address="f:80", models=("big:low",))
    d = director_of(spec, other, assessor=Measured(RIGHT), modes=MODES)
    assert d.table.judged == ["big", "big:low"]
    decision = d.decide(asked(model="big:fast", retries=True), 0.0)
    assert (Modes.of(decision), Adapters.of(decision)) == (None, "big:fast")
    with pytest.raises(RequestError, match="small:fast"):
        d.decide(asked(model="small:fast"), 0.0)


def test_a_companion_may_ask_the_same_model_in_another_mode() -> None:
    d = director({"big": 0.99, "big:low": 0.6, "small": 0.1})
    first = d.decide(asked(model="big", retries=True), 0.0)
    assert first.model == "big:low"
    found = d.choose(replace(asked(1, model="big", retries=True), companion_of="r0"), 0.0)
    assert (found.model, found.reason) == ("big", "companion")


def test_the_companion_of_a_retried_request_knows_the_mode_of_the_first() -> None:
    for right in ({"big": 0.99, "big:fast": 0.6}, {"big": 0.9, "big:fast": 0.7, "big:low": 0.8}):
        d = director({**right, "small": 0.1}, fallbacks=8)
        first = d.decide(asked(model="big", retries=True), 0.0)
        d.served_by(first, first.fallbacks[0], 0.1)
        d.plugins.use(ModesSettings(modes={"big": {"new": FAST, **MODES["big"]}}))
        view = d.choose(asked(1, model="big", retries=True), 0.1).view
        assert view is not None
        found = beside(first, view)
        names = [view.judged[at] for at in view.model_id.tolist()]
        assert found.right == right[first.model]
        assert found.also_right.tolist() == [right[name] for name in names]


def test_without_modes_a_request_keeps_what_it_needs() -> None:
    """An assessor that fails takes the modes away, and nothing else."""
    roles = {"big1:80": "prefill", "big2:80": "decode", "big3:80": "decode"}
    specs = [
        EndpointSpec(address=address, models=("big",), labels={ROLE_LABEL: role})
        for address, role in roles.items()
    ]
    d = director_of(*specs, assessor=Measured(RIGHT), modes=MODES, apart="always")
    d.chooser.assessor.fails = True
    for in_place in (True, False):
        request = asked(text="x" * 40_000, retries=True, prefill_in_place=in_place)
        decision = d.choose(request, 0.0)
        assert (Modes.of(decision), PrefillApart.of(decision) is None) == (None, in_place)


def test_no_mode_is_drawn_blindly_if_only_full_endpoints_fit() -> None:
    d = director(RIGHT)
    d.chooser.assessor.fails = True
    windows = {"big": 1_000_000, "small": 100}
    specs = [d.table.spec(slot) for slot in d.table.active.tolist()]
    d.table.replace("t", [replace(s, max_model_len=windows[s.models[0]]) for s in specs])
    for slot in d.table.active.tolist():
        d.table.waiting[slot] = 1e6 * (d.table.spec(slot).models[0] == "big")
    d.table.read_at[:] = 0.0
    decision = d.choose(asked(text="x" * 4000, retries=True), 0.0)
    assert (decision.address[:3], Modes.of(decision)) == ("big", None)


@pytest.mark.parametrize("refuses", ["a mode", "some clients' requests", "all"])
def test_a_mode_that_engines_refuse_is_hardly_used(refuses: str) -> None:
    rng, d, used, refused = random.Random(7), director(RIGHT), 0, 0
    for number in range(300):
        decision = d.decide(asked(number, model="big", retries=True), 2.0 * number)
        in_mode = Modes.of(decision) is not None
        used += in_mode
        bad = {"a mode": in_mode, "all": True}.get(refuses, rng.random() < 0.2)
        refused += bad
        status = rng.choice((400, 422)) if bad else 200
        d.settle(decision, Completion(status=status, cause="complete", latency_s=1.0))
    if refuses == "a mode":
        assert 2 <= refused < 60
    elif refuses == "all":
        assert used > 0
    else:
        assert used > 250


def test_requests_that_wait_compete_for_endpoints_and_change_no_times() -> None:
    d = director(RIGHT)
    gate = Admission(d, FlowSettings(max_requests=1, max_hold_s=60.0))
    waiting = [asked(n, model="big", retries=True, any_mode=n != 3) for n in range(4)]
    for request in waiting:
        gate.ask(request, 0.0)
    slots = [d.table.slot(f"big{n}:80") for n in (1, 2)]
    assert [item.reach for item in gate.queue.items()] == [sum(1 << slot for slot in slots)] * 2
    d.engines.kept = None  # as after an answer
    view = d.choose(asked(model="big", retries=True), 0.0).view
    assert view is not None
    d.engines.kept = None
    gate.explained(d.choose(asked(model="big", retries=True), 0.0), 0.0)
    again = d.choose(asked(model="big", retries=True), 0.0).view
    assert again is not None
    assert again.terms is not None
    assert view.terms is not None
    assert again.terms.latency_s == pytest.approx(view.terms.latency_s)


class Asks(Plugin):
    """Asks at drawn points for the constants of drawn candidates."""

    name = "asks"

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def join(self, core: Core) -> None:
        self.engines = core.engines

    def filter(self, *_: object) -> Part:
        return Part()

    def prescore(self, view: View, part: Part, *_: object) -> Part:
        return self.ask(view, part)

    def price(self, view: View, *_: object) -> None:
        self.ask(view)

    def score(self, view: View, *_: object) -> None:
        self.ask(view)

    def select(self, view: View, part: Part, _at: int) -> Part:
        return self.ask(view, part)

    def complete(self, decision: Decision, _end: Completion) -> None:
        assert decision.view is not None
        self.ask(decision.view)

    def ask(self, view: View, part: Part | None = None) -> Part:
        draw, engines = self.draw, self.engines
        for _ in range(draw.randrange(3)):
            at = np.array(draw.choices(range(len(view.slots)), k=draw.randrange(1, 9)))
            slots, model_id = view.slots, view.model_id
            if draw.random() < 0.5:
                slots, model_id = slots[at], model_id[at]
            given = draw.choice([None, model_id])
            found, engines.kept = engines.constants(slots, given), None
            fresh, engines.kept = engines.constants(slots, given), found
            for field in fields(fresh):
                assert np.array_equal(getattr(found, field.name), getattr(fresh, field.name))
        return part or Part()


@pytest.mark.parametrize("modes", [MODES, {}], ids=["modes", "no modes"])
@pytest.mark.parametrize("seed", range(6))
def test_whoever_asks_for_constants_of_engines_changes_no_decision(
    seed: int, modes: Mapping[str, Mapping[str, ModeSettings]]
) -> None:
    draw = random.Random(seed)
    one, other = director(RIGHT, plugins=[Asks(draw), *own(), Asks(draw)]), director(RIGHT)
    now = 0.0
    for d in (one, other):
        d.plugins.use(ModesSettings(modes=modes))
    for number in range(20):
        now += draw.expovariate(1.0)
        model, may = draw.choice(["auto", "big"]), draw.random() < 0.7
        request = asked(number, "why? " * draw.randrange(9), model=model, any_mode=may)
        took_s, tokens = draw.uniform(0.1, 90.0), draw.choice([None, 50])
        joins = [EndpointSpec(address=f"n{number}:1", models=("big",))] * (draw.random() < 0.1)
        made = []
        for d in (one, other):
            d.table.replace(f"t{number}", joins)
            made.append(d.decide(request, now))
            answer(d, made[-1], now, took_s, tokens)
        assert not one.degraded
        assert made[0].model == made[1].model
        assert made[0].address == made[1].address
        terms, expected = (each.view and each.view.terms for each in made)
        assert terms is not None
        assert expected is not None
        assert np.array_equal(terms.cost_s, expected.cost_s)

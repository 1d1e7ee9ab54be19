"""Requests for adapters go where they cost least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laar.accuracy.assessment import Assessment, PlainAssessor
from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec, Served
from laar.plugins import adapters
from laar.plugins.adapters import Adapters
from laar.request import Api, Request
from support.directors import director_of

ADDRESSES = ("a:1", "b:1", "c:1")
NAMES = ("sql", "law", "med", "poem")


def fleet(*addresses: str, **given: Any) -> Director:
    d = director_of(*addresses, **given)
    for address in addresses:
        d.table.served({address: Served(weights={"m": "m"}, adapters=dict.fromkeys(NAMES, "m"))})
    return d


def ask(director: Director, model: str, now: float, chars: int = 100) -> Decision:
    request = Request(id="r", api=Api.CHAT, model=model, spans=("x" * chars,), chars=chars)
    return director.decide(request, now)


def finish(director: Director, decision: Decision) -> None:
    director.settle(decision, Completion(status=200, cause="complete", latency_s=1.0))


def page(director: Director, address: str, *running: str, most: float = 1.0) -> None:
    slot = director.table.slot(address)
    director.plugins.get(Adapters).read(
        slot, Reading(adapters=frozenset(running), max_adapters=most)
    )


def test_requests_for_an_adapter_go_where_it_is_loaded() -> None:
    d = fleet(*ADDRESSES)
    for address in ADDRESSES:
        page(d, address)
    homes = {}
    for turn in range(12):
        name = NAMES[turn % 3]
        decision = ask(d, name, float(turn))
        assert homes.setdefault(name, decision.address) == decision.address
        finish(d, decision)
    assert len(set(homes.values())) == 3  # each engine has room for one adapter


def test_a_long_queue_outweighs_a_loaded_adapter() -> None:
    d = fleet("a:1", "b:1")
    for address in ("a:1", "b:1"):
        page(d, address, most=4.0)
    first = ask(d, "sql", 0.0)
    went = {ask(d, "sql", 0.0, chars=40_000).address for _ in range(6)}
    assert went == {"a:1", "b:1"}
    assert first.address in went


def test_adapters_on_the_metrics_page_are_considered_loaded() -> None:
    d = fleet(*ADDRESSES)
    for address in ADDRESSES:
        page(d, address, *(["sql"] if address == "b:1" else []), most=2.0)
    decision = ask(d, "sql", 0.0)
    assert decision.address == "b:1"


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize(("most", "where"), [(1.0, "b:1"), (2.0, "a:1")])
def test_an_engine_without_a_free_adapter_slot_loses_to_a_more_distant_one(
    most: float, where: str, shown: bool
) -> None:
    d = fleet("a:1", "b:1")
    d.table.round_trip("a:1", 0.001, 0.0)
    d.table.round_trip("b:1", 0.2, 0.0)
    page(d, "a:1", *["law"] * shown, most=most)
    page(d, "b:1", most=most)
    assert shown or ask(d, "law", 0.0).address == "a:1"  # in flight from now on
    assert ask(d, "sql", 0.0).address == where


def test_loading_time_is_part_of_the_cost_and_is_not_learned_as_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapters, "LOAD_S", 5.0)
    d = fleet("a:1")
    page(d, "a:1")
    decision = ask(d, "sql", 0.0)
    assert decision.view.terms.added["load_s"][0] >= 5.0
    assert not decision.flight.began.teaches
    finish(d, decision)
    again = ask(d, "sql", 2.0)
    assert again.flight.began.teaches


def test_a_restarted_engine_has_no_adapters_loaded() -> None:
    d = fleet("a:1")
    page(d, "a:1")
    finish(d, ask(d, "sql", 0.0))
    d.plugins.get(Adapters).restarted(d.table.slot("a:1"))
    decision = ask(d, "sql", 2.0)
    assert "load_s" in decision.view.terms.added


ALIASES = {"auto": (), "support": ("sql",), "any": ("gone", "law", "m")}


@pytest.mark.parametrize("api", [Api.CHAT, Api.OPAQUE])
def test_an_alias_for_an_adapter_requests_the_adapter(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "LOAD_S", 0.0)
    d = fleet("a:1", "b:1", aliases=ALIASES)
    d.table.served({"b:1": Served(weights={"m": "m"})})
    for alias, name in (("support", "sql"), ("any", "law"), ("auto", "m")):
        found = set()
        for turn in range(8):
            request = Request(id="r", api=api, model=alias, spans=("x",), chars=1)
            decision = d.decide(request, float(turn))
            found.add((decision.address, decision.rewrite))
            finish(d, decision)
        at_b = {("b:1", "m")} if alias != "support" else set()
        assert found <= {("a:1", name)} | at_b, alias
        assert ("a:1", name) in found, alias


def test_an_alias_for_an_adapter_counts_and_costs_like_the_adapter() -> None:
    d = fleet("a:1", "b:1", aliases=ALIASES)
    for address in ("a:1", "b:1"):
        page(d, address, *(["sql"] if address == "b:1" else []))
    decision = ask(d, "support", 0.0)
    assert decision.address == "b:1"
    assert Adapters.of(decision) == "sql"
    assert d.table.weights("support") == "sql"
    assert d.table.weights("auto") == ""
    d.table.served({"b:1": Served(weights={"m": "m"})})
    # Now an adapter at one endpoint and a model at the other.
    assert d.table.weights("any") == "any"


RIGHT = {"m": 0.5, "sql": 0.9, "law": 0.2, "other": 0.7}


class ByName(PlainAssessor):
    """Estimates by adapter name."""

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        right = np.array([RIGHT[model] for model in models])
        plain = super().assess(request, models, tried, now)
        return replace(plain, probability=right, evidence=100.0 * right, reported=right)


@pytest.mark.parametrize(
    ("name", "chosen", "right"),
    [
        ("auto", "other:1", [0.5, 0.7]),
        ("able", "a:1", [0.9, 0.7]),
        ("unable", "other:1", [0.2, 0.7]),
        ("sql", "a:1", [0.5]),  # no choice of another adapter
    ],
)
def test_a_virtual_name_chooses_adapters_by_their_own_accuracy(
    name: str, chosen: str, right: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "LOAD_S", 0.0)
    d = fleet(
        "a:1",
        aliases={"auto": (), "able": ("sql", "other"), "unable": ("law", "other")},
        assessor=ByName(),
    )
    d.table.replace("more", [EndpointSpec(address="other:1", models=("other",))])
    decision = ask(d, name, 0.0)
    view = decision.view
    assert decision.address == chosen
    assert view.probability.tolist() == right
    assert view.evidence.tolist() == pytest.approx([100.0 * each for each in right])

"""Pulls of KV between endpoints: which is chosen, what it is expected to take, what it teaches."""

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from laar.core.decision import Completion
from laar.fleet.endpoints import EndpointTable, Reading
from laar.fleet.membership import DRAIN_LABEL, PULL_LABEL, ROLE_LABEL, EndpointSpec
from laar.health import Health, HealthSettings
from laar.health.kinds import Reply
from laar.plugins.pulls import Pulls
from laar.plugins.stored import StoredObjects
from laar.prefix.beliefs import PrefixBeliefs
from laar.request import Api, Request
from support.directors import director_of

A, B, C, D = (f"10.0.0.{n}:80" for n in range(1, 5))
PULLS = {PULL_LABEL: "true"}
LONG = "a sentence of the document. " * 1_500  # takes 1 s to compute, and 0.13 s to pull


def endpoint(address, labels=PULLS, **fields):
    return EndpointSpec(address=address, models=("m",), labels=labels, **fields)


def fleet(*specs, **given):
    return director_of(*specs, prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 24), **given)


def request(text=LONG, **fields):
    known = {"id": "r", "api": Api.CHAT, "model": "m", "spans": (text,), "chars": len(text)}
    return Request(**known | {"stream": True, "first_token_seen": True} | fields)


def hold(director, address, text=LONG, now=0.0):
    """Let an endpoint have a prompt cached."""
    chain = director.prefixes.chain(request(text))
    receipt = director.prefixes.insert(director.table.slot(address), chain, now)
    director.prefixes.settle(receipt, None)


def busy(director, *addresses, now=0.0):
    """Let endpoints have prompts to compute, which makes them too slow for others."""
    traffic = director.engines.traffic
    for address in addresses:
        slot = director.table.slot(address)
        traffic.ahead_s[slot], traffic.since[slot] = 20.0, now


def finish(director, decision, ttft_s, cached=None, status=200):
    end = Completion(
        status=status,
        cause="complete",
        latency_s=ttft_s + 0.5,
        ttft_s=ttft_s,
        prompt_tokens=None if cached is None else round(decision.tokens),
        cached_tokens=cached,
    )
    director.settle(decision, end)


def pulled(decision):
    return Pulls.of(decision) and (decision.address, Pulls.of(decision).address)


def hot(*specs, **given):
    """Return a director of endpoints of which the first has the prompt cached, but is busy."""
    director = fleet(*specs, **given)
    hold(director, specs[0].address)
    busy(director, specs[0].address)
    return director


def test_a_prompt_is_pulled_only_once_the_source_has_computed_it():
    d = fleet(endpoint(A), endpoint(B))
    first = d.decide(request(), 1.0)
    busy(d, first.address, now=1.1)
    [other] = {A, B} - {first.address}
    early = d.decide(request(f"{LONG}1"), 1.1)
    assert (early.address, Pulls.of(early)) == (other, None)
    finish(d, first, 1.0)
    finish(d, early, 1.0, status=503)
    busy(d, first.address, now=2.5)
    assert pulled(d.decide(request(f"{LONG}2"), 2.5)) == (other, first.address)


def test_a_prompt_does_not_rely_on_a_pull_in_progress():
    d = hot(endpoint(A), endpoint(B), endpoint(C))
    first = d.decide(request(f"{LONG}1"), 1.0)
    assert pulled(first) is not None
    second = d.decide(request(f"{LONG}2"), 1.01)
    assert pulled(second) is not None  # whichever it goes to
    for decision in (first, second):
        finish(d, decision, 0.2)
    third = d.decide(request(f"{LONG}3"), 2.0)
    assert third.address in (first.address, second.address)
    assert Pulls.of(third) is None


@pytest.mark.parametrize(
    "source",
    [
        endpoint(A, labels={}),
        endpoint(A, labels={PULL_LABEL: "false"}),
        endpoint(A, labels=PULLS | {ROLE_LABEL: "prefill"}),
        endpoint(A, region="far"),
        replace(endpoint(A), models=("other", "m")),
        endpoint(A, rank=1),
    ],
)
@pytest.mark.parametrize("way", ["from", "to"])
def test_nothing_is_pulled_from_or_to_an_endpoint_that_is_not_its_peer(source, way):
    d = hot(source, endpoint(B)) if way == "from" else hot(endpoint(B), source)
    assert all(Pulls.of(d.decide(request(), 1.0 + n)) is None for n in range(4))


def test_an_endpoint_that_takes_no_requests_is_a_source_and_drains_until_it_is_needed_no_more():
    for labels, waiting in ((PULLS, 1e9), (PULLS | {DRAIN_LABEL: "true"}, 0.0)):
        d = hot(endpoint(A, labels=labels), endpoint(B), endpoint(C))
        slot = d.table.slot(A)
        d.table.read(A, Reading(waiting=waiting), 1.0)
        assert not d.holds(slot, 1.0)
        decision = d.decide(request(), 1.0)
        assert Pulls.of(decision).address == A
        later = [not d.holds(slot, at) for at in (2.0, 11.0, 12.0)]
        assert later == [False, False, True]
        finish(d, decision, 0.2)
        busy(d, A, decision.address, now=3.0)
        source = Pulls.of(d.decide(request(), 3.0)).slot
        assert source == slot if waiting else source == decision.slot  # so that the drain ends


@pytest.mark.parametrize(
    "fields",
    [
        {"api": Api.RESPONSES},
        {"shadow": True},
        {"policy": "least-loaded"},
        {"prefill_in_place": True},
        {"response_id": "resp_1"},
    ],
)
def test_a_request_whose_header_would_not_reach_a_sidecar_pulls_nothing(fields):
    d = hot(endpoint(A), endpoint(B), endpoint(C))
    if "response_id" in fields:
        d.plugins.get(StoredObjects).note("resp_1", B, "")
    assert Pulls.of(d.decide(request(**fields), 1.0)) is None


def test_nothing_is_pulled_from_a_failing_endpoint():
    health = Health(HealthSettings(probe=False), rng=random.Random(3))
    d = hot(endpoint(A), endpoint(B), endpoint(C), health=health)
    for n in range(12):
        attempt = health.sent(
            d.table.slot(A), "m", stream=True, predicted_s=1.0, tokens=9.0, now=0.1 * n
        )
        health.replied(attempt, Reply(status=500 if n % 3 else 200), 0.1 * n + 0.05)
    assert Pulls.of(d.decide(request(), 1.5)) is None


def test_sources_share_the_pulls_and_one_is_waited_for_only_while_it_pays():
    d = fleet(*map(endpoint, (A, B, C, D)))
    for address in (A, B):
        hold(d, address)
        busy(d, address)
    pulls = []
    for n in range(12):
        decision = d.decide(request(f"{LONG}{n}"), 1.0)
        pulls.append(Pulls.of(decision))
        d.prefixes.clear(decision.slot)
        d.prefixes.retract(decision.flight.receipt)
        decision.flight.receipt = None
    assert Counter(pull.address for pull in pulls) == {A: 6, B: 6}
    assert pulls[-1].seconds > 4 * pulls[0].seconds
    for wait_s, is_pulled in ((0.5, True), (60.0, False)):
        busy(d, A, B, now=20.0)
        d.plugins.get(Pulls)._free_at = {d.table.slot(A): 90.0, d.table.slot(B): 20.0 + wait_s}
        decision = d.decide(request(f"{LONG}{wait_s}"), 20.0)
        assert (Pulls.of(decision) and Pulls.of(decision).address) == (B if is_pulled else None)


def test_pulls_that_fail_stop_and_are_tried_again_later():
    d = hot(endpoint(A), endpoint(B))
    asked = 0
    for n in range(60):
        decision = d.decide(request(f"{LONG}{n}"), 1.0 + 2.0 * n)
        asked += Pulls.of(decision) is not None
        finish(d, decision, 3.0, cached=0 if decision.address == B else round(decision.tokens))
        d.prefixes.clear(d.table.slot(B))
        busy(d, A, now=3.0 + 2.0 * n)
    assert 1 <= asked <= 12
    assert Pulls.of(decision) is None
    busy(d, A, now=1500.0)
    assert Pulls.of(d.decide(request(), 1500.0)) is not None


def test_the_rate_of_pulls_is_learned_and_nothing_else_is_learned_from_them():
    d = hot(endpoint(A), endpoint(B))
    slot, before = d.table.slot(B), d.engines.state()
    first = None
    for n in range(40):
        decision = d.decide(request(f"{LONG}{n}"), 1.0 + 2.0 * n)
        first = first or Pulls.of(decision)
        expected_s = decision.view.terms.all_ttft_s[decision.position] - Pulls.of(decision).seconds
        finish(d, decision, expected_s + 0.3, cached=round(0.99 * decision.tokens))
        d.prefixes.clear(slot)
        busy(d, A, now=3.0 + 2.0 * n)
    assert Pulls.of(decision).seconds == pytest.approx(0.3, rel=0.15)
    assert first.seconds < 0.15
    assert d.prefixes.found.shares[slot] == 1.0
    assert d.engines.state()["paces"] == before["paces"]


def test_a_fleet_without_the_label_decides_as_one_whose_peers_have_nothing_to_pull():
    def decisions(labels):
        d = fleet(*(endpoint(a, labels=labels) for a in (A, B, C)), seed=5)
        draw, found = random.Random(2), []
        for n in range(60):
            text = f"{draw.randrange(9)} {LONG[: draw.randrange(9, 30_000)]}"
            decision = d.decide(request(text, api=Api.RESPONSES), 0.1 * n)
            found.append((decision.address, decision.view.terms.cost_s.tolist()))
            if n % 3:
                finish(d, decision, 0.2)
        return found

    assert decisions({}) == decisions(PULLS)


def test_the_source_is_the_soonest_of_those_with_the_longest_prefix():
    draw = np.random.default_rng(6)
    for _ in range(200):
        count = int(draw.integers(2, 90))
        table = EndpointTable()
        table.replace("t", [endpoint(f"10.0.1.{n}:80") for n in range(count)])
        sources, slots = Pulls(), np.arange(count)
        sources.join(SimpleNamespace(table=table))
        sources._free_at = {n: float(draw.exponential(0.3)) for n in range(1, count)}
        groups, held = draw.integers(-1, 2, count), draw.choice([0.0, 300.0, 900.0, 900.0], count)
        table.pull_group[:count] = groups
        table.draining = draw.choice(count, draw.integers(0, count), replace=False).tolist()
        ready = np.where(draw.random(count) < 0.3, 0.0, held)  # the others' prefill is not done
        found = sources.offers(slots, groups, slots, held, ready.item, 10_000.0, 0.0)
        for at in range(count):
            peers = [n for n in range(count) if groups[n] == groups[at] >= 0]
            most = max((ready[n] for n in peers), default=0.0)
            soonest = [
                (n in table.draining, sources._free_at.get(n, 0.0), n)
                for n in peers
                if ready[n] >= most - 256 and most > 256
            ]
            source = min(soonest)[2] if soonest else -1
            more = ready[source] - held[at] if source >= 0 else 0.0
            if found is None or found.sources[at] < 0:
                assert more <= 256
                continue
            assert found.sources[at] == source
            assert found.tokens[at] == more > 256
            expected_s = min(soonest)[1] + 0.025 + more / 10_000.0
            assert found.seconds[at] == pytest.approx(expected_s)


@pytest.mark.parametrize("share", [0.5, 0.7, 1.0, 1.6])
@pytest.mark.parametrize("found", [True, False])
def test_a_pull_is_judged_by_the_share_that_was_found_however_long_the_prompt_is(share, found):
    d = hot(endpoint(A), endpoint(B))
    decision = d.decide(request(), 1.0)
    length = round(share * decision.tokens)
    end = Completion(
        status=200,
        cause="complete",
        latency_s=0.7,
        ttft_s=decision.view.terms.all_ttft_s.item(decision.position),
        prompt_tokens=length,
        cached_tokens=round(0.99 * length) if found else round(0.5 * length),
    )
    d.settle(decision, end)
    _, pace = d.plugins.get(Pulls)._times(Pulls.of(decision).slot, 1.7)
    assert (pace < 1.1) == found


def test_a_source_that_has_left_teaches_nothing_about_its_slot_or_others():
    for heir in ((), (endpoint(C),)):
        d = hot(endpoint(A), endpoint(B))
        decision = d.decide(request(), 1.0)
        d.table.replace("t", [endpoint(B)])
        d.table.replace("t", [endpoint(B), *heir])
        finish(d, decision, 1.0, cached=0)
        assert d.plugins.get(Pulls)._times(Pulls.of(decision).slot, 1.6) == (0.0, 1.0)


def test_a_fallback_with_another_model_is_not_told_to_pull():
    models = {A: "m", B: "m", C: "other"}
    d = fleet(
        *(EndpointSpec(address=at, models=(m, "both"), labels=PULLS) for at, m in models.items()),
        fallbacks=8,
    )
    busy(d, B, C)
    first = d.decide(request(model="both"), 0.0)
    finish(d, first, 1.0)
    busy(d, A, C, now=2.0)
    d.engines.traffic.ahead_s[d.table.slot(B)] = 0.0
    decision = d.choose(request(model="both"), 2.0)
    assert (first.address, pulled(decision)) == (A, (B, A))
    assert decision.fallbacks == (A,)


def test_a_failure_to_find_a_source_costs_only_the_pull(monkeypatch):
    d = hot(endpoint(A), endpoint(B))
    monkeypatch.setattr(d.plugins.get(Pulls), "offers", lambda *_: 1 / 0)
    decision = d.decide(request(), 1.0)
    assert (Pulls.of(decision), decision.reason) == (None, "degraded-pulls")

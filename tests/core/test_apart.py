"""Disaggregated prefill: the prefilling endpoint, the answering one, and their counts."""

import random
from dataclasses import replace

import numpy as np
import pytest

from laar.core.decision import Completion
from laar.fleet.membership import ROLE_LABEL, EndpointSpec
from laar.health import Health, HealthSettings
from laar.health.kinds import Reply
from laar.plugins.apart import Apart, ApartSettings, PrefillApart, Prefillers, cheapest
from laar.prefix.beliefs import PrefixBeliefs
from laar.request import Api
from support.directors import director_of
from support.requests import request_of

P, Q, D, E = "10.0.0.1:80", "10.0.0.2:80", "10.0.1.1:80", "10.0.1.2:80"
LONG = "a sentence of the document. " * 1_500


def fleet(*endpoints, far=(), **given):
    specs = (
        EndpointSpec(
            address=address,
            models=tuple(more) or ("m",),
            labels={ROLE_LABEL: role} if role else {},
            region="far" if address in far else "",
        )
        for address, role, *more in endpoints
    )
    return director_of(*specs, prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 24), **given)


def ask(director, text=LONG, now=0.0, **fields):
    return director.decide(request_of(text, **{"stream": True} | fields), now)


def finish(director, decision, status=200, latency_s=1.0, **fields):
    end = Completion(status=status, cause="complete", latency_s=latency_s, **fields)
    director.settle(decision, end)


def read_by(decision):
    found = PrefillApart.of(decision)
    return "" if found is None else found.address


def busy(director, *addresses, count=20):
    """Add answers in flight at these endpoints: a prompt prefilled there delays them all."""
    for address in addresses:
        for _ in range(count):
            director.table.reserve(director.table.slot(address), 100.0, 0.0, answering=True)


@pytest.mark.parametrize(
    ("role", "serves"),
    [
        *[(name, True) for name in ("", "decode", "both", "prefill-decode")],
        *[(name, False) for name in ("prefill", "encode", "encode-prefill")],
    ],
)
def test_requests_go_only_to_endpoints_that_llm_d_would_choose(role, serves):
    d = fleet((P, role), (D, "decode"))
    seen = {ask(d, f"{n} hello", session=str(n)).address for n in range(30)}
    assert seen == ({P, D} if serves else {D})


@pytest.mark.parametrize(
    ("rule", "text", "where"),
    [("never", LONG, ""), ("always", "Hi.", P), ("threshold", "Hi.", ""), ("threshold", LONG, P)],
)
def test_a_rule_can_replace_the_cost(rule, text, where):
    d = fleet((P, "prefill"), (D, "decode"), apart=rule)
    if rule == "never":
        busy(d, D)
    assert read_by(ask(d, text)) == where


@pytest.mark.parametrize(
    "fields",
    [{"api": Api.RESPONSES}, {"api": Api.EMBEDDINGS}, {"shadow": True}, {"policy": "least-loaded"}],
)
def test_requests_that_the_sidecar_does_not_split_get_no_prefiller(fields):
    d = fleet((P, "prefill"), (D, "decode"), apart="always")
    assert read_by(ask(d, **fields)) == ""


@pytest.mark.parametrize("role", ["", "unknown"])
def test_only_prompts_of_endpoints_with_a_sidecar_are_prefilled_elsewhere(role):
    d = fleet((P, "prefill"), (D, role), apart="always")
    assert read_by(ask(d)) == ""


def test_a_prefiller_has_the_model_and_region_of_the_decoding_endpoint():
    d = fleet((P, "prefill", "other", "m"), (Q, "prefill"), (D, "decode"), apart="always")
    assert {read_by(ask(d)) for _ in range(5)} == {Q}
    d = fleet((P, "prefill", "other"), (Q, "prefill"), (D, "decode"), apart="always", far=(Q,))
    assert read_by(ask(d)) == ""


def test_an_endpoint_of_both_roles_is_not_its_own_prefiller():
    d = fleet((P, "both"), (Q, "both"), apart="always")
    for n in range(10):
        decision = ask(d, f"{n}. {LONG}")
        assert {decision.address, read_by(decision)} == {P, Q}
    alone = fleet((P, "both"), apart="always")
    assert read_by(ask(alone)) == ""


def test_a_fallback_can_use_the_same_prefiller():
    other = "10.0.1.9:80"
    d = fleet(
        *((P, "both"), (D, "both"), (E, "decode"), (other, "decode", "other", "m")),
        apart="always",
        fallbacks=8,
    )
    for n in range(10):
        decision = ask(d, f"{n}. {LONG}")
        known = {decision.address, *decision.fallbacks}
        if read_by(decision):
            assert read_by(decision) not in known
            assert other not in known


def test_a_prompt_counts_at_its_prefiller_until_it_is_prefilled():
    d = fleet((P, "prefill"), (D, "decode"), apart="always")
    table = d.table
    p, e = table.slot(P), table.slot(D)
    decision = ask(d)
    assert table.in_flight[[p, e]].tolist() == [1.0, 1.0]
    assert table.prefill_tokens[p] == pytest.approx(decision.tokens)
    assert table.prefill_tokens[e] == 0.0
    d.answering(decision, 0.5)
    assert table.in_flight[[p, e]].tolist() == [0.0, 1.0]
    assert table.prefill_tokens[p] == 0.0
    finish(d, decision, ttft_s=0.5)
    for name in ("in_flight", "visiting", "queued_tokens", "prefill_tokens"):
        assert not getattr(table, name).any(), name


@pytest.mark.parametrize(("status", "believed"), [(200, True), (503, False)])
def test_prefiller_and_decoder_have_the_prompt_cached_after_the_answer(status, believed):
    d = fleet((P, "prefill"), (D, "decode"), apart="always")
    finish(d, ask(d), status)
    shares = d.prefixes.match(d.prefixes.chain(request_of(LONG)))[0]
    held = shares[[d.table.slot(P), d.table.slot(D)]] > 0.9
    assert held.tolist() == [believed, believed]
    assert not d.table.in_flight.any()


def test_a_retry_by_envoy_keeps_the_prefiller_and_consistent_counts():
    d = fleet((P, "prefill"), (D, "decode"), (E, "decode"), apart="always")
    decision = ask(d)
    other = E if decision.address == D else D
    d.served_by(decision, other, 0.2)
    assert d.table.in_flight[d.table.slot(P)] == 1.0
    assert d.table.in_flight[d.table.slot(other)] == 1.0
    d.answering(decision, 0.5)
    finish(d, decision, ttft_s=0.5)
    assert not d.table.in_flight.any()
    assert not d.table.queued_uncached_tokens.any()


def test_the_slot_of_a_removed_prefiller_is_not_reused_while_it_prefills():
    d = fleet((P, "prefill"), (D, "decode"), apart="always")
    decision = ask(d)
    d.table.replace(
        "t", [EndpointSpec(address=D, models=("m",)), EndpointSpec(address="n:1", models=("m",))]
    )
    assert d.table.slot("n:1") != PrefillApart.of(decision).slot
    finish(d, decision)
    assert not d.table.in_flight.any()


def test_a_new_endpoint_learns_nothing_from_the_prefiller_whose_slot_it_took():
    d = fleet((P, "prefill"), (D, "decode"), apart="always")
    decision = ask(d)
    assert read_by(decision) == P
    d.answering(decision, 0.5)
    specs = {spec.address: spec for spec in d.table.specs()}
    d.table.replace("t", [specs[D]])
    d.table.replace("t", [specs[D], replace(specs[P], address=Q)])
    finish(d, decision, latency_s=9.0, ttft_s=8.0)
    assert Q not in d.engines.state()["paces"]
    assert not d.engines.traffic.shared(np.array([d.table.slot(Q)])).any()


def test_a_failing_prefiller_is_skipped_and_tried_again():
    health = Health(HealthSettings(probe=False), rng=random.Random(3))
    d = fleet((P, "prefill"), (D, "decode"), health=health, apart="always")
    for n in range(3):
        health.replied(
            health.sent(
                *(d.table.slot(P), "m"), stream=True, predicted_s=1.0, tokens=9.0, now=1.0 + n
            ),
            Reply(status=500),
            1.1 + n,
        )
    assert read_by(ask(d, now=3.2)) == ""
    assert read_by(ask(d, now=60.0, policy="least-loaded")) == ""
    trial = ask(d, now=60.0)
    assert read_by(trial) == P
    assert health.state(d.table.slot(P), 60.0) == "on trial"
    assert read_by(ask(d, now=60.1)) == ""
    d.replied(trial, Reply(status=200), 60.5)
    d.answering(trial, 60.5)
    finish(d, trial)
    assert read_by(ask(d, now=61.5)) == P


@pytest.mark.long
def test_prefill_time_elsewhere_is_not_learned_for_the_decoding_endpoint():
    d = fleet((P, "prefill"), (D, "decode"), apart="always")
    for n in range(60):
        decision = ask(d, f"{n}. {LONG}", 20.0 * n)
        d.answering(decision, 20.0 * n + 5.0)
        finish(d, decision, latency_s=6.0, ttft_s=5.0)
    slots = np.array([d.table.slot(P), d.table.slot(D)])
    of = d.engines.constants(slots)
    read_s = of.c * 1e-4 * decision.tokens
    # Both share one c(m), which is now five times its initial value.
    assert read_s == pytest.approx(5.0, rel=0.3)
    assert of.c[0] == pytest.approx(of.c[1], rel=0.1)


def test_a_fleet_without_roles_decides_as_before():
    def decisions(apart):
        d = fleet((P, ""), (Q, ""), (D, ""), apart=apart, seed=5)
        draw = random.Random(2)
        found = []
        for n in range(60):
            decision = ask(d, f"{draw.randrange(9)} {LONG[: draw.randrange(9, 30_000)]}", 0.1 * n)
            costs = decision.view.terms.cost_s.tolist()
            found.append((decision.address, costs, Apart.among(decision.view.parts)))
            if n % 3:
                finish(d, decision)
        return found

    plain = decisions("never")
    assert decisions("always") == plain
    assert all(apart is None for *_, apart in plain)


def test_the_cheapest_prefiller_is_the_best_of_all_pairs():
    draw = np.random.default_rng(4)
    for _ in range(300):
        helpers, candidates, kv_groups = (
            draw.integers(1, 8),
            draw.integers(1, 8),
            draw.integers(1, 4),
        )
        prefillers = Prefillers(
            slots=np.sort(draw.permutation(12)[:helpers]),
            kv_group=draw.integers(0, kv_groups, helpers),
            answers=np.ones(helpers),
        )
        wanted = draw.integers(-1, kv_groups, candidates)
        slots = np.sort(draw.permutation(12)[:candidates])
        cost = draw.permutation(helpers).astype(float)
        found = cheapest(cost, prefillers, wanted, slots)
        for at, place in enumerate(found.tolist()):
            pairs = [
                (cost[i], i)
                for i in range(helpers)
                if prefillers.kv_group[i] == wanted[at] and prefillers.slots[i] != slots[at]
            ]
            assert place == (min(pairs)[1] if pairs else -1)


@pytest.mark.parametrize("rule", ["by-cost", "always"])
def test_the_cheapest_pair_or_single_endpoint_is_chosen(rule):
    draw = random.Random(8)
    roles = ("prefill", "prefill", "prefill", "decode", "decode", "decode")
    endpoints = [(f"10.0.0.{n}:80", role) for n, role in enumerate(roles, 1)]
    for trial in range(6):
        d = fleet(*endpoints, apart="always", seed=trial)
        for n in range(draw.randrange(12)):
            text = f"{draw.randrange(5)}. {LONG[: draw.randrange(400, 30_000)]}"
            decision = ask(d, text, 0.1 * n)
            if draw.random() < 0.3:
                finish(d, decision)
        busy(d, "10.0.0.4:80", count=draw.randrange(9))
        d.plugins.use(ApartSettings(apart=rule))
        view = d.choose(request_of(f"{draw.randrange(5)}. {LONG}"), 1.5).view
        found = view.terms.cost_s.copy()
        scorer = d.chooser.policies["laar"].scorers[0][0]
        part, everywhere = Apart.among(view.parts), []
        of = part.of
        for helper in range(-1, len(of.slots)):  # each prefiller alone; -1 means none
            part.of = replace(of, kv_group=np.arange(len(of.slots)))
            part.kv_group_of = np.full(len(view.slots), helper)
            scorer.score(view)
            if helper >= 0 or rule == "by-cost":
                everywhere.append(view.terms.cost_s)
        assert found == pytest.approx(np.min(everywhere, axis=0), rel=1e-9)


@pytest.mark.parametrize("roles", [("prefill", "decode", "decode"), ("", "", "")])
def test_a_prompt_that_several_endpoints_prefill_counts_as_one_request_in_the_demand(roles):
    d = fleet(*zip((P, D, E), roles, strict=True), apart="always")
    first = ask(d)
    assert read_by(first) == (P if roles[0] else "")
    d.served_by(first, next(a for a in (D, E) if a != first.address), 0.1)  # Envoy's retry
    finish(d, first)
    again = ask(d, now=2.0)
    assert again.view.demand[1].max() <= 1.0

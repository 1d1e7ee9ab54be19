"""Explanations: the rows, the reasons and the sentence; no prompt is retained."""

import gc
import math
from dataclasses import replace

import numpy as np
import pytest

from laar.accuracy.assessment import Assessment, SpeedPrior
from laar.core.cost import CostWeights
from laar.core.decision import Completion, DirectorSettings
from laar.core.policy import Policy
from laar.explain.record import MAX_ROWS, shown
from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec
from laar.plugins.stored import StoredObjects
from laar.policies import build_policies
from laar.request import Api, Request
from laar.speeds.engines import Began
from laar.telemetry.decisions import DecisionMemory
from support.directors import director_of
from support.requests import request_of

ALIASES = {"auto": (), "few": ("slow",)}
SECRET = "an unmistakable secret "


class Known:
    """Assesses models by given values: P(correct), seconds per token, fixed seconds."""

    def __init__(self, **models):
        self.models = models

    def assess(self, request, models, tried, now):
        right, per_token, base = (
            np.array([self.models[m][i] for m in models], float) for i in range(3)
        )
        return Assessment(
            tokens=np.full(len(models), 62_000.0),
            probability=right,
            evidence=np.full(len(models), 40.0),
            seconds_per_token=per_token,
            base_s=base,
            cell=("ja", 65536, "generic"),
        )


def fleet(known, *endpoints, prefixes=None):
    made = director_of(
        *(
            EndpointSpec(address=address, models=(model,), labels=labels)
            for address, model, labels in ((*e, {})[:3] for e in endpoints)
        ),
        policies=build_policies(CostWeights()),
        aliases=ALIASES,
        assessor=known,
        prefixes=prefixes,
    )
    if isinstance(known, Known):
        made.engines.reassess(lambda model: SpeedPrior(answer_s=known.models.get(model, [0.0])[-1]))
    return made


def request(model="auto", **fields):
    text = SECRET * 20
    known = {"id": "r-1", "model": model, "chars": len(text), "retries": True}
    return request_of("\x1euser\x1f", text, **known | fields)


def record(director, asked=None, now=0.0):
    memory = DecisionMemory(director.table, wall_clock=lambda: 1000.0)
    return memory.record(director.decide(asked or request(), now))


def told(director, asked=None, now=0.0):
    return shown(record(director, asked, now), explained=True)


TWO = (("10.0.0.7:80", "granite"), ("10.0.0.8:80", "phi"))


def test_the_sentence_explains_that_a_faster_model_is_wrong_too_often():
    director = fleet(Known(granite=(0.9, 2e-5, 0.5), phi=(0.41, 1e-5, 0.5)), *TWO)
    # Attention nearly doubles the 1.24 and 0.62 s of 62k tokens:
    # granite (0.5 + 2 * 2.41) / 0.9 = 5.9; phi (0.5 + 2 * 1.21) / 0.41 = 7.1
    assert told(director)["sentence"] == (
        "granite at 10.0.0.7:80 won by 1.2 s: phi is faster (1.7 s against 2.9 s) but right with "
        "P=0.41 against 0.90 on 62k tokens of Japanese."
    )
    asked = request(retries=False, wrong_answer_s=60.0)  # shared with the one in flight
    assert (
        "P=0.41 against 0.90 on 62k tokens of Japanese, and a wrong answer costs 40 s."
        in (told(director, asked)["sentence"])
    )


def test_the_sentence_explains_why_a_faster_and_equally_accurate_rival_lost():
    director = fleet(Known(granite=(0.9, 2e-5, 5.5), phi=(0.9, 2e-5, 0.3)), *TWO)
    slot = director.table.slot("10.0.0.8:80")
    for _ in range(8):
        sent = Began(slot=slot, plain_s=0.53, prompt_s=0.53, others=0.0, rtt_s=0.0, shown=True)
        director.engines.began(sent, 0.0)
        director.table.reserve(slot, 1000, 1000)
    sentence = told(director)["sentence"]
    assert "phi is faster (7.0 s against 8.3 s) but costs other requests 25 s more." in sentence


def test_the_sentence_explains_that_time_decided_between_unmeasured_models():
    class Unknown(Known):
        def assess(self, request, models, tried, now):
            known = super().assess(request, models, tried, now)
            return replace(known, evidence=np.zeros(len(models)))

    times = {"granite": (0.5, 2e-5, 0.5), "phi": (0.5, 1e-5, 0.5)}
    said = told(fleet(Unknown(**times), *TWO))["sentence"]
    assert said.endswith(
        "No outcomes are known for these models, so time decided: short answers win."
    )
    assert "No outcome" not in told(fleet(Known(**times), *TWO))["sentence"]
    for row in told(fleet(Unknown(**times), *TWO))["candidates"]:
        assert row["probability"] is None
        paid = row["latency_s"] + row["ttft_s"] + row["others_s"]
        assert row["cost_s"] == pytest.approx(paid)
    retry = told(fleet(Unknown(**times), *TWO), request(tried="phi"))["sentence"]
    assert retry.endswith("phi was tried already.")


@pytest.mark.parametrize(
    ("phi", "queued", "words"),
    [
        ((0.99, 1e-4, 0.5), 0, "phi is more often right (P=0.99 against 0.90) but slower"),
        ((0.9, 1e-4, 0.5), 0, "phi is slower (13 s against 2.9 s; 62k tokens to prefill)."),
        ((0.9004, 1e-4, 0.5), 0, "phi is slower (13 s against 2.9 s; 62k tokens to prefill)."),
        ((0.9, 2e-5, 9.0), 0, "phi is slower (11 s against 2.9 s; its model takes longer"),
        ((0.5, 1e-4, 0.5), 0, "62k tokens to prefill), and right with P=0.50 against 0.90 on 62k"),
        ((0.9, 2e-5, 0.5), 90_000, "phi is slower (4.7 s against 2.9 s; 90k tokens are queued"),
    ],
)
def test_the_sentence_names_the_largest_difference(phi, queued, words):
    director = fleet(Known(granite=(0.9, 2e-5, 0.5), phi=phi), *TWO)
    slot = director.table.slot("10.0.0.8:80")
    if queued:
        work_s = queued * phi[1]
        sent = Began(slot=slot, plain_s=work_s, prompt_s=work_s, others=0.0, rtt_s=0.0, shown=True)
        director.engines.began(sent, 0.0)
        director.table.reserve(slot, queued, queued)
    sentence = told(director)["sentence"]
    assert sentence.startswith("granite at 10.0.0.7:80 won by ")
    assert words in sentence


def test_each_kind_of_decision_has_its_own_sentence():
    same = Known(granite=(0.9, 1e-5, 0.5), phi=(0.9, 1e-5, 0.5))
    tried = told(fleet(same, *TWO), request(tried="granite"))
    assert tried["sentence"].endswith("granite was tried already.")
    assert tried["candidates"][1]["penalty"] >= 100.0
    assert "won a tie" in told(fleet(same, *TWO))["sentence"]
    assert "only candidate" in told(fleet(same, *TWO), request("phi"))["sentence"]
    plain = told(fleet(same, *TWO), request(policy="least-loaded"))
    assert "won a draw: phi has the same score by least-loaded" in plain["sentence"].replace(
        "won a draw: granite", "won a draw: phi"
    )
    assert "cost_s" not in plain["candidates"][0]
    opaque = told(fleet(same, *TWO), Request(id="r", api=Api.OPAQUE))
    assert "drawn at random" in opaque["sentence"]
    assert len(opaque["candidates"]) == 1


def test_a_candidate_that_cannot_take_the_prompt_gives_the_reason():
    director = fleet(Known(granite=(0.9, 2e-5, 0.5), phi=(0.99, 1e-5, 0.5)), *TWO)
    short = EndpointSpec(address="10.0.0.8:80", models=("phi",), max_model_len=32_768)
    long = EndpointSpec(address="10.0.0.7:80", models=("granite",))
    director.table.replace("t", [long, short])
    shown = told(director)
    assert shown["sentence"] == (
        "granite at 10.0.0.7:80 was the only candidate left: phi takes no more than 33k tokens."
    )
    assert [row.get("why") for row in shown["candidates"]] == [
        None,
        "takes no more than 33k tokens",
    ]


def test_a_failed_part_is_reported():
    director = fleet(Known(), *TWO)  # knows neither model, so it raises an error
    assert "could not be used" in told(director)["sentence"]


def test_rows_are_sorted_by_rank_and_their_terms_add_up():
    director = fleet(
        Known(granite=(0.9, 2e-5, 0.5), phi=(0.41, 1e-5, 0.4), slow=(0.8, 1e-4, 1.0)),
        *TWO,
        ("10.0.0.9:80", "slow"),
    )
    director.table.round_trip("10.0.0.9:80", 0.2, 0.0)
    rows = told(director)["candidates"]
    assert [row["rank"] for row in rows] == [1, 2, 3]
    costs = [row["cost_s"] for row in rows]
    assert costs == sorted(costs)
    for row in rows:
        latency = row["rtt_s"] + row["base_s"] + row["prefill_s"] + row["queue_s"]
        assert row["latency_s"] == pytest.approx(latency)
        paid = latency + row["ttft_s"] + row["others_s"]  # the time to the first token counts twice
        assert row["cost_s"] == pytest.approx(paid / row["probability"] * row["penalty"])


def test_every_excluded_endpoint_has_a_reason():
    known = Known(**dict.fromkeys(("a", "slow"), (0.9, 1e-5, 0.5)))
    labels = {"laar.dev/pool": "p"}
    names = ("ok", "far", "full", "deep", "out", "asleep", "down")
    director = fleet(
        known,
        *((f"10.0.0.{i}:80", "a", labels) for i in range(len(names))),
        ("10.0.0.8:80", "slow", labels),
        ("10.0.0.9:80", "a"),
    )
    table = director.table
    table.failures[table.slot("10.0.0.1:80")] = 3
    table.round_trip("10.0.0.6:80", math.inf, 0.0)
    table.read("10.0.0.2:80", Reading(kv_usage=0.99), 0.0)
    table.read("10.0.0.3:80", Reading(waiting=500.0), 0.0)
    table.read("10.0.0.5:80", Reading(asleep=1.0), 0.0)
    subset = frozenset(f"10.0.0.{i}" for i in (0, 1, 2, 3, 5, 6, 8, 9))
    shown = told(director, request("a", subset=subset, pool="p"))
    assert [row["endpoint"] for row in shown["candidates"]] == ["10.0.0.0:80"]
    assert {row["endpoint"]: row["why"] for row in shown["filtered"]} == {
        "10.0.0.1:80": "unreachable: 3 probes failed in a row",
        "10.0.0.2:80": "saturated: 99% of its KV cache is in use",
        "10.0.0.3:80": "saturated: 500 requests are waiting in its engine",
        "10.0.0.4:80": "outside the gateway's subset",
        "10.0.0.5:80": "asleep: its engine is waiting to be woken",
        "10.0.0.6:80": "unreachable: it refuses connections",
        "10.0.0.8:80": "does not serve a",
        "10.0.0.9:80": "not in the pool p",
    }
    few = told(director, request("few"))
    assert {row["why"] for row in few["filtered"]} == {"does not serve few"}


def test_a_failing_endpoint_is_found_in_a_fleet_of_many_other_models():
    others = [f"m{i}" for i in range(2 * MAX_ROWS)]
    known = Known(**dict.fromkeys(("a", *others), (0.9, 1e-05, 0.5)))
    endpoints = [(f"10.0.1.{i}:80", name) for i, name in enumerate(others)]
    director = fleet(known, *endpoints, ("10.0.0.1:80", "a"), ("10.0.0.2:80", "a"))
    director.table.round_trip("10.0.0.2:80", math.inf, 0.0)
    first, *rest = told(director, request("a"))["filtered"]
    assert (first["endpoint"], first["why"]) == (
        "10.0.0.2:80",
        "unreachable: it refuses connections",
    )
    assert {row["why"] for row in rest} == {"does not serve a"}


def test_an_engine_for_another_task_is_excluded_for_that_reason():
    known = Known(**dict.fromkeys(("a", "e"), (0.9, 1e-5, 0.5)))
    embeds, embedding = {"laar.dev/task": "embed"}, replace(request(), api=Api.EMBEDDINGS)
    director = fleet(known, ("10.0.0.1:80", "a"), ("10.0.0.2:80", "e", embeds))
    director.table.read("10.0.0.2:80", Reading(waiting=500.0), 0.0)
    [row] = told(director, request("auto"))["filtered"]
    assert row["why"] == "generates no text"
    [row] = told(director, embedding)["filtered"]
    assert row["why"] == "generates text, but the request needs none"
    only = fleet(known, ("10.0.0.1:80", "a"), ("10.0.0.3:80", "a"))
    only.table.read("10.0.0.3:80", Reading(waiting=500.0), 0.0)
    [row] = told(only, embedding)["filtered"]
    assert row["why"].startswith("saturated")


def test_a_continuation_stays_at_the_endpoint_that_stores_the_answer():
    director = fleet(Known(granite=(0.9, 1e-5, 0), phi=(0.9, 1e-5, 0)), *TWO)
    director.plugins.get(StoredObjects).note("resp-1", "10.0.0.8:80", "")
    [row] = told(director, request(response_id="resp-1"))["filtered"]
    assert (row["endpoint"], row["why"]) == (
        "10.0.0.7:80",
        "does not store the answer that the request continues",
    )


def test_records_and_logs_keep_the_order_of_their_fields():
    """Users sort and select by these names."""
    director = fleet(Known(granite=(0.9, 2e-5, 0.5), phi=(0.41, 1e-5, 0.5)), *TWO)
    kept = record(director, request(tried="phi"))
    kept.end = Completion(status=200, cause="complete", latency_s=2.5, ttft_s=0.5, cached_tokens=9)
    line = shown(kept)
    assert " ".join(line) == (
        "id time request_id mode policy reason asked_model language bucket_tokens task "
        "body_bytes endpoint model candidates_total tried_models exhausted picked candidates "
        "completion"
    )
    assert " ".join(line["completion"]) == (
        "status cause served model latency_s ttft_s prompt_tokens completion_tokens cached_tokens "
        "failed"
    )
    beliefs = (
        "endpoint model region probability evidence tokens cached_tokens queued_tokens score rtt_s"
    )
    terms = "base_s prefill_s queue_s penalty latency_s answers cost_s ttft_s others_s"
    candidate = line["candidates"][line["picked"]]
    assert " ".join(candidate) == f"{beliefs} {terms}"
    read_s = 1.24 * (1.0 + 0.5 * 2.0 * 62_000 / 65_536)
    assert candidate["cost_s"] == pytest.approx((0.5 + 2.0 * read_s) / 0.9)
    plain = shown(record(director, request(policy="least-loaded")))
    assert " ".join(plain["candidates"][0]) == beliefs
    opaque = shown(record(director, Request(id="r", api=Api.OPAQUE)))
    assert " ".join(opaque["candidates"][0]) == "endpoint model region"


def test_data_parallel_ranks_are_told_apart():
    director = fleet(Known(granite=(0.9, 1e-5, 0.5)), TWO[0])
    director.table.ranked("10.0.0.7:80", 2)
    memory = DecisionMemory(director.table, wall_clock=lambda: 1000.0)
    made = memory.record(director.decide(request(), 0.0))
    made.end, made.served = Completion(status=200, cause="complete", latency_s=2.0), "10.0.0.7:80"
    told = shown(made, explained=True)
    picked, other = (row["endpoint"] for row in told["candidates"])
    assert {picked, other} == {"10.0.0.7:80#0", "10.0.0.7:80#1"}
    assert told["endpoint"] == told["completion"]["served"] == picked
    assert f"granite at {picked} won" in told["sentence"]
    assert other in told["sentence"]


def test_nothing_retained_contains_the_prompt():
    director = fleet(Known(granite=(0.9, 2e-5, 0.5), phi=(0.41, 1e-5, 0.5)), *TWO)
    memory = DecisionMemory(director.table, wall_clock=lambda: 0.0)
    director.watch(memory.decided, memory.settled)
    decision = director.decide(request(), 0.0)
    director.settle(decision, Completion(status=200, cause="complete", latency_s=1.0))
    kept = memory.get(decision.id)
    seen, todo = set(), [kept]
    while todo:  # all objects that the record keeps alive, except types and modules
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type) or callable(thing):
            continue
        seen.add(id(thing))
        assert not (isinstance(thing, str) and SECRET in thing)
        if thing is not kept.decision.view.table:
            todo += [t for t in gc.get_referents(thing) if not isinstance(t, type(gc))]
    assert SECRET not in str(shown(kept, explained=True))


def test_an_explanation_reserves_nothing_and_agrees_with_the_decision():
    director = fleet(Known(granite=(0.9, 2e-5, 0.5), phi=(0.41, 1e-5, 0.5)), *TWO)
    would = director.choose(request(), 0.0)
    assert not director.table.in_flight.any()
    assert not director.table.queued_tokens.any()
    assert would.id == ""
    did = director.decide(request(), 0.0)
    assert did.address == would.address
    assert did.view.terms.cost_s.tolist() == would.view.terms.cost_s.tolist()
    assert director.table.in_flight.sum() == 1


class Only:
    """Keeps the given endpoints, but scores all of them."""

    def __init__(self, *addresses):
        self.addresses = addresses

    def keep(self, view):
        return np.isin([view.table.spec(int(s)).address for s in view.slots], self.addresses)

    def score(self, view):
        return np.linspace(1.0, 0.5, len(view.slots))


@pytest.mark.parametrize(
    ("kept", "tried", "room", "picked", "reasons"),
    [
        (("c:80",), "", (1, 1, 1), "c:80", {"a:80": "policy", "b:80": "policy"}),
        (("c:80",), "", (1, 1, 0), "a:80", {"c:80": "room"}),
        ((), "", (1, 1, 1), "a:80", {}),
        (("a:80",), "ma", (1, 1, 1), "b:80", {"a:80": "tried"}),
        (("a:80", "c:80"), "ma", (1, 1, 1), "c:80", {"a:80": "tried", "b:80": "policy"}),
        (("a:80",), "ma", (1, 0, 0), "a:80", {"b:80": "room", "c:80": "room"}),
    ],
    ids=["filter", "room-first", "never-none", "retry-first", "both", "room-beats-the-retry-rule"],
)
def test_each_excluded_candidate_names_the_cause(kept, tried, room, picked, reasons):
    known = Known(ma=(0.9, 1e-5, 0), mb=(0.9, 1e-5, 0), mc=(0.9, 1e-5, 0))
    director = fleet(known, ("a:80", "ma"), ("b:80", "mb"), ("c:80", "mc"))
    only = Only(*kept)
    policy = Policy(name="only", scorers=[(only, 1.0)], filters=[only])
    director.use(DirectorSettings(policy="only", retries="new-model"), {"only": policy})
    decision = director.decide(request(tried=tried), 0.0, lambda _view: np.array(room, bool))
    assert decision.address == picked
    memory = DecisionMemory(director.table, wall_clock=lambda: 0.0)
    shown = memory.explained(memory.record(decision))
    words = {
        "policy": "was left out by a filter of only",
        "room": "has no room",
        "tried": "was tried already",
    }
    rows = {row["endpoint"]: row for row in shown["candidates"]}
    assert {a: row["why"] for a, row in rows.items() if "why" in row} == {
        address: words[cause] for address, cause in reasons.items()
    }
    assert {a for a, row in rows.items() if row["score"] < 0} == set(reasons)
    rival = shown["candidates"][1]
    if "why" in rival:
        assert rival["why"] in shown["sentence"]


@pytest.mark.parametrize(
    ("picker", "scores", "words"),
    [
        (None, (0.5, 0.2), "won by the score of p: 0.5 against 0.2 for mb"),
        (None, (0.5, 0.5), "won a draw: "),
        ("last", (0.5, 0.2), "mb at b:80 was drawn by the picker of p, with a score of 0.2 agai"),
    ],
)
def test_a_tie_or_a_random_pick_is_not_reported_as_a_win(picker, scores, words):
    class Fixed:
        def score(self, view):
            return np.array(scores)

        def order(self, scores, view):
            return [1, 0]

    known = Known(ma=(0.9, 1e-5, 0), mb=(0.9, 1e-5, 0))
    director = fleet(known, ("a:80", "ma"), ("b:80", "mb"))
    fixed = Fixed()
    policy = Policy(name="p", scorers=[(fixed, 1.0)], picker=fixed if picker else None)
    director.use(DirectorSettings(policy="p"), {"p": policy})
    assert words in told(director)["sentence"]

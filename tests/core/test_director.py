"""The director: candidates, reservations, and decisions when a part fails."""

import math

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.accuracy.assessment import PlainAssessor
from laar.core.decision import Completion, DirectorSettings
from laar.core.policy import Policy
from laar.errors import RequestError
from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec, Served
from laar.policies import POLICY_NAMES
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.found import FoundShares
from laar.protocol.openai import read_body
from laar.request import Api, Request
from support.directors import director_of
from support.exploring import examples
from support.requests import request_of

OK = Completion(status=200, cause="complete", latency_s=1.0)
FAILED = Completion(status=503, cause="complete", latency_s=1.0)


def director(*endpoints, **given):
    specs = (EndpointSpec(address=address, models=tuple(names)) for address, *names in endpoints)
    return director_of(*specs, seed=7, **given)


def request(model="auto", text="hello " * 50, **fields):
    return request_of("\x1euser\x1f", text, model=model, chars=len(text), **fields)


def expected_ttft_s(decision):
    return decision.view.terms.ttft_s[decision.position]


FLEET = (("10.0.0.1:80", "m1", "shared"), ("10.0.0.2:80", "m2", "shared"), ("[::1]:80", "m3"))


def test_a_reservation_is_released_in_full_after_settings_changed():
    d = director(*FLEET)
    text = "hello " * 2000
    moved, before = d.decide(request(text=text), 0.0), d.decide(request(text=text), 0.0)
    d.use(DirectorSettings(policy="random"), d.chooser.policies)
    after = d.decide(request(text=text), 0.0)
    assert after.policy == "random"
    d.served_by(moved, next(a for a, *_ in FLEET if a != moved.address), 0.0)
    for decision in (before, moved, after):
        d.settle(decision, OK)
    assert d.table.queued_tokens == pytest.approx(0.0)
    assert not d.table.in_flight.any()


ASKED = {  # how clients ask for several answers
    "n": lambda count: (Api.CHAT, {"messages": [{"content": "TEXT"}], "n": count}),
    "best_of": lambda count: (Api.COMPLETIONS, {"prompt": "TEXT", "best_of": count}),
    "prompts": lambda count: (Api.COMPLETIONS, {"prompt": ["TEXT"] * count}),
    "token ids": lambda count: (Api.COMPLETIONS, {"prompt": [[1, 2, 3]] * count}),
    "params": lambda count: (Api.OTHER, {"text": "TEXT", "sampling_params": {"n": count}}),
}


@given(
    st.lists(
        st.tuples(st.sampled_from([*ASKED]), st.sampled_from([1, 1, 1, 2, 8, 30])),
        min_size=12,
        max_size=40,
    )
)
@settings(max_examples=examples(30), deadline=None)
def test_equal_endpoints_get_equally_many_answers_to_write(asked):
    d = director(*((f"10.0.0.{number}:80", "m") for number in range(3)))
    writing = dict.fromkeys((f"10.0.0.{number}:80" for number in range(3)), 0)
    decisions = []
    for number, (how, count) in enumerate(asked):
        api, document = ASKED[how](count)
        body = orjson.dumps({"model": "m", "max_tokens": 9, **document})
        read = read_body(api, body.replace(b"TEXT", b"%d unlike all others" % number))
        least = min(writing.values())
        decisions.append(d.decide(read, 0.0))
        assert writing[decisions[-1].address] <= 1.5 * least + 4
        writing[decisions[-1].address] += count
    for decision in decisions:
        d.settle(decision, OK)
    assert not d.table.in_flight.any()


def test_aliases_and_filters_change_with_the_settings():
    d = director(*FLEET)
    d.table.read("10.0.0.1:80", Reading(waiting=9.0), 0.0)
    few = DirectorSettings(aliases={"few": ("m1", "m2")}, max_waiting=3)
    assert "10.0.0.1:80" in {d.decide(request("shared"), 0.0).address for _ in range(20)}
    d.use(few, d.chooser.policies)
    assert {d.decide(request("few"), 0.0).address for _ in range(20)} == {"10.0.0.2:80"}
    with pytest.raises(RequestError, match="does not exist"):
        d.decide(request("auto"), 0.0)


def test_an_unserved_model_gets_a_404_that_echoes_at_most_200_characters():
    with pytest.raises(RequestError) as refused:
        director(*FLEET).decide(request("x" * 5000), 0.0)
    assert refused.value.status == 404
    assert len(str(refused.value)) < 300


def test_the_body_is_rewritten_only_if_the_endpoint_lacks_the_name():
    d = director(("10.0.0.1:80", "m1", "auto"))
    assert d.decide(request("auto"), 0.0).rewrite is None
    d = director(("10.0.0.1:80", "m1"))
    assert d.decide(request("auto"), 0.0).rewrite == "m1"


@pytest.mark.parametrize("subset", [set(), {"10.0.0.2:81"}, {"9.9.9.9"}])
def test_a_subset_without_a_known_endpoint_gets_a_503(subset):
    with pytest.raises(RequestError) as refused:
        director(*FLEET).decide(request(subset=frozenset(subset)), 0.0)
    assert (refused.value.status, refused.value.reason) == (503, "no-candidates")


def test_a_burst_is_spread_since_each_decision_counts_immediately():
    d = director(("a:1", "m"), ("b:1", "m"), ("c:1", "m"), ("d:1", "m"))
    for i in range(100):
        d.decide(request(text=f"{i} " + "x" * 1000), 0.0)
    assert d.table.in_flight[d.table.active].tolist() == [25.0] * 4


def test_a_retry_gets_an_untried_model_until_all_are_tried():
    d = director(*FLEET)
    tried, models = "", []
    for _ in range(3):
        decision = d.decide(request(tried=tried), 0.0)
        models.append(decision.model)
        tried = ",".join(decision.tried)
    assert sorted(models) == ["m1", "m2", "m3"]
    assert decision.exhausted


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_decides_for_a_fleet_without_any_readings(policy):
    d = director(*FLEET)
    decision = d.decide(request(policy=policy), 0.0)
    assert decision.policy == policy
    assert decision.reason == policy
    assert decision.address in {address for address, *_ in FLEET}


def test_the_reason_of_a_scorer_is_used_only_for_its_own_first_choice():
    class First:
        def score(self, view):
            view.reason = "first-in-the-list"
            return 1.0 / (1.0 + np.arange(len(view.slots)))

    policies = {"first": Policy(name="first", scorers=[(First(), 1.0)])}
    d = director(*FLEET, policies=policies, policy="first")
    held = d.decide(request(), 0.0)
    assert held.reason == "first-in-the-list"
    full = d.decide(request(), 0.0, lambda view: view.slots != held.slot)
    assert full.slot != held.slot
    assert full.reason == "first"


def test_saturated_endpoints_are_skipped_unless_all_are():
    d = director(("a:1", "m"), ("b:1", "m"))
    d.table.read("a:1", Reading(waiting=500.0, kv_usage=0.5), 100.0)
    d.table.read("b:1", Reading(waiting=0.0, kv_usage=0.5), 100.0)
    assert {d.decide(request(text="x"), 101.0).address for _ in range(20)} == {"b:1"}
    d.table.read("b:1", Reading(waiting=0.0, kv_usage=1.0), 100.0)
    assert {d.decide(request(text="x"), 101.0).address for _ in range(60)} == {"a:1", "b:1"}


@pytest.mark.parametrize("api", [Api.CHAT, Api.OPAQUE])
def test_an_engine_that_sleeps_gets_no_requests(api):
    d = director(("a:1", "m"), ("b:1", "m"))
    d.table.read("a:1", Reading(asleep=1.0), 100.0)
    d.table.read("b:1", Reading(waiting=500.0), 100.0)
    assert {d.decide(request(text="x", api=api), 101.0).address for _ in range(20)} == {"b:1"}
    assert d.decide(request(text="x", api=api), 101.0).fallbacks == ()
    d.table.read("b:1", Reading(asleep=1.0), 102.0)
    with pytest.raises(RequestError) as refused:
        d.decide(request(text="x"), 103.0)
    assert (refused.value.status, refused.value.reason) == (503, "asleep")
    d.table.read("a:1", Reading(), 104.0)
    assert {d.decide(request(text="x"), 105.0).address for _ in range(20)} == {"a:1"}


def test_an_unreachable_endpoint_is_skipped_unless_all_are():
    d = director(("a:1", "m"), ("b:1", "m"))
    for _ in range(3):
        d.table.round_trip("a:1", None, 0.0)
    assert {d.decide(request(), 0.0).address for _ in range(10)} == {"b:1"}
    for _ in range(3):
        d.table.round_trip("b:1", None, 0.0)
    assert d.decide(request(), 0.0)


def test_an_endpoint_that_refuses_connections_gets_no_requests():
    d = director(("down:1", "m"), ("up:1", "m"))
    d.table.round_trip("up:1", None, 0.0)  # one late answer shows only that the engine is busy
    for now in (0.1, 60.0):
        d.table.round_trip("down:1", math.inf, now)
        assert {d.decide(request(), now).address for _ in range(20)} == {"up:1"}
    d.table.round_trip("up:1", math.inf, 60.0)
    assert d.decide(request(), 60.0)


def test_an_endpoint_that_was_down_returns_with_its_first_metrics_page():
    d = director(("a:1", "m"), ("b:1", "m"))
    elsewhere = EndpointSpec(address="c:1", models=("m",), metrics_url="http://c:9/metrics")
    d.table.replace("more", [elsewhere])
    for address in ("a:1", "c:1"):
        d.table.round_trip(address, math.inf, 0.0)
        d.table.read(address, Reading(), 1.0)  # another process serves the page of c
    assert {d.decide(request(text="x"), 1.0).address for _ in range(60)} == {"a:1", "b:1"}


def test_the_metrics_page_of_a_dead_engine_does_not_bring_it_back():
    """A dead vLLM still serves its page, but answers /health with 503."""
    d = director(("a:1", "m"), ("b:1", "m"))
    for now in range(3):
        d.table.round_trip("a:1", None, now)
        d.table.read("a:1", Reading(), now)
    assert {d.decide(request(), 3.0).address for _ in range(10)} == {"b:1"}


def served(answer_s, count):
    """Return the models that get a new fleet's requests, in order."""
    d = director(*((f"{model}:1", model) for model in answer_s))
    models = []
    for number in range(count):
        decision = d.decide(request(text=f"{number} " * 50), 10.0 * number)
        models.append(decision.model)
        d.answering(decision, 10.0 * number)
        seconds = answer_s[decision.model]
        end = Completion(
            status=200, cause="complete", latency_s=seconds, ttft_s=0.003, completion_tokens=9
        )
        d.settle(decision, end)
    return models


@pytest.mark.parametrize("answer_s", [(0.03, 0.3), (0.03, 0.01), (0.3, 3.0), (3.0, 0.5)])
def test_every_model_is_tried_and_then_the_fastest_gets_the_requests(answer_s):
    first = served(dict.fromkeys("ab", 1.0), 1)[0]
    second = "b" if first == "a" else "a"
    models = served({first: answer_s[0], second: answer_s[1]}, 20)
    assert set(models) == {"a", "b"}
    fastest = first if answer_s[0] < answer_s[1] else second
    assert set(models[8:]) == {fastest}


class Broken(PlainAssessor):
    """Fails in every method."""

    def assess(self, *_):
        raise ZeroDivisionError

    def look_up(self, *_):
        raise KeyError

    insert = retract = settle = drop = look_up
    found, shown = FoundShares(), FoundShares()

    def make_room(self, _):
        """Allow a table to grow."""

    def score(self, _):
        raise ValueError


class NotFinite:
    """A scorer that returns invalid scores without an exception."""

    def score(self, view):
        return np.full(len(view.slots), np.nan)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"assessor": Broken()}, "degraded-assessor"),
        ({"prefixes": Broken()}, "degraded-prefixes"),
        ({"policies": {"laar": Policy(name="laar", scorers=[(Broken(), 1)])}}, "degraded-scorer"),
        (
            {"policies": {"laar": Policy(name="laar", scorers=[(NotFinite(), 1)])}},
            "degraded-scorer",
        ),
    ],
)
def test_a_failing_part_degrades_the_decision_with_a_reason(parts, reason):
    d = director(*FLEET, **parts)
    decision = d.decide(request(), 0.0)
    assert decision.reason == reason
    assert d.degraded[reason.removeprefix("degraded-")] >= 1
    d.settle(decision, OK)
    assert not d.table.in_flight.any()


def test_a_failing_observer_costs_no_decision():
    d, seen = director(*FLEET), []
    d.watch(lambda _decision: 1 / 0, lambda *_: 1 / 0)
    d.watch(seen.append, lambda *end: seen.append(end))
    decision = d.decide(request(), 0.0)
    assert d.table.in_flight.sum() == 1
    d.settle(decision, OK)
    assert not d.table.in_flight.any()
    assert d.degraded["watching"] == 2
    assert seen == [decision, (decision, OK)]


def test_a_prompt_returns_to_its_cached_prefix_unless_its_request_failed():
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
    d = director(("a:1", "m"), ("b:1", "m"), ("c:1", "m"), prefixes=beliefs)
    text = "the same long beginning " * 400
    first = d.decide(request(text=text), 0.0)
    d.settle(first, OK)
    again = [d.decide(request(text=text + f" turn {i}"), 0.0) for i in range(3)]
    assert again[0].address == first.address
    assert again[0].uncached_tokens < 0.1 * again[0].tokens
    for decision in again:
        d.settle(decision, OK)
    other = d.decide(request(text="other " * 2000), 0.0)
    d.settle(other, FAILED)
    retried = d.decide(request(text="other " * 2000), 0.0)
    assert retried.uncached_tokens == retried.tokens


def test_an_opaque_request_goes_to_any_endpoint_and_is_counted():
    d = director(*FLEET)
    opaque = Request(id="r", api=Api.OPAQUE)
    decisions = [d.decide(opaque, 0.0) for _ in range(60)]
    assert {x.address for x in decisions} == {address for address, *_ in FLEET}
    for decision in decisions:
        d.settle(decision, OK)
    assert not d.table.in_flight.any()


def test_a_scoring_request_avoids_busy_endpoints():
    d = director(*FLEET)
    opaque = Request(id="r", api=Api.OPAQUE, encodes=True)
    for at, (address, *_) in enumerate(FLEET):
        d.table.read(address, Reading(waiting=5.0 * (at != 1), running=1.0), 0.0)
    for _ in range(20):
        decision = d.decide(opaque, 0.0)
        assert decision.address == FLEET[1][0]
        d.settle(decision, OK)
    held = [d.decide(opaque, 0.0).address for _ in range(30)]  # their number in flight counts, too
    assert {address: held.count(address) for address in held}.keys() == {a for a, *_ in FLEET}


def with_names(*endpoints, **served):
    d = director(*endpoints, prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 20))
    for address, *_ in endpoints:
        d.table.served({address: Served(**served)})
    return d


BASE_AND_ADAPTER = {"weights": {"m": "org/m", "alias": "org/m"}, "adapters": {"lora": "m"}}


def believed(d, model):
    decision = d.choose(request(model, text="hello " * 2000), 0.0)
    return 1.0 - decision.uncached_tokens / decision.tokens


def test_an_adapter_loaded_at_runtime_shares_no_prefix_with_its_base():
    d = with_names(("a:1", "m", "alias"), **BASE_AND_ADAPTER)
    d.settle(d.decide(request("m", text="hello " * 2000), 0.0), OK)
    assert believed(d, "alias") == believed(d, "auto") == believed(d, "m") > 0.9
    assert believed(d, "lora") == 0.0
    decision = d.decide(request("lora", text="hello " * 2000), 0.0)
    assert (decision.model, decision.rewrite) == ("m", None)
    d.settle(decision, OK)
    assert believed(d, "lora") > 0.9


def test_the_name_of_an_unloaded_adapter_is_removed():
    d = with_names(("a:1", "m"), ("b:1", "m"), **BASE_AND_ADAPTER)
    d.table.served({"a:1": Served(weights={"m": "org/m"})})
    assert {d.decide(request("lora"), 0.0).address for _ in range(10)} == {"b:1"}
    d.table.served({"b:1": Served()})
    with pytest.raises(RequestError, match="no endpoint at the moment"):
        d.decide(request("lora"), 0.0)


@pytest.mark.parametrize("name", ["big", "auto", "m"])
def test_an_endpoint_cannot_claim_the_name_of_another_model(name):
    d = with_names(("big:1", "big"), ("a:1", "m"), adapters={name: "m"}, weights={"m": ""})
    decisions = [d.decide(request("big"), 0.0) for _ in range(10)]
    assert {x.address for x in decisions} == {"big:1"}
    assert d.decide(request("auto", text="x"), 0.0).rewrite in ("big", "m")


@pytest.mark.parametrize("said", ["label", "served"])
def test_auto_stands_for_the_engines_that_support_the_kind_of_request(said):
    d = director(("gen:1", "m"), ("emb:1", "e"))
    if said == "served":
        d.table.served({"emb:1": Served(generates=False)})
    else:
        labels = {"laar.dev/task": "embed"}
        emb = EndpointSpec(address="emb:1", models=("e",), labels=labels)
        d.table.replace("t", [EndpointSpec(address="gen:1", models=("m",)), emb])
    for model in ("auto", ""):
        assert {d.decide(request(model), 0.0).address for _ in range(20)} == {"gen:1"}
    # If a client names a model, the engine decides whether it supports the request.
    assert d.decide(request("e"), 0.0).address == "emb:1"
    embed = Request(id="r", api=Api.EMBEDDINGS, model="auto", spans=("x",), chars=1)
    assert {d.decide(embed, 0.0).address for _ in range(20)} == {"emb:1"}


def test_the_clients_priority_is_kept_without_an_objective():
    d = director(("a:1", "m"))
    d.table.replace("t", [EndpointSpec(address="a:1", models=("m",), priority_field=True)])
    assert d.decide(request(), 0.0).engine_priority is None
    assert d.decide(request(objective="urgent", priority=3), 0.0).engine_priority == -3


def test_a_prompt_is_believed_cached_where_envoy_sent_it_even_if_that_endpoint_is_new():
    d = director(("a:1", "m"), prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 20))
    text = "a long beginning " * 400
    decision = d.decide(request(text=text), 0.0)
    names = [f"b{n}:1" for n in range(d.table.capacity)]
    d.table.replace("test", [EndpointSpec(address=name, models=("m",)) for name in ("a:1", *names)])
    d.served_by(decision, names[-1], 0.1)
    d.settle(decision, OK)
    view = d.choose(request(text=text), 1.0).view
    [at] = np.flatnonzero(view.slots == d.table.slot(names[-1]))
    assert view.cached_tokens[at] > 0.9 * view.tokens[at]


def test_an_idle_endpoint_does_not_look_busy_if_answers_are_not_streamed():
    """The engine prefills long prompts in a tenth of the time that an uncalibrated laar assumes."""
    d, now = director(*FLEET), 0.0
    for _ in range(200):
        decision = d.decide(request(text="word " * 40_000, first_token_seen=False), now)
        now += 0.5
        d.settle(decision, Completion(status=200, cause="complete", latency_s=0.5))
    assert expected_ttft_s(d.choose(request(first_token_seen=False), now)) < 1.0


def test_the_time_to_the_first_token_is_learned_only_from_streamed_answers():
    """The first byte of an answer that is not streamed comes after its last token."""
    for streamed in (False, True):
        d = director(*FLEET)
        for now in range(50):
            decision = d.decide(request("m1", first_token_seen=streamed), float(now))
            end = Completion(status=200, cause="complete", latency_s=0.9, ttft_s=0.8)
            d.settle(decision, end)
        assert set(d.engines.seen()) == ({"m1"} if streamed else set())
        ttft_s = expected_ttft_s(d.choose(request("m1"), 60.0))
        assert (ttft_s > 0.4) == streamed


@pytest.mark.parametrize("chars", [16_384, 16_500])
def test_an_engine_that_caches_nothing_does_not_make_short_prompts_look_slow(chars):
    """A repeated prompt, believed cached, takes a second; if its length is 16 KiB, all of it is."""
    d = director(*FLEET, prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 20))
    long = request("m1", text="x" * (chars - len("\x1euser\x1f")))
    for now in range(0, 300, 10):
        decision = d.decide(long, float(now))
        d.answering(decision, now + 1.0)
        end = Completion(
            status=200, cause="complete", latency_s=2.0, ttft_s=1.0,
            prompt_tokens=4096, cached_tokens=0,
        )  # fmt: skip
        d.settle(decision, end)
    assert expected_ttft_s(d.choose(request("m1", text="hello"), 400.0)) < 0.1


@pytest.mark.parametrize("fields", [{"shadow": True}, {}])
def test_a_request_that_another_endpoint_serves_is_counted_as_one_arrival(fields):
    there, moved = (director(("a:1", "m"), ("b:1", "m")) for _ in range(2))
    for at in range(100):
        asked = {"text": "word " * 9000, "first_token_seen": True}
        decision = there.decide(request(subset=("b:1",), **asked), at / 10)
        there.answering(decision, at / 10)
        there.settle(decision, Completion(status=200, cause="complete", latency_s=0.0))
        decision = moved.decide(request(subset=("a:1",), **asked, **fields), at / 10)
        moved.served_by(decision, "b:1", at / 10)
        moved.answering(decision, at / 10)
        moved.settle(decision, Completion(status=200, cause="complete", latency_s=0.0))
    expected, found = (d.choose(request(), 10.0).view.terms for d in (there, moved))
    assert found.latency_s.tolist() == pytest.approx(expected.latency_s.tolist())
    assert found.others_s.tolist() == pytest.approx(expected.others_s.tolist())


@pytest.mark.parametrize("preview", [False, True])
def test_round_robin_takes_the_endpoints_of_each_model_in_turn_despite_previews(preview):
    fleet = (("a:1", "m"), ("b:1", "m"), ("c:1", "n"), ("d:1", "n"))
    d = director(*fleet, policy="round-robin")
    chosen = []
    for _ in range(4):
        for model in "mn":
            if preview:
                d.choose(request("m"), 0.0)
            chosen.append(d.decide(request(model), 0.0).address)
    assert chosen == ["a:1", "c:1", "b:1", "d:1"] * 2

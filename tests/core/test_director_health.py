"""Health in the director: candidates, trials, and which endpoint failed if Envoy retried."""

import random
from dataclasses import replace

import pytest

from laar.core.decision import Completion, DirectorSettings
from laar.fleet.membership import ROLE_LABEL, EndpointSpec
from laar.health import DULL, GOOD, USELESS, Health, HealthSettings, Kind, Reply, Word, standing_of
from laar.plugins.apart import PrefillApart
from laar.prefix.beliefs import PrefixBeliefs
from laar.request import Api, Request
from laar.telemetry.decisions import DecisionMemory
from support.directors import director_of
from support.requests import request_of

A, B, C = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"


def fleet(*addresses, probe=False, enabled=True, **given):
    health = Health(HealthSettings(probe=probe, enabled=enabled), rng=random.Random(4))
    return director_of(*addresses, seed=3, health=health, **given)


def request(api=Api.CHAT, **fields):
    return request_of("hello " * 50, api=api, **fields)


def end(status=200, cause="complete", latency_s=0.2):
    return Completion(status=status, cause=cause, latency_s=latency_s)


def fail(director, address, now, times=3):
    """Let an endpoint refuse `times` requests."""
    slot = director.table.slot(address)
    for _ in range(times):
        attempt = director.health.sent(
            slot, "m", stream=False, predicted_s=0.1, tokens=10.0, now=now
        )
        director.health.replied(attempt, Reply(status=503), now)
        director.health.ended(attempt, 503, "complete", now)
    return now


def test_a_model_that_stays_down_is_not_waited_for():
    """A client that waited for it would only get the other model's answer again and again."""
    d = fleet(A, probe=True)
    d.table.replace("more", [EndpointSpec(address=B, models=("other",))])
    slot = d.table.slot(B)

    def chosen(now):
        decision = d.choose(replace(request(), model="auto"), now)
        return decision.model, decision.exhausted

    assert not chosen(10.0)[1]
    for _ in range(6):
        d.health.passed_over(slot, 10.5)
    assert chosen(10.6) == ("m", False)  # the other model may be back in a second
    assert d.health.questions.due(13.0, 9) == [slot]
    d.health.questions.answered(slot, None, 13.0, Kind.STATUS)
    assert chosen(13.1) == ("m", True)
    d.health.heard(slot, "other", Word("back", Kind.STATUS, 0.0), 14.0)
    assert not chosen(14.1)[1]
    for _ in range(3):
        d.table.round_trip(B, None, 15.0)
    assert chosen(16.0) == ("m", True)  # an unreachable model is not waited for either


def test_a_trial_is_a_single_request_with_fallbacks_and_its_own_reason():
    d = fleet(A, B, C)
    now = fail(d, A, 1.0)
    assert {d.decide(request(), now).address for _ in range(20)} == {B, C}
    due = now + 1.3
    for _ in range(3):  # a preview does not start a trial
        assert d.choose(request(), due).reason == "trial"
    first = d.decide(request(), due)
    assert (first.address, first.reason, first.trial) == (A, "trial", True)
    assert set(first.fallbacks) == {B, C}
    assert first.flight.read
    others = [d.decide(request(), due + 0.01) for _ in range(20)]
    assert {o.address for o in others} == {B, C}
    assert {o.reason for o in others} == {"laar"}
    d.replied(first, Reply(status=200), due + 0.1, read=True)
    assert d.health.records.endpoints[
        first.slot
    ].breaker.is_out  # while the body is read, the status alone proves nothing
    d.replied(first, Reply(status=200, found=GOOD), due + 0.2, read=True)
    assert not d.health.records.endpoints[first.slot].breaker.is_out
    d.settle(first, end())


@pytest.mark.parametrize("how", ["disconnect", 400])
def test_a_trial_that_proves_nothing_is_repeated_soon(how):
    d = fleet(A, B)
    now = fail(d, A, 1.0) + 1.3
    trial = d.decide(request(), now)
    assert trial.trial
    if how == "disconnect":
        d.settle(trial, end(None, "disconnect", 0.1))
    else:
        d.replied(trial, Reply(status=400), now + 0.1)
        d.settle(trial, end(400))
    assert d.decide(request(), now + 0.2).address == B
    again = d.decide(request(), now + 0.9)
    assert (again.address, again.trial) == (A, True)


def test_shadow_and_opaque_requests_are_not_used_as_trials():
    d = fleet(A, B)
    now = fail(d, A, 1.0) + 1.3
    assert d.decide(request(shadow=True), now).address == B
    assert d.decide(request(api=Api.OPAQUE), now).address == B
    assert d.decide(request(), now).trial


def test_after_retries_by_envoy_the_endpoints_tried_before_count_as_failed():
    d = fleet(A, B, C)
    decision = d.decide(request(), 1.0)
    picked, first, second = decision.address, *decision.fallbacks
    d.served_by(decision, second, 1.5)
    d.replied(decision, Reply(status=200), 1.5)
    d.settle(decision, end())
    assert decision.flight.failed == (picked, first)
    failures = {
        a: d.health.records.endpoints[d.table.slot(a)].failures for a in (picked, first, second)
    }
    assert failures == {picked: {Kind.RETRIED: 1}, first: {Kind.RETRIED: 1}, second: {}}
    assert d.health.answers(d.table.slot(picked), 1.5) < d.health.answers(d.table.slot(second), 1.5)
    assert not d.table.in_flight.any()


def test_a_retried_trial_has_failed_even_if_its_endpoint_was_removed():
    """It may return immediately, while one of its earlier requests is still in flight."""
    d = fleet(A, B, C)
    slot, specs = d.table.slot(A), d.table.specs()
    while not d.table.in_flight[slot]:
        d.decide(request(), 0.5)
    now = fail(d, A, 1.0) + 1.3
    trial = d.decide(request(), now)
    assert (trial.address, trial.trial) == (A, True)
    d.table.replace("t", [spec for spec in specs if spec.address != A])
    d.attempted(trial, (A,), now + 0.1)
    d.served_by(trial, B, now + 0.1)
    d.replied(trial, Reply(status=200), now + 0.1)
    d.settle(trial, end())
    d.table.replace("t", specs)
    assert d.table.slot(A) == slot
    assert d.health.state(slot, now + 0.2) == "failing"
    assert d.health.records.endpoints[slot].failures[Kind.RETRIED] == 1
    assert d.decide(request(), now + 3.0).trial


def test_envoys_own_choice_does_not_count_against_the_picked_endpoint():
    d = fleet(A, B, C)
    d.use(DirectorSettings(fallbacks=0), d.chooser.policies)
    decision = d.decide(request(), 1.0)
    other = next(a for a in (A, B, C) if a != decision.address)
    picked = decision.slot
    d.served_by(decision, other, 1.5)
    assert decision.flight.failed == ()
    assert d.health.records.endpoints[picked].failures == {}


def test_in_shadow_mode_health_learns_from_the_endpoint_that_served():
    d = fleet(A, B)
    for _ in range(3):
        decision = d.decide(request(shadow=True), 1.0)
        assert decision.flight.attempt is None
        d.served_by(decision, A, 1.0)
        d.replied(decision, Reply(status=503), 1.0)
        d.settle(decision, end(503))
    assert d.health.records.endpoints[d.table.slot(A)].breaker.is_out
    assert d.decide(request(), 1.5).address == B


def test_records_show_why_an_endpoint_was_excluded_and_its_cost():
    d = fleet(A, B, C)
    now = fail(d, A, 1.0)
    decision = d.decide(request(), now)
    d.replied(decision, Reply(status=500), now)
    d.settle(decision, end(500, latency_s=0.0))
    memory = DecisionMemory(d.table, wall_clock=lambda: 1000.0)
    shown = memory.explained(memory.record(d.decide(request(), now)))
    (left,) = shown["filtered"]
    assert left["endpoint"] == A
    assert left["why"].startswith("failing (answers 502, 503 or 504): the next trial is due in ")
    rows = {row["endpoint"]: row for row in shown["candidates"]}
    assert rows[decision.address]["answers"] < 0.95
    for row in rows.values():
        paid = row["latency_s"] + row["ttft_s"] + row["others_s"]
        assert row["cost_s"] == pytest.approx(paid / row["answers"])  # P(correct) is not known
    rival = next(a for a in (B, C) if a != decision.address)
    assert shown["endpoint"] == rival
    assert "is less likely to answer (P=" in shown["sentence"]


def test_a_long_prompt_within_its_predicted_time_is_not_a_hang():
    """A silence in proportion to the predicted time is not a failure, even if siblings answer."""
    d = fleet(A, B)
    now = 0.0
    for _ in range(60):  # at both endpoints, short prompts take half a second
        decision = d.decide(request(), now)
        d.replied(decision, Reply(status=200), now + 0.5)
        d.settle(decision, end(latency_s=0.5))
        now += 0.6
    text = "word " * 100_000
    heavy = Request(id="h", api=Api.CHAT, model="m", spans=(text,), chars=len(text))
    decision = d.decide(heavy, now)
    for _ in range(80):
        now += 0.25
        other = d.decide(request(), now)
        d.replied(other, Reply(status=200), now + 0.2)
        d.settle(other, end(latency_s=0.2))
    assert not d.health.records.endpoints[decision.slot].breaker.is_out
    now += 600.0
    d.settle(decision, end(latency_s=now - decision.now))
    assert d.health.records.endpoints[decision.slot].breaker.openings == 0


def test_health_that_is_off_excludes_nothing():
    """No candidate is excluded or priced differently, and the picker probes no endpoint."""
    d = fleet(A, B, probe=True, enabled=False)
    now = fail(d, A, 1.0, times=20)
    decisions = [d.decide(request(), now + 5.0) for _ in range(20)]
    assert {decision.address for decision in decisions} == {A, B}
    assert {decision.reason for decision in decisions} == {"laar"}
    assert d.health.questions.due(now + 5.0, 16) == []
    late = d.table.slot(B)
    d.health.records.drop(late)
    d.health.records.of(late, "m", now + 100.0)  # it joins late, which is a slow start
    assert d.health.answers(late, now + 100.0) == 1.0


def doubted(*addresses, kind=503, **reply):
    """Return a director after the first failure of the first endpoint."""
    d = fleet(*addresses, probe=True)
    d.health.questions.are_asked = True
    d.decide(request(), 0.5)
    attempt = d.health.sent(
        d.table.slot(A), "m", stream=True, predicted_s=0.1, tokens=10.0, now=1.0
    )
    d.health.replied(attempt, Reply(status=kind, **reply), 1.0, read=True)
    return d


def addresses_of(director, now, count=20):
    return {director.decide(request(session=f"s{n}"), now).address for n in range(count)}


@pytest.mark.parametrize("continues", [True, False])
def test_a_silent_endpoint_is_not_suspected_while_another_of_its_answers_continues(continues):
    d = fleet(A, B, probe=True)
    health, slots = d.health, [d.table.slot(address) for address in (A, B)]
    health.questions.are_asked = True

    def sent(slot, now):
        return health.sent(slot, "m", stream=True, predicted_s=0.1, tokens=10.0, now=now)

    def answered(slot, now):
        attempt = sent(slot, now)
        health.replied(attempt, Reply(status=200), now + 0.01, read=True)
        health.answering(attempt, now + 0.1)
        health.ended(attempt, 200, "complete", now + 0.2)

    for number in range(40):
        answered(slots[number % 2], 0.25 * number)
    streaming, waiting = sent(slots[0], 10.0), sent(slots[0], 11.0)
    for attempt in (streaming, waiting):
        health.replied(attempt, Reply(status=200), attempt.at + 0.01, read=True)
    health.answering(streaming, 10.1)
    for number in range(8):
        now = 11.0 + 0.25 * number
        answered(slots[1], now)
        if continues:
            health.answering(streaming, now)
        health.look(now)
    assert bool(health.state(slots[0], now)) is not continues


def test_a_refused_probe_after_a_refused_client_opens_the_breaker():
    d = doubted(A, B, C)
    slot = d.table.slot(A)
    d.health.questions.due(1.1, 16)
    d.health.questions.answered(slot, None, 1.2, None, refused=True)
    assert d.health.records.endpoints[slot].breaker.openings == 1
    d.health.questions.due(3.0, 16)
    # Perhaps only the picker's connection is refused.
    d.health.questions.answered(slot, None, 3.1, None, refused=True)
    assert d.choose(request(), 3.2).reason == "trial"


def test_a_suspect_that_another_picker_excludes_gets_no_requests_until_its_trial():
    d = doubted(A, B, C)
    d.health.questions.due(1.1, 16)  # this picker's probe is not answered
    d.health.heard(d.table.slot(A), "m", Word("out", Kind.STATUS, 8.0), 1.2)
    decision = d.choose(request(), 5.0)
    assert {decision.address, *decision.fallbacks} == {B, C}


def test_a_probe_shows_that_an_attempt_met_a_full_queue():
    """Envoy does not report the answer to a failed attempt, but a probe gets the same."""
    d = fleet(A, B, C, probe=True)
    d.health.questions.are_asked = True
    d.decide(request(), 0.5)
    slot = d.table.slot(A)
    d.health.passed_over(slot, 1.0)
    assert d.health.questions.due(1.1, 16) == [slot]
    d.health.questions.answered(slot, Reply(status=429, retry_after_s=5.0), 1.2, None)
    assert d.health.state(slot, 1.3) == "full"
    assert A not in addresses_of(d, 5.0)
    assert d.health.answers(slot, 6.5) == 1.0
    assert d.health.records.endpoints[slot].breaker.openings == 0


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=401),
        Reply(status=403),
        *(Reply(status=200, found=kind) for kind in sorted(USELESS)),
    ],
)
@pytest.mark.parametrize("probe", [True, False])
def test_an_endpoint_that_is_only_doubted_is_the_last_fallback(reply, probe):
    """One client's failures may be its own fault; another's engine may be broken meanwhile."""
    d = fleet(A, B, probe=probe)
    d.health.questions.are_asked = True
    slot = d.table.slot(A)
    d.choose(request(), 0.5)
    for _ in range(2):
        attempt = d.health.sent(slot, "m", stream=False, predicted_s=0.1, tokens=1.0, now=1.0)
        d.health.replied(attempt, reply, 1.0, read=True)
        d.health.ended(attempt, reply.status, "complete", 1.0)
    for ask in (request(), request(api=Api.OPAQUE)):
        decision = d.decide(ask, 1.1)
        order = [decision.address, *decision.fallbacks]
        # Clients may want dull answers.
        assert sorted(order) == [A, B] if reply.found in DULL else order == [B, A]
    d.health.passed_over(slot, 1.2)
    assert d.health.records.endpoints[slot].failures[Kind.FULL] == 0


@pytest.mark.parametrize(("sibling", "is_out"), [(200, True), (401, False)])
def test_a_probe_of_a_sibling_shows_whose_fault_a_denial_is(sibling, is_out):
    d = doubted(A, B, C, kind=401)
    slot = d.table.slot(A)
    assert d.health.questions.due(1.1, 16) == []  # a single denial may be a client's fault
    attempt = d.health.sent(slot, "m", stream=True, predicted_s=0.1, tokens=10.0, now=1.2)
    d.health.replied(attempt, Reply(status=401), 1.2)
    asked = d.health.questions.due(1.3, 16)
    assert slot in asked
    assert len(asked) == 2
    (other,) = set(asked) - {slot}
    d.health.questions.answered(slot, Reply(status=401), 1.4, None)
    d.health.questions.answered(other, Reply(status=sibling), 1.5, None)
    assert d.health.records.endpoints[slot].breaker.is_out is is_out
    assert not d.health.records.endpoints[other].breaker.is_out


def test_two_errors_in_answers_are_enough_if_a_probe_is_inconclusive():
    d = doubted(A, B, C, kind=200, text=b'{"error": {"code": 500}}', event=True)
    slot = d.table.slot(A)
    d.health.questions.due(1.1, 16)
    d.health.questions.answered(slot, Reply(status=401), 1.2, None)  # the engine requires a key
    assert not d.health.records.endpoints[slot].breaker.is_out
    attempt = d.health.sent(slot, "m", stream=True, predicted_s=0.1, tokens=10.0, now=1.3)
    event = Reply(status=200, text=b'{"error": {"code": 500}}', event=True)
    d.health.replied(attempt, event, 1.4, read=True)
    assert d.health.records.endpoints[slot].breaker.openings == 1


def answer(d, address, found, now, model="", tokens=None):
    """Let an endpoint answer a request; the answer is read, with this finding."""
    decision = d.decide(request(subset=frozenset({address})), now)
    d.replied(decision, Reply(status=200), now, read=True)
    d.answering(decision, now)
    d.replied(decision, Reply(status=200, found=found, model=model), now + 0.1, read=True)
    d.settle(decision, Completion(status=200, cause="complete", latency_s=0.1))


def test_an_endpoint_whose_answers_name_another_model_is_excluded():
    d = fleet(A, B, C)
    for n in range(12):
        answer(d, A, GOOD, 1.0 + n, model="foreign")
        answer(d, B, GOOD, 1.0 + n)
        answer(d, C, GOOD, 1.0 + n)
    assert d.health.records.endpoints[d.table.slot(A)].breaker.is_out
    (why,) = standing_of(d.health.records, d.table.active, 13.0).left_out.values()
    assert "answers name another model: foreign" in why


def test_a_dated_name_or_a_path_of_the_requested_model_is_accepted():
    d = fleet(A, B, C)
    for n in range(12):
        answer(d, A, GOOD, 1.0 + n, model="/models/M" if n % 2 else "m-2026-08-06")
        answer(d, B, GOOD, 1.0 + n)
    assert not d.health.records.endpoints[d.table.slot(A)].failures


def test_an_answer_of_a_removed_endpoint_is_no_fault_of_laar():
    d = fleet(A, B)
    decision = d.decide(request(), 1.0)
    d.table.replace("t", [spec for spec in d.table.specs() if spec.address != decision.address])
    d.replied(decision, Reply(status=200), 1.1, read=True)
    d.replied(decision, Reply(status=200, found=GOOD, model="/data/weights"), 1.2, read=True)
    d.settle(decision, end())
    assert not d.degraded


def learned_from(kind=None, status=200):
    """Return all that is learned from an answer at A: a good one, a useless one or a refusal."""
    traced, seen = [], []
    prefixes = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
    prefixes.blocks_held.answered = lambda _session, tokens: traced.append(tokens)
    d = fleet(A, B, C, prefixes=prefixes)
    for address in (B, C):
        answer(d, address, GOOD, 0.5)
    d.watch(settled=lambda _decision, end: seen.append(end.ok))
    ask, before = request(subset=frozenset({A})), d.engines.state()["models"]
    decision = d.decide(ask, 1.0)
    decision.flight.traced_as = "session"
    d.replied(decision, Reply(status=status), 1.1, read=True)
    d.answering(decision, 1.1, ok=status == 200)
    if status == 200:
        model = "foreign" if kind is Kind.MODEL else ""
        found = GOOD if model else kind or GOOD
        d.replied(decision, Reply(status=200, found=found, model=model), 1.2, read=True)
    fields = {} if status != 200 else {"prompt_tokens": 5000, "cached_tokens": 0}
    end = Completion(status=status, cause="complete", latency_s=0.3, ttft_s=0.1, **fields)
    d.settle(decision, end)
    again = d.choose(ask, 2.0)
    return {
        "lengths by KV events": traced,
        "ok": seen,
        "speeds": d.engines.state()["models"] != before,
        "cached tokens": again.tokens - again.uncached_tokens,
        "prompt tokens": again.tokens,
    }


@pytest.mark.parametrize("kind", sorted(USELESS - DULL))
def test_a_useless_answer_teaches_no_more_than_a_refusal(kind):
    refused = learned_from(status=503)
    assert learned_from(kind) == refused
    good = learned_from()
    assert all(good[name] != value for name, value in refused.items())


@pytest.mark.parametrize(
    "broken", ["sent", "replied", "passed_over", "gone", "answering", "ended", "wants_read"]
)
@pytest.mark.parametrize("roles", [("", "", ""), ("prefill", "decode", "decode")])
def test_an_error_in_health_leaves_no_count_behind(broken, roles):
    def fault(*_args, **_fields):
        raise OSError

    labels = ({ROLE_LABEL: role} if role else {} for role in roles)
    specs = (
        EndpointSpec(address=a, models=("m",), labels=of)
        for a, of in zip((A, B, C), labels, strict=True)
    )
    health = type("Broken", (Health,), {broken: fault})(
        HealthSettings(probe=False), rng=random.Random(4)
    )
    d = director_of(*specs, seed=3, apart="always", health=health)
    decision = d.decide(request(stream=True), 0.0)
    assert (PrefillApart.of(decision) is None) is (not roles[0])
    d.replied(decision, Reply(status=200), 0.1)
    d.attempted(decision, decision.fallbacks[-1:], 0.1)
    d.served_by(decision, decision.fallbacks[0], 0.1)
    d.answering(decision, 0.2)
    d.settle(decision, end())
    assert not d.table.counted.any()
    assert d.degraded["health"] >= 1
    d.settle(d.decide(request(), 1.0), end())
    assert not d.table.counted.any()

"""The learned constants of engines, compared with the true constants of simulated ones."""

import heapq
import math
import random

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from laar.accuracy.assessment import SpeedPrior
from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec
from laar.policies.laar.pricing import backlog_of, crowded
from laar.speeds.engines import Began, Engines
from laar.speeds.lines import FORGET, FittedLine
from laar.speeds.traffic import Elsewhere
from support.directors import table_of

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def fleet(*names):
    table = table_of(*names)
    return table, Engines(table)


def began(engines, slot, now, **features):
    """Record a request that is sent to a slot: by default alone, nearby and streamed."""
    features = {"others": 0.0, "rtt_s": 0.0, "shown": True} | features
    features.setdefault("prompt_s", features["plain_s"])  # nothing is cached
    return engines.began(Began(slot=slot, **features), now)


def of(table, engines):
    return engines.constants(table.active)


def serve(table, engines, took, count, *, shown=True, seed=1):
    """Send requests; `took(slot, work_s, others)` returns the prefill and decoding times."""
    rng = random.Random(seed)
    due = []

    def happen(until):
        while due and due[0][0] <= until:
            at, _, kind, slot, one, first_s, whole_s = heapq.heappop(due)
            if kind == "first":
                engines.answering(one, at)
                continue
            engines.ended(
                one,
                at,
                ttft_s=first_s if shown else None,
                latency_s=whole_s,
                answer_tokens=None,
            )
            table.release(slot, 1.0, 1.0)

    for number in range(count):
        now = 0.5 * number
        happen(now)
        slot = int(rng.choice(table.active))
        work_s, others = rng.uniform(0.05, 1.0), float(table.in_flight[slot])
        one = began(engines, slot, now, plain_s=work_s, others=others, shown=shown)
        table.reserve(slot, 1.0, 1.0)
        first_s, rest_s = took(slot, work_s, others)
        told = (slot, one, first_s, first_s + rest_s)
        if shown:
            heapq.heappush(due, (now + first_s, 2 * number, "first", *told))
        heapq.heappush(due, (now + first_s + rest_s, 2 * number + 1, "end", *told))


@pytest.mark.parametrize("seconds", [0.002, 0.05, 0.07, 3.0])
def test_an_answer_is_predicted_to_take_its_measured_time(seconds):
    table, engines = fleet("a:1")
    engines.reassess(lambda _model: SpeedPrior(answer_s=seconds))
    assert (of(table, engines).base_s[0], of(table, engines).answer_s[0]) == (
        pytest.approx((0.0, seconds))
    )
    engines = Engines(table)
    engines.reassess(lambda _model: SpeedPrior(start_s=seconds))
    assert (of(table, engines).base_s[0], of(table, engines).answer_s[0]) == (
        pytest.approx((seconds, 2.0))
    )


def test_a_new_artifact_applies_to_models_without_samples():
    table = table_of(*(EndpointSpec(address=f"{m}:1", models=(m,)) for m in "ab"))
    engines = Engines(table)
    for first, second in ((8.0, 3.0), (1.0, 2.0)):
        measured = {"a": SpeedPrior(answer_s=first), "b": SpeedPrior(answer_s=second)}
        engines.reassess(measured.__getitem__)
        began(engines, 0, first, plain_s=1.0)
        assert of(table, engines).answer_s == pytest.approx([first, second])


def answered(engines, seconds, count, before):
    """Serve requests one by one; `before` is the artifact's seconds per answer, if any."""
    engines.reassess(lambda _model: SpeedPrior(answer_s=before))
    for at in range(count):
        one = began(engines, 0, 10.0 * at, plain_s=0.0)
        engines.ended(one, 10.0 * at + 5, ttft_s=1e-3, latency_s=seconds, answer_tokens=9)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("count", [1, 5, 20, 60, 300])
@pytest.mark.parametrize(("before", "seconds"), [(None, 0.03), (None, 9.0), (2.0, 0.03)])
def test_loading_an_artifact_while_serving_has_the_effect_of_a_restart(
    before, seconds, count, restarts
):
    """The restart has the learned state, or serves the same answers again."""
    table, loaded = fleet("a:1")
    answered(loaded, seconds, count, before)
    if restarts:
        state, loaded = orjson.loads(orjson.dumps(loaded.state())), Engines(table)
        loaded.restore(state, 0.0)
    loaded.reassess(lambda _model: SpeedPrior(answer_s=seconds))
    table, fresh = fleet("a:1")
    answered(fresh, seconds, count, seconds)
    assert of(table, loaded).answer_s == pytest.approx(of(table, fresh).answer_s, rel=0.1)


def ahead(engines, slots, now, read):
    return backlog_of(engines.traffic, slots, now).seconds_ahead(now, read)


def test_a_wrong_speed_in_the_artifact_is_corrected_by_learning():
    table, engines = fleet("a:1", "b:1")
    serve(table, engines, lambda _slot, work, _n: (2.0 * work, 1.0), 300)
    assert of(table, engines).c == pytest.approx([2.0, 2.0], rel=0.15)


@pytest.mark.parametrize("shown", [True, False])
def test_a_slow_device_behind_the_same_name_is_distinguished_from_a_fast_one(shown):
    table, engines = fleet("fast:1", "slow:1")
    slow = table.slot("slow:1")
    rng = random.Random(5)

    def took(slot, work, _others):
        pace = 3.0 if slot == slow else 1.0
        return pace * work, pace * rng.expovariate(1.0)

    serve(table, engines, took, 400, shown=shown)
    constants = of(table, engines)
    ratio = constants.answer_s[slow] / constants.answer_s[1 - slow]
    assert 1.4 < ratio < 4.0


@pytest.mark.long
def test_equal_endpoints_cost_the_same_however_their_answers_scatter():
    spreads = []
    for seed in range(10):
        table, engines = fleet(*(f"{name}:1" for name in "abcd"))
        rng = random.Random(seed)
        serve(table, engines, lambda _s, work, _n: (work, rng.lognormvariate(0.0, 0.7)), 400)  # noqa: B023
        answer_s = of(table, engines).answer_s
        spreads.append(answer_s.max() / answer_s.min())
    assert sorted(spreads)[5] == 1.0  # in most runs they cost exactly the same
    assert max(spreads) < 1.3


def test_an_endpoint_that_was_slow_long_ago_is_considered_normal():
    table, engines = fleet("a:1", "b:1", "slow:1")
    slow = table.slot("slow:1")

    def one_by_one(slots, since, until):
        for number, now in enumerate(range(since, until)):
            slot = slots[number % len(slots)]
            took_s = 0.8 if slot == slow else 0.2
            one = began(engines, slot, now, plain_s=0.1, shown=False)
            table.reserve(slot, 1.0, 1.0)
            engines.ended(one, now + took_s, ttft_s=None, latency_s=took_s, answer_tokens=9)
            table.release(slot, 1.0, 1.0)
        return of(table, engines).answer_s[slow] / of(table, engines).answer_s[0]

    assert one_by_one(table.active.tolist(), 0, 300) > 2.0
    others = [slot for slot in table.active.tolist() if slot != slow]
    assert one_by_one(others, 300, 4200) < 1.1


@pytest.mark.parametrize("tokenized", [0.0, 0.024])
def test_attention_makes_long_prompts_take_more_than_proportional_time(tokenized):
    """A context of 65,536 tokens adds three quarters here, whether cached or not.

    Cached tokens have to be tokenized as well, which must not be taken for attention.
    """
    table, engines = fleet("a:1")
    rng = random.Random(4)
    for number in range(800):
        uncached, cached = rng.randrange(100, 60_000), rng.choice((0, 30_000))
        context = cached + 0.5 * uncached
        plain_s = 1e-4 * uncached
        prompt_s = 1e-4 * (cached + uncached)
        took_s = plain_s * (1.0 + 0.75 * context / 65_536) + tokenized * prompt_s
        now = 60.0 * number
        features = {"plain_s": plain_s, "prompt_s": prompt_s, "context_tokens": context}
        one = began(engines, 0, now, **features)
        table.reserve(0, 1.0, 1.0)
        now += took_s
        engines.answering(one, now)
        engines.ended(one, now, ttft_s=took_s, latency_s=took_s, answer_tokens=1)
        table.release(0, 1.0, 1.0)
    constants = of(table, engines)
    assert constants.q[0] * 65_536 == pytest.approx(0.75, rel=0.05)
    assert constants.c[0] == pytest.approx(1.0, rel=0.05)
    assert constants.e[0] == pytest.approx(tokenized, abs=0.004)


def test_a_prompt_prefilled_for_another_endpoint_is_tokenized_by_both():
    table, engines = fleet("a:1")
    rng = random.Random(4)
    for number in range(300):
        tokens = rng.randrange(500, 30_000)
        uncached = tokens - rng.choice((0, int(0.9 * tokens)))
        plain_s, prompt_s = 1e-4 * uncached, 1e-4 * tokens
        features = {"prompt_s": prompt_s, "context_tokens": tokens - 0.5 * uncached}
        one = began(engines, 0, 60.0 * number, plain_s=plain_s, visits=True, **features)
        engines.gone(one, 60.0 * number + 1.0)
        engines.prefilled(one, plain_s * (1.0 + 2.0 * one.context_tokens / 65_536) + 0.1 * prompt_s)
    assert of(table, engines).e[0] == pytest.approx(0.05, abs=0.01)


def test_parallel_and_sequential_prefills_are_distinguished():
    table, engines = fleet("a:1", "b:1")
    serve(table, engines, lambda _slot, work, n: (work * (1.0 + 0.2 * n), 2.0 + 0.4 * n), 600)
    constants = of(table, engines)
    assert constants.s[0] == pytest.approx(0.2, abs=0.08)
    assert constants.w[0] < 0.3


def test_prompts_ahead_are_forgotten_once_prefilled_or_overdue():
    table, engines = fleet("a:1")
    slots, read = table.active, np.ones(1)
    for shown in (True, False):
        one = began(engines, 0, 0.0, plain_s=2.0, shown=shown)
        assert ahead(engines, slots, 0.0, read)[0] == pytest.approx(2.0)
        assert ahead(engines, slots, 1.5, read)[0] == pytest.approx(0.5)
        assert ahead(engines, slots, 9.0, read)[0] == 0.0
        engines.gone(one, 9.0)
        engines.drop(0)


def test_prompts_are_no_longer_ahead_once_their_answers_end():
    """The engine is a hundred times faster than predicted, and no first token was seen."""
    table, engines = fleet("a:1")
    slots, read = table.active, np.ones(1)
    for number in range(100):
        now = float(number)
        one = began(engines, 0, now, plain_s=10.0, shown=False)
        engines.ended(one, now + 0.1, ttft_s=None, latency_s=0.1, answer_tokens=None)
        assert ahead(engines, slots, now + 0.1, read)[0] == 0.0


def test_prompts_of_other_pickers_are_no_longer_ahead_once_they_end():
    table, engines = fleet("a:1")
    sent = Elsewhere(ahead_s=0.0, unseen_s=50.0, sent=1.0, sent_s=50.0, hidden_s=50.0)
    engines.elsewhere(0, 0.0, sent)
    assert ahead(engines, table.active, 0.0, np.ones(1))[0] == pytest.approx(50.0)
    engines.elsewhere(0, 1.0, Elsewhere(ahead_s=0.0, read_s=50.0))
    assert ahead(engines, table.active, 1.0, np.ones(1))[0] == 0.0


def test_prompts_ahead_weigh_the_same_if_their_first_tokens_are_not_seen():
    table, engines = fleet("a:1")
    serve(table, engines, lambda _slot, work, _n: (4.0 * work, 0.1), 500)
    now, read = 1e4, of(table, engines).c
    assert read[0] == pytest.approx(4.0, rel=0.15)
    for shown in (True, False):
        engines.drop(0)
        one = began(engines, 0, now, plain_s=2.0, shown=shown)
        assert ahead(engines, table.active, now, read)[0] == pytest.approx(one.work_s)
        assert ahead(engines, table.active, now + read[0], read)[0] == pytest.approx(1.0, rel=0.01)


def read_prompt(engines, slot, now):
    if not engines.traffic._table.in_flight[slot]:
        engines.traffic._table.reserve(slot, 0.0, 0.0)  # others stay in flight
    one = began(engines, slot, now, plain_s=0.1, others=16.0)
    engines.gone(one, now)


def test_readings_show_a_full_engine_but_not_one_that_only_prefills():
    table, engines = fleet("full:1", "busy:1", "stuck:1")
    for at in range(8):
        table.read("full:1", Reading(running=16, waiting=3), float(at))
        table.read("busy:1", Reading(running=16 - at % 3, waiting=3), float(at))
        table.read("stuck:1", Reading(running=16, waiting=3), float(at))
        of(table, engines)
        for slot in (0, 1):  # the third engine stays with one long prompt
            read_prompt(engines, slot, at + 0.5)
    assert of(table, engines).slots.tolist() == [16.0, math.inf, math.inf]


def test_an_engine_that_seemed_full_gets_another_chance():
    table, engines = fleet("a:1", "b:1")
    for at in range(5):
        table.read("a:1", Reading(running=5, waiting=1), float(at))
        of(table, engines)
        read_prompt(engines, 0, at + 0.5)
    assert of(table, engines).slots.tolist() == [5.0, math.inf]
    table.read("a:1", Reading(running=4, waiting=0), 100.0)
    assert of(table, engines).slots.tolist() == [math.inf, math.inf]


def test_an_engine_that_restarts_with_fewer_slots_is_detected_as_full_again():
    table, engines = fleet("a:1")
    for at in range(20):
        if at == 10:
            engines.restarted(0)
        table.read("a:1", Reading(running=64 if at < 10 else 16, waiting=9), float(at))
        of(table, engines)
        read_prompt(engines, 0, at + 0.5)
    assert of(table, engines).slots.tolist() == [16.0]


def test_prompts_wait_for_room_in_a_full_cache_except_for_shared_beginnings():
    table, engines = fleet("small:1", "large:1", "unknown:1")
    slots, own = np.arange(3), np.full(3, 40_000.0)
    for name, room in (("small:1", 100_000.0), ("large:1", 1_000_000.0)):
        table.read(name, Reading(capacity_tokens=room, kv_usage=0.0, waiting=0.0), 0.0)
    of(table, engines)
    assert crowded(engines, table, slots, own) is None
    for slot in range(3):
        table.reserve(slot, 80_000.0, 80_000.0)
    # At small:1, 20,000 of the 80,000 tokens in flight have to end first.
    assert crowded(engines, table, slots, own).tolist() == pytest.approx([0.25, 0.0, 0.0])
    for at in range(1, 200):  # half of the tokens in flight are one shared prefix
        table.read(
            "small:1", Reading(capacity_tokens=100_000.0, kv_usage=0.4, waiting=0.0), float(at)
        )
        of(table, engines)
    assert crowded(engines, table, slots, own) is None


@example(0.0, 0.0, 2e-313, 0)
@given(NUMBERS, NUMBERS, NUMBERS, st.integers(-5, 10**12))
def test_no_answer_moves_a_constant_out_of_its_bounds(ttft, latency, work, tokens):
    table, engines = fleet("a:1", "b:1")
    for _ in range(20):
        one = began(engines, 0, 1.0, plain_s=1.0, others=1.0, rtt_s=0.1)
        engines.ended(
            one,
            2.0,
            ttft_s=ttft,
            latency_s=latency,
            answer_tokens=max(0, tokens),
            plain_s=work,
        )
    constants = of(table, engines)
    for each in (constants.base_s, constants.c, constants.answer_s, constants.b):
        assert np.isfinite(each).all()
        assert (each >= 0.0).all()
    assert (constants.c > 0.0).all()


@pytest.mark.parametrize("seed", range(20))
def test_a_coefficient_at_its_bound_does_not_distort_the_others(seed):
    """The reference is SciPy's solver for least squares with bounds."""
    rng = np.random.default_rng(seed)
    low, high = (0.0, 0.05, 0.0), (2.0, 3.0, 0.5)
    line = FittedLine(prior=(1.0, 1.0, 0.0), doubt=(1e3, 1e3, 1e3), low=low, high=high)
    features = np.column_stack([np.ones(16), rng.uniform(0.0, 2.0, (16, 2))])
    values = features @ [1.0, 1.5, -0.4] + rng.normal(0.0, 0.05, 16)
    for row, value in zip(features.tolist(), values.tolist(), strict=True):
        line.learn(row, value, 10.0)  # so large a scale that no value is an outlier
    weights = np.sqrt(FORGET ** np.arange(15, -1, -1))
    fitted = lsq_linear(features * weights[:, None], values * weights, bounds=(low, high))
    assert line.now == pytest.approx(fitted.x.tolist(), abs=0.02)
    assert line.now[2] == 0.0


def test_samples_that_cannot_be_solved_are_rejected():
    line = FittedLine(prior=(1.0, 0.0), doubt=(1.0, 1.0), low=(0.0, 0.0), high=(100.0, 100.0))
    with np.errstate(all="ignore"):
        for _ in range(40):
            line.learn((9e8, 9e8), 1.0, 1e-8)
        for number in range(600):
            x = number % 10
            line.learn((1.0, x), 2.0 + 0.5 * x, 0.3)
    assert line.now == pytest.approx([2.0, 0.5], abs=0.1)


def test_a_line_is_learned_despite_outliers_and_followed_when_it_changes():
    rng = random.Random(3)
    line = FittedLine(prior=(1.0, 0.0), doubt=(1.0, 1.0), low=(0.0, 0.0), high=(100.0, 100.0))

    def feed(slope, count):
        for number in range(count):
            x = rng.uniform(0.0, 10.0)
            value = 2.0 + slope * x + rng.gauss(0.0, 0.1)
            line.learn((1.0, x), 1e6 if number % 20 == 19 else value, 0.3)

    feed(0.5, 600)
    assert line.now[1] == pytest.approx(0.5, abs=0.1)
    feed(1.5, 3000)
    assert line.now[1] == pytest.approx(1.5, abs=0.2)


@pytest.mark.parametrize(
    ("at", "row"), [(0, [10**400] * 5), (-1, [10**400]), (-1, {}), (-1, []), (0, "x")]
)
def test_an_invalid_state_is_ignored(at, row):
    """JSON allows integers of any size, for example."""
    table, engines = fleet("a:1")
    serve(table, engines, lambda _slot, work, _n: (work, 1.0), 30)
    state = engines.state()
    state["models"]["m"]["first"][at] = row
    fresh = Engines(table)
    fresh.restore(state, 0.0)
    assert math.isfinite(of(table, fresh).c[0])


def test_a_new_artifact_does_not_undo_learning_from_answers():
    """A picker learns 53 us per token from a prior of 100; then `laar calibrate` sets another."""
    true_s = 53e-6
    table, engines = fleet("a:1")

    def answer(seconds_per_token, tokens, count):
        for at in range(count):
            one = began(engines, 0, 10.0 * at, plain_s=seconds_per_token * tokens)
            engines.ended(
                one, 10.0 * at + 5, ttft_s=true_s * tokens, latency_s=5.0, answer_tokens=9
            )

    def predicted_s_per_token(seconds_per_token):
        return seconds_per_token * of(table, engines).c[0]

    for tokens in (500, 2000, 6000) * 20:
        answer(1e-4, tokens, 1)
    assert predicted_s_per_token(1e-4) == pytest.approx(true_s, rel=0.1)
    state = engines.state()
    for measured, error in ((53e-6, 0.1), (30e-6, 0.5), (53e-6, 0.02)):
        speed = SpeedPrior(measured, error)
        engines.reassess(lambda _model, speed=speed: speed)
        assert predicted_s_per_token(measured) == pytest.approx(true_s, rel=0.1)
        seen = engines.seen()["m"]
        assert seen.seconds_per_token == pytest.approx(true_s, rel=0.1)
        assert 0.0 < seen.error_s_per_token < 0.1 * true_s
    fresh = Engines(table)
    fresh.reassess(lambda _model: SpeedPrior(30e-6))
    fresh.restore(orjson.loads(orjson.dumps(state)), 0.0)
    assert 30e-6 * of(table, fresh).c[0] == pytest.approx(true_s, rel=0.1)


def test_a_measured_speed_is_weighted_by_its_error():
    """Three requests that take 3 times as long change c(m) only if it is uncertain."""
    found = []
    for error in (0.1, 0.5):
        table, engines = fleet("a:1")
        engines.reassess(lambda _model, error=error: SpeedPrior(1e-4, error))
        for at in range(3):
            one = began(engines, 0, 10.0 * at, plain_s=0.05)
            engines.ended(one, 10.0 * at + 5, ttft_s=0.15, latency_s=5.0, answer_tokens=9)
        found.append(float(of(table, engines).c[0]))
    assert found[0] < 1.1 < 1.3 < found[1]

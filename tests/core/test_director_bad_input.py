"""Bad input from clients, engines, probes and clocks has limited effects on decisions."""

import random

import numpy as np
import pytest

from laar.core.decision import Completion
from laar.prefix.beliefs import PrefixBeliefs
from laar.request import Api, Request
from support.directors import director_of

NEAR, FAR, MUTE = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
MAX_BYTES = 1 << 20


def director(**parts):
    prefixes = PrefixBeliefs(key=b"k", max_bytes=MAX_BYTES)
    return director_of(NEAR, FAR, MUTE, seed=3, prefixes=prefixes, **parts)


def request(text):
    return Request(id="r", api=Api.CHAT, model="auto", spans=(text,), chars=len(text))


def finish(d, decision, **known):
    d.settle(decision, Completion(status=200, cause="complete", latency_s=1.0, **known))


@pytest.mark.long
def test_prompts_designed_to_grow_the_index_stay_within_its_limit():
    d, rng = director(), random.Random(1)
    for number in range(400):
        text = rng.randbytes(1 << 14).hex()
        decision = d.decide(request(text), float(number))
        if number % 2:  # the other requests never end
            finish(d, decision)
        assert d.prefixes.index.size_bytes <= MAX_BYTES
    assert not d.degraded


@pytest.mark.parametrize("cached", [-(10**9), 0, 10**9])
@pytest.mark.parametrize("prompt", [0, 1, 10**9])
def test_false_cache_reports_change_beliefs_only_within_the_prompt(cached, prompt):
    d = director()
    for _ in range(20):
        decision = d.decide(request("word " * 800), 0.0)
        assert np.isfinite(decision.view.terms.cost_s[decision.position])
        view = decision.view
        assert (view.cached_tokens >= 0).all()
        assert (view.cached_tokens <= view.tokens).all()
        finish(d, decision, prompt_tokens=prompt, cached_tokens=cached, completion_tokens=1)


def test_an_endpoint_that_never_answers_probes_is_treated_as_distant():
    d = director()
    d.table.round_trip(NEAR, 0.01, 0.0)
    d.table.round_trip(FAR, 0.9, 0.0)
    view = d.choose(request("hello"), 0.0).view
    by_address = dict(zip((NEAR, FAR, MUTE), view.rtt_s.tolist(), strict=True))
    assert by_address[MUTE] == by_address[FAR] == 0.9


def test_clocks_that_jump_leave_decisions_finite_and_counters_empty():
    d = director()
    for now in (5.0, 1e12, 0.0, -1e12, 3.0):
        decision = d.decide(request("hello " * 100), now)
        assert np.isfinite(decision.view.terms.cost_s[decision.position])
        finish(d, decision)
    for column in (d.table.queued_tokens, d.table.prefill_tokens, d.table.in_flight):
        assert not column.any()
    assert not d.degraded

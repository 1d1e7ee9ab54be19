"""No request goes to an endpoint that cannot hold it while one that can is up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.core.decision import Completion
from laar.fleet.endpoints import Reading
from laar.fleet.membership import ROLE_LABEL, EndpointSpec
from laar.flow.admission import Admission
from laar.flow.settings import FlowSettings
from laar.health import Reply
from laar.plugins.apart import PrefillApart
from laar.plugins.windows import KEPT_S, MARGIN
from laar.policies import POLICY_NAMES
from laar.prefix.beliefs import PrefixBeliefs
from laar.request import Api, Request
from support.directors import director_of
from support.exploring import examples
from support.requests import request_of

OK = Completion(status=200, cause="complete", latency_s=1.0)
FULL = Reading(waiting=1000.0)

windows = st.none() | st.integers(1, 2000)
endpoints = st.lists(
    st.fixed_dictionaries(
        {
            "model": st.sampled_from("mn"),
            "window": windows,
            "full": st.booleans(),
            "reached": st.booleans(),
        }
    ),
    min_size=1,
    max_size=6,
)
limits = st.none() | st.integers(1, 2000) | st.just(1 << 31)


def fleet(found, **given):
    specs = [
        EndpointSpec(address=f"e{at}:1", models=(e["model"],), max_model_len=e["window"])
        for at, e in enumerate(found)
    ]
    director = director_of(*specs, fallbacks=8, **given)
    for spec, e in zip(specs, found, strict=True):
        director.table.read(spec.address, FULL if e["full"] else Reading(waiting=0.0), 0.0)
        for _ in range(0 if e["reached"] else 3):
            director.table.round_trip(spec.address, None, 0.0)
    return director


def sent_to(decision):
    return frozenset((decision.address, *decision.fallbacks))


def token_ids(lengths, api=Api.CHAT, limit=None, model="auto", **fields):
    total = sum(lengths)
    share = max(lengths) / total
    return Request(
        id="r",
        api=api,
        model=model,
        chars=4 * total,
        tokens=total,
        longest_share=share,
        max_tokens=limit,
        **fields,
    )


@pytest.mark.long
@settings(max_examples=examples(300), deadline=None)
@given(
    found=endpoints,
    lengths=st.lists(st.integers(1, 800), min_size=1, max_size=4),
    limit=limits,
    model=st.sampled_from(["auto", "m", "n"]),
    policy=st.sampled_from(POLICY_NAMES),
    tried=st.sampled_from(["", "m", "n"]),
)
def test_no_attempt_is_refused_as_too_long_while_an_endpoint_that_is_up_could_take_it(
    found, lengths, limit, model, policy, tried
):
    served = {at for at, e in enumerate(found) if model in ("auto", e["model"])}
    up = {at for at in served if found[at]["reached"]} or served
    if not served:
        return
    need = max(lengths) + (limit or 1)
    fitting = {at for at in up if need <= (found[at]["window"] or math.inf)}
    director = fleet(found, retries="new-model")
    decision = director.choose(token_ids(lengths, limit=limit, model=model, tried=tried), 0.0)
    if fitting:
        assert sent_to(decision) <= {f"e{at}:1" for at in fitting}
        if model == "auto":
            untried = {found[at]["model"] for at in fitting} - set(decision.tried)
            assert decision.exhausted == (not untried)
    assert decision.address in {f"e{at}:1" for at in up}


@pytest.mark.long
@settings(max_examples=examples(200), deadline=None)
@given(found=endpoints, tokens=st.integers(1, 1500), limit=limits, error=st.floats(0.85, 1.15))
def test_an_estimated_prompt_has_a_margin(found, tokens, limit, error):
    up = [e for e in found if e["reached"]] or found
    roomy = any(MARGIN * tokens + (limit or 1) <= (e["window"] or math.inf) for e in up)
    asked = Request(id="r", api=Api.CHAT, model="auto", chars=4 * tokens, max_tokens=limit)
    for address in sent_to(fleet(found).choose(asked, 0.0)) if roomy else ():
        window = found[int(address[1:-2])]["window"] or math.inf
        assert error * tokens + (limit or 1) <= window


def test_a_prompt_that_fits_without_the_limit_of_its_answer_goes_where_it_fits():
    """Some engines shorten answers; none takes a prompt longer than its window."""
    found = [{"model": "m", "window": w, "full": False, "reached": True} for w in (100, 300, 500)]
    limited, long = token_ids([200], limit=900), token_ids([900])
    assert {fleet(found).choose(limited, 0.0).address for _ in range(9)} <= {"e1:1", "e2:1"}
    assert fleet(found).choose(long, 0.0).address == "e2:1"


def test_a_cached_prefix_at_a_small_window_attracts_only_what_fits_there():
    specs = [
        EndpointSpec(address=f"e{at}:1", models=("m",), max_model_len=w)
        for at, w in enumerate((4096, 32_768))
    ]
    director = director_of(*specs, prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 20))
    text = "word " * 2000

    def ask(limit):
        decision = director.decide(request_of(text, max_tokens=limit), 0.0)
        director.settle(decision, OK)
        return decision

    director.table.read("e1:1", FULL, 0.0)
    assert ask(100).address == "e0:1"
    director.table.read("e1:1", Reading(waiting=0.0), 0.0)
    sent = [ask(100).address for _ in range(20)]
    assert set(sent) == {"e0:1"}, "its prefix is cached there"
    assert {sent_to(ask(6000)) for _ in range(20)} == {frozenset({"e1:1"})}


@pytest.mark.parametrize("api", [Api.EMBEDDINGS, Api.COMPLETIONS])
def test_a_batch_needs_a_window_for_its_longest_text_only(api):
    found = [{"model": "m", "window": w, "full": False, "reached": True} for w in (512, 8192)]
    director = fleet(found, policy="round-robin")
    short, long = token_ids([100] * 40, api), token_ids([100] * 40 + [600], api)
    assert {director.decide(short, 0.0).address for _ in range(9)} == {"e0:1", "e1:1"}
    assert {director.decide(long, 0.0).address for _ in range(9)} == {"e1:1"}


def test_flow_control_holds_a_request_until_an_endpoint_that_it_fits_has_room():
    found = [{"model": "m", "window": w, "full": False, "reached": True} for w in (512, 8192)]
    director = fleet(found)
    gate = Admission(director, FlowSettings(max_requests=1, min_hold_s=50.0))
    first = gate.ask(token_ids([600]), 0.0)
    assert first.address == "e1:1"
    assert not hasattr(gate.ask(token_ids([600]), 0.0), "address")
    assert gate.dispatch(0.0) == []
    director.settle(first, OK)
    gate.ended(first, 1.0)
    (outcome,) = gate.dispatch(1.0)
    assert outcome.verdict.address == "e1:1"


def test_no_prompt_is_prefilled_where_it_does_not_fit():
    labels = ({ROLE_LABEL: "decode"}, {ROLE_LABEL: "prefill"})
    for window, expected in ((300, None), (900, "e1:1")):
        specs = [
            EndpointSpec(address=f"e{at}:1", models=("m",), labels=label, max_model_len=w)
            for at, (label, w) in enumerate(zip(labels, (9000, window), strict=True))
        ]
        decision = director_of(*specs, apart="always").choose(token_ids([500]), 0.0)
        assert ((found := PrefillApart.of(decision)) and found.address) == expected


REFUSALS = {
    "vLLM": "This model's maximum context length is {window} tokens. However, you requested "
    "8550 tokens (550 in the messages, 8000 in the completion).",
    "vLLM, newer": "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's "
    "maximum context length is {window} tokens and your request has 550 input tokens "
    "(8000 > {window} - 550).",
    "vLLM, prompt": "The decoder prompt (length 5000) is longer than the maximum model length of "
    "{window}. Make sure that `max_model_len` is no smaller than the number of text tokens.",
    "SGLang": "The input (9000 tokens) is longer than the model's context length "
    "({window} tokens).",
    "SGLang, sum": "Requested token count exceeds the model's maximum context length of {window} "
    "tokens. You requested a total of 8550 tokens: 550 tokens from the input.",
    "llama.cpp": "the request exceeds the available context size ({window} tokens), try increasing",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {window}. "
    "Given: 550 `inputs` tokens and 8000 `max_new_tokens`",
    "TEI": "Input validation error: `inputs` must have less than {window} tokens. Given: 9000",
    "Anthropic": "prompt is too long: 9000 tokens > {window} maximum",
}
UNSTATED = ["context_length_exceeded", "the prompt is too long for this model"]
OTHER = [
    "temperature must be non-negative, got -1",
    "max_tokens must be at least 1, got -5",
    "logprobs exceeds the allowed 20",
    "the request is invalid: 'model' is required",
    "",
]


def conversation(text="word " * 500, limit=8000, **fields):
    return request_of("\x1euser\x1f", text, chars=len(text), max_tokens=limit, **fields)


def refused_once(text, asked, *, prefixes=True):
    """Return a director of three endpoints, and the one that has refused a request."""
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 20) if prefixes else None
    director = director_of("e0:1", "e1:1", "e2:1", prefixes=beliefs, policy="least-loaded")
    decision = director.decide(asked, 0.0)
    reply = Reply(status=400, text=b'{"error":{"message":"%s"}}' % text.encode())
    director.replied(decision, reply, 0.1, read=True)
    director.settle(decision, Completion(status=400, cause="complete", latency_s=0.1))
    return director, decision.address


def places(director, asked, now=1.0, times=60):
    return {director.choose(asked, now).address for _ in range(times)}


@pytest.mark.parametrize("prefixes", [True, False])
@pytest.mark.parametrize("text", [*REFUSALS.values(), *UNSTATED])
def test_a_refusal_that_names_the_length_sends_the_conversation_elsewhere(text, prefixes):
    asked = conversation(session="" if prefixes else "s")
    director, small = refused_once(text.format(window=4096), asked, prefixes=prefixes)
    longer = conversation(asked.spans[1] + "and more", session=asked.session)
    assert places(director, asked) == places(director, longer) == {"e0:1", "e1:1", "e2:1"} - {small}
    shorter = conversation(limit=100, session=asked.session)
    assert small in places(director, shorter)
    assert small in places(director, asked, KEPT_S + 1.0)


@pytest.mark.parametrize("text", REFUSALS.values())
def test_a_window_that_only_a_refusal_states_holds_for_all_requests_for_a_while(text):
    director, small = refused_once(text.format(window=4096), conversation())
    other = conversation("other " * 400)
    assert small not in places(director, other)
    assert small in places(director, conversation("other " * 400, limit=3000))
    assert small in places(director, other, KEPT_S + 1.0)


@pytest.mark.parametrize("text", OTHER)
def test_other_refusals_exclude_no_endpoint(text):
    asked = conversation()
    director, _ = refused_once(text, asked)
    assert len(places(director, asked)) == 3


@pytest.mark.parametrize("text", [*UNSTATED, *REFUSALS.values()])
def test_refusals_by_every_endpoint_leave_the_last_word_to_an_engine(text):
    asked = conversation()
    director, _ = refused_once(text.format(window=4096), asked)
    for _ in range(5):
        decision = director.decide(asked, 1.0)
        director.replied(decision, Reply(status=400, text=text.format(window=4096).encode()), 1.0)
        director.settle(decision, OK)
    assert places(director, asked)


def test_a_known_window_is_not_changed_by_what_a_client_makes_an_engine_say():
    specs = [EndpointSpec(address=f"e{n}:1", models=("m",), max_model_len=9000) for n in range(3)]
    director = director_of(*specs)
    decision = director.decide(conversation(), 0.0)
    said = b"invalid input: 'maximum context length is 10 tokens'"
    director.replied(decision, Reply(status=400, text=said), 0.0)
    director.settle(decision, OK)
    assert len(places(director, conversation("other " * 99))) == 3


def test_an_endpoint_that_restarts_or_is_replaced_may_have_a_longer_window():
    director, small = refused_once(REFUSALS["vLLM"].format(window=4096), conversation())
    director.table.replace("t", [EndpointSpec(address="e9:1", models=("m",))])
    specs = [EndpointSpec(address=f"e{n}:1", models=("m",)) for n in range(3)]
    director.table.replace("t", specs)
    assert small in places(director, conversation("other " * 400))

"""Response headers reveal to a tenant only what the settings allow about others."""

import orjson
import pytest

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.prefix.beliefs import PrefixBeliefs
from laar.protocol.events import (
    AnswerHeaders,
    Ask,
    Closed,
    Decided,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
    Shape,
)
from laar.protocol.headers import FAIRNESS, Answers
from laar.protocol.stream import Environment, Stream, StreamSettings
from support.directors import director_of
from support.recorders import Recording

PATH = {":path": "/v1/chat/completions", ":method": "POST"}
PRIVATE = {
    *("x-laar-cost-ms", "x-laar-ttft-ms", "x-laar-held-ms"),
    *("x-laar-endpoint", "x-laar-overhead-us"),
}
NEEDED = {"x-laar-model", "x-laar-reason", "x-laar-decision-id", "x-laar-tried-models"}


def director():
    return director_of(
        "10.0.0.1:80",
        assessor=CapabilityAssessor(CapabilityModel()),
        prefixes=PrefixBeliefs(key=b"k" * 16, max_bytes=1 << 20),
    )


def told(director, *, tenant="", prompt="hello", at=0.0, **settings):
    """Return the x-laar headers of the answer to one request."""
    limits, recorder = StreamSettings(**settings), Recording(director)
    stream = Stream(Environment(settings=limits, new_id=lambda: "id", recorder=recorder))
    head = {**PATH, **({FAIRNESS: tenant} if tenant else {})}
    body = orjson.dumps({"model": "auto", "messages": [{"role": "user", "content": prompt}]})
    stream.receive(RequestHeaders(head, False, Shape.GATEWAY), at)
    (ask,) = stream.receive(RequestBody(body, True), at)
    assert isinstance(ask, Ask)
    stream.receive(Decided(director.decide(ask.request, at), 7, 0.5), at)
    answers = stream.receive(ResponseHeaders(200), at)
    (answer,) = (action for action in answers if isinstance(action, AnswerHeaders))
    stream.receive(Closed(), at + 0.5)
    return dict(answer.set_headers)


@pytest.mark.parametrize(
    ("answers", "tenant", "shown"),
    [
        (Answers.AUTO, "", NEEDED | PRIVATE),
        (Answers.AUTO, "a", NEEDED),
        (Answers.ALL, "a", NEEDED | PRIVATE),
        (Answers.IDS, "", NEEDED),
        (Answers.NONE, "", set()),
        (Answers.NONE, "a", set()),
    ],
)
def test_clients_get_the_headers_that_the_settings_allow(answers, tenant, shown):
    headers = told(director(), tenant=tenant, answers=answers)
    assert set(headers) - {"x-laar-exhausted"} == shown
    assert ("x-laar-exhausted" in headers) is bool(shown)


@pytest.mark.parametrize("by_tenant", [False, True])
def test_the_shown_cost_reveals_others_prompts_unless_prefixes_are_separate(by_tenant):
    there = director()
    prompt = "a secret of many words " * 3000
    settings = {"answers": Answers.ALL, "by_tenant": by_tenant, "prompt": prompt}

    def ttft_ms(tenant, at):
        return float(told(there, tenant=tenant, at=at, **settings)["x-laar-ttft-ms"])

    first = ttft_ms("a", 0.0)
    others = ttft_ms("b", 100.0)
    again = ttft_ms("a", 200.0)
    assert again < first / 2
    # laar learns the engine's speed meanwhile, so compare only the uncached with the cached prompt.
    assert (others > 2 * again) is by_tenant


def test_decision_ids_cannot_be_guessed_from_each_other():
    """Any two ids differ in many bits, unlike the values of a counter."""
    made = [told(director_, tenant="a")["x-laar-decision-id"] for director_ in [director()] * 50]
    numbers = [int(one, 16) for one in made]
    assert all(len(one) == 32 for one in made)
    least = min((a ^ b).bit_count() for i, a in enumerate(numbers) for b in numbers[i + 1 :])
    assert least > 20

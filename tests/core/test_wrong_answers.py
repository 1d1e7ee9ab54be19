"""What a wrong answer costs decides between a fast model and one that is right more often."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from laar.accuracy.assessment import Assessment, PlainAssessor, SpeedPrior
from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.fleet.membership import EndpointSpec
from laar.plugins.retrying import MAX_TENANTS, Retrying
from laar.protocol.headers import WRONG_ANSWER, read_head
from laar.request import Api, Request
from laar.settings.routing import Routing
from support.directors import director_of

MODELS = ("a", "b", "c", "d")


class Fixed(PlainAssessor):
    """Assesses models with fixed probabilities."""

    def __init__(self, right: Sequence[float]) -> None:
        super().__init__()
        self.right = np.array(right)

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        plain = super().assess(request, models, tried, now)
        return replace(plain, probability=self.right[: len(models)])


def director(right: Sequence[float], seconds: Sequence[float], **settings: object) -> Director:
    specs = [EndpointSpec(address=f"{m}:80", models=(m,)) for m in MODELS[: len(right)]]
    made = director_of(*specs, assessor=Fixed(right), **settings)
    of = dict(zip(MODELS, seconds, strict=False))
    made.engines.reassess(lambda model: SpeedPrior(answer_s=of[model]))
    return made


def request(number: int = 0, model: str = "auto", **said: object) -> Request:
    return Request(id=f"r{number}", api=Api.CHAT, model=model, question="q", chars=400, **said)


def answered(d: Director, asked: Request, now: float) -> Decision:
    """Decide on a request, and end it at once: a fleet that is busy shares the price."""
    decision = d.decide(asked, now)
    took_s = {"a": 1.0, "b": 10.0}.get(decision.model, 1.0)
    d.settle(decision, Completion(status=200, cause="complete", latency_s=took_s))
    return decision


def test_a_price_is_divided_by_those_who_would_wait() -> None:
    d = director([0.7, 0.9], [1.0, 10.0], wrong_answer_s=100.0)
    chosen = [d.decide(request(number), 0.0) for number in range(12)]
    prices = [each.view.wrong_s for each in chosen if each.view is not None]
    assert prices == pytest.approx([100.0 / (1.0 + n / 2.0) for n in range(12)])
    assert chosen[0].model == "b"
    assert chosen[-1].model == "a"


def test_the_choice_is_the_cheapest_with_the_price_of_a_wrong_answer() -> None:
    rng = random.Random(1)
    for _ in range(100):
        right = [rng.uniform(0.05, 0.99) for _ in MODELS]
        seconds = [10.0 ** rng.uniform(-1.0, 2.0) for _ in MODELS]
        wrong_s = 10.0 ** rng.uniform(-1.0, 3.5)
        said = rng.choice(
            [{"retries": True}, {"tried": "gone"}, {"wrong_answer_s": wrong_s}, {}],
        )
        d = director(right, seconds, wrong_answer_s=rng.choice([wrong_s, None]))
        decision = d.choose(request(**said), 0.0)
        asks_again = said and "wrong_answer_s" not in said
        if asks_again or (not said and d.settings.wrong_answer_s is None):
            costs = [s / q for s, q in zip(seconds, right, strict=True)]
        else:
            costs = [s + (1.0 - q) * wrong_s for s, q in zip(seconds, right, strict=True)]
        chosen = MODELS.index(decision.model)
        first_tokens_s = 0.1  # the prompt's few tokens count too
        assert costs[chosen] <= 1.02 * min(costs) + first_tokens_s / min(right)


def test_by_default_first_answers_come_from_the_model_that_is_right_most_often() -> None:
    right, seconds = [0.7, 0.9], [1.0, 10.0]
    assert director(right, seconds).choose(request(), 0.0).model == "b"
    assert director(right, seconds).choose(request(retries=True), 0.0).model == "a"
    assert director([0.9, 0.9], seconds).choose(request(), 0.0).model == "a"
    assert director([0.899, 0.9], seconds).choose(request(), 0.0).model == "a"  # within chance


@pytest.mark.parametrize("tenant", ["", "team"])
def test_clients_that_send_tried_models_are_recognized_by_tenant(tenant: str) -> None:
    d = director([0.7, 0.9], [1.0, 10.0])
    truth = random.Random(4)
    firsts: list[str] = []
    for number in range(300):
        tried = ""
        for _ in range(2):
            decision = answered(d, request(number, tenant=tenant, tried=tried), 0.0)
            firsts += [decision.model] if not tried else []
            if truth.random() < {"a": 0.7, "b": 0.9}[decision.model]:
                break
            tried = ",".join(decision.tried)
    assert firsts[0] == "b"
    assert set(firsts[-100:]) == {"a"}
    assert d.choose(request(tenant="others"), 0.0).model == "b"
    for number in range(200):  # the same tenant, once its clients ask no more than once
        answered(d, request(number, tenant=tenant), 0.0)
    assert d.choose(request(tenant=tenant), 0.0).model == "b"


def test_a_few_clients_that_ask_again_do_not_decide_for_all() -> None:
    d = director([0.7, 0.9], [1.0, 10.0])
    for number in range(300):
        answered(d, request(number), 0.0)
        if number % 50 == 0:
            answered(d, request(number, tried="a"), 0.0)
    assert d.choose(request(), 0.0).model == "b"


@pytest.mark.parametrize("share", [0.15, 1.0])
@pytest.mark.parametrize("asked_before", [False, True])
def test_tried_models_of_prompts_that_were_never_sent_there_teach_nothing(
    share: float, asked_before: bool
) -> None:
    d = director([0.7, 0.9], [1.0, 10.0])
    draw = random.Random(5)
    for number in range(300):
        spans = (f"question {number // 2 if asked_before else number}",)
        junk = draw.choice(["a,b", "a", "c", "nonsense"]) if draw.random() < share else ""
        if asked_before:  # answered by b, so that a was not tried
            junk = junk and "a"
        answered(d, request(number, spans=spans, tried=junk), 0.0)
    assert d.choose(request(), 0.0).model == "b"


def test_named_models_previews_and_shadow_requests_teach_nothing() -> None:
    d = director([0.7, 0.9], [1.0, 10.0])
    for _ in range(20):
        d.choose(request(tried="a"), 0.0)
        answered(d, request(model="a", tried="a"), 0.0)
        answered(d, request(tried="a", shadow=True), 0.0)
    assert d.choose(request(), 0.0).model == "b"


def test_memory_of_tenants_is_bounded() -> None:
    retrying = Retrying()
    for number in range(MAX_TENANTS + 10):
        retrying.observe(request(tenant=f"t{number}"), "a", 0.5)
    assert len(retrying.seen) == MAX_TENANTS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("retry", (True, None)),
        (" Retry ", (True, None)),
        ("30", (False, 30.0)),
        ("0", (False, 0.0)),
        ("1e9", (False, 3600.0)),
        *((bad, (False, None)) for bad in ("", "-1", "nan", "soon", "retry, 3")),
    ],
)
def test_the_header_gives_seconds_or_says_that_the_client_asks_again(value, expected) -> None:
    head = read_head({WRONG_ANSWER: value})
    assert (head.retries, head.wrong_answer_s) == expected
    assert WRONG_ANSWER in head.control


def test_a_price_below_zero_is_refused_and_null_means_that_all_ask_again() -> None:
    with pytest.raises(ValueError, match="wrong_answer_s"):
        Routing(wrong_answer_s=-1)
    assert Routing(wrong_answer_s=None).director.wrong_answer_s is None
    assert Routing().director.wrong_answer_s == 240.0

"""Where requests go under the default cost."""

from collections import Counter
from random import Random

import pytest

from laar.accuracy.assessment import PlainAssessor, SpeedPrior
from laar.core.cost import AIMS
from laar.core.decision import Completion
from laar.fleet.membership import EndpointSpec
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.match import Grid
from laar.protocol.headers import COST_MS, TTFT_MS, Answers
from laar.protocol.stream.contract_headers import headers_of_answer
from laar.request import Api, Request
from support.directors import director_of

NEAR, FAR = "near:1", "far:1"
DOCUMENT = "a sentence of the document. " * 1_500


def fleet(*endpoints, **given):
    return director_of(*endpoints, prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 24), **given)


def ask(director, text, now, **fields):
    request = Request(
        id="r", api=Api.CHAT, model="m", spans=(text,), question=text, chars=len(text), **fields
    )
    return director.decide(request, now)


def finish(director, decision, latency_s=1.0, **fields):
    end = Completion(status=200, cause="complete", latency_s=latency_s, **fields)
    director.settle(decision, end)


@pytest.mark.parametrize(("objective_s", "where"), [(60.0, FAR), (None, NEAR)])
def test_a_patient_job_follows_its_prefix_to_a_distant_region(objective_s, where):
    d = fleet(FAR)
    finish(d, ask(d, DOCUMENT, 0.0))
    d.table.replace("t", [EndpointSpec(address=a, models=("m",)) for a in (FAR, NEAR)])
    d.table.round_trip(FAR, 1.5, 0.0)
    d.table.round_trip(NEAR, 0.01, 0.0)
    decision = ask(d, DOCUMENT + "And then?", 2.0, ttft_objective_s=objective_s)
    assert decision.address == where


def test_an_urgent_chat_stays_in_a_near_region():
    d = fleet(FAR, NEAR)
    d.table.round_trip(FAR, 0.4, 0.0)
    d.table.round_trip(NEAR, 0.01, 0.0)
    assert ask(d, "Hello there.", 0.0, ttft_objective_s=0.2).address == NEAR


def test_the_delay_of_a_large_queue_is_priced_at_any_size():
    d = fleet("a:1", "b:1")
    beginning = DOCUMENT[:3_000]
    finish(d, ask(d, beginning, 0.0))
    places = [ask(d, beginning + f" question {n}", 2.0).address for n in range(300)]
    assert 75 <= places.count("a:1") <= 225


def test_a_popular_prefix_is_copied_to_every_endpoint():
    d = fleet("a:1", "b:1", "c:1")
    seen, running = set(), []
    for number in range(90):
        now = 0.4 * number
        decision = ask(d, DOCUMENT + f" question {number}", now)
        seen.add(decision.address)
        running.append((now, decision))
        while running[0][0] < now - 4.0:
            at, ended = running.pop(0)
            finish(d, ended, now - at, ttft_s=0.2)
    assert len(seen) == 3


@pytest.mark.parametrize("grid", [None, 528, 1_056, 1_536])
def test_a_prompt_goes_where_its_state_will_spare_the_next_one(grid):
    d, question = fleet("a:1", "b:1"), "a question of another. " * 400
    for slot in range(2):
        d.prefixes.states.use(slot, grid and Grid(grid, grid))
    first = ask(d, DOCUMENT + question, 0.0)
    finish(d, first)
    d.table.reserve(first.slot, 100.0, 100.0)
    second = ask(d, DOCUMENT + question[4:], 2.0)
    assert second.believed_share < 0.1 or grid is None
    assert second.address == first.address
    finish(d, second)
    third = ask(d, DOCUMENT + question[8:], 3.0)
    assert third.believed_share > 0.6
    assert third.address == first.address


def test_predictions_are_reported_with_the_decision():
    d = fleet("a:1")
    decision = ask(d, DOCUMENT, 0.0)
    seconds = decision.tokens * 1e-4
    context = 0.5 * decision.tokens / 65536.0
    headers = dict(
        headers_of_answer(decision, Answers("all"), shadow=False, overhead_us=1, ignored="")
    )
    ttft_ms = 1000.0 * seconds * (1.0 + 2.0 * context)
    assert float(headers[TTFT_MS]) == pytest.approx(ttft_ms, abs=0.06)
    assert float(headers[COST_MS]) > float(headers[TTFT_MS])


@pytest.mark.long
def test_a_full_cache_of_returning_conversations_gets_no_new_ones():
    def told(text, now):
        decision = ask(d, text, now)
        finish(d, decision, latency_s=0.5)
        return decision.address

    room_tokens = len(DOCUMENT)  # room for four documents
    for comes_back, where in ((False, NEAR), (True, FAR)):
        d = fleet(NEAR)
        d.table.round_trip(NEAR, 0.01, 0.0)
        told("the first", 0.0)
        d.prefixes.set_capacity(d.table.slot(NEAR), room_tokens)
        for turn in range(24):
            name = turn % 6 if comes_back else turn
            told(f"{name} {DOCUMENT}", 1.0 + 5.0 * turn)
        d.table.replace("t", [EndpointSpec(address=a, models=("m",)) for a in (NEAR, FAR)])
        d.table.round_trip(FAR, 0.5, 120.0)
        assert told(f"new {DOCUMENT}", 121.0) == where


class Rated(PlainAssessor):
    """Rates models as given; None leaves them unknown."""

    def __init__(self, *right):
        super().__init__()
        self.right = right

    def assess(self, request, models, tried, now):
        known = super().assess(request, models, tried, now)
        if self.right:
            known.probability[:] = self.right
        return known


@pytest.mark.parametrize("rated", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_shared_system_prompt_draws_requests_by_its_seconds_alone(seed, rated):
    rng = Random(seed)
    models, aim, least = "abcd"[: rng.randint(2, 4)], rng.choice(list(AIMS)), rng.uniform(0.1, 0.7)
    right = [least + 0.05 * rank for rank in range(len(models))] if rated else ()
    text, warm, at_once = DOCUMENT[: rng.randint(400, 4_000)], rng.randint(1, 5), rng.random() < 0.5

    def chosen(shared):
        specs = (EndpointSpec(address=f"{m}:1", models=(m,)) for m in models)
        d = fleet(*specs, assessor=Rated(*right))
        d.engines.reassess(lambda _model: SpeedPrior(start_s=0.1, answer_s=1.0))
        asked = ["a"] * (warm if shared else 0) + ["auto"] * 40
        decisions = []
        for user, model in enumerate(asked):
            spans = (text if shared else f"{user} {text}", f"a question of user {user}")
            request = Request(id="r", api=Api.CHAT, model=model, spans=spans, given={"aim": aim})
            request.chars = sum(map(len, spans))
            decisions.append(d.decide(request, 0.1 * user))
            if model == "a" or not at_once:
                finish(d, decisions[-1], latency_s=1.1)
        assert all((each.view.terms.penalty == 1.0).all() for each in decisions)
        return Counter(each.model for each in decisions[-40:])

    alone, beside = chosen(False), chosen(True)
    if rated:
        assert beside[models[-1]] >= alone[models[-1]] - 4, (alone, beside)
    elif at_once:  # as soon as the other takes less time, although no text is cached there
        assert max(beside.values()) <= 30, beside


def test_a_conversation_stays_where_its_text_is_cached_unless_another_model_is_better():
    specs = (EndpointSpec(address=f"{m}:1", models=(m,)) for m in "ab")
    assessor = Rated(0.6, 0.6)
    d = fleet(*specs, assessor=assessor)
    d.engines.reassess(lambda _model: SpeedPrior(start_s=0.1, answer_s=1.0))
    chosen = []
    for turn in range(20):
        text = DOCUMENT[:20_000] + "".join(f" turn {n}" for n in range(turn))
        request = Request(id="r", api=Api.CHAT, model="auto", spans=(text,), chars=len(text))
        assessor.right = (0.6, 0.6 + 1e-5 * (-1) ** turn) if turn < 19 else (0.6, 0.7)
        if turn == 19 and chosen[-1] == "b":
            assessor.right = (0.7, 0.6)
        decision = d.decide(request, 9.0 * turn)
        finish(d, decision)
        chosen.append(decision.model)
    assert len(set(chosen[:19])) == 1
    assert chosen[19] != chosen[18]

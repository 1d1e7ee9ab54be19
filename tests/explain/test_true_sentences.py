"""What a sentence says about a decision is true of its terms, whatever was decided."""

import random
import re

import numpy as np
import pytest

from explain.test_explain import Known, fleet, record
from laar.accuracy.assessment import PlainAssessor, SpeedPrior
from laar.core.decision import Completion
from laar.explain.record import shown
from laar.prefix.beliefs import PrefixBeliefs
from laar.speeds.engines import Began
from support.requests import request_of

_NUMBER = r"([\d.]+(?:e[-+]\d+)?) ?(us|ms|s)"
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_PAIR = f"{_NUMBER} against {_NUMBER}"


def drawn(rng):
    """Return a record of one decision at a random fleet, for a random request."""
    models = {f"m{n}": None for n in range(rng.randint(1, 4))}
    same = rng.random() < 0.3
    one = (rng.uniform(0.05, 0.99), 10 ** rng.uniform(-6, -4), 10 ** rng.uniform(-2, 1))
    for model in models:
        models[model] = (
            one[0] if same else rng.choice([rng.uniform(0.05, 0.99), one[0], one[0] + 0.003]),
            rng.choice([one[1], 10 ** rng.uniform(-6, -4)]),
            rng.choice([one[2], 10 ** rng.uniform(-2, 1)]),
        )
    places = [(f"10.0.0.{n}:80", rng.choice(list(models))) for n in range(rng.randint(2, 5))]
    prefixes = rng.choice([None, PrefixBeliefs(key=b"k", max_bytes=1 << 20)])
    known = Known(**models) if rng.random() < 0.8 else PlainAssessor()
    director = fleet(known, *places, prefixes=prefixes)
    if isinstance(known, PlainAssessor):
        director.engines.reassess(lambda model: SpeedPrior(answer_s=models[model][2]))
    for address, _ in places:
        slot = director.table.slot(address)
        director.table.round_trip(address, 10 ** rng.uniform(-4, 0), 0.0)
        for _ in range(rng.choice([0, 0, 1, 8])):
            plain_s = rng.uniform(0.0, 2.0)
            director.engines.began(
                Began(slot=slot, plain_s=plain_s, prompt_s=plain_s, others=0.0, rtt_s=0.0,
                      shown=True), 0.0,
            )  # fmt: skip
            director.table.reserve(slot, rng.randint(1, 9000), 100)
    said = rng.choice([{}, {"retries": True}, {"wrong_answer_s": 10 ** rng.uniform(0, 3.5)}])
    if rng.random() < 0.2:
        said["tried"] = rng.choice(list(models))
    text = "text " * rng.choice([40, 4000])
    asked = request_of("\x1euser\x1f", text, id="r", model="auto", chars=len(text), **said)
    for number in range(rng.choice([0, 0, 1, 4, 12])):
        decision = director.decide(asked, 0.5 + number)
        if rng.random() < 0.8:
            status = rng.choice([200, 200, 500, 503])
            director.settle(decision, Completion(status=status, cause="complete", latency_s=1.0))
    return record(director, asked, 20.0)


def faults_of(made):
    """Return what is false in the sentence of a decision."""
    decision = made.decision
    view, row = decision.view, shown(made, explained=True)
    words, rows = row["sentence"], row["candidates"]
    if " won by " not in words or view.terms is None:
        return []
    winner, rival, terms = decision.position, decision_rival(made, rows), view.terms

    def close(said, unit, true):
        half = 0.5 if unit == "s" and "." not in said else 0.051
        return abs(float(said) - true / _UNITS[unit]) <= half

    false = []
    latency, p, ttft = terms.latency_s, view.probability, terms.all_ttft_s
    if found := re.search(rf"is (faster|slower) \({_PAIR}|but (slower) \({_PAIR}", words):
        kind, *numbers = [each for each in found.groups() if each]
        if (latency[rival] < latency[winner]) != (kind == "faster"):
            false.append(kind)
        if not close(*numbers[:2], latency[rival]) or not close(*numbers[2:], latency[winner]):
            false.append("times")
    if found := re.search(rf"first token comes later \({_PAIR}", words):
        numbers = found.groups()
        if ttft[rival] <= ttft[winner] or not close(*numbers[:2], ttft[rival]):
            false.append("first token")
    if found := re.search(r"right (?:with |\()P=([\d.]+) against ([\d.]+)", words):
        other, mine = map(float, found.groups())
        if abs(other - p[rival]) > 0.006 or abs(mine - p[winner]) > 0.006 or other == mine:
            false.append("right")
        if ("more often right" in words) != (p[rival] > p[winner]):
            false.append("more often")
        if not view.knows_outcomes:
            false.append("a P that nobody knows")
    if found := re.search(rf"costs other requests {_NUMBER} more", words):
        more = terms.others_s[rival] - terms.others_s[winner]
        if more <= 0.0:
            false.append("others")
    if "less likely to answer" in words or "answers less" in words:
        answers = terms.each(terms.answers, 1.0)
        if answers[rival] >= answers[winner]:
            false.append("answers")
    if "tokens are queued there" in words:
        more = view.queued_tokens[rival] > view.queued_tokens[winner]
        false += [] if more else ["queued"]
    if found := re.search(r"a wrong answer costs (\d+) s", words):
        told = view.wrong_s is not None and abs(float(found[1]) - view.wrong_s) <= 0.51
        false += [] if told else ["price"]
    false += decided_otherwise(view, winner, rival, words)
    return [f"{each}: {words}" for each in false]


def decision_rival(made, rows):
    slots = made.decision.view.slots.tolist()
    keys = [made.specs[slot].key for slot in slots]
    return next(
        at
        for at, (key, model) in enumerate(zip(keys, made.decision.view.model_id, strict=True))
        if key == rows[1]["endpoint"] and made.decision.view.judged[model] == rows[1]["model"]
    )


def decided_otherwise(view, winner, rival, words):
    """Return "silent" if most of the price's part of the margin is due to P, which is not said."""
    margin_s = view.terms.cost_s[rival] - view.terms.cost_s[winner]
    if view.wrong_s is None or view.times_repeated[rival] > view.times_repeated[winner]:
        return []
    by_p_s = view.wrong_s * (view.probability[winner] - view.probability[rival])
    return ["silent"] if by_p_s > 0.67 * margin_s > 0.0 and "P=" not in words else []


@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_sentences_are_true_of_the_terms_of_drawn_decisions(count, request):
    rng, false, won = random.Random(count), [], 0
    for _ in range(count):
        made = drawn(rng)
        found = faults_of(made)
        won += " won by " in shown(made, explained=True)["sentence"]
        false += found[:1]
    assert won > count / 4
    assert np.size(false) == 0, false[:5]

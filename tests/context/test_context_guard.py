"""The guard decides by tokens saved and by reported outcomes."""

from __future__ import annotations

import itertools
import random

import orjson
import pytest

from laar.context.guard import GainGuard
from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings

conversations = itertools.count()


@pytest.fixture(autouse=True)
def judges_soon(monkeypatch):
    """Let guards judge after only a few conversations."""
    monkeypatch.setattr("laar.context.guard.MIN_REQUESTS", 40)


def guard(share=0.05):
    return GainGuard(share=share)


def outcome(guard_, **arm):
    usual = {"name": "m", "model": "m", "held_out": False, "deduplicated": None}
    guard_.record_outcome(next(conversations), **usual | arm)


def outcomes(guard_, right, *, n=400, seed=1, **arm):
    rng = random.Random(seed)
    for _ in range(n):
        outcome(guard_, correct=rng.random() < right, **arm)


def by_chance(seeds, *, n, held_out, right):
    """Count the routes that stop although both groups are equally right."""
    stopped = 0
    for seed in range(seeds):
        g = guard()
        rng = random.Random(seed)
        for _ in range(n):
            outcome(g, held_out=rng.random() < held_out, correct=rng.random() < right)
        stopped += not g.reorders("m")
    return stopped


class TestCorrectness:
    def test_answers_that_are_worse_switch_reordering_off_until_reset(self):
        g = guard()
        outcomes(g, 0.9, held_out=True, n=60)
        outcomes(g, 0.5)
        assert not g.reorders("m")
        moved = g.verdicts["m", "m"].moved
        assert moved.changed.mean < moved.left.mean
        g.reset()
        assert g.reorders("m")

    @pytest.mark.parametrize("right", [0.9, 0.95])
    def test_answers_that_are_as_good_or_better_leave_reordering_on(self, right):
        g = guard()
        outcomes(g, 0.9, held_out=True, n=100)
        outcomes(g, right, seed=2)
        assert g.reorders("m")

    def test_chance_is_rarely_taken_for_harm(self):
        assert by_chance(60, n=1500, held_out=0.1, right=0.7) <= 6

    def test_a_small_group_without_a_mistake_proves_nothing(self):
        """If 99 of 100 answers are correct, 50 out of 50 are no surprise."""
        assert by_chance(30, n=2500, held_out=0.05, right=0.99) <= 2

    def test_few_outcomes_prove_nothing(self):
        g = guard()
        outcomes(g, 1.0, held_out=True, n=20)
        outcomes(g, 0.0, n=20)
        assert g.reorders("m")

    def test_a_model_that_suffers_is_not_outvoted_by_one_that_gains(self):
        """`auto` may be answered by either; only requests that may reach `weak` stay in order."""
        g = guard()
        for name, model, right in [
            ("auto", "weak", 0.5),
            ("auto", "strong", 1.0),
            ("strong", "strong", 1.0),
        ]:
            outcomes(g, 0.8, name=name, model=model, held_out=True, deduplicated=False, n=100)
            outcomes(g, right, name=name, model=model, deduplicated=True)
        assert (g.reorders("auto"), g.reorders("strong"), g.reorders("new")) == (False, True, True)
        shares = [TestDeduplication.share(g, name) for name in ("auto", "strong", "new")]
        assert shares == pytest.approx([0.0, 0.95, 0.95], abs=0.02)


class TestDeduplication:
    @staticmethod
    def share(g, name="m"):
        rng = random.Random(6)
        return sum(g.deduplicates(name, rng.getrandbits(62)) for _ in range(4000)) / 4000

    @pytest.mark.parametrize("share", [0.05, 0.0])
    def test_without_outcomes_notes_are_assumed_harmless_beside_a_control_group(self, share):
        g = guard(share)
        assert self.share(g) == pytest.approx(1.0 - share, abs=0.02)
        outcomes(g, 0.8, deduplicated=True, n=100)
        assert g.verdicts["m", "m"].dedup == "assumed"
        outcomes(g, 0.8, deduplicated=False, n=100, seed=3)
        assert g.verdicts["m", "m"].dedup == "harmless"
        assert self.share(g) == pytest.approx(1.0 - share, abs=0.02)

    def test_harm_switches_de_duplication_off_permanently(self):
        g = guard()
        outcomes(g, 0.4, deduplicated=True, n=100)
        outcomes(g, 0.9, deduplicated=False, n=100, seed=3)
        outcomes(g, 1.0, deduplicated=True, n=400)
        assert self.share(g) == 0.0


def prose(i):
    return f"Article number {i} is about " + " ".join(f"w{(i * 31 + k) % 1000}" for k in range(90))


def turn(ids, question):
    listed = "\n\n".join(f"<doc>{prose(i)}</doc>" for i in ids)
    return {
        "role": "user",
        "content": f"Answer from the following documents.\n\nDocuments:\n{listed}"
        f"\n\nQuestion: {question}",
    }


def asked(seed, harm):
    """Return whether a route stops, if a few of 12 contexts are popular and some are harder."""
    rng = random.Random(seed)
    hook = ContextHook(ContextSettings(holdout_share=0.2, dedup="off"))
    right = [rng.choice((1.0, 0.5)) for _ in range(12)]
    for number in range(700):
        context = min(int(rng.expovariate(0.4)), 11)
        first = seed * 60 + context * 5
        listed = "\n\n".join(f"<doc>{prose(i)}</doc>" for i in range(first, first + 4))
        messages = [
            {"role": "system", "content": f"Answer from these documents.\n\nDocuments:\n{listed}"},
            {"role": "user", "content": f"What does number {number} say?"},
        ]
        body = orjson.dumps({"model": "m", "messages": messages})
        result = hook.apply(body, api="chat", tenant="t", mode="on", now=float(number))
        chance = right[context] - (0.0 if result.held_out else harm)
        sides = {"held_out": result.held_out, "deduplicated": result.deduplicated}
        hook.guard.record_outcome(
            result.conversation, name="m", model="m", correct=rng.random() < chance, **sides
        )
    return not hook.guard.reorders("m")


def test_differences_in_difficulty_are_not_taken_for_harm():
    assert sum(asked(seed, 0.0) for seed in range(8)) == 0
    assert all(asked(seed, 0.3) for seed in range(2))


def test_turns_and_retries_of_a_conversation_stay_in_one_group(monkeypatch):
    monkeypatch.setattr("laar.context.guard.WINDOW", 5)
    hook = ContextHook(ContextSettings(holdout_share=0.5))
    sides = set()
    for conversation in range(20):
        messages, told = [], set()
        for number in range(4):
            ids = range(conversation * 90 + number * 7, conversation * 90 + number * 7 + 5)
            messages.append(turn(ids, f"What is in {number} of {conversation}?"))
            for model in ("m", "m"):
                body = orjson.dumps({"model": model, "messages": messages})
                result = hook.apply(body, api="chat", tenant="t", mode="on", now=0.0)
                told.add(result.held_out)
            hook.commit(result, 0.0)
            messages.append({"role": "assistant", "content": "So."})
        assert len(told) == 1
        sides |= told
    assert sides == {True, False}


def test_a_route_that_stopped_reordering_still_replaces_repeated_documents(monkeypatch):
    monkeypatch.setattr("laar.context.guard.MIN_REQUESTS", 5)
    hook = ContextHook(ContextSettings(holdout_share=0.3, dedup="exact"))

    def sent(conversation, ids, *before):
        question = f"What is asked in {conversation}?"
        messages = [*before, turn(ids, question)]
        body = orjson.dumps({"model": "m", "messages": messages})
        result = hook.apply(body, api="chat", tenant="t", mode="on", now=0.0)
        hook.record_usage(result, prompt_tokens=1000, cached_tokens=500)
        return result

    for conversation in range(40):
        sent(conversation, range(conversation * 9, conversation * 9 + 5))
    assert hook.guard.off
    talk = [turn(range(900, 905), "First?"), {"role": "assistant", "content": "So."}]
    assert b"(Please refer" in sent(0, (901, 906, 907, 908), *talk).body

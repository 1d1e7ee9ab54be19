"""The guard decides by tokens saved."""

from __future__ import annotations

import orjson

from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings


def prose(i):
    return f"Article number {i} is about " + " ".join(f"w{(i * 31 + k) % 1000}" for k in range(90))


def turn(ids, question):
    listed = "\n\n".join(f"<doc>{prose(i)}</doc>" for i in ids)
    return {
        "role": "user",
        "content": f"Answer from the following documents.\n\nDocuments:\n{listed}"
        f"\n\nQuestion: {question}",
    }


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

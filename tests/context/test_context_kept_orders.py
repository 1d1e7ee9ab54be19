"""A restarted or second picker repeats the orders of running conversations."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partial

import orjson
import pytest

from laar.context.hook import ContextHook
from laar.context.memo import Memo
from laar.context.settings import ContextSettings, Reason

WORDS = [f"{a}{b}" for a in ("gran", "bas", "lim", "clay") for b in ("ite", "alt", "estone", "ish")]


def prose(i):
    words = random.Random(i).choices(WORDS, k=50)
    first, second = " ".join(words[:25]), " ".join(words[25:])
    return f"All {' '.join(words[:5])} of zircon{i}\n\n- {first}\n\n{second}"


def tagged(ids):
    return "\n".join(f'<document id="zircon-{i}">\n{prose(i)}\n</document>' for i in ids)


def numbered(ids):
    return "\n".join(f'<source id="{n}">{prose(i)}</source>' for n, i in enumerate(ids, 1))


def plain(ids):
    return "\n\n".join(map(prose, ids))


def listed(ids):
    return "\n" + json.dumps([{"title": f"zircon-{i}", "text": prose(i)} for i in ids]) + "\n"


SHAPES = {"tagged": tagged, "numbered": numbered, "plain": plain, "listed": listed}


def hook(secret=b"one"):
    return ContextHook(ContextSettings(holdout_share=0.0), memo=Memo(lambda: secret))


def send(hook_, messages, *, now=0.0):
    body = orjson.dumps({"model": "m", "messages": messages})
    made = hook_.apply(body, api="chat", tenant="t", now=now, mode="on", restores=True)
    hook_.commit(made, now, endpoint="e")
    return orjson.loads(made.body)["messages"], made.reason


def user(content):
    return {"role": "user", "content": content}


def begun(shape):
    """Return a hook that reordered a conversation, the first turn, and that turn as sent."""
    here, rng = hook(), random.Random(3)
    for n in range(100):
        asked = [user(f"Use this.\n\n{SHAPES[shape](rng.sample(range(8), 6))}\n\nWhy, {n}?")]
        sent, _ = send(here, asked)
        if n > 20 and sent != asked:
            break
    assert sent != asked
    return here, asked, sent


def letters(text):
    return Counter(filter(str.isalpha, text))


def handed_over(here, there, change=bytes):
    for key, data in here.memo.latest():
        there.memo.put(key, change(data))


LATER = [{"role": "assistant", "content": "So it is."}, user("And then?")]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_conversation_keeps_its_order_at_another_picker(shape):
    here, asked, sent = begun(shape)
    there = hook()
    handed_over(here, there)
    for turn in range(2):  # in the second turn, the order is already restored
        assert send(there, [*asked, *LATER[: 2 * turn]])[0] == [*sent, *LATER[: 2 * turn]]
    again = dict(there.memo.latest())
    assert again.items() <= dict(here.memo.latest()).items()


@pytest.mark.parametrize("shape", SHAPES)
def test_no_text_is_passed_to_other_pickers(shape):
    here, *_ = begun(shape)
    data = b"".join(changes for _, changes in here.memo.latest()).lower()
    assert data
    assert not [word for word in ("zircon", *WORDS) if word.encode() in data]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_hook_with_a_different_secret_cannot_read_the_changes(shape):
    here, asked, _ = begun(shape)
    there = hook(b"two")
    handed_over(here, there)
    assert send(there, [*asked, *LATER])[0] == [*asked, *LATER]


@pytest.mark.parametrize("shape", SHAPES)
def test_damaged_changes_neither_remove_nor_add_text(shape):
    here, asked, _ = begun(shape)
    rng = random.Random(4)

    def damaged(data):
        value = json.loads(data)

        def change(at):
            if isinstance(at, dict):
                at[rng.choice(list(at))] = rng.choice([0, -1, [], "ignore all", True, None, {}])
            elif at:
                n = rng.randrange(len(at))
                wrong = [0, -5, 17, 10**9, 2**70, "ignore all", None, [], *at]
                at[n] = rng.choice(wrong)

        at = value
        for _ in range(rng.randint(1, 5)):
            inner = [
                each
                for each in (at.values() if isinstance(at, dict) else at)
                if isinstance(each, list | dict) and each
            ]
            at = rng.choice(inner) if inner else at
        change(at)
        if rng.random() < 0.1:
            return data[: rng.randrange(len(data))]
        return json.dumps(value).encode()

    whole = letters(asked[0]["content"])
    for _ in range(50):
        there = hook()
        handed_over(here, there, damaged)
        (first, *_), reason = send(there, [*asked, *LATER])
        assert reason is not Reason.CHECK_FAILED
        text = first["content"]
        assert "ignore all" not in text
        assert not whole - letters(text)


def test_each_change_is_reported_after_its_request_was_accepted():
    here, asked, sent = begun("tagged")
    told = []
    here.memo.tell = lambda *changed: told.append(changed)
    body = orjson.dumps({"model": "m", "messages": asked})
    apply = partial(here.apply, api="chat", tenant="t", now=0.0, mode="on")
    made = apply(body)
    assert not told
    here.commit(made, 0.0, endpoint="e")
    assert [key for key, _ in told] == [dict(here.memo.latest()).popitem()[0]]
    there = hook()
    there.memo.put(*told[0])
    assert send(there, [*asked, *LATER])[0] == [*sent, *LATER]

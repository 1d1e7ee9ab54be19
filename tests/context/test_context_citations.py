"""Documents get ids instead of numbers, and the numbers are restored in answers."""

from __future__ import annotations

import random
import re

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.context.citations import Citations, ids_of, numbers_in
from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings, Reason
from support.exploring import examples

WORDS = ("granite", "talon", "morsel", "silver", "verbal", "ethics", "onward", "dorsal")


def prose(i):
    rng = random.Random(i)
    return f"Item{'abcdefgh'[i]} is " + "\n".join(" ".join(rng.choices(WORDS, k=9)) for _ in "abc")


FORMS = {
    "open webui": ('<source id="{n}" name="f">{t}</source>', "\n", 1),
    "brackets": ("[{n}] {t}", "\n\n", 1),
    "words": ("Source {n}:\n{t}\n", "\n", 1),
    "two marks": ("[CONTEXT {n}]:\n{t}\n[END CONTEXT {n}]\n", "\n", 0),
    "branches": ("ID: {n}\n├── Title: f\n└── Content:\n{t}", "\n\n", 0),
}


def body(form, ids, question="Why?", **fields):
    shape, gap, first = FORMS[form]
    listed = gap.join(shape.format(n=n, t=prose(i)) for n, i in enumerate(ids, first))
    text = f"Cite by number.\n\n<context>\n{listed}\n</context>\n\n{question}"
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields})


def content(given, at=0):
    return orjson.loads(given)["messages"][at]["content"]


def sent(hook, given, **how):
    how = {"now": 0.0, "mode": "on", "restores": True, **how}
    made = hook.apply(given, api="chat", tenant="", **how)
    hook.commit(made, 0.0, endpoint="e")
    return made


def taught(form, count):
    hook = ContextHook(ContextSettings(holdout_share=0.0, dedup="off"))
    rng = random.Random(1)
    for n in range(count):
        sent(hook, body(form, rng.sample(range(8), 5), f"Why in {n}?"))
    return hook, rng


@pytest.mark.parametrize("form", FORMS)
def test_a_document_has_one_id_in_all_prompts_and_its_number_is_restored(form):
    hook, rng = taught(form, 8 if form == "open webui" else 40)
    first = FORMS[form][2]
    own: dict[str, set[str]] = {}
    moved = 0
    for n in range(12):
        ids = rng.sample(range(8), 5)
        made = sent(hook, body(form, ids, f"And in {n}?"))
        if not made.numbers:
            continue
        moved += 1
        text = content(made.body)  # documents with an uncertain edge come after the note
        for i in ids:
            assert prose(i) in text
            mark = re.search(r"\b(\d{1,4})\b\D*\Z", text[: text.index(prose(i))])
            assert mark is not None
            if len(mark[1]) < 4:  # a document with an uncertain edge keeps its number
                assert mark[1] == f"{ids.index(i) + first}"
                continue
            own.setdefault(f"{i}", set()).add(mark[1])
            assert made.numbers[mark[1]] == f"{ids.index(i) + first}"
            if form == "two marks":
                assert f"{prose(i)}\n[END CONTEXT {mark[1]}]" in text
    assert moved > 3
    # Two documents that may be one get a single id, and keep the number between them.
    assert max(len(ids) for ids in own.values()) == 1 or form != "open webui"


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, {"restores": False}),
        ({"tools": [{"type": "function"}]}, {}),
        ({"n": 2}, {}),
        ({"logprobs": True}, {}),
        ({"response_format": {"type": "json_object"}}, {}),
        ({"guided_regex": "[1-5]"}, {}),
    ],
)
def test_numbers_are_unchanged_unless_they_can_be_restored(fields, how):
    hook, _ = taught("open webui", 8)
    given = body("open webui", [3, 1, 7, 2, 5], **fields)
    made = sent(hook, given, **how)
    assert made.body == given
    assert made.numbers == {}
    assert made.reason is Reason.POSITIONAL_LABELS


def test_numbers_are_unchanged_in_a_batch_of_prompts_that_number_documents_differently():
    hook = ContextHook(ContextSettings(holdout_share=0.0, dedup="off"))
    rng = random.Random(1)
    for n in range(12):
        lists = [rng.sample(range(8), 5) for _ in "ab"]
        prompts = [content(body("open webui", ids, f"Why in {n}?")) for ids in lists]
        given = orjson.dumps({"model": "m", "prompt": prompts})
        made = hook.apply(given, api="completions", tenant="", now=0.0, mode="on", restores=True)
        hook.commit(made, 0.0, endpoint="e")
        assert made.body == given
    assert made.reason is Reason.POSITIONAL_LABELS


def test_numbers_in_digits_of_other_scripts_are_unchanged():
    """Numbers are restored in the digits 0 to 9, which these clients may not expect."""
    digits = str.maketrans("0123456789", "".join(map(chr, range(0x660, 0x66A))))
    hook, rng = ContextHook(ContextSettings(holdout_share=0.0)), random.Random(1)
    for n in range(60):
        ids = rng.sample(range(8), 5)
        listed = "\n\n".join(f"[{k}] {prose(i)}" for k, i in enumerate(ids, 1)).translate(digits)
        messages = [{"role": "user", "content": f"Cite.\n\n{listed}\n\nWhy in {n}?"}]
        given = orjson.dumps({"model": "m", "messages": messages})
        made = sent(hook, given)
        assert made.body == given
    assert made.reason is Reason.POSITIONAL_LABELS


def test_later_turns_repeat_the_ids_only_if_they_can_be_restored():
    hook, _ = taught("open webui", 8)
    ids = [3, 1, 7, 2, 5]
    first = sent(hook, body("open webui", ids))
    assert first.numbers
    messages = orjson.loads(body("open webui", ids))["messages"]
    messages += [{"role": "assistant", "content": "[1]"}, {"role": "user", "content": "More?"}]
    given = orjson.dumps({"model": "m", "messages": messages})
    later = sent(hook, given)
    assert content(later.body) == content(first.body)
    assert later.numbers == first.numbers
    assert sent(hook, given, restores=False).body == given


def conversation(given, *later):
    value = orjson.loads(given)
    for answer, question in later:
        value["messages"] += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": question},
        ]
    return orjson.dumps(value)


def test_an_id_is_not_used_if_a_later_turn_names_the_same_number():
    hook, _ = taught("open webui", 8)
    given = body("open webui", [3, 1, 7, 2, 5])
    own = next(iter(sent(hook, given).numbers))
    assert sent(hook, conversation(given, ("[1]", "More?"))).numbers
    for turn in ((f"It costs {own} dollars", "More?"), ("[1]", f"What does {own} mean?")):
        asked = conversation(given, turn)
        made = sent(hook, asked)
        assert own not in made.numbers
        assert content(made.body) == content(asked)


def test_no_new_id_is_a_number_of_an_earlier_answer():
    hook, _ = taught("open webui", 8)
    listed = body("open webui", [3, 1, 7, 2, 5])
    own = next(iter(sent(hook, listed).numbers))
    begun = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello?"}]})
    for said, is_used in (("hello", True), (f"That was {own}", False)):
        made = sent(hook, conversation(begun, (said, content(listed))))
        assert len(made.numbers) == 5
        assert (own in made.numbers) is is_used


def test_no_id_occurs_in_the_request():
    (own,) = ids_of(1, [77], set())
    (other,) = ids_of(1, [77], numbers_in(b'{"text": "in %d"}' % int(own)))
    assert own != other
    assert len(set(ids_of(1, range(200), set()))) == 200
    assert ids_of(1, [77], set(range(10_000))) == ()


def test_ambiguous_labels_keep_their_numbers():
    def block(text):
        hook = ContextHook(ContextSettings(holdout_share=0.0))
        body = orjson.dumps({"messages": [{"role": "user", "content": text}]})
        how = {"now": 0.0, "mode": "observe", "restores": True}
        return hook.apply(body, api="chat", tenant="", **how).reason

    docs = [f'<doc index="{n}">{prose(n)}</doc>' for n in range(1, 5)]
    assert block("\n".join(docs)) is Reason.UNCHANGED
    docs = [f'<doc source="{n}.pdf" index="{n}">{prose(n)}</doc>' for n in range(1, 5)]
    assert block("\n".join(docs)) is Reason.POSITIONAL_LABELS


NUMBERS = {"4821": "1", "4822": "2", "7340": "3"}
SAID = st.lists(
    st.sampled_from(
        [*NUMBERS, "[", "]", " ", ",", ".", "5", "48", "4", "7", "x", "é\n", "$", "[4821]"]
    ),
    max_size=30,
).map("".join)


def restored(text):
    """Return the restored text of a complete answer."""
    return re.sub(r"(?<![\w.$])(?:4821|4822|7340)(?!\w|\.\d)", lambda m: NUMBERS[m[0]], text)


def events_in(wire, rng):
    """Yield one or several lines at a time."""
    lines = wire.splitlines(keepends=True)
    while lines:
        size = rng.choice([1, 2, 9])
        yield b"".join(lines[:size])
        del lines[:size]


@settings(max_examples=examples(150), deadline=None)
@given(SAID, st.sampled_from(["content", "reasoning_content", "text"]), st.integers(0, 9999))
def test_a_stream_is_restored_like_a_whole_answer_in_any_chunks(said, field, seed):
    rng = random.Random(seed)
    wire, left = b": ping\n\n", said
    while left:
        size = rng.randint(1, 6)
        choice = {"index": 0, "delta": {field: left[:size]}, "finish_reason": None}
        if field == "text":
            choice |= choice.pop("delta")
        ascii_ = orjson.dumps({"choices": [choice]}) + rng.choice([b"\n\n", b"\r\n\r\n"])
        wire, left = wire + b"data: " + ascii_, left[size:]
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    wire += b"data: %s\n\ndata: [DONE]\n\n" % orjson.dumps({"choices": [last], "usage": None})
    restorer = Citations(NUMBERS, events=True)
    got = b"".join(map(restorer.restored, events_in(wire, rng)))
    events = [line[6:] for line in got.splitlines() if line.startswith(b"data: {")]
    choices = [orjson.loads(event)["choices"][0] for event in events]
    texts = [each.get(field) or each.get("delta", {}).get(field) or "" for each in choices]
    assert "".join(texts) == restored(said)
    assert got.startswith(b": ping\n\n")
    assert got.endswith(b"data: [DONE]\n\n")


@settings(max_examples=examples(60), deadline=None)
@given(SAID)
def test_the_numbers_of_a_whole_answer_are_restored(said):
    answer = orjson.dumps({"choices": [{"message": {"content": said, "tool_calls": None}}]})
    made = Citations(NUMBERS, events=False).restored(answer)
    assert orjson.loads(made)["choices"][0]["message"]["content"] == restored(said)


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize(
    "wire",
    [
        b'{"error": {"message": "4821"}}',
        b'{"choices": 4821}',
        b'{"choices": [4821, {"message": [4821]}]}',
        b"data: {4821\n\ndata: []\n\n",
        b"data: {}\n\n",
        b"[4821]",
        b"\xff4821" * 9,
        b"",
    ],
)
def test_a_body_that_is_not_an_answer_passes_unchanged(wire, events):
    assert Citations(NUMBERS, events=events).restored(wire) == wire

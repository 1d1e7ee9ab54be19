"""Prompts with documents: every shape in use, and no prompt that only looks so."""

from __future__ import annotations

import gc
import json
import random
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.context.ordinary import KINDS, ordinary
from tests.context.prompts import SHAPES, bodies, documents, variants

from laar.context.bodies import prompt_texts
from laar.context.doctor import WHY, diagnose
from laar.context.formats import SHAPES as KNOWN
from laar.context.formats import scan
from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings, Delimiters, Reason
from laar.context.surroundings import surroundings
from laar.errors import SettingError

TWO = ContextSettings(min_docs=2)
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))


def blocks(body, api, settings_=TWO):
    """All blocks of a body with the texts they are in."""
    texts = prompt_texts(body, api)
    return [
        (text.value, block)
        for text in texts
        for block in scan(text.value, settings_, surroundings(texts, text))
    ]


def own_texts(value, block):
    """The documents' own texts, as the model reads them."""
    for item in block.items:
        text = value[item.text_start : item.text_end]
        yield json.loads(f'"{text}"') if block.quoted else text


class TestRecorded:
    """Bodies that the libraries made; see `recorded/record.py`."""

    @pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
    def test_all_six_documents_are_seen_in_their_shape(self, path):
        recorded = json.loads(path.read_text())
        told = diagnose(orjson.dumps(recorded["body"]))
        assert (told.documents, told.shape) == (6, recorded["shape"])

    def test_citations_by_number_hold_the_documents_in_place(self):
        path = next(path for path in RECORDED if path.stem == "llama_index_citation")
        told = diagnose(orjson.dumps(json.loads(path.read_text())["body"]))
        assert (told.movable, told.reason) == (0, Reason.POSITIONAL_LABELS.value)


class TestVariants:
    """Prompts written out by hand, in all roles and interfaces."""

    @pytest.mark.parametrize("shape", SHAPES)
    def test_every_document_is_seen_and_nothing_else_is_in_it(self, shape):
        for made in variants(18, 60, [shape]):
            [(value, block)] = blocks(made.body, made.api)
            assert block.documents == len(made.docs), made.shape
            for own, doc in zip(own_texts(value, block), made.docs, strict=False):
                assert doc.text in own, made.shape
                around = own.replace(doc.text, "")
                assert len(around) < 160, (made.shape, around)
                assert "uestion" not in around, (made.shape, around)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_last_document_is_left_in_place_where_its_end_is_in_doubt(self, shape):
        """Several paragraphs in each document and no word before the question."""
        rng = random.Random(1)
        docs = documents(rng, 4, "paragraphs")
        for render in SHAPES[shape]:
            block = render(rng, docs)
            text = f"Use the following documents.\n\n{block}\n\nThe year of the treaty, please."
            body = {"messages": [{"role": "user", "content": text}]}
            for value, found in blocks(body, "chat"):
                assert "please" not in value[found.items[0].start : found.items[-1].end]


class TestOrdinary:
    @pytest.mark.parametrize("kind", range(len(KINDS)), ids=lambda i: KINDS[i].__name__[1:])
    def test_nothing_is_taken_for_documents(self, kind):
        for i, (name, api, body) in enumerate(ordinary(4, 40 * len(KINDS))):
            if i % len(KINDS) == kind:
                told = diagnose(orjson.dumps(body), api=api)
                assert (told.documents, told.shape) == (0, None), (name, body)

    def test_steps_under_a_heading_for_documents_stay_steps(self):
        text = (
            "Use the following context to answer the question.\n\nContext:\n"
            "1. Open the valve slowly.\n2. Wait until the pressure falls.\n3. Close the valve."
            "\n\nQuestion: What comes after opening?"
        )
        assert blocks({"prompt": text}, "completions") == []

    @pytest.mark.parametrize(
        "ask",
        [
            "Cite the sources you use.",
            "Rank the passages by relevance.",
            "What does document 2 say?",
            "Compare the first document with the last document.",
            "Translate each document.",
            "Refer to them as [1], [2] and so on.",
        ],
    )
    def test_labels_that_a_prompt_makes_use_of_hold_their_documents(self, ask):
        listed = "\n\n".join(f"Document {i}: {'text ' * 40}{i}" for i in range(1, 5))
        body = {"messages": [{"role": "user", "content": f"{listed}\n\n{ask}"}]}
        [(_, block)] = blocks(body, "chat")
        assert block.held is Reason.POSITIONAL_LABELS
        system = {"role": "system", "content": ask}
        body = {"messages": [system, {"role": "user", "content": f"{listed}\n\nWhy?"}]}
        assert [block.held for _, block in blocks(body, "chat")] == [Reason.POSITIONAL_LABELS]


TAGGED = "\n".join(f"<document>{f'text {i} ' * 40}</document>" for i in range(4))


def prompts_with(ask):
    """The words after documents without numbers, in the system prompt, and beside a tool's."""
    yield {"messages": [{"role": "user", "content": f"{TAGGED}\n\n{ask}"}]}
    system = {"role": "system", "content": ask}
    yield {"messages": [system, {"role": "user", "content": f"{TAGGED}\n\nWhy?"}]}
    found = {"results": [{"url": f"u{i}", "text": f"text {i} " * 40} for i in range(4)]}
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    yield {
        "messages": [
            {"role": "user", "content": ask},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": json.dumps(found)},
        ]
    }


class TestOrderWithoutNumbers:
    @pytest.mark.parametrize(
        "ask",
        [
            "Reply with a list of scores, in the same order as the documents.",
            "Give scores from 0 to 10, one per document.",
            "Return a JSON array with a relevance score for all documents above.",
            "Compare the first document with the last two documents.",
            "The documents are in chronological order. What came second?",
            "They are sorted from newest to oldest.",
            "Most recent documents first.",
            "The passages, ordered by date, are from a diary.",
            "Later documents override earlier ones.",
            "If they disagree, the first one counts.",
            "Trust the one listed earlier.",
            "Summarise the book, in order.",
            "Antworte in derselben Reihenfolge.",
            "Classés du plus récent au plus ancien.",
            "Responde en el mismo orden.",
            "Ответь в том же порядке.",
            "请按顺序回答。",
            "時系列で答えてください。",
        ],
    )
    def test_words_that_give_the_order_a_meaning_hold_the_documents(self, ask):
        for body in prompts_with(ask):
            [(_, block)] = blocks(body, "chat")
            assert not block.labels_stay
            assert block.held is Reason.POSITIONAL_LABELS
            always = ContextSettings(relabel=True)
            assert [block.held for _, block in blocks(body, "chat", always)] == [None]
            assert diagnose(orjson.dumps(body)).movable == 0

    @pytest.mark.parametrize(
        "ask",
        [
            "Use the documents in order to answer.",
            "The documents are ranked by relevance, most relevant first.",
            "The passages are sorted by their relevance to the question.",
            "Answer in this order: a summary, then the details.",
            "Cite a source for each claim.",
            "The documents are listed below. Use the most recent one.",
            "The documents take precedence over what you know.",
            "Who finished first, and who was last?",
            "Use at least one of the documents.",
        ],
    )
    def test_ordinary_words_hold_nothing(self, ask):
        for body in prompts_with(ask):
            assert [block.held for _, block in blocks(body, "chat")] == [None]


def strings(value, path=()):
    """All strings of a JSON value, by path."""
    if isinstance(value, dict):
        for key, own in value.items():
            yield from strings(own, (*path, key))
    elif isinstance(value, list):
        for i, own in enumerate(value):
            yield from strings(own, (*path, i))
    elif isinstance(value, str):
        yield path, value


class TestMoved:
    """Bodies that leave the hook when documents were moved, over all shapes."""

    @pytest.mark.parametrize("shape", SHAPES)
    @settings(max_examples=15)
    @given(seed=st.integers(0, 10_000), k=st.integers(3, 9))
    def test_only_documents_change_places(self, shape, seed, k):
        rng = random.Random(seed)
        docs = documents(rng, k, rng.choice(("short", "plain", "foreign")))
        again = list(docs)
        rng.shuffle(again)
        again = [type(doc)(i, doc.title, doc.text) for i, doc in enumerate(again, 1)]
        render = rng.choice(SHAPES[shape])
        state = rng.getstate()
        first = bodies(rng, shape, docs, render(random.Random(seed), docs))
        rng.setstate(state)
        second = bodies(rng, shape, tuple(again), render(random.Random(seed), again))
        hook = ContextHook(
            ContextSettings(
                holdout_share=0.0,
                relabel=True,
                annotate=False,
                min_saving_bytes=0,
            )
        )
        call = {"tenant": "t", "route": "r", "now": 0.0, "mode": "on"}
        sent = hook.apply(orjson.dumps(first.body), api=first.api, **call)
        hook.commit(sent.receipt, 0.0)
        assert orjson.loads(sent.body) == first.body
        given_ = orjson.dumps(second.body)
        result = hook.apply(given_, api=second.api, **call)
        was, now = dict(strings(second.body)), dict(strings(orjson.loads(result.body)))
        assert was.keys() == now.keys()
        changed = [path for path in was if was[path] != now[path]]
        assert len(changed) <= 1
        for path in changed:
            assert result.reason is Reason.REORDERED
            assert sorted(was[path]) == sorted(now[path])  # nothing lost, nothing added
            for doc in again:
                own = json.dumps(doc.text)[1:-1]
                assert any(form in now[path] for form in (doc.text, own)), doc.text
            given_ = given_.replace(orjson.dumps(was[path]), orjson.dumps(now[path]), 1)
        assert result.body == given_  # all other bytes as they came

    @pytest.mark.parametrize("shape", SHAPES)
    def test_off_is_the_same_object(self, shape):
        [made] = variants(3, 1, [shape])
        body = orjson.dumps(made.body)
        hook = ContextHook()
        result = hook.apply(body, api=made.api, tenant="", route="r", now=0.0, mode="off")
        assert result.body is body
        assert result.reason is Reason.OFF
        assert result.receipt is None


class TestDeclared:
    TEXT = "Hits\n#1# alpha beta gamma\n#2# delta epsilon\n#3# zeta eta\nEND what is alpha?"

    def test_items_with_numbers(self):
        declared = ContextSettings(delimiters=(Delimiters(item="#{n}# ", after="\nEND"),))
        [block] = scan(self.TEXT, declared)
        own = [self.TEXT[item.start : item.end] for item in block.items]
        assert own == ["alpha beta gamma", "delta epsilon", "zeta eta"]
        assert block.labels_stay
        assert block.shape == "declared"

    def test_what_stands_between(self):
        text = "Given: a b c || d e f || g h i; why?"
        declared = ContextSettings(
            delimiters=(Delimiters(before="Given: ", between=" || ", after="; "),)
        )
        [block] = scan(text, declared)
        assert [text[item.start : item.end] for item in block.items] == ["a b c", "d e f", "g h i"]

    @pytest.mark.parametrize(
        "delimiters", [{"before": "Given: ", "between": " || "}, {"item": "#{n}# "}]
    )
    def test_other_texts_are_read_as_ever(self, delimiters):
        declared = ContextSettings(delimiters=(Delimiters(**delimiters),))
        text = "".join(f"<doc>{name}</doc>" for name in "abc")
        assert [block.shape for block in scan(text, declared)] == ["xml"]

    @pytest.mark.parametrize("wrong", [{}, {"item": "{n}"}, {"item": "x", "between": "y"}])
    def test_delimiters_that_tell_nothing_apart(self, wrong):
        with pytest.raises(SettingError):
            Delimiters(**wrong)


class TestDoctor:
    def test_every_reason_has_a_sentence(self):
        for made in variants(9, 40):
            told = diagnose(orjson.dumps(made.body))
            assert told.reason is None or told.reason in WHY

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"no json", "invalid_json"),
            (b"[]", "unsupported_api"),
            (b'{"x": 1}', "unsupported_api"),
            (b'{"messages": "x"}', "no_documents"),
            (b'{"messages": [{"role": "user", "content": "<doc>a</doc><doc>b"}]}', "unbalanced"),
        ],
    )
    def test_bodies_without_documents(self, body, reason):
        told = diagnose(body)
        assert (told.documents, told.shape, told.reason) == (0, None, reason)

    def test_a_place_whose_shape_is_not_known_is_named(self):
        rows = "".join(f"~{i}~ {'word ' * 40}" for i in range(9))
        text = f"Answer from the retrieved documents.\n\n<context>\n{rows}\n</context>\n\nWhy?"
        body = orjson.dumps({"messages": [{"role": "user", "content": text}]})
        assert diagnose(body).reason == "unknown_shape"
        hook = ContextHook()
        result = hook.apply(body, api="chat", tenant="", route="r", now=0.0, mode="observe")
        assert result.reason is Reason.UNKNOWN_SHAPE
        assert result.shapes == (("unknown_tag", 0),)

    def test_a_line_of_a_batch_counts_by_its_body(self):
        [made] = variants(3, 1, ["doc_n"])
        line = orjson.dumps({"custom_id": "1", "body": made.body})
        assert diagnose(line).documents == len(made.docs)

    def test_older_turns_and_other_roles_are_told(self):
        docs = "".join(f"<doc>{name * 300}</doc>" for name in "abc")
        turns = [{"role": "user", "content": docs}, {"role": "assistant", "content": "Yes."}]
        old = diagnose(orjson.dumps({"messages": [*turns, {"role": "user", "content": "And?"}]}))
        assert (old.documents, old.movable, old.reason) == (3, 0, "not_the_last_turn")
        other = diagnose(orjson.dumps({"messages": turns[:1]}), ContextSettings(roles=("system",)))
        assert (other.documents, other.movable, other.reason) == (3, 0, "role")


def test_every_row_of_the_table_says_what_it_is():
    assert all(shape.like and shape.seen_in for shape in KNOWN.values())


def test_no_body_leaves_cycles_for_the_garbage_collector():
    """They hold copies of the prompt, and to look for them stops the next requests."""
    torn = "See </document>.\n\n" + "\n\n".join(f"Document {i}: {i} is odd." for i in (1, 2, 3))
    unknown = (
        f"Use the following retrieved documents.\n\nDocuments:\n{'x' * 2000}\n\nQuestion: why?"
    )
    made = [{"messages": [{"role": "user", "content": text}]} for text in (torn, unknown)]
    bodies = [("chat", body) for body in made]
    bodies += [(api, body) for _, api, body in ordinary(23, 2 * len(KINDS))]
    bodies += [(one.api, one.body) for one in variants(23, 2 * len(SHAPES))]
    hook = ContextHook(ContextSettings())
    gc.collect(0)
    gc.disable()
    try:
        for api, body in bodies:
            hook.apply(orjson.dumps(body), api=api, tenant="", route="r", now=0.0, mode="on")
        assert gc.collect(0) == 0
    finally:
        gc.enable()
    assert hook.stats()[Reason.UNKNOWN_SHAPE.value] > 0


class TestElementsOfAnyName:
    """Inside a place that announces documents, elements of one name are documents."""

    DOCS = tuple(
        f"Point {i} of the handbook: {text}"
        for i, text in zip(
            (31, 7, 22, 15),
            (
                "unused days of leave expire at the end of March.",
                "parental leave is sixteen weeks at full pay.",
                "a certificate is needed from day four of an illness.",
                "expenses are refunded within a month of the journey.",
            ),
            strict=True,
        )
    )

    def told(self, before, form, after):
        text = before + "\n".join(form.format(doc) for doc in self.DOCS) + after
        body = {"messages": [{"role": "user", "content": f"{text}\n\nHow many days expire?"}]}
        told = diagnose(orjson.dumps(body))
        return told.documents, told.movable, told.shape

    @pytest.mark.parametrize(
        ("tag", "form"),
        [
            ("context", "<item>{}</item>"),
            ("articles", "<article>\n<title>Rules</title>\n<body>{}</body>\n</article>"),
            ("results", "<result>\n<content>{}</content>\n</result>"),
            ("documents", "<document source='a.pdf' page=3>{}</document>"),
        ],
    )
    def test_they_are_seen(self, tag, form):
        assert self.told(f"Use these texts.\n<{tag}>\n", form, f"\n</{tag}>") == (4, 4, "xml")

    @pytest.mark.parametrize(
        "form",
        [
            '<message from="Ann">{}</message>',
            '<note speaker="Ann">{}</note>',
            "<step>{}</step>",
            "<item>{}</item> and",
            "<item>{}</item><other/>",
        ],
    )
    def test_turns_steps_and_mixtures_are_not(self, form):
        assert self.told("<context>\n", form, "\n</context>")[0] == 0

    def test_tags_outside_of_a_place_are_not(self):
        assert self.told("<ul>\n", "<item>{}</item>", "\n</ul>")[0] == 0

"""Bodies written after frameworks and samples, not after the recognisers' table.

`strangers.jsonl` has them: in its first line the sets of documents, then a body in each, with the
name of its set. A body without documents of its own in a shape is one that may go by unseen.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import orjson
import pytest
from tests.context.lookalikes import LOOKALIKES, in_roles

from laar.context.bodies import api_of, prompt_texts
from laar.context.doctor import diagnose
from laar.context.formats import scan
from laar.context.formats.jsonspans import raw_of
from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings, Reason
from laar.context.surroundings import surroundings

SETS, *STRANGERS = map(
    json.loads, (Path(__file__).parent / "strangers.jsonl").read_text().splitlines()
)
LONGEST_HEAD = 200
"""Characters that may belong to a document beside its text: its source, title, link, score."""


def items(body):
    """The text of each item that may move, or would if nothing held it."""
    texts = prompt_texts(body, api_of(body), raw_of(orjson.dumps(body), body))
    for text in texts:
        for block in scan(text.value, ContextSettings(), surroundings(texts, text)):
            for item in block.items:
                yield text.value[item.start : item.end]


def forms(doc):
    """A document as it may stand in a text: as it is, or in JSON."""
    return doc, json.dumps(doc)[1:-1], json.dumps(doc, ensure_ascii=False)[1:-1]


class TestStrangers:
    @pytest.mark.parametrize("made", STRANGERS, ids=lambda made: made["name"])
    def test_all_documents_are_seen_and_each_is_cut_out_whole(self, made):
        docs = [
            doc.replace("\n", "\r\n") if made["name"].startswith("crlf") else doc
            for doc in SETS[made["set"]]
        ]
        told = diagnose(orjson.dumps(made["body"]))
        assert told.documents == len(docs), told
        for own in items(made["body"]):
            [inside] = [form for doc in docs for form in set(forms(doc)) if form in own]
            assert len(own) - len(inside) < LONGEST_HEAD, own
            assert "uestion" not in own, own

    @pytest.mark.parametrize("made", STRANGERS, ids=lambda made: made["name"])
    def test_nothing_is_lost_when_they_move(self, made):
        hook = ContextHook(ContextSettings(holdout_share=0.0, annotate=False, relabel=True))
        body = orjson.dumps(made["body"])
        call = {"api": api_of(made["body"]), "tenant": "", "route": "r", "mode": "on"}
        for now in (0.0, 1.0):
            result = hook.apply(body, now=now, **call)
            hook.commit(result.receipt, now)
            assert sorted(result.body) == sorted(body)


def with_blocks(kind, order):
    """A message whose documents are blocks of their own, with the question behind them."""
    docs = SETS["A"]
    made = {
        "document": lambda i: {
            "type": "document",
            "title": f"t{i}",
            "source": {"type": "text", "media_type": "text/plain", "data": docs[i]},
        },
        "search_result": lambda i: {
            "type": "search_result",
            "source": f"https://x/{i}",
            "content": [{"type": "text", "text": docs[i]}],
        },
        "text": lambda i: {"type": "text", "text": f"Document {order.index(i) + 1}: {docs[i]}"},
    }[kind]
    asked = {"type": "text", "text": "How many days?"}
    content = [*map(made, order), asked]
    return {"max_tokens": 9, "messages": [{"role": "user", "content": content}]}


class TestBlocksOfAMessage:
    @pytest.mark.parametrize("kind", ["document", "search_result", "text"])
    @pytest.mark.parametrize("indent", [None, 1])
    def test_they_follow_the_order_sent_before_as_they_were_written(self, kind, indent):
        hook = ContextHook(ContextSettings(holdout_share=0.0))
        call = {"api": "chat", "tenant": "", "route": "r", "mode": "on"}
        first = json.dumps(with_blocks(kind, [0, 1, 2, 3]), indent=indent).encode()
        second = json.dumps(with_blocks(kind, [3, 1, 0, 2]), indent=indent).encode()
        sent = hook.apply(first, now=0.0, **call)
        hook.commit(sent.receipt, 0.0)
        result = hook.apply(second, now=1.0, **call)
        assert sent.body == first
        assert result.body == first

    def test_documents_to_be_cited_by_place_stay(self):
        body = with_blocks("document", [0, 1, 2])
        for block in body["messages"][0]["content"][:3]:
            block["citations"] = {"enabled": True}
        told = diagnose(orjson.dumps(body))
        assert (told.documents, told.movable, told.reason) == (3, 0, "positional_labels")

    @pytest.mark.parametrize(
        "content",
        [
            [1, 2, {"type": "document"}],
            [{"type": "document", "source": None}] * 3,
            [{"type": "document", "source": {"type": "text", "data": 5}}] * 3,
            [{"type": "text"}, {"type": "text", "text": None}, 7],
            [{"type": "text", "text": "Document 1: a"}, {"type": "text", "text": 2}] * 2,
            [{"type": "search_result", "content": [{"text": "a"}, {"text": "b"}]}] * 3,
            [{"type": ["document"]}, {"type": "document"}, {"type": {}}],
        ],
    )
    @pytest.mark.parametrize("role", ["user", "tool"])
    def test_what_has_no_documents_goes_by(self, content, role):
        body = orjson.dumps({"messages": [{"role": role, "content": content}]})
        hook = ContextHook(ContextSettings(min_saving_bytes=0))
        result = hook.apply(body, api="chat", tenant="", route="r", now=0.0, mode="on")
        assert (result.body, result.reason) == (body, Reason.NO_DOCUMENTS)
        assert diagnose(body).documents == 0

    def test_a_marked_content_is_left_alone(self):
        body = with_blocks("document", [0, 1, 2])
        body["messages"][0]["content"][2]["cache_control"] = {"type": "ephemeral"}
        assert diagnose(orjson.dumps(body)).documents == 0


class TestLookalikes:
    @pytest.mark.parametrize("kind", LOOKALIKES, ids=lambda kind: kind.__name__[1:])
    def test_nothing_is_taken_for_documents(self, kind):
        for seed in range(12):
            for body in in_roles(kind(random.Random(seed))):
                told = diagnose(orjson.dumps(body))
                assert (told.documents, told.shape) == (0, None), body

    @pytest.mark.parametrize("name", ["read_document", "fetch_wiki_page", "getDoc", "open_wiki"])
    def test_a_page_that_a_tool_reads_is_one_document(self, name):
        page = "\n\n".join(SETS["A"])
        assert diagnose(orjson.dumps(called(name, page))).documents == 0
        assert diagnose(orjson.dumps(called("search_wiki", page))).documents == len(SETS["A"])

    def test_messages_that_a_tool_finds_stay_in_their_order(self):
        found = [{"ts": f"17{i}", "channel": "x", "text": doc} for i, doc in enumerate(SETS["A"])]
        result = json.dumps({"results": found})
        assert diagnose(orjson.dumps(called("search_slack", result))).documents == 0


def called(name, result):
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {
        "messages": [
            {"role": "user", "content": "How many days?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": result},
        ]
    }

"""Bodies written from what is known of frameworks and samples, not from the recognisers' table.

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

from laar.context import ContextHook, ContextSettings
from laar.context.bodies import api_of, prompt_texts
from laar.context.doctor import diagnose
from laar.context.formats import scan
from laar.context.turn import surroundings

SETS, *STRANGERS = map(
    json.loads, (Path(__file__).parent / "strangers.jsonl").read_text().splitlines()
)
LONGEST_HEAD = 200
"""What may belong to a document beside its text: its source, title, link, score."""


def items(body):
    """What each item is that may move, or would if nothing held it."""
    texts = prompt_texts(body, api_of(body))
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


class TestLookalikes:
    @pytest.mark.parametrize("kind", LOOKALIKES, ids=lambda kind: kind.__name__[1:])
    def test_nothing_is_taken_for_documents(self, kind):
        for seed in range(12):
            for body in in_roles(kind(random.Random(seed))):
                told = diagnose(orjson.dumps(body))
                assert (told.documents, told.shape) == (0, None), body

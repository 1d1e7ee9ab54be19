"""The texts that are recognized as lists of documents, and those that are refused."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laar.context.blocks import SkippedText
from laar.context.formats import scan
from laar.context.rewrite import BlockChange, rewrite
from laar.context.settings import Reason
from support.exploring import examples
from support.speed import times_as_long


def found(text):
    return [[text[i.start : i.end] for i in block.items] for block in scan(text)]


def refusal(text):
    with pytest.raises(SkippedText) as info:
        scan(text)
    return info.value.reason


def fixed(text):
    [block] = scan(text)
    return block.fixed


def reversed_(text, *, annotate=False):
    blocks = scan(text)
    changes = [BlockChange(block, tuple(reversed(range(len(block.items))))) for block in blocks]
    return rewrite(text, changes)[annotate]


class TestXml:
    def test_items_in_a_wrapper_with_attributes_are_found(self):
        text = (
            'Use:\n<documents n="3">\n<document id="a">x</document>\n <document id="b">y</document>'
            '\n<document id="c">z</document></documents>\nQ?'
        )
        assert found(text) == [
            [f'<document id="{name}">{body}</document>' for name, body in ("ax", "by", "cz")]
        ]
        [block] = scan(text)
        assert [item.label for item in block.items] == ["a", "b", "c"]
        assert text[: block.end].endswith("</documents>")

    @pytest.mark.parametrize("name", ["document", "context", "doc", "passage", "reference", "file"])
    def test_every_item_name_is_found_bare_and_wrapped(self, name):
        items = [f"<{name}>{i}</{name}>" for i in "xyz"]
        assert found("\n".join(items)) == [items]
        assert found(f"<{name}s>{''.join(items)}</{name}s>") == [items]

    def test_context_may_be_the_wrapper(self):
        items = [f"<doc>{i}</doc>" for i in "xyz"]
        assert found(f"<context>\n{''.join(items)}</context>") == [items]

    def test_gaps_stay_in_place_and_attributes_move_with_documents(self):
        text = "<doc id='q'>1</doc>\n\n<doc>2</doc> <doc a=\"b\">3</doc>"
        assert reversed_(text) == "<doc a=\"b\">3</doc>\n\n<doc>2</doc> <doc id='q'>1</doc>"

    def test_equal_separators_are_gaps_but_prose_is_not(self):
        assert found("<doc>1</doc>\n---\n<doc>2</doc>\n---\n<doc>3</doc>")
        text = "<doc>1</doc> see also <doc>2</doc> and last <doc>3</doc>"
        assert refusal(text) is Reason.GAPS_DIFFER

    def test_an_empty_item_does_not_include_the_next_one(self):
        text = "<doc></doc><doc>2</doc><doc>3</doc>"
        assert found(text) == [["<doc></doc>", "<doc>2</doc>", "<doc>3</doc>"]]

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("</document>", Reason.UNBALANCED),
            ("<documents><doc>1</doc>", Reason.UNBALANCED),
            ("<doc>1</file>", Reason.UNBALANCED),
            ("<doc>1 <doc>2</doc></doc>", Reason.NESTED),
            ("<documents><docs></docs></documents>", Reason.NESTED),
            ("<doc>holds </doc> its own delimiter</doc>", Reason.UNBALANCED),
            ('<doc id="1" id="2">1</doc>', Reason.DUPLICATE_ATTRIBUTE),
            ("<doc id=>1</doc>", Reason.MALFORMED_TAG),
            ('<doc id="1>1</doc>', Reason.MALFORMED_TAG),
            ("<doc/><doc/><doc/>", Reason.MALFORMED_TAG),
            ("<doc>1</doc>" * 300, Reason.TOO_MANY),
        ],
    )
    def test_ambiguous_markup_is_refused(self, text, reason):
        assert refusal(text) is reason

    def test_longer_tag_names_are_plain_text(self):
        assert found("<documentation>" * 5 + "<docker>") == []

    def test_numbering_attributes_stay_in_place(self):
        text = "".join(f'<doc index="{i}">t{i}</doc>' for i in (1, 2, 3))
        assert fixed(text)
        assert reversed_(text) == "".join(f'<doc index="{i}">t{4 - i}</doc>' for i in (1, 2, 3))

    def test_other_attributes_of_numbered_items_move_with_their_text(self):
        text = "".join(f'<doc index="{i}" source="{i}.pdf">t{i}</doc>' for i in (1, 2, 3))
        assert reversed_(text) == "".join(
            f'<doc index="{i}" source="{4 - i}.pdf">t{4 - i}</doc>' for i in (1, 2, 3)
        )

    def test_a_number_after_another_attribute_keeps_documents_in_place(self):
        text = "".join(f'<doc source="{i}.pdf" index="{i}">t{i}</doc>' for i in (1, 2, 3))
        assert fixed(text)

    def test_tags_inside_a_document_are_part_of_it(self):
        items = [f"<document><source>{i}.md</source>{i}</document>" for i in "xyz"]
        assert found("\n".join(items)) == [items]


class TestResults:
    def test_json_elements_move_unchanged(self):
        parts = (
            '{"id":"a", "content":"x"}',
            '{"content" : "y","id":"b"}',
            '{"id":"é","content":"\\u00e9"}',
        )
        form = '{"q": 1.50, "results": [ %s,\n %s, %s], "n": 3}'
        text = form % parts
        assert reversed_(text) == form % parts[::-1]
        [block] = scan(text)
        assert [item.label for item in block.items] == ["a", "b", "é"]
        assert text[block.items[1].text_start : block.items[1].text_end] == "y"

    @pytest.mark.parametrize("key", ["rank", "position", "id"])
    def test_numbered_elements_move_under_their_numbers(self, key):
        text = json.dumps({"results": [{key: i, "content": "x" * (i + 1)} for i in range(4)]})
        assert fixed(text)
        moved = json.loads(reversed_(text))["results"]
        assert moved == [{key: i, "content": "x" * (4 - i)} for i in range(4)]

    def test_two_results_with_the_same_url_stay_separate(self):
        text = json.dumps({"results": [{"url": "u", "content": c} for c in "xyz"]})
        assert len(found(text)[0]) == 3

    @pytest.mark.parametrize(
        "value",
        [
            {"treffer": [{"inhalt": f"Seite {i} davon", "ort": i * 7} for i in (1, 2, 3)]},
            {"a": {"b": [{"_id": f"{i}", "_source": {"long": f"one {i}"}} for i in "xyz"]}},
            [[f"text {i}"] for i in "xyz"],
            [f"text {i}" for i in "xyz"],
            {"few": [{"t": "longer than all others"}], "many": [f"text {i}" for i in "xyz"]},
            [{"response": [{"pageContent": f"text {i}"} for i in "xyz"]}],
        ],
    )
    def test_a_list_of_texts_is_found_under_any_name(self, value):
        assert [len(items) for items in found(json.dumps(value))] == [3]

    @pytest.mark.parametrize(
        "value",
        [
            {"results": [f"text {i}" for i in "xyz"], "scores": [0.3, 0.2, 0.1]},
            {"results": [f"text {i}" for i in "xyz"], "meta": {"scores": [0.3, 0.2, 0.1]}},
            {"hits": {"texts": [f"text {i}" for i in "xyz"]}, "scores": [0.3, 0.2, 0.1]},
            {"results": [{"text": f"text {i}", "chunk_no": i} for i in (4, 5, 6)]},
        ],
    )
    def test_elements_that_other_lists_refer_to_by_position_stay_in_place(self, value):
        assert fixed(json.dumps(value))

    def test_a_note_about_json_before_other_text_follows_the_json(self):
        listed = json.dumps({"results": [{"text": f"text {i}"} for i in "xyz"]})
        [block] = scan(f"{listed}\n\nWhat is it?")
        assert (block.shape, block.end) == ("json", len(listed))

    @pytest.mark.parametrize("before", ['{"task": "answer"}', '["one"]', "[[Note]] says", '{"a'])
    def test_a_list_below_a_line_that_begins_like_json_is_found(self, before):
        listed = json.dumps([{"title": name, "text": f"text {name}"} for name in "xyz"], indent=1)
        assert [len(items) for items in found(f"{before}\n\n{listed}\n\nWhat is it?")] == [3]

    def test_a_list_inside_json_without_documents_is_unchanged(self):
        deep = '{"a": {"b": {"c": {"d":\n[\n"text x",\n"text y",\n"text z"]\n}}}}'
        assert found(deep) == found(f"Given:\n{deep}\nWhat?") == []

    @pytest.mark.parametrize(
        "text",
        ['{"results": [1, 2, 3]}', '{"results": "x"}', "[1,2,3]", '{"results": [{}', '{"a": 1}'],
    )
    def test_other_json_is_unchanged(self, text):
        assert found(text) == []

    def test_a_duplicate_key_is_refused(self):
        texts = ",".join(f'{{"text": "{name}"}}' for name in "abc")
        text = f'{{"results": [{{"text": "z"}}], "results": [{texts}]}}'
        assert refusal(text) is Reason.DUPLICATE_KEYS


HOSTILE = {
    "unclosed items": "<document>",
    "unclosed tags": "<document ",
    "ends": "</document>",
    "pairs": "<doc>x</doc>",
    "attributes": '<doc a="',
    "angles": "<",
    "spaces in a tag": "<doc" + " " * 99,
    "names": "a" * 50 + "=",
    "fences": "```\n",
    "labels": "[1]\n```\n",
    "tildes": "~",
    "backticks": "`",
    "braces": '{"results":[',
}


def scanned_as_long(text, other):
    """Return how many times as long scanning a text takes as scanning another one."""

    def scans(each):
        with contextlib.suppress(SkippedText):
            scan(each)

    return times_as_long(lambda: scans(text), lambda: scans(other), tries=3)


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_megabyte_of_hostile_markup_takes_linear_time(piece):
    small, large = (piece * (size // len(piece)) for size in (1 << 17, 1 << 20))
    assert scanned_as_long(large, small) < 24  # 64 times if the scanner were quadratic


def test_many_tags_in_sentences_before_a_long_text_take_little_time():
    text, late = " a <doc/" * 2040, "b" * 2_000_000
    assert scan(text + late) == []
    assert scanned_as_long(text + late, late + text) < 8


def test_a_first_document_with_many_names_takes_linear_time():
    def named(count):
        attributes = " ".join(f"a{n}=2" for n in range(count))
        return f"<doc {attributes}>x</doc>" + "<doc>y</doc>" * 250

    assert len(found(named(40_000))[0]) == 251
    assert scanned_as_long(named(40_000), named(5_000)) < 24


text_st = st.text(st.sampled_from('ab<>/"= \n`[]1{}é\\')).map(
    lambda text: text.replace("<", "").replace("`", "")
)


@settings(max_examples=examples(80))
@given(st.lists(text_st, min_size=3, max_size=6), st.sampled_from(["", "\n", " \n\n"]), st.data())
@example(["", "", ""], "", None)
def test_any_order_keeps_every_document_and_all_gaps(bodies, gap, data):
    text = "pre " + gap.join(f"<doc>{body}</doc>" for body in bodies) + " post"
    [block] = scan(text)
    order = data.draw(st.permutations(range(len(bodies)))) if data else range(len(bodies))
    change = BlockChange(block, tuple(order))
    made, _ = rewrite(text, [change])
    docs = [f"<doc>{body}</doc>" for body in bodies]
    assert made == "pre " + gap.join(docs[i] for i in order) + " post"


SHAPES = {
    "written by Python": lambda texts: (
        f"Context: {[{'n': [i], 'text': f'x {t}'} for i, t in enumerate(texts)]}!"
    ),
    "items": lambda texts: "".join(f'<doc id="n{i}">{t}</doc>\n' for i, t in enumerate(texts)),
    "numbered items": lambda texts: "".join(
        f'<doc index="{i}">{t}</doc>' for i, t in enumerate(texts)
    ),
    "wrapped": lambda texts: (
        "<context>" + " ".join(f"<file >{t}</file >" for t in texts) + "</context>"
    ),
    "results": lambda texts: json.dumps(
        {"results": [{"text": f"x{t}", "n": {"]": [i]}} for i, t in enumerate(texts)]},
        indent=len(texts),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=examples(60))
@given(st.lists(text_st, min_size=3, max_size=6), st.data())
def test_moved_documents_are_found_again_in_their_new_positions(shape, texts, data):
    """The hook relies on this, as it does not scan its results again before it sends them."""
    text = SHAPES[shape](texts)
    [block] = scan(text)
    order = data.draw(st.permutations(range(len(texts))))
    change = BlockChange(block, tuple(order))
    made, _ = rewrite(text, [change])
    [again] = scan(made)
    want = [text[block.items[at].start : block.items[at].end] for at in order]
    assert [made[item.start : item.end] for item in again.items] == want


@pytest.mark.parametrize(
    "text",
    [
        "x ['a', 'b', 'c'] y",  # words instead of texts
        "['it is', open('x'), 'so so']",
        "['a b', -'c d', 'e f']",
        "[{'a b': 1, **{}}, {'c d': 2}, {'e f': 3}]",
        "[{[]: 'a b'}, {'c': 'd e'}, {'f': 'g h'}]",
        "['a b', {'t': 'c d'}, 'e f']",
        "[" * 3000 + "'a b'",
        "['" + "[{'" * 3000,
        "['a b', f'{1} 2', 'c d']",
        "['a b', 'c d', 'e f'",
        '{"a": {"b": {"c": {"d": ["a b", "c d", "e f"]}}}}',  # a note would break the JSON
        "['a b',\r        'c d',\r                'e f']",  # of several lines
    ],
)
def test_texts_unlike_pythons_repr_are_not_lists(text):
    assert found(text) == []


@pytest.mark.parametrize("piece", ["{x}", "' + 'a", "' if 1 else 'a"])
def test_code_that_begins_like_a_list_takes_less_time_than_a_list(piece):
    code = f"['a b', f'{piece * (50_000 // len(piece))}', 'c d']"
    assert scanned_as_long(code, str(["a b"] * (len(code) // 7))) < 1


def test_changes_that_would_lose_or_repeat_text_are_refused():
    text = "".join(f"<doc>{body * 99}</doc>" for body in "abc")
    [block] = scan(text)
    first, *others = block.items
    wide = replace(block, items=(first._replace(end=first.end + 1), *others))
    late = replace(block, end=len(text) + 1)
    noted = BlockChange(block, (0, 1, 2), frozenset({1}))
    twice, short = BlockChange(block, (0, 1, 1)), BlockChange(block, (0, 1))
    for change in (twice, short, BlockChange(wide, (2, 1, 0)), BlockChange(late, (2, 1, 0)), noted):
        with pytest.raises(SkippedText):
            rewrite(text, [change], ["nothing of the kind"])
    made, _ = rewrite(text, [noted], ["before " + "b" * 99])
    assert "b" * 99 not in made

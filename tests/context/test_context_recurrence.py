"""Documents without tags are recognized if they recur between different neighbors."""

from __future__ import annotations

import pickle
import random
import re
from functools import partial

import pytest

from laar.context.recurrence import Recurrences
from laar.context.rewrite import BlockChange, rewrite
from laar.context.sequences import Sequences
from support.speed import times_as_long

SCOPE = 7
HEAD = "Source: The handbook of the museum, part {} of 4.pdf"
WORDS = tuple(f"{a}{b}" for a in ("gran", "tal", "mor", "sil", "ver") for b in ("ite", "on", "eth"))


def prose(i, lines=3):
    rng = random.Random(i)
    made = [" ".join(rng.choices(WORDS, k=9)) + "." for _ in range(lines)]
    return "\n".join(f"{line[0].upper()}{line[1:]}" for line in made)


def fenced(i):
    """Return a document; every second one ends with a code block."""
    return prose(i) + (f"\n\n```yaml\nkey{i}: 1\n```" if i % 2 else "")


def headed(i):
    return f"## Part {i % 3}\n\n{prose(i)}\n\nSee it."


FRAMES = {
    "blank lines": ("\n\n", "{t}"),
    "rules": ("\n\n---\n\n", "{t}"),
    "single line ends": ("\n", "{t}"),
    "names": ("\n\n", "Source: file-{i}.md\nContent: {t}"),
    "own labels": ("\n\n", "[Doc_{i}] {t}"),
    "end marks": ("\n", "<<<\n{t}\n>>>"),
    "bullets": ("\n", "- {t}"),
}


def bodies(make, frame, count, seed=1):
    """Yield texts with five of twelve documents each, and the documents of each text."""
    gap, form = FRAMES[frame]
    rng = random.Random(seed)
    for n in range(count):
        docs = [form.format(i=i, t=make(i)) for i in rng.sample(range(12), 5)]
        question = f"{' '.join(rng.choices(WORDS, k=6))} ({n})?"
        yield f"Answer from what was found.\n\n{gap.join(docs)}\n\nQuestion: {question}", docs


def taught(texts):
    known = Recurrences()
    for text, _ in texts:
        _, seen = known.find(SCOPE, text)
        if seen is not None:
            known.learn(seen)
    return known


def items(known, text, scope=SCOPE):
    block, _ = known.find(scope, text)
    return [] if block is None else [text[item.start : item.end] for item in block.items]


def test_a_new_document_among_known_ones_is_learned():
    known, (gap, form), rng = taught(bodies(prose, "rules", 400)), FRAMES["rules"], random.Random(5)
    for n in range(40):
        ids = [*rng.sample(range(12), 4), 12]
        rng.shuffle(ids)
        docs = [form.format(i=i, t=prose(i)) for i in ids]
        text = f"Answer from what was found.\n\n{gap.join(docs)}\n\nQuestion: {n} and more?"
        block, seen = known.find(SCOPE, text)
        known.learn(seen)
    assert [text[item.start : item.end] for item in block.items] == docs


@pytest.mark.parametrize("make", [prose, fenced, headed])
@pytest.mark.parametrize("frame", FRAMES)
def test_documents_stay_whole_if_all_are_moved(make, frame):
    *before, last = bodies(make, frame, 90)
    known = taught(before)
    texts = [last, *bodies(make, frame, 20, seed=2)]
    found = 0
    for text, docs in texts:
        block, _ = known.find(SCOPE, text)
        if block is None:
            continue
        found += len(block.items)
        back = BlockChange(block, tuple(reversed(range(len(block.items)))))
        moved, _ = rewrite(text, [back])
        assert [doc for doc in docs if doc not in moved] == []
        assert text.partition(docs[0])[0] == moved[: text.index(docs[0])]
        assert moved.endswith(text[text.index("Question: ") :])
    assert found > 3 * len(texts)


def titled(i):
    """Return a chunk of one of four files, under its name; every tenth of forty is the same."""
    text = prose(i, lines=2) if i % 10 else prose(1_000, lines=2)
    return f"{HEAD.format(i % 4)}\n\n{text}"


def addressed(i, files=4):
    """Return a chunk of one of some files, under its name and address."""
    return f"{HEAD.format(i % files)}\nhttps://example.org/handbook/{i % files}\n{prose(i)}"


def of_one_file(i):
    """Return a chunk of one file, under its name, which contains a number."""
    return f"Source: The handbook of the museum in 2015.pdf\n\n{prose(i)}"


def differing_in_the_end(i):
    """Return a chunk; two pairs of twelve differ only in the heading at their end."""
    return f"{prose(i // 2)}\n\n### Part {chr(65 + i)}" if i < 4 else prose(i)


def watched(make, count, number, last, scope=SCOPE, size=6):
    """Learn from texts; yield the last ones with their documents and what is found, if any."""
    rng, known = random.Random(2), Recurrences()
    docs = [make(i) for i in range(count)]
    for n in range(number):
        drawn = rng.sample(docs, size)
        text = "\n\n".join(["Answer from what was found here.", *drawn, f"Question {n} and more?"])
        block, seen = known.find(scope, text)
        if block is not None and n >= number - last:
            yield text, drawn, block
        known.learn(seen)


@pytest.mark.parametrize(
    ("make", "count", "least"),
    [(titled, 40, 3), (addressed, 40, 4), (of_one_file, 12, 3), (differing_in_the_end, 12, 2)],
)
def test_documents_keep_the_lines_that_belong_to_them(make, count, least):
    found = 0
    for text, docs, block in watched(make, count, 400, 199):
        found += len(block.items)
        moved, _ = rewrite(text, [BlockChange(block, tuple(reversed(range(len(block.items)))))])
        assert [doc for doc in docs if doc not in moved] == []
        assert not block.labels_stay
    assert found > least * 200


def test_what_is_found_depends_on_no_hash():
    """The salt decides nothing, not even by keys' signs; one in 70 collides, one in 300 gains."""
    make = partial(addressed, files=3)
    runs = [watched(make, 20, 160, 80, scope) for scope in range(20)]
    found = sorted(sum(len(block.items) for *_, block in run) for run in runs)
    assert found[4] > 0.9 * found[-2] > 0.6 * found[-1]


def test_no_text_is_kept():
    known = taught(bodies(lambda i: f"Zebra: {prose(i)}", "bullets", 90))
    assert len(known) > 20
    assert not re.search(rb"zebra|gran", pickle.dumps(known), re.IGNORECASE)


def test_position_numbers_are_recognized():
    rng, texts = random.Random(4), []
    for n in range(90):
        drawn = rng.sample(range(12), 5)
        listed = "\n\n".join(f"Source {k}:\n{prose(i)}" for k, i in enumerate(drawn, 1))
        texts.append((f"Found:\n\n{listed}\n\nWhy is it so, asks {n}?", drawn))
    known = taught(texts[:-1])
    block, _ = known.find(SCOPE, texts[-1][0])
    assert block is not None
    assert block.labels_stay


def test_a_document_that_begins_the_text_may_lack_its_first_short_lines():
    def labeled(i):
        return "\n".join(f"field {n} of {i}" for n in "abcdefgh") + f"\n{prose(i, lines=1)}"

    known = taught(bodies(labeled, "blank lines", 40))
    first, *others = (prose(1, lines=1), labeled(2), labeled(3), labeled(4))
    assert items(known, "\n\n".join([first, *others])) == others
    assert items(known, f"{first}\n\n{prose(2, lines=1)}") == []


@pytest.mark.parametrize("piece", ["\n", "a\n", "x" * 30 + "\n", "- 1: a: b\n", "[1] ", "```\n"])
def test_hostile_texts_take_bounded_time_and_memory(piece):
    known = Recurrences()
    for n in range(3):
        _, seen = known.find(SCOPE, f"{n}" + piece * (100_000 // len(piece)))
        if seen is not None:
            known.learn(seen)
    assert len(known) < 10


def test_a_text_of_beginnings_of_long_documents_is_read_in_linear_time():
    """All documents begin with the same lines, and each might begin at any of them."""
    beginning = "\n".join(f"{sign} " * 249 + sign for sign in "abc")
    step = len(beginning) + 1
    docs = [f"{beginning}\nPart {n} ".ljust(step * n - 2, "x") + "." for n in range(300, 312)]
    between, known, rng = [prose(i, lines=1) for i in range(8)], Recurrences(), random.Random(1)
    for _ in range(30):
        known.learn(known.find(SCOPE, "\n".join(rng.sample(between, 8)))[1])
    for doc in docs * 6:
        first, last = rng.sample(between, 2)
        known.learn(known.find(SCOPE, f"{first}\n{doc}\n{last}")[1])
    assert items(known, f"{between[0]}\n{docs[0]}\n{docs[1]}\n{docs[2]}")
    long, short = ("\n".join([beginning] * times) for times in (1300, 130))
    assert times_as_long(lambda: known.find(SCOPE, long), lambda: known.find(SCOPE, short)) < 30


def test_a_long_run_of_short_lines_takes_no_longer_if_separators_have_many_lines():
    finds = {}
    for apart in (1, 24):
        gap = "\n" + "--\n" * (apart - 1) + "==\n"
        rng, known = random.Random(1), Recurrences()
        for n in range(60):
            docs = map(prose, rng.sample(range(8), 6))
            texts = (prose(100 + n), *docs, prose(500 + n))
            known.learn(known.find(SCOPE, gap.join(texts))[1])
        text = gap.join(map(prose, (99, *range(7)))) + "\n" + "--\n" * 3500 + prose(7)
        assert known.find(SCOPE, text)[0]
        finds[apart] = partial(known.find, SCOPE, text)
    assert times_as_long(finds[24], finds[1]) < 2.5


class TestOrder:
    def test_a_list_seen_in_several_orders_may_move(self):
        known = Sequences()
        known.observe(SCOPE, [1, 2, 3, 4])
        assert known.movable(SCOPE, [4, 3, 2, 1])[:2] == (0, 4)

    def test_documents_in_the_same_order_each_time_stay(self):
        known = Sequences()
        for docs in ([1, 2, 3, 4], [1, 3, 4, 5], [2, 3, 5, 6], [1, 2, 5, 6]):
            known.observe(SCOPE, docs)
        first, stop, met = known.movable(SCOPE, [1, 2, 3, 6])
        assert (first, stop, met) == (0, 0, True)

    def test_a_document_that_is_always_first_stays_first(self):
        known = Sequences()
        for docs in ([9, 1, 2, 3], [9, 3, 1, 2], [9, 2, 3, 1]):
            known.observe(SCOPE, docs)
        assert known.movable(SCOPE, [9, 3, 2, 1])[:2] == (1, 4)

    def test_repeating_a_list_makes_no_document_movable(self):
        known = Sequences()
        known.observe(SCOPE, [1, 2, 3])
        known.observe(SCOPE, [1, 2, 3])
        assert known.movable(SCOPE, [1, 2, 3]) == (0, 0, False)


@pytest.mark.parametrize("make", [headed, lambda i: f"- {prose(i)}", lambda i: f"Note: {prose(i)}"])
def test_the_first_document_may_follow_words_on_its_line(make):
    rng = random.Random(3)
    found = 0
    known = Recurrences()
    for n in range(120):
        docs = [make(i) for i in rng.sample(range(12), 5)]
        text = f"Answer.\nQuestion: What of {n}? \nContext: {'{}'} \nAnswer:".format(
            "\n\n".join(docs)
        )
        block, seen = known.find(SCOPE, text)
        found += n >= 60 and block is not None and text.startswith(docs[0], block.items[0].start)
        if seen is not None:
            known.learn(seen)
    assert found > 45


@pytest.mark.parametrize("unknown", [1, 2])
def test_new_text_stays_with_its_neighbors_and_the_note_counts_no_documents(unknown):
    """New text between known documents may be any number of documents, or part of either."""
    *before, (text, docs) = bodies(prose, "blank lines", 90)
    known = taught(before)
    text = text.replace(docs[2], "\n\n".join(prose(100 + i) for i in range(unknown)))
    block, _ = known.find(SCOPE, text)
    assert block is not None
    moved, noted = rewrite(text, [BlockChange(block, tuple(reversed(range(len(block.items)))))])
    assert text[text.index(docs[1]) : text.index(docs[3]) + len(docs[3])] in moved
    note = noted[noted.index("(Please read the documents above") :]
    assert "counted" not in note
    assert note.index(docs[0][:20]) < note.index(docs[1][:20]) < note.index(docs[4][:20])


def test_a_document_that_contains_two_others_is_not_split():
    """Documents are separated by a blank line, but the two inside by a different gap."""
    rng = random.Random(6)
    known = Recurrences()
    parts = [prose(i, lines=1) for i in range(12)]
    for n in range(150):
        drawn = [parts[i] for i in rng.sample(range(12), 5)]
        held = f"{drawn[1]}\n\n  {drawn[2]}"
        docs = [drawn[0], held, *drawn[3:]] if n >= 120 else drawn
        text = "\n\n".join(["Answer from this.", *docs, f"Question {n}?"])
        block, seen = known.find(SCOPE, text)
        if n >= 120 and block is not None:
            assert text.index(drawn[2]) not in [item.start for item in block.items]
        elif seen is not None:
            known.learn(seen)


def test_documents_in_hundreds_of_texts_are_still_separate():
    found = watched(lambda i: prose(i, lines=1), 6, 600, 100, size=5)
    assert sum(len(block.items) == 5 for *_, block in found) > 60

"""Ordinary prompts that look like the shapes which strangers' prompts have; see `ordinary`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

from tests.context.ordinary import NAMES, NOUNS, paragraph, sentence, step

__all__ = ["LOOKALIKES", "in_roles"]


def _files(rng: random.Random) -> str:
    head = rng.choice(("Review this repo:\n\n", "Find the bug in the following files.\n\n"))
    mark = rng.choice(("### File:", "File:", "// File:"))
    files = (
        f"{mark} src/{noun}.py\n```python\ndef {noun}():\n    return {i}\n```"
        for i, noun in enumerate(rng.sample(NOUNS, 4))
    )
    return head + "\n\n".join(files) + "\n\nWhat is wrong?"


def _captions(rng: random.Random) -> str:
    source = rng.choice(("Source: Reuters", "[Source: Statista]", "Source: own data, 2021"))
    return "Proofread.\n\n" + "\n\n".join(f"{paragraph(rng)}\n{source}" for _ in range(4))


def _thread(rng: random.Random) -> str:
    mails = (f"From: {rng.choice(NAMES)}\n{paragraph(rng)}" for _ in range(5))
    return "Use the following emails to answer.\n\n" + "\n\n".join(mails) + "\n\nWho agreed?"


def _chapters(rng: random.Random) -> str:
    mark = rng.choice(
        ("--- Chapter {} ---", "=== Day {} ===", "**Part {}**", "## Chapter {}", "Title: Step {}")
    )
    parts = "\n\n".join(f"{mark.format(i)}\n{paragraph(rng)}" for i in range(1, 6))
    return f"Use the following context.\n\nContext:\n{parts}\n\nQuestion: What happens at the end?"


def _tags(rng: random.Random) -> str:
    return (
        "When you see a <source> tag, keep it. The <document> element is part of <documents> "
        f"where the <context> says so. {paragraph(rng)} Write <document> again, and <source> too."
    )


def _media(rng: random.Random) -> str:
    sources = "\n".join(f'<source src="{noun}.mp4" type="video/mp4">' for noun in NOUNS[:4])
    return f"<p>The <source> tag</p>\n<video>{sources}</video>\nWhy does it not play?"


def _printed(rng: random.Random) -> str:
    one = "docs = [Document(page_content='a', metadata={}), Document(page_content='b')]"
    several = 'docs = [\n    Document(page_content="a"),\n    Document(page_content="b"),\n]'
    return f"Why does this fail?\n\n{rng.choice((one, several))}\nprint(docs)\n"


def _settings(rng: random.Random) -> str:
    rows = [{"name": noun, "description": sentence(rng)} for noun in rng.sample(NOUNS, 4)]
    return json.dumps(rng.choice(({"data": {"items": rows}}, {"result": {"children": rows}})))


def _json_lines(rng: random.Random) -> str:
    make = rng.choice(
        (
            lambda i: {"ts": i, "level": "INFO", "text": sentence(rng)},
            lambda i: {"instruction": sentence(rng), "output": sentence(rng)},
            lambda i: {"id": i, "text": sentence(rng)},
        )
    )
    return "\n".join(json.dumps(make(i)) for i in range(6))


def _products(rng: random.Random) -> str:
    first, second = rng.choice((("Name", "Value"), ("Title", "Summary"), ("Page", "Summary")))
    rows = (f"{first}: {noun}\n{second}: {sentence(rng)}" for noun in rng.sample(NOUNS, 4))
    return "Write advertisements.\n\n" + "\n\n".join(rows)


def _subscripts(rng: random.Random) -> str:
    rows = [f"document[{i}] = load('{noun}')" for i, noun in enumerate(rng.sample(NOUNS, 4))]
    return "Explain:\n" + "\n".join([*rows, *(f"source[{i}].close()" for i in range(4))])


def _sizes(rng: random.Random) -> str:
    rows = "\n".join(f"{noun}.txt: {i} lines" for i, noun in enumerate(rng.sample(NOUNS, 4)))
    return f"Use the following context.\n\nContext:\n{rows}\n\nQuestion: which is longest?"


def _poem(rng: random.Random) -> str:
    verses = (
        "\n".join(f"the {rng.choice(NOUNS)} of {rng.choice(NAMES)}" for _ in range(4))
        for _ in range(3)
    )
    return "Use the poem below.\n\n" + "\n---\n".join(verses) + "\n\nWho wrote it?"


def _letter(rng: random.Random) -> str:
    return (
        f"The following information is a letter.\n------\n{paragraph(rng)}\n\nYours, "
        f"{rng.choice(NAMES)}\n------\nReply to it."
    )


def _bold(rng: random.Random) -> str:
    rows = "\n".join(f"**{noun}**\n{step(rng)}" for noun in rng.sample(NOUNS, 4))
    return f"Based on the following information, write a plan.\n\n{rows}"


def _foreign(rng: random.Random) -> str:
    return rng.choice(
        (
            "请根据以下步骤回答。\n\n步骤：\n1. 打开盖子。\n2. 加入清水。\n\n问题：第二步？",
            "以下是故事：\n\n从前有一座山，山上有一座庙。\n庙里有老和尚在讲故事。\n\n问题：谁？",
            "اتبع الخطوات:\n\nالخطوة 1: افتح الباب.\nالخطوة 2: أغلق الباب.\n\nالسؤال: ما هي؟",
        )
    )


def _quiz(rng: random.Random) -> str:
    mark = rng.choice(("Question {}:", "Q{}:", "**Question #{}**:"))
    asked = "\n\n".join(f"{mark.format(i)} {sentence(rng)[:-1]}?" for i in range(1, 7))
    return f"Answer the questions from the documents.\n\n{asked}"


def _parts(rng: random.Random) -> str:
    marks = rng.choice((("I.", "II.", "III.", "IV."), ("A)", "B)", "C)", "D)")))
    parts = "\n\n".join(f"{mark} {paragraph(rng)}" for mark in marks)
    return f"Answer from the following context.\n\n{parts}\n\nQuestion: Which is the longest?"


LOOKALIKES: tuple[Callable[[random.Random], str], ...] = (
    _quiz,
    _parts,
    _files, _captions, _thread, _chapters, _tags, _media, _printed, _settings, _json_lines,
    _products, _subscripts, _sizes, _poem, _letter, _bold, _foreign,
)  # fmt: skip


def in_roles(text: str) -> Iterator[dict]:
    """The text said by a user, by a user of a system that knows of a context, and by a tool."""
    user = {"role": "user", "content": text}
    yield {"messages": [user]}
    system = "Answer the question using only the provided context."
    yield {"messages": [{"role": "system", "content": system}, user]}
    call = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
    yield {
        "messages": [
            {"role": "user", "content": "Go on"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": text},
        ]
    }

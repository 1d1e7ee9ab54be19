"""What the hook moves is a whole document, whatever documents contain and share."""

from __future__ import annotations

import json
import random
import statistics

import pytest
from bench.bench_prompts import Blocks, cut, prompt, sent
from bench.prompts import corpora
from bench.prompts.templates import TEMPLATES

from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings

WORDS = [
    f"{a}{b}" for a in ("gran", "tal", "mor", "sil", "ver") for b in ("ite", "on", "eth", "ing")
]
SHARED = (
    "This section is kept for reference and is not part of the agreement.",
    "Note: see the appendix for the values that apply here.",
    "| name | value | unit |\n|---|---|---|\n| width | 10 | mm |\n| depth | 20 | mm |",
    "```python\nfor item in items:\n    print(item)\n```",
    "## Parameters and return values of it",
)
"""Paragraphs that many documents have."""


def sentence(rng):
    return " ".join(rng.choices(WORDS, k=rng.randrange(6, 14))).capitalize() + "."


def wide(rng):
    """Return a sentence without spaces, in a script that needs none."""
    return "".join(chr(rng.randrange(0x4E00, 0x4F90)) for _ in range(rng.randrange(8, 30))) + "。"


def block(rng, say, shared):
    """Return a paragraph, list, table, code, JSON, heading, or one that other documents have."""
    kind = rng.random()
    if kind < shared:
        return rng.choice(SHARED)
    if kind < shared + 0.15:
        return f"## {rng.choice(('Overview', 'Usage', say(rng)))}"
    if kind < shared + 0.3:
        return "\n".join(f"- {say(rng)}" for _ in range(rng.randrange(2, 5)))
    if kind < shared + 0.35:
        return json.dumps({"at": rng.randrange(9), "text": say(rng)}, indent=1, ensure_ascii=False)
    if kind < shared + 0.4:
        return f"```\nvalue = {rng.randrange(99)}\n\nprint({say(rng)!r})\n```"
    return " ".join(say(rng) for _ in range(rng.randrange(1, 5)))


def drawn(rng, say=sentence, shared=0.0):
    return ["\n\n".join(block(rng, say, shared) for _ in range(60)) for _ in range(12)]


CORPORA = {
    **{name: lambda _, name=name: corpora.corpora()[name] for name in corpora.corpora()},
    "licences in turn": lambda rng: rng.sample(corpora.corpora()["licences"], 20),
    "drawn": drawn,
    "drawn, shared": lambda rng: drawn(rng, shared=0.15),
    "drawn, wide": lambda rng: drawn(rng, wide),
    "drawn, wide and shared": lambda rng: drawn(rng, wide, 0.1),
    "prose": lambda rng: [" ".join(sentence(rng) for _ in range(900)) for _ in range(4)],
}
FORMS = (
    "langchain stuff",
    "dify",
    "llamaindex compact",
    "haystack loop",
    "langchain rule",
    "brackets",
    "anthropic xml",
    "llamaindex metadata",
)


def chunks(texts, rng):
    """Return 70 chunks of up to 1,000 characters, split at blank lines or within words."""
    pieces = {}
    for text in texts:
        limit, window = rng.choice((300, 600, 1000)), ""
        for part in text.split("\n\n"):
            if window and len(window) + len(part) + 2 > limit:
                pieces[window.strip()], window = None, ""
            window = f"{window}\n\n{part}" if window else part
        pieces[window.strip()] = None
    fit = [piece for piece in pieces if 80 <= len(piece) <= 1000]
    if len(fit) < 70:
        fit += [text[at : at + 500].strip() for text in texts for at in range(0, len(text), 450)]
    return rng.sample(list(dict.fromkeys(fit)), 70)


def served(form, pool, rng, count=140):
    """Return how many documents were torn, and how much more of the prompts was cached."""
    hook, received, changed, torn = (
        ContextHook(ContextSettings(holdout_share=0.0)),
        Blocks(),
        Blocks(),
        0,
    )
    weights = [(i + 1) ** -0.8 for i in range(len(pool))]
    for n in range(count):
        docs = {}
        while len(docs) < 8:
            at = rng.choices(range(len(pool)), weights)[0]
            docs[at] = pool[at]
        raw, made = sent(hook, TEMPLATES[form]([*docs.items()], f"What is said of {n}?"), float(n))
        before, after = prompt(raw), prompt(made.body)
        received.put(before)
        changed.put(after)
        torn += cut([*docs.values()], before, after)
    return torn, changed.share - received.share


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_no_document_is_torn_and_more_is_cached(form, figure):
    every = []
    for name, texts in CORPORA.items():
        rng = random.Random(name)
        every.append(served(form, chunks(texts(rng), rng), rng))
    torn, gain = sum(torn for torn, _ in every), statistics.fmean(gain for _, gain in every)
    figure("documents torn, of 10 x 140 x 8", torn, "0")
    figure("cached share beside the prompts as sent", gain, ">= .15")
    assert torn == 0
    assert gain > 0.06

"""Bodies whose order matters, by name: `KEPT` and `RANKED`.

There are two groups. If the order is inherent (a story, steps, a conversation), the same parts come
in the same order each time and must never be moved. If each request ranks the same items afresh
(race results, orders from newest to oldest), they may be moved only with a note that states the
received order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from bench.prompts.templates import Body, _chat, _tool

Render = Callable[[Sequence[str], str], Body]


def _xml(tag: str) -> Render:
    def body(items: Sequence[str], question: str) -> Body:
        inner = "\n".join(f"<{tag}>{item}</{tag}>" for item in items)
        return _chat(None, f"<{tag}s>\n{inner}\n</{tag}s>\n\n{question}")

    return body


def _json(key: str, field: str, tool: str) -> Render:
    return lambda items, question: _tool(
        json.dumps({key: [{field: item, "score": 1} for item in items]}), question, tool
    )


def _text(head: str, form: str, gap: str = "\n\n") -> Render:
    def body(items: Sequence[str], question: str) -> Body:
        inner = gap.join(form.format(n=n, t=item) for n, item in enumerate(items, 1))
        return _chat(None, f"{head}\n\n{inner}\n\n{question}")

    return body


def _said(tool: str, form: str, gap: str = "\n") -> Render:
    return lambda items, question: _tool(
        gap.join(form.format(n=n, t=item) for n, item in enumerate(items, 1)), question, tool
    )


KEPT: dict[str, tuple[Render, str]] = {
    "story": (_xml("passage"), "How does the story end?"),
    "chapters": (_xml("chunk"), "Continue where the text stops."),
    "recipe": (_text("Here is the recipe:", "{t}"), "What comes after the third step?"),
    "steps": (_text("Steps:", "{n}. {t}", "\n"), "Which step is next?"),
    "steps in context": (_text("<context>", "{t}", "\n"), "What comes first?"),
    "chat log": (_text("Our talk so far:", "Ann: {t}", "\n"), "What was agreed in the end?"),
    "mails": (_text("The thread:", "From: a@example.org\n\n{t}"), "Who answered last?"),
    "log lines": (_said("read_log", "2026-01-01T00:00:0{n} INFO {t}"), "What failed first?"),
    "diff": (_said("git_diff", "@@ -{n} +{n} @@\n+{t}"), "Is this safe?"),
    "git log": (_said("git_log", "commit {n}\n\n    {t}", "\n\n"), "What changed last?"),
    "slides": (_text("The slides:", "Slide {n}\n{t}"), "What is on the next one?"),
    "pages": (_text("The scan, page by page:", "[page {n}] {t}"), "Where does it begin?"),
    "statute": (_text("The law:", "Section {n}. {t}"), "What does section 2 say?"),
    "contract": (_text("Use the following context, a contract.", "{n}. {t}"), "Cite the clause."),
    "stanzas": (_text("The poem:", "{t}"), "Write one more stanza."),
    "directions": (_said("get_directions", "{t}"), "Where do I turn first?"),
    "few-shot": (_text("Examples:", "Text: {t}\nLabel: A"), "Text: another\nLabel:"),
    "source files": (_text("The files:", "# part_{n}.py\n{t}"), "What runs first?"),
    "todo": (_text("To do, in order:", "- [ ] {t}", "\n"), "What is next?"),
    "transcript": (_json("results", "text", "get_transcript"), "What was said last?"),
    "events": (_json("documents", "content", "list_events"), "What happened first?"),
    "memories": (_text("User Memories:", "- {t}", "\n"), "Where do I live now?"),
}
"""Kinds whose parts always come in the same order."""

RANKED: dict[str, tuple[Render, str]] = {
    "race": (_json("results", "text", "get_race_results"), "Who came second in the race?"),
    "orders": (_json("results", "content", "search_orders"), "What was my last order?"),
    "top hit": (_json("results", "snippet", "web_search"), "Open the top hit."),
    "hits": (_json("hits", "text", "search"), "Which is the best?"),
    "translate": (_xml("document"), "Translate each document, one a line."),
    "verdicts": (_xml("document"), "For every document say good or bad, as a list."),
    "rate": (_xml("doc"), "Rate each from 1 to 5."),
    "first": (_xml("source"), "What does the first document say?"),
    "newest": (_text("Notes, newest first:", "{t}"), "What is the newest note?"),
    "rerank": (_text("Rank these passages:", "[{n}] {t}"), "Best first, by number."),
    "options": (_text("Options:", "{n}. {t}"), "Which number is right?"),
    "numbers": (_text("Answer with [n] citations.", "[{n}] {t}"), "What is known?"),
    "sources": (_text("Sources:", "Source {n}: {t}"), "Name the source by its number."),
    "playlist": (_said("get_playlist", "{n}. {t}"), "What plays third?"),
    "board": (_said("leaderboard", "{t}", "\n\n"), "Who leads?"),
    "queue": (_text("The queue:", "{t}"), "Who is served next?"),
}
"""Kinds whose order may differ each time and always has a meaning."""


def bodies(kind: str, count: int, items: Sequence[str], rng: random.Random) -> list[Body]:
    """Return bodies of one kind, each with a sample of the same parts."""
    render, question = (KEPT | RANKED)[kind]
    made: list[Body] = []
    for _ in range(count):
        drawn = sorted(rng.sample(range(len(items)), 6))
        if kind in RANKED:
            rng.shuffle(drawn)
        made.append(render([items[i] for i in drawn], question))
    return made

# ruff: noqa: E501 - prompts are easier to read on one line
"""Prompts with documents, in every shape in use and many ways to frame them.

`variants` makes bodies from a seed: the shape, the documents (few or many, one paragraph or more,
with titles, in several scripts), the words around them, the place of the question, the role and the
interface. The right result is known by construction: the number of documents, and their texts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["SHAPES", "Doc", "Made", "bodies", "document", "documents", "variants"]


@dataclass(frozen=True)
class Doc:
    """One document."""

    number: int
    title: str
    text: str


@dataclass(frozen=True)
class Made:
    """A body with documents."""

    shape: str
    api: str
    body: dict
    docs: tuple[Doc, ...]
    block: str


SUBJECTS = (
    "granite", "the Danube", "photosynthesis", "sourdough", "the Antikythera mechanism", "glaciers",
    "semaphore lines", "urushi lacquer", "alpine swifts", "compilers", "the Hanseatic League",
    "magnetars", "coral reefs", "tea ceremonies", "suspension bridges", "vaccines", "tidal power",
    "the Silk Road", "cuneiform", "fermentation", "volcanoes", "the metric system", "bees",
    "opera", "steam engines", "saffron", "typography", "lighthouses", "plate tectonics", "jazz",
)  # fmt: skip
PREDICATES = (
    "was first described in {y} by a botanist from Leiden.",
    "covers an area of {y} square kilometres, most of which lies in the north.",
    "costs about {y} euros a tonne, according to the ministry.",
    "has been studied at the university of Uppsala since {y}.",
    "is known for its hardness; samples were taken at a depth of {y} metres.",
    "reached its peak in {y}, when nine towns signed the treaty.",
    "consists mostly of silica, iron and a trace of manganese ({y} ppm).",
    "plays a role in the economy of the region, as a survey of {y} households shows.",
)
FOREIGN = (
    "Die Alpensegler bleiben bis zu {y} Tage in der Luft, wie Forscher mit kleinen Loggern zeigten.",
    "Les marées montent et descendent deux fois par jour; l'amplitude atteint {y} centimètres.",
    "玄武岩由富含铁的熔岩迅速冷却形成，覆盖了大部分海底，厚度约{y}米。",
    "漆は湿った空気の中で固まる。輪島の工房では湿度を七十パーセントに保つ（{y}年の記録）。",
    "Семафорные линии передавали сообщения через всю страну ещё в {y} году.",
    "El azafrán se cosecha a mano en octubre; hacen falta {y} flores para un kilo.",
)


def sentence(rng: random.Random, subject: str) -> str:
    return f"{subject[0].upper()}{subject[1:]} {rng.choice(PREDICATES).format(y=rng.randint(20, 1999))}"


def document(rng: random.Random, number: int, kind: str) -> Doc:
    subject = rng.choice(SUBJECTS)
    title = f"{subject[0].upper()}{subject[1:]}"
    if kind == "foreign":
        text = rng.choice(FOREIGN).format(y=rng.randint(20, 99999))
        return Doc(number, title, text)
    count = 1 if kind == "short" else rng.randint(2, 5)
    text = " ".join(sentence(rng, subject) for _ in range(count))
    if kind == "paragraphs":
        text += "\n\n" + " ".join(sentence(rng, rng.choice(SUBJECTS)) for _ in range(2))
    if kind == "lines":
        text += "\n" + sentence(rng, rng.choice(SUBJECTS))
    return Doc(number, title, text)


def documents(rng: random.Random, k: int, kind: str) -> tuple[Doc, ...]:
    made: list[Doc] = []
    while len(made) < k:
        doc = document(rng, len(made) + 1, kind)
        if all(doc.text != other.text for other in made):
            made.append(doc)
    return tuple(made)


Render = Callable[[random.Random, Sequence[Doc]], str]


def _each(form: str, gap: str = "\n\n") -> Render:
    def render(rng: random.Random, docs: Sequence[Doc]) -> str:
        return gap.join(
            form.format(
                n=doc.number,
                i=doc.number - 1,
                title=doc.title,
                text=doc.text,
                id=f"k{doc.number * 37 % 101}",
            )
            for doc in docs
        )

    return render


def _json(key: str | None, make: Callable[[Doc], object], **more: object) -> Render:
    def render(rng: random.Random, docs: Sequence[Doc]) -> str:
        value: object = [make(doc) for doc in docs]
        if key:
            value = {key: value}
        return json.dumps(value, ensure_ascii=rng.random() < 0.5, **more)

    return render


SHAPES: dict[str, tuple[Render, ...]] = {
    "doc_n": (
        _each("[Doc_{n}] {text}"),
        _each("[Doc_{n}] {text}", "\n"),
        _each("[Doc_{n}]: {text}"),
        _each("[Doc_{n}] {title}\n{text}"),
    ),
    "xml": (
        _each("<document>\n{text}\n</document>", "\n"),
        _each('<document id="{id}">{text}</document>', "\n"),
        _each(
            '<document index="{n}">\n<source>{title}.pdf</source>\n<document_content>\n{text}\n</document_content>\n</document>',
            "\n",
        ),
        _each('<doc title="{title} {n}">{text}</doc>', "\n\n"),
        _each('<source id="{n}" name="{title}.pdf">{text}</source>', "\n"),
        _each('<source id="{n}">{text}</source>', "\n"),
    ),
    "blank_lines": (_each("{text}"),),
    "source_n": (
        _each("Source 1:\n{text}".replace("1", "{n}")),
        _each("Source {n}: {text}"),
        _each("Source {n}: {text}", "\n"),
        _each("Source {n}: {title}\n{text}"),
        _each("**Source {n}:** {text}"),
    ),
    "points": (_each("{n}. {text}"), _each("{n}. {text}", "\n"), _each("{n}) {text}")),
    "brackets": (
        _each("[{n}] {text}"),
        _each("[{n}] {text}", "\n"),
        _each("[{n}] {title}\n{text}"),
    ),
    "headings": (
        _each("## Document {n}\n{text}"),
        _each("## Document {n}: {title}\n\n{text}"),
        _each("# {title} {n}\n{text}"),
        _each("### {title} (part {id})\n\n{text}"),
        _each("### Document {n}\n{text}"),
    ),
    "separators": (
        _each("{text}", "\n---\n"),
        _each("{text}", "\n\n---\n\n"),
        _each("{text}", "\n===\n"),
        _each("{text}", "\n####\n"),
        _each("{text}", "\n==========\n"),
        _each("{text}", "\n\n-----\n\n"),
    ),
    "json_list": (
        _json(None, lambda doc: {"title": doc.title, "text": doc.text}),
        _json(None, lambda doc: {"id": f"d{doc.number * 31}", "content": doc.text}, indent=2),
        _json(None, lambda doc: {"page_content": doc.text, "metadata": {"source": doc.title}}),
        _json("documents", lambda doc: {"title": doc.title, "content": doc.text}),
        _json(
            "results",
            lambda doc: {
                "url": f"https://x/{doc.number}",
                "content": doc.text,
                "score": 1 / doc.number,
            },
        ),
    ),
    "memories": (
        _json("memories", lambda doc: {"id": f"m-{doc.number}", "memory": doc.text, "score": 0.5}),
        _json(
            "memories", lambda doc: {"memory": doc.text, "created_at": f"2025-01-{doc.number:02d}"}
        ),
        _json("memories", lambda doc: doc.text),
        _json("memories", lambda doc: {"content": doc.text}, indent=1),
    ),
    "bullets": (_each("- {text}", "\n"), _each("* {text}", "\n")),
    "llama_index": (_each("{text}"),),
    "dspy": (_each("[{n}] «{text}»", "\n"),),
    "anything": (_each("[CONTEXT {i}]:\n{text}\n[END CONTEXT {i}]"),),
    "dify": (_each("{text}", "\n"),),
    "fences": (_each("Document {n}:\n```\n{text}\n```"),),
    "document_n": (
        _each("Document {n}: {text}"),
        _each("Document {n}:\n{text}", "\n"),
        _each("Document [{n}](Title: {title}) {text}", "\n"),
        _each("[Document {n}] {text}"),
        _each("--- Document {n} ---\n{text}"),
        _each("Passage {n}: {text}"),
        _each("Passage #{n}: {text}", "\n"),
        _each("Context {n}: {text}"),
    ),
    "records": (
        _each("Source: {title}.md\nContent: {text}"),
        _each("Title: {title}\nContent: {text}"),
    ),
}

QUESTIONS = (
    "How deep were the samples taken?",
    "When was the treaty signed?",
    "What is granite made of and who found out?",
    "Which of these is known for hardness?",
    "Name the university that has studied glaciers.",
)

BEFORE = (
    "Answer the question based only on the following context:\n",
    "Use the following pieces of context to answer the question at the end. If you don't know the "
    "answer, just say that you don't know, don't try to make up an answer.\n\n",
    "Use the following documents to answer the question.\n\n",
    "Answer the question using the provided documents.\n\nDocuments:\n",
    "You are given the following retrieved passages.\n\n",
    "Here are the relevant documents:\n\n",
    "Context:\n",
    "Context: ",
    "Information:\n",
    "Read the documents and answer.\n\n",
    "Below are several documents. Answer the question.\n\n",
    "Given the following information, answer the question.\n\nContext:\n",
    "## Context\n\n",
    "Retrieved documents:\n",
    "I found these search results:\n\n",
    "Based on the context below, answer the user's question.\n\nContext:\n\n",
)
AFTER = (
    "\n\nQuestion: {q}\nAnswer:",
    "\n\nQuestion: {q}",
    "\n\nQ: {q}\nA:",
    "\n\n{q}",
    "\n\nBased on the documents above, answer: {q}",
    "\n\nUser question: {q}",
    "\n\nAnswer the following question using the context above: {q}",
    "\n\n## Question\n{q}",
    "\n\nQuery: {q}\nAnswer: ",
)
MEMORY_BEFORE = (
    "You are a helpful AI. Answer the question based on query and memories.\nUser Memories:\n",
    "Relevant memories:\n",
    "Here are the memories of the user:\n",
    "Memories:\n",
)


def _frame(rng: random.Random, shape: str, text: str, question: str) -> tuple[str, str]:
    """The text around a block, and whether the question is in it: `before`, `after`."""
    if shape == "llama_index":
        return (
            "Context information is below.\n---------------------\n",
            "\n---------------------\nGiven the context information and not prior knowledge, answer "
            f"the query.\nQuery: {question}\nAnswer: ",
        )
    if shape == "dify":
        return (
            "Use the following context as your learned knowledge, inside <context></context> XML "
            "tags.\n\n<context>\n",
            "\n</context>\n\nWhen answer to user:\n- If you don't know, just say that you don't "
            f"know.\n- Answer in the user's language.\n\n{question}",
        )
    if shape == "bullets":
        return rng.choice(MEMORY_BEFORE), f"\n\nQuestion: {question}"
    if shape == "memories" and rng.random() < 0.5:
        return rng.choice(MEMORY_BEFORE), f"\n\nQuestion: {question}"
    before, after = rng.choice(BEFORE), rng.choice(AFTER).format(q=question)
    if rng.random() < 0.3:  # the question comes first
        before = f"Question: {question}\n\n{before}"
        after = rng.choice(("", "\n\nAnswer:", "\n\nAnswer in one sentence."))
    return before, after


KINDS = ("short", "plain", "foreign", "lines", "paragraphs")


def _kinds(shape: str) -> tuple[str, ...]:
    if shape in {"blank_lines", "llama_index"}:
        return ("short", "plain", "foreign", "lines")  # else no reader could separate them
    if shape in {"bullets", "dify"}:
        return ("short", "plain", "foreign")
    return KINDS


def variants(seed: int, count: int, shapes: Sequence[str] = tuple(SHAPES)) -> Iterator[Made]:
    """`count` bodies, the shapes in turn."""
    rng = random.Random(seed)
    for i in range(count):
        shape = shapes[i % len(shapes)]
        kind = rng.choice(_kinds(shape))
        docs = documents(rng, rng.randint(2, 20), kind)
        block = rng.choice(SHAPES[shape])(rng, docs)
        yield bodies(rng, shape, docs, block)


def bodies(rng: random.Random, shape: str, docs: tuple[Doc, ...], block: str) -> Made:
    """One body around a block."""
    question = rng.choice(QUESTIONS)
    before, after = _frame(rng, shape, block, question)
    whole = before + block + after
    as_json = shape in {"json_list", "memories"}
    forms = ["chat", "chat_parts", "chat_system", "completions", "responses", "responses_list",
             "messages", "messages_system"]  # fmt: skip
    if as_json or shape in {"records", "source_n", "document_n", "xml", "blank_lines", "brackets"}:
        forms += ["chat_tool", "messages_tool", "responses_tool"]
    form = rng.choice(forms)
    system = {"role": "system", "content": "You are a helpful assistant."}
    user = {"role": "user", "content": whole}
    named = before + block + ("\n</context>" if shape == "dify" else "\n")
    asked = {"role": "user", "content": question}
    body: dict
    if form == "chat":
        body = {"model": "m", "messages": [system, user] if rng.random() < 0.5 else [user]}
    elif form == "chat_parts":
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "text", "text": whole}]}],
        }
    elif form == "chat_system":
        body = {"model": "m", "messages": [{"role": "system", "content": named}, asked]}
    elif form == "completions":
        body = {"model": "m", "prompt": whole, "max_tokens": 50}
    elif form == "responses":
        body = {"model": "m", "input": whole}
    elif form == "responses_list":
        body = {
            "model": "m",
            "instructions": "Be brief.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": whole}]}],
        }
    elif form == "messages":
        body = {"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": [user]}
    elif form == "messages_system":
        body = {
            "model": "m",
            "max_tokens": 9,
            "system": [{"type": "text", "text": named}],
            "messages": [asked],
        }
    elif form == "chat_tool":
        body = {
            "model": "m",
            "messages": [
                asked,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "search_docs", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": block},
            ],
        }
    elif form == "messages_tool":
        body = {
            "model": "m",
            "max_tokens": 9,
            "messages": [
                asked,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c", "name": "retrieve", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "c",
                            "content": rng.choice([block, [{"type": "text", "text": block}]]),
                        }
                    ],
                },
            ],
        }
    else:
        body = {
            "model": "m",
            "input": [
                asked,
                {"type": "function_call", "call_id": "c", "name": "file_search", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": block},
            ],
        }
    api = {
        "chat": "chat",
        "completions": "completions",
        "responses": "responses",
        "messages": "messages",
    }[form.split("_")[0]]
    return Made(f"{shape}/{form}", api, body, docs, block)

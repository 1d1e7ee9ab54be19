# ruff: noqa: E501 - prompts are easier to read on one line
"""Ordinary prompts without retrieved documents, many of which look as if they had some.

Numbered steps, mails, logs, poems, code, schemas of tools, examples with answers, lists of rules and
so on, with the words that also announce documents ("context", "sources", "the following"). In none
of them may anything be taken for documents: there, order has a meaning.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

__all__ = ["KINDS", "ordinary", "paragraph", "sentence", "step"]

NOUNS = [
    "server",
    "invoice",
    "garden",
    "engine",
    "novel",
    "bicycle",
    "kitchen",
    "library",
    "harbour",
    "orchestra",
]
NAMES = ["Alice", "Bob", "Chen", "Dana", "Emil", "Farah", "Goran", "Hana"]
VERBS = [
    "Open",
    "Check",
    "Remove",
    "Install",
    "Mix",
    "Tighten",
    "Save",
    "Upload",
    "Rinse",
    "Measure",
    "Restart",
    "Select",
]
TOPICS = ("the invoices", "our migration", "the garden", "a new bicycle", "the release", "a visa")


def sentence(rng: random.Random) -> str:
    noun, other = rng.choice(NOUNS), rng.choice(NOUNS)
    return rng.choice(
        (
            f"The {noun} stood next to the {other} for {rng.randint(2, 90)} years.",
            f"Nobody expected the {noun} to be louder than the {other}.",
            f"A {noun} needs care, a {other} needs patience.",
            f"Every morning the {noun} was moved closer to the {other}.",
            f"It was the {noun} that made the {other} famous in {rng.randint(1900, 2020)}.",
        )
    )


def paragraph(rng: random.Random, n: int = 3) -> str:
    return " ".join(sentence(rng) for _ in range(rng.randint(1, n + 2)))


def step(rng: random.Random) -> str:
    return f"{rng.choice(VERBS)} the {rng.choice(NOUNS)} and {rng.choice(VERBS).lower()} the {rng.choice(NOUNS)}."


def _steps(rng: random.Random) -> str:
    head = rng.choice(
        (
            f"How do I set up {rng.choice(TOPICS)}? I have this so far:",
            "Please check these steps:",
            "Follow these instructions exactly:",
            "Instructions:",
            "Here is the context of my problem, I did the following:",
            "Use the following steps to answer the user:",
            "Based on the following procedure, what comes next?",
        )
    )
    form = rng.choice(
        ("{n}. {s}", "{n}) {s}", "Step {n}: {s}", "- {s}", "({n}) {s}", "* {s}", "Step {n}. {s}")
    )
    gap = rng.choice(("\n", "\n\n"))
    return f"{head}\n\n" + gap.join(
        form.format(n=i + 1, s=step(rng)) for i in range(rng.randint(3, 12))
    )


def _recipe(rng: random.Random) -> str:
    steps = "\n".join(f"{i + 1}. {step(rng)}" for i in range(rng.randint(4, 9)))
    return f"Ingredients:\n- 200 g flour\n- 2 eggs\n- a pinch of salt\n\nMethod:\n{steps}\n\nCan I leave out the eggs?"


def _code(rng: random.Random) -> str:
    parts = []
    for i in range(rng.randint(3, 20)):
        noun = rng.choice(NOUNS)
        parts.append(
            f"def load_{noun}_{i}(documents, context):\n    # 1. read the sources\n    x[{i}] = y[{i + 1}]\n"
            f"    return [doc for doc in documents if doc['{noun}'] > {i}]\n"
        )
    fence = rng.choice(("```python\n{}\n```", "{}"))
    return rng.choice(
        ("Explain this code:\n\n", "Review:\n", "Context: the code below fails.\n\n")
    ) + fence.format("\n\n".join(parts))


def _markdown(rng: random.Random) -> str:
    level = rng.choice(("#", "##", "###"))
    parts = [
        f"{level} {rng.choice(('Introduction', 'Background', 'Method', 'Results', 'Context', 'Sources', 'Summary', 'References'))}\n\n{paragraph(rng)}"
        for _ in range(rng.randint(3, 8))
    ]
    return rng.choice(
        (
            "Proofread my article:\n\n",
            "",
            "Summarise the following text:\n\n",
            "Improve this README.\n\n",
        )
    ) + "\n\n".join(parts)


def _poem(rng: random.Random) -> str:
    verses = "\n\n".join(
        "\n".join(f"{rng.choice(NAMES)} saw the {rng.choice(NOUNS)} at night" for _ in range(4))
        for _ in range(rng.randint(3, 6))
    )
    return (
        rng.choice(
            ("What does this poem mean?\n\n", "Interpret the following text:\n\n", "Poem:\n\n")
        )
        + verses
    )


def _log(rng: random.Random) -> str:
    lines = [
        f"2025-03-{rng.randint(1, 28):02d} {rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:07 "
        f"{rng.choice(('INFO', 'WARN', 'ERROR'))} {rng.choice(NOUNS)}: document {i} not found in context"
        for i in range(rng.randint(5, 60))
    ]
    head = rng.choice(
        (
            "Why does it crash?\n\n",
            "Search results of grep:\n",
            "Here is the log, answer the question below:\n\n",
            "Context:\n",
        )
    )
    return (
        head
        + rng.choice(("\n", "\n\n")).join(lines)
        + rng.choice(("", "\n\nQuestion: why does it stop?"))
    )


def _trace(rng: random.Random) -> str:
    lines = "\n".join(
        f'  File "/srv/{rng.choice(NOUNS)}.py", line {i}, in run\n    context[{i}] = documents[{i}]'
        for i in range(rng.randint(3, 12))
    )
    return f"Traceback (most recent call last):\n{lines}\nKeyError: 'source'\n\nWhat is wrong?"


def _mail(rng: random.Random) -> str:
    mails = "\n\n---\n\n".join(
        f"From: {rng.choice(NAMES)}\nTo: {rng.choice(NAMES)}\nSubject: Re: {rng.choice(TOPICS)}\n\nDear {rng.choice(NAMES)},\n\n{paragraph(rng)}\n\nBest regards\n{rng.choice(NAMES)}"
        for _ in range(rng.randint(2, 5))
    )
    return (
        rng.choice(
            (
                "Write a reply to this thread:\n\n",
                "Given the following information, draft an answer.\n\n",
                "Context:\n",
            )
        )
        + mails
    )


def _talk(rng: random.Random) -> str:
    first, second = rng.sample(NAMES, 2)
    turns = rng.choice(("\n", "\n\n")).join(
        f"{(first, second)[i % 2]}: {sentence(rng)}" for i in range(rng.randint(4, 16))
    )
    head = rng.choice(
        (
            "Continue the dialogue:\n\n",
            "Context:\n",
            "Chat history:\n",
            "Given the following conversation, rephrase the question.\n\n",
        )
    )
    return f"{head}{turns}" + rng.choice(
        ("", "\n\nFollow up question: and then?", "\n\nQuestion: who is right?")
    )


def _examples(rng: random.Random) -> str:
    kind = rng.choice(("Text", "Review", "Input", "Question", "Sentence"))
    out = rng.choice(("Label", "Output", "Answer", "Sentiment"))
    gap = rng.choice(("\n\n", "\n\n---\n\n", "\n###\n"))
    shots = gap.join(
        f"{kind}: {sentence(rng)}\n{out}: {rng.choice(('good', 'bad', 'yes', 'no'))}"
        for _ in range(rng.randint(3, 8))
    )
    return f"Classify as in the examples below.\n\n{shots}{gap}{kind}: {sentence(rng)}\n{out}:"


def _squad(rng: random.Random) -> str:
    shots = "\n\n".join(
        f"Context: {paragraph(rng)}\nQuestion: What stood there?\nAnswer: the {rng.choice(NOUNS)}"
        for _ in range(rng.randint(2, 5))
    )
    return f"Answer the question based on the context.\n\n{shots}\n\nContext: {paragraph(rng)}\nQuestion: And what else?\nAnswer:"


def _article(rng: random.Random) -> str:
    """One text in paragraphs that lean on each other."""
    begins = (
        "However, ",
        "Later ",
        "He said that ",
        "In contrast, ",
        "Finally, ",
        "They knew that ",
        "Then ",
    )
    parts = [paragraph(rng)] + [
        rng.choice(begins) + paragraph(rng)[0].lower() + paragraph(rng)[1:]
        for _ in range(rng.randint(2, 7))
    ]
    head = rng.choice(
        (
            "Summarise the following article:\n\n",
            "Translate the following text into French:\n\n",
            "Read the text below and answer the question.\n\n",
            "Write a concise summary of the following:\n\n",
            "Answer the question based on the context below.\n\nContext: ",
            "Here is my essay, please correct it:\n\n",
        )
    )
    return (
        head
        + "\n\n".join(parts)
        + rng.choice(
            (
                "",
                "\n\nQuestion: what happened in the end?",
                "\n\nSummary:",
                "\n\nWhat is the point of the author?",
            )
        )
    )


def _bibliography(rng: random.Random) -> str:
    refs = "\n".join(
        f"[{i + 1}] {rng.choice(NAMES)} et al. On the {rng.choice(NOUNS)}. Journal of {rng.choice(NOUNS)}s, {rng.randint(1950, 2024)}."
        for i in range(rng.randint(3, 20))
    )
    cites = " ".join(f"{sentence(rng)[:-1]} [{i}]." for i in range(1, 4))
    return f"{rng.choice(('Review my paper.', 'Check the citations:', 'Shorten this section.'))}\n\n{cites}\n\nReferences\n\n{refs}"


def _law(rng: random.Random) -> str:
    word = rng.choice(
        (
            "Article",
            "Section",
            "Chapter",
            "§",
            "Clause",
            "Part",
            "Day",
            "Week",
            "Act",
            "Scene",
            "Verse",
            "Exercise",
            "Phase",
            "Level",
            "Question",
            "Example",
            "Task",
            "Rule",
            "Option",
            "Slide",
            "Page",
        )
    )
    parts = rng.choice(("\n", "\n\n")).join(
        f"{word} {i + 1}{rng.choice((':', '.', ''))} {paragraph(rng)}"
        for i in range(rng.randint(3, 9))
    )
    return (
        rng.choice(
            (
                "What does it say about tenants?\n\n",
                "Based on the following contract, answer: may I leave?\n\n",
                "",
                "Use the following plan.\n\n",
            )
        )
        + parts
    )


def _rules(rng: random.Random) -> str:
    rules = "\n".join(
        f"{rng.choice(('-', '*', f'{i + 1}.'))} {rng.choice(('Never', 'Always', 'Do not', 'You must', 'Only', 'Please'))} {rng.choice(('use', 'mention', 'reveal', 'repeat', 'invent'))} the {rng.choice(('context', 'sources', 'documents', 'search results', 'knowledge base', 'memories'))} in {rng.choice(NOUNS)} answers."
        for i in range(rng.randint(3, 14))
    )
    return f"You are a support agent. Answer from the provided context only.\n\n## {rng.choice(('Rules', 'Guidelines', 'Context', 'Instructions', 'Knowledge base rules'))}\n\n{rules}\n\nHow can I return a {rng.choice(NOUNS)}?"


def _own_context(rng: random.Random) -> str:
    facts = rng.choice(("\n\n", "\n", "\n- ")).join(
        f"{rng.choice(('I', 'We', 'My team'))} {rng.choice(('run', 'own', 'maintain'))} a {rng.choice(NOUNS)} with {rng.randint(2, 9)} parts, and we want to replace it."
        for _ in range(rng.randint(3, 6))
    )
    return f"{rng.choice(('Context:', 'Background:', '## Context', 'Some context:'))}\n{facts}\n\nQuestion: what should we do first?"


def _wanted(rng: random.Random) -> str:
    items = "\n".join(
        f"{i + 1}. {rng.choice(('Passport', 'Photo', 'Letter', 'Bank statement', 'Form', 'Ticket'))} {i}"
        for i in range(rng.randint(3, 9))
    )
    return f"{rng.choice(('Which of these documents are needed for a visa?', 'Here are the documents I have:', 'I need the following sources:', 'Translate each of the following:'))}\n\n{items}\n\nWhat is missing?"


def _table(rng: random.Random) -> str:
    rows = "\n".join(
        f"| {i} | {rng.choice(NOUNS)} | {rng.randint(1, 99)} |" for i in range(rng.randint(3, 30))
    )
    return f"Results:\n\n| id | document | score |\n| --- | --- | --- |\n{rows}\n\nWhich has the best score?"


def _rows(rng: random.Random) -> str:
    rows = [
        {"id": i + 1, "name": rng.choice(NOUNS), "price": rng.randint(1, 99)}
        for i in range(rng.randint(3, 30))
    ]
    key = rng.choice(("results", "items", "rows", "data", "records", None))
    return json.dumps({key: rows} if key else rows)


def _messages_json(rng: random.Random) -> str:
    turns = [
        {"role": rng.choice(("user", "assistant")), "content": paragraph(rng)}
        for _ in range(rng.randint(3, 9))
    ]
    return rng.choice(("Continue this conversation:\n", "", "Context:\n")) + json.dumps(
        turns, indent=rng.choice((None, 1))
    )


def _config(rng: random.Random) -> str:
    form = rng.choice(
        (
            "{n}:\n  context: {m}\n  sources:\n    - {m}\n",
            "[{n}]\nsource = {m}\n",
            '<{n} id="{i}">\n  <{m}>{i}</{m}>\n</{n}>\n',
            "{n},{m},{i}\n",
        )
    )
    body = "\n".join(
        form.format(n=rng.choice(NOUNS), m=rng.choice(NOUNS), i=i)
        for i in range(rng.randint(3, 20))
    )
    return (
        f"{rng.choice(('Is this configuration right?', 'Convert to JSON:', 'Context:'))}\n\n{body}"
    )


def _html(rng: random.Random) -> str:
    parts = "\n".join(
        f'<div class="doc"><h2>{rng.choice(NOUNS)}</h2><p>{sentence(rng)}</p><source src="{i}.webm"></div>'
        for i in range(rng.randint(3, 9))
    )
    return f"Why is this page broken?\n<html><body>\n{parts}\n</body></html>"


def _diff(rng: random.Random) -> str:
    parts = "\n".join(
        f"@@ -{i},3 +{i},4 @@\n- {sentence(rng)}\n+ {sentence(rng)}\n  {sentence(rng)}"
        for i in range(1, rng.randint(3, 9))
    )
    return f"Review the following changes:\n\n```diff\n{parts}\n```"


def _quiz(rng: random.Random) -> str:
    parts = "\n\n".join(
        f"{i + 1}. {sentence(rng)[:-1]}?\nA) yes\nB) no\nC) sometimes"
        for i in range(rng.randint(3, 9))
    )
    return f"Answer the following questions using your knowledge:\n\n{parts}"


def _minutes(rng: random.Random) -> str:
    parts = rng.choice(("\n", "\n\n")).join(
        f"{9 + i // 2}:{30 * (i % 2):02d} {rng.choice(NAMES)}: {sentence(rng)}"
        for i in range(rng.randint(4, 12))
    )
    return (
        rng.choice(
            (
                "Meeting notes:\n",
                "Context:\n\n",
                "Use the following information to write minutes.\n\n",
            )
        )
        + parts
    )


def _story(rng: random.Random) -> str:
    first = rng.choice(NAMES)
    parts = [f"{first} left the {rng.choice(NOUNS)} at dawn."] + [
        f"{rng.choice(('She', 'He', 'They', 'It', 'Then she', 'But he'))} {sentence(rng)[0].lower()}{sentence(rng)[1:]}"
        for _ in range(rng.randint(3, 9))
    ]
    return (
        rng.choice(
            ("Continue the story:\n\n", "Context:\n\n", "Answer based on the following story.\n\n")
        )
        + "\n\n".join(parts)
        + rng.choice(("", "\n\nQuestion: where is she now?"))
    )


def _requirements(rng: random.Random) -> str:
    parts = "\n".join(
        f"{rng.choice(('REQ-', 'R', '- ', '* '))}{i}: The {rng.choice(NOUNS)} shall support {rng.randint(2, 90)} {rng.choice(NOUNS)}s."
        for i in range(1, rng.randint(4, 20))
    )
    return f"Write tests for these requirements:\n\n{parts}"


def _ranking(rng: random.Random) -> str:
    parts = "\n".join(
        f"{i + 1}. {rng.choice(NOUNS)} ({rng.randint(1, 99)} points)"
        for i in range(rng.randint(3, 12))
    )
    return f"The search results of our survey, best first:\n\n{parts}\n\nWho won?"


def _agent(rng: random.Random) -> str:
    tools = "\n".join(
        f"{rng.choice(('search', 'lookup', 'retrieve', 'calculator'))}_{i}: {sentence(rng)}"
        for i in range(rng.randint(2, 6))
    )
    steps = "\n".join(
        f"Thought: {sentence(rng)}\nAction: search_1\nAction Input: {rng.choice(NOUNS)}\nObservation: {sentence(rng)}"
        for _ in range(rng.randint(1, 5))
    )
    return f"Answer the following questions as best you can. You have access to the following tools:\n\n{tools}\n\nUse the following format:\n\nQuestion: the input question you must answer\nThought: you should always think about what to do\n\nBegin!\n\nQuestion: Who moved the {rng.choice(NOUNS)}?\n{steps}\nThought:"


def _chunks(rng: random.Random) -> str:
    parts = "\n\n".join(
        f"{rng.choice(('Chunk', 'Part', 'Page'))} {i + 1}:\n{paragraph(rng)}"
        for i in range(rng.randint(2, 6))
    )
    return f"The transcript is split in order. Summarise it.\n\n{parts}"


def _plain(rng: random.Random) -> str:
    return rng.choice(
        (
            "Hello!",
            "What is a context window?",
            "Cite three sources about bees.",
            "Where do I find the documents?",
            paragraph(rng),
            "Use the following context: none.",
            "Retrieved documents:\n(none)",
            "Search results: no results found.",
        )
    )


KINDS: tuple[Callable[[random.Random], str], ...] = (
    _steps, _recipe, _code, _markdown, _poem, _log, _trace, _mail, _talk, _examples, _squad, _article,
    _bibliography, _law, _rules, _own_context, _wanted, _table, _rows, _messages_json, _config, _html,
    _diff, _quiz, _minutes, _story, _requirements, _ranking, _agent, _chunks, _plain,
)  # fmt: skip

SYSTEMS = (
    "You are a helpful assistant.",
    "Answer the question using only the provided context. If you don't know, say so.",
    "You have access to a knowledge base and to retrieved documents.\n\n- Be polite.\n- Cite sources.\n- Keep it short.",
    "",
)  # fmt: skip


def _tools(rng: random.Random) -> list[dict]:
    return [
        {"type": "function", "function": {"name": f"search_{i}", "description": paragraph(rng), "parameters": {
            "type": "object", "properties": {"query": {"type": "string", "description": sentence(rng)}}}}}
        for i in range(rng.randint(1, 6))
    ]  # fmt: skip


def ordinary(seed: int, count: int) -> Iterator[tuple[str, str, dict]]:
    """`count` bodies: the kind, the interface, the body."""
    rng = random.Random(seed)
    for i in range(count):
        make = KINDS[i % len(KINDS)]
        text = make(rng)
        system = rng.choice(SYSTEMS)
        messages: list[dict] = [{"role": "system", "content": system}] if system else []
        if rng.random() < 0.3:
            messages += [
                {"role": "user", "content": make(rng)},
                {"role": "assistant", "content": paragraph(rng)},
            ]
        form = rng.randrange(6)
        user: dict = {"role": "user", "content": text}
        if form == 0:
            yield make.__name__, "completions", {"model": "m", "prompt": text}
        elif form == 1:
            yield make.__name__, "responses", {"model": "m", "instructions": system, "input": text}
        elif form == 2:
            body = {"model": "m", "max_tokens": 9, "system": system, "messages": [user]}
            yield make.__name__, "messages", body
        elif form == 3 and make not in (_plain, _wanted):
            called = {
                "id": "c",
                "type": "function",
                "function": {
                    "name": rng.choice(("read_file", "run", "get_weather", "list_orders")),
                    "arguments": "{}",
                },
            }
            messages += [
                {"role": "user", "content": "Go on."},
                {"role": "assistant", "content": None, "tool_calls": [called]},
            ]
            messages.append({"role": "tool", "tool_call_id": "c", "content": text})
            yield make.__name__, "chat", {"model": "m", "messages": messages, "tools": _tools(rng)}
        else:
            yield make.__name__, "chat", {"model": "m", "messages": [*messages, user]}

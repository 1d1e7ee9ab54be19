"""`TEMPLATES` by name: how frameworks put retrieved chunks into a request.

Each follows the documented format of the framework's default prompt, in different words. What
matters is where chunks begin and end, the text between them, and the message that contains them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

Body = dict[str, object]
Template = Callable[[Sequence[tuple[int, str]], str], Body]
"""Function of chunks, each with its number in the corpus, and a question; returns a body."""

_RULES = (
    "You help the staff of a museum. Use the retrieved pieces of context below to answer. "
    "If they do not hold the answer, say that you do not know."
)


def _chat(system: str | None, user: str) -> Body:
    said = [{"role": "system", "content": system}] if system is not None else []
    return {"model": "m", "messages": [*said, {"role": "user", "content": user}]}


def _tool(content: object, question: str, name: str = "search_docs") -> Body:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Look things up before you answer."},
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": content},
        ],
    }


def _each(form: str, gap: str = "\n\n") -> Callable[[Sequence[tuple[int, str]]], str]:
    """Return a function that joins chunks; `n` numbers positions, `id` identifies the chunk."""
    return lambda docs: gap.join(
        form.format(n=n, i=n - 1, id=at, t=text, f=f"handbook-{at % 9}.pdf", p=at)
        for n, (at, text) in enumerate(docs, 1)
    )


def _frame(user: str, form: str, gap: str = "\n\n", system: str | None = None) -> Template:
    """Return a template from strings; either message may contain `{docs}` and `{question}`."""
    render = _each(form, gap)

    def body(docs: Sequence[tuple[int, str]], question: str) -> Body:
        joined = render(docs)

        def filled(text: str) -> str:
            return text.replace("{question}", question).replace("{docs}", joined)

        return _chat(filled(system) if system is not None else None, filled(user))

    return body


def _mcp(docs: Sequence[tuple[int, str]], question: str) -> Body:
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": text} for _, text in docs],
    }
    use = {"type": "tool_use", "id": "t1", "name": "search_docs", "input": {}}
    return {
        "model": "m",
        "max_tokens": 99,
        "system": "Look things up before you answer.",
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
    }


_CONTEXT = f"{_RULES}\n\nContext:\n{{docs}}"
_PLAIN = "{t}"

TITLED = "titled chunks"
"""A template with each chunk below its file name."""

TEMPLATES: dict[str, Template] = {
    "langchain stuff": _frame("{question}", _PLAIN, system=f"{_RULES}\n\n{{docs}}"),
    "langchain hub": _frame(
        f"{_RULES}\nQuestion: {{question}} \nContext: {{docs}} \nAnswer:", _PLAIN
    ),
    "langchain retriever tool": lambda docs, question: _tool(_each(_PLAIN)(docs), question),
    "langchain rule": _frame("{question}", _PLAIN, "\n\n---\n\n", system=_CONTEXT),
    "langchain source tool": lambda docs, question: _tool(
        _each("Source: {{'file': '{f}', 'at': {p}}}\nContent: {t}")(docs), question
    ),
    "llamaindex compact": _frame(
        "Context information is below.\n---------------------\n{docs}\n---------------------\n"
        "Given the context information, answer the query.\nQuery: {question}\nAnswer: ",
        _PLAIN,
    ),
    "llamaindex metadata": _frame(
        "Context information is below.\n---------------------\n{docs}\n---------------------\n"
        "Given the context information, answer the query.\nQuery: {question}\nAnswer: ",
        "page_label: {p}\nfile_name: {f}\n\n{t}",
    ),
    "llamaindex citation": _frame(
        "Answer from the numbered sources and cite them.\n------\n{docs}\n------\n"
        "Query: {question}\nAnswer: ",
        "Source {n}:\n{t}\n",
        "\n",
    ),
    "haystack loop": _frame(
        "Given these documents, answer the question.\nDocuments:\n{docs}\n\n"
        "Question: {question}\nAnswer:",
        "    {t}\n",
        "\n",
    ),
    "haystack numbers": _frame(
        "Answer from the documents.\n\n{docs}\n\nQuestion: {question}", "Document {n}: {t}"
    ),
    "dify": _frame(
        "{question}",
        _PLAIN,
        "\n",
        system="Use the following context as your learned knowledge, inside <context></context> "
        "XML tags.\n\n<context>\n{docs}\n</context>\n\nAnswer the user.",
    ),
    "open webui": _frame(
        "### Task:\nAnswer using the context; cite as [id].\n\n<context>\n{docs}\n</context>\n\n"
        "{question}",
        '<source id="{n}" name="{f}">{t}</source>',
        "\n",
    ),
    "librechat": _frame(
        "{question}",
        "<document>\n<filename>{f}</filename>\n<context>{t}</context>\n</document>",
        "\n",
        system="The user has attached files:\n<files>\n{docs}\n</files>",
    ),
    "ragflow": _frame(
        "{question}", "ID: {n}\n├── Title: {f}\n└── Content:\n{t}", system=f"{_RULES}\n{{docs}}"
    ),
    "anythingllm": _frame(
        "{question}",
        "[CONTEXT {i}]:\n{t}\n[END CONTEXT {i}]\n",
        system=f"{_RULES}\nContext:\n    {{docs}}",
    ),
    "perplexica": _frame(
        "{question}", "{n}. {t}", "\n", system=f"{_RULES}\n<context>\n{{docs}}\n</context>"
    ),
    "smolagents": lambda docs, question: _tool(
        "\nRetrieved documents:\n" + _each("\n\n===== Document {i} =====\n{t}", "")(docs), question
    ),
    "contextpilot": _frame("{docs}\n\nQuestion: {question}", "[Doc_{id}] {t}", system=_RULES),
    "azure sample": _frame("{question}\n\nSources:\n{docs}", "{f}#page={p}: {t}", "\n"),
    "brackets": _frame("{question}", "[{n}] {t}", system=_CONTEXT),
    "headings": _frame("{question}", "## Item {id}\n{t}", system=_CONTEXT),
    "anthropic xml": _frame(
        "<documents>\n{docs}\n</documents>\n\n{question}",
        "<document>\n<source>{f}</source>\n<document_content>\n{t}\n</document_content>\n</document>",
        "\n",
    ),
    "json tool": lambda docs, question: _tool(
        json.dumps({"results": [{"id": f"k{at}", "content": text} for at, text in docs]}), question
    ),
    "python list": lambda docs, question: _chat(
        None,
        f"{_RULES}\n\nContext: "
        + str([{"title": f"handbook-{at % 9}", "text": text} for at, text in docs])
        + f"\n\nQuestion: {question}",
    ),
    "mcp parts": _mcp,
}
TEMPLATES[TITLED] = TEMPLATES["langchain stuff"]

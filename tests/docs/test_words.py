"""The words that CONTRIBUTING replaces are not in what users read."""

from __future__ import annotations

import ast
import functools
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from docs_pages import DOCS, PAGES, ROOT, commands_below

from laar.cli import app
from laar.settings import Settings

WORDS = re.compile(
    r"\b(nobody|whoever|somebody|anybody|people|lately|anew|foretold|goes by|put right|beyond hope"
    r"|what (came|became) of|what is believed of)\b"
    r"|(?<!`)\b(told|tells)\b(?!:)",
    re.IGNORECASE,
)
# A text that begins so needs the one before it.
FRAGMENT = re.compile(r"\.\.\.|(Of|Also|And|But|Their|Its) ")
# A docstring begins with a noun or a verb.
OPENING = re.compile(r"Of (?!which )|(What|Whatever|Whoever|Who)\b")
# Notes that no reader has.
NOTES = re.compile(r"overview,? section|design note|\w+\.md,? section|\bour notes\b", re.IGNORECASE)
# Decisions and results are records of their day.
RECORDS = {"decisions", "results"}
READ = [page for page in (*PAGES, ROOT / "SECURITY.md") if not RECORDS.intersection(page.parts)]
SOURCES = sorted(p for top in ("src/laar", "lab/src") for p in (ROOT / top).rglob("*.py"))

Texts = Iterator[tuple[str, str]]


def helps() -> Texts:
    """The help of every command and option."""
    left = [("laar", typer.main.get_command(app))]
    while left:
        path, command = left.pop()
        yield path, command.help or ""
        for parameter in command.params:
            if not getattr(parameter, "hidden", False) and parameter.name != "help":
                yield f"{path} {parameter.name}", getattr(parameter, "help", None) or ""
        below = commands_below(command)
        left += [(f"{path} {name}", each) for name, each in below.items()]


def metrics() -> Texts:
    """The help of every metric."""
    page = runpy.run_path(str(DOCS / "reference" / "generate.py"))["metrics_page"]()
    for row in page.splitlines():
        if row.startswith("| `laar_"):
            cells = row.strip("| ").split(" | ")
            yield cells[0], cells[-1]


def settings() -> Texts:
    """The description of every setting and section."""
    schema = Settings.model_json_schema()
    for name, section in {"settings": schema, **schema["$defs"]}.items():
        if section.get("type") == "object":
            yield name, section.get("description", "")
        for key, setting in section.get("properties", {}).items():
            # A key that is a section is described there.
            yield f"{name}.{key}", setting.get("description", "")


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_components_and_outcomes(page):
    lines = page.read_text().splitlines()
    assert [f"{n}: {line}" for n, line in enumerate(lines, 1) if WORDS.search(line)] == []


@pytest.mark.parametrize(
    ("texts", "least"),
    [(helps, 180), (metrics, 80), (settings, 180)],
    ids=["helps", "metrics", "settings"],
)
def test_a_text_names_components_and_stands_alone(texts, least):
    found = list(texts())
    assert len(found) >= least
    assert [one for one in found if WORDS.search(one[1]) or FRAGMENT.match(one[1])] == []


@pytest.mark.parametrize("texts", [helps, metrics], ids=["helps", "metrics"])
def test_a_text_is_there_and_a_sentence(texts):
    assert [one for one in texts() if not one[1] or not one[1].rstrip().endswith(".")] == []


def test_a_source_cites_no_note_that_readers_lack():
    assert {
        str(path.relative_to(ROOT)): found[0]
        for path in SOURCES
        if (found := NOTES.search(path.read_text()))
    } == {}


@functools.cache
def nodes() -> list[tuple[Path, ast.AST]]:
    """Every node of every source."""
    return [(path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))]


def test_a_docstring_stands_alone():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value.value}"
        for path, node in nodes()
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and OPENING.match(str(node.value.value))
    ]
    assert found == []


def test_a_source_says_nothing_to_readers_in_those_words():
    """Errors, titles and claims of experiments, docstrings: every text of several words."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path, node in nodes()
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and " " in node.value
        and WORDS.search(node.value)
    ]
    assert found == []


def test_the_patterns_find_what_they_are_for():
    assert WORDS.search("The picker tells the engine.")
    assert not WORDS.search("orders dropped (`told`)")
    assert not WORDS.search("told: takes the result.")
    assert FRAGMENT.match("Of the filter, by name.")
    assert not FRAGMENT.match("Official name.")
    assert OPENING.match("What the page shows.")
    assert not OPENING.match("Whole content of the page.")
    assert NOTES.search("the one cost (overview section 1)")
    assert NOTES.search("Gorgo.md, section 1.5")
    assert not NOTES.search("GORGO section 3, hill-climb")

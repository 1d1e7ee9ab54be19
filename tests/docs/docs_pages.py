"""Parse the pages: fenced blocks, and commands in blocks and in the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
READMES = [ROOT / "README.md", *sorted(ROOT.glob("deploy/overlays/*/README.md"))]
PAGES = [*sorted(DOCS.rglob("*.md")), *READMES]

_FENCE = re.compile(
    r"^( *)```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL
)
_INDENTED = re.compile(r"(?:^ {4}\S.*\n?)+", re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block; `title` is the file's name, if it has one."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences(page: Path) -> Iterator[Fence]:
    """Return the fenced blocks of a page, without their indentation."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        indent, language, title, body = found.groups()
        body = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        yield Fence(page, text.count("\n", 0, found.start()) + 1, language, title or "", body)


def all_fences(*languages: str) -> list[Fence]:
    """Return the blocks of all pages in some languages."""
    return [fence for page in PAGES for fence in fences(page) if fence.language in languages]


def commands(text: str) -> list[list[str]]:
    """Return the simple commands of a shell text, without redirections and comments."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        stop = next(
            (i for i, word in enumerate(words) if word in (">", "|", "&", "&&")), len(words)
        )
        if words:
            found.append(words[:stop])
    return found


def shown_commands(page: Path) -> Iterator[list[str]]:
    """Return commands that a reader would paste: in shell blocks, and indented ones in READMEs."""
    for fence in fences(page):
        if fence.language == "sh":
            yield from commands(fence.text)
    if page in READMES:
        for block in _INDENTED.findall(_FENCE.sub("", page.read_text())):
            yield from (
                w for line in block.splitlines() if (w := line.split())[0] in ("laar", "make")
            )


def mentioned_commands(page: Path) -> Iterator[list[str]]:
    """Return the `laar` commands in running text, which may omit arguments."""
    for span in _SPAN.findall(_FENCE.sub("", page.read_text())):
        words = span.split()
        if words[0] == "laar" and len(words) > 1:
            yield words


def commands_below(group: Any) -> dict[str, Any]:
    """Return a group's commands by name, including laar-lab's; a plain command has none."""
    if not hasattr(group, "list_commands"):
        return {}
    context = typer.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}

"""Who upgrades finds what is gone from the command line in the changelog."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "reference" / "cli.md", ROOT / "lab" / "commands.md")
RELEASED = Path(__file__).with_name("commands_released.txt")
"""The commands and options of the last release: `named` of its own pages, one a line."""


def named(text: str) -> Iterator[str]:
    """Yield the commands of a reference page, each followed by its options."""
    command = ""
    for line in text.splitlines():
        if heading := re.match(r"#+ `(laar[ a-z-]*)", line):
            command = heading[1].strip()
            yield command
        elif command and (row := re.match(r"\| (`-.*?) \|", line)):
            for options in re.findall(r"`(-[^`]+)`", row[1]):
                yield from (f"{command} {option}" for option in options.split("/"))


def test_what_is_gone_from_the_command_line_is_named_in_the_changelog() -> None:
    now = {each for page in PAGES for each in named(page.read_text())}
    gone = [each for each in RELEASED.read_text().splitlines() if each not in now]
    latest = (ROOT / "CHANGELOG.md").read_text().partition("\n## Unreleased")[2]
    latest = latest.partition("\n## ")[0]
    told = {
        f"{command} {option}".strip()
        for text in re.findall(r"`(laar [^`]+)`", latest)
        for command in [re.split(r" -| [A-Z]", text)[0]]
        for option in ["", *re.findall(r"(?<= )--?[a-z][a-z-]*", text)]
    }
    silent = [
        each for each in gone if each not in told and each.split(" -")[0] not in {*gone} & told
    ]
    assert [each for each in silent if not re.search(r" -\w$", each)] == []


if __name__ == "__main__":  # once a release is made
    RELEASED.write_text("".join(f"{each}\n" for page in PAGES for each in named(page.read_text())))

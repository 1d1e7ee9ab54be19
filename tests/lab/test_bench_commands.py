"""Every documented `python -m bench` command is accepted, and a bad one is refused at once."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench
import pytest
from bench.__main__ import NAMES, main

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/*.py")]
PATTERNS = {
    "--help",
    "NAME",
    "NAME --help",
    "[NAME [OPTIONS]]",
    "prompts [NAME ...] [--chunks 300 --learnt 500]",
}
"""Texts that stand for several commands."""


class ParsedError(Exception):
    """The options were accepted, and the benchmark would start."""


def documented() -> Iterator[str]:
    """Return the arguments of each command, from text and indented lines, in pages and modules."""
    for page in {*PAGES} - {ROOT / "CHANGELOG.md"}:
        text = re.sub(r"\\+\n", " ", page.read_text("utf-8"))
        for command in (
            *re.findall(r"`python -m bench ([^`]*)`", text),
            *re.findall(r"^ *python -m bench (.*)", text, re.MULTILINE),
        ):
            yield " ".join(command.split())


COMMANDS = sorted({*documented()} - PATTERNS)


@pytest.fixture
def only_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise `ParsedError` in place of starting a benchmark."""
    parse = argparse.ArgumentParser.parse_args

    def stop(*given: Any) -> None:
        parse(*given)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)


def test_commands_are_found() -> None:
    assert {words.split()[0] for words in COMMANDS} >= {*NAMES}


@pytest.mark.usefixtures("only_parsed")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_documented_command_is_accepted(words: str) -> None:
    with pytest.raises(ParsedError):
        main(shlex.split(words, comments=True))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("nothing", "no 'nothing'; there are:"),
        ("decision --quick", "unrecognized arguments: --quick"),
        ("hooked nothing", "no 'nothing'; there are: langchain stuff"),
        ("prompts nothing", "no 'nothing'; there are:"),
        ("templates nothing", "no 'nothing'; there are:"),
        ("failing --rows nothing", "no 'nothing'; there are:"),
        ("failing --shapes sidecar", "no 'sidecar'; there are: standalone, gateway"),
        ("stall --shapes sidecar", "no 'sidecar'; there are: native"),
        ("chaos --shapes native", "no 'native'; there are: standalone, gateway"),
        ("chaos --seconds 0", "0 is not above 0"),
        ("models --shapes none", "no 'none'; there are: standalone"),
        ("picker --parts none", "no 'none'; there are: cpu"),
        ("picker --share 0", "0 is not above 0"),
    ],
)
def test_a_useless_option_is_refused(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert (ended.value.code, why in capsys.readouterr().err) == (2, True)


def test_every_module_of_the_benchmarks_can_be_imported() -> None:
    for module in pkgutil.walk_packages(bench.__path__, "bench."):
        if module.name != "bench.__main__":
            importlib.import_module(module.name)

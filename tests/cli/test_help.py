"""The help of each command fits a terminal."""

from itertools import pairwise

import pytest
import typer
from typer.testing import CliRunner

from laar.cli import app


def commands(group, *path):
    """Yield the words of each command of a group."""
    for name in group.list_commands(context := typer.Context(group)):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


@pytest.mark.parametrize("words", [*commands(typer.main.get_command(app))], ids=" ".join)
def test_help_texts_are_wrapped_only_at_the_full_line_width(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*words, "--help"]).output.partition("\u256d")[0]
    lines = [line.strip() for line in shown.splitlines()]
    for line, after in pairwise(lines):
        has_room = len(f"{line} {after.partition(' ')[0]}") < 79
        assert not (line and after and has_room) or line.endswith("."), f"{line} / {after}"

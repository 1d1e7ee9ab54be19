"""Find commands by name: laar's own, and those of installed packages such as laar-lab.

Packages provide entry points in the ``laar.commands`` group, named after the command. Each refers
to a function for Typer or to a `typer.Typer`. A command is imported only when run or listed, so the
others start no slower.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from laar.cli.terminal import FAULT, report_errors
from laar.errors import install

GROUP = "laar.commands"

OWN = {
    "init": "laar.cli.init:init",
    "serve": "laar.cli.serve:serve",
    "check": "laar.cli.check:check",
    "explain": "laar.cli.explain:explain",
    "doctor": "laar.cli.doctor:doctor",
    "envoy": "laar.cli.envoy:envoy",
    "calibrate": "laar.cli.measuring:calibrate",
    "measure": "laar.cli.measuring:measure",
    "fit": "laar.cli.measuring:fit",
}
"""laar's own commands and where they are defined, in the order of `laar --help`."""

OF_LAB = ("demo", "evaluate", "lab", "race", "sim-endpoint", "up")
"""Commands of laar-lab; if it is missing, they print how to install it."""


class RootGroup(TyperGroup):
    """A group with laar's own commands, which are imported when needed, then packages' ones."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of `--help`."""
        return [*OWN, *super().list_commands(ctx), *installed()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name; packages can't replace laar's own."""
        if cmd_name in OWN:
            return _command(EntryPoint(cmd_name, OWN[cmd_name], GROUP).load(), cmd_name)
        if (registered := super().get_command(ctx, cmd_name)) is not None:
            return registered
        point = installed().get(cmd_name)
        if point is not None:
            return _load(point, cmd_name)
        if cmd_name in OF_LAB:
            return _failing(cmd_name, f"this needs the package laar-lab; {install('lab')}")
        return None

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and report its errors."""
        with report_errors():
            return super().invoke(ctx)


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of packages' commands, by name."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    return {point.name: point for point in points}


@cache
def _load(point: EntryPoint, name: str) -> Any:
    package = point.dist.name if point.dist else "an unnamed package"
    try:
        return _command(point.load(), name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 another package's bug, reported below
        why = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        return _failing(name, f"the command of {package} cannot be loaded ({why}); reinstall it")


def _command(found: Any, name: str) -> Any:
    """Return the command for a function or a `typer.Typer`."""
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False)
        found.command(name)(function)
    command = typer.main.get_command(found)
    command.name = name
    return command


def _failing(name: str, text: str) -> Any:
    """Return a command that accepts any arguments and reports why it is unavailable."""
    app = typer.Typer(add_completion=False)
    lenient = {"ignore_unknown_options": True, "allow_extra_args": True}

    @app.command(name, help=text, hidden=True, add_help_option=False, context_settings=lenient)
    def fail() -> None:
        typer.echo(f"laar: {text}", err=True)
        raise typer.Exit(FAULT)

    return typer.main.get_command(app)

"""Run `laar` in the test's own process, as starting an interpreter takes a second."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from typer.testing import CliRunner

from laar.cli import app


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command: its exit status, and all output."""

    status: int
    text: str


def run(*arguments: object, **variables: str) -> Ran:
    """Run `laar` to its end, with some environment variables."""
    environment = {"COLUMNS": "200", "NO_COLOR": "1", **variables}
    done = CliRunner(env=environment).invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ran(done.exit_code, done.output)


async def run_in_thread(*arguments: object, **variables: str) -> Ran:
    """Run `laar` to its end in a thread, so that this event loop can serve it."""
    return await asyncio.to_thread(run, *arguments, **variables)

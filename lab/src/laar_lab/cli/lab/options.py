"""Options and output shared by the lab's commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

NOT_HELD, NO_VERDICT = 3, 4
"""Exit statuses if a claim, fit or stored result does not hold, and if there is no verdict."""

Json = Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file (JSON).")]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Directory with real traffic (agent-sessions.jsonl and "
        "conversation-trace.jsonl, or .gz), for experiments that use it."
    ),
]
Jobs = Annotated[int, typer.Option(help="Number of concurrent runs; -1 for one per core.")]
Keep = Annotated[
    Path | None,
    typer.Option(
        help="Store finished runs in this directory. The same command with unchanged sources "
        "and files resumes from there."
    ),
]
TimeScale = Annotated[float, typer.Option(help="Factor for the trace's arrival times.")]
BlockTokens = Annotated[int, typer.Option(help="Tokens per entry of `hash_ids`.")]


def lab_console() -> Console:
    """Return a console that is wide enough for tables if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=240)

"""Options of the commands that put questions to endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OutcomesFile = Annotated[Path, typer.Option(help="Outcomes file (JSONL); resumed if it exists.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="Model to ask; repeatable. Default: every model that is served."),
]
Concurrency = Annotated[
    int,
    typer.Option(
        help="Requests in flight at each endpoint. With 1, times include no waiting in a queue.",
        min=1,
    ),
]
MaxTokens = Annotated[int | None, typer.Option(help="Token limit of an answer.", min=1)]
KeyVariable = Annotated[
    str | None, typer.Option(help="Environment variable that holds the API key.")
]

"""`laar measure`: ask every model every question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import (
    Concurrency,
    JsonFile,
    KeyVariable,
    MaxTokens,
    Models,
    OutcomesFile,
    check_places,
    report_errors,
)
from laar.measuring.asking import Asking

_DEFAULTS = Asking()


def measure(
    endpoint: Annotated[list[str], typer.Option(help="Base URL of an endpoint; repeatable.")],
    out: OutcomesFile,
    task: Annotated[Path, typer.Option(help="File of questions with checks (JSONL).")],
    model: Models = None,
    concurrency: Concurrency = _DEFAULTS.concurrency,
    stream: Annotated[
        bool, typer.Option(help="Request streamed answers, to measure the time to first token.")
    ] = _DEFAULTS.stream,
    timeout: Annotated[
        float, typer.Option(help="Timeout of one request, in seconds.", min=0.1)
    ] = _DEFAULTS.timeout_s,
    max_tokens: MaxTokens = _DEFAULTS.max_tokens,
    key_env: KeyVariable = None,
    json_file: JsonFile = None,
) -> None:
    """Ask every model every question and record the outcomes; resumable."""
    with report_errors():
        from laar.measuring.questions import read_questions
        from laar.measuring.run import key_headers, run_measure

        check_places(out, json_file)
        raise typer.Exit(
            run_measure(
                endpoint,
                model or (),
                read_questions(task),
                out,
                Asking(
                    concurrency=concurrency,
                    stream=stream,
                    timeout_s=timeout,
                    max_tokens=max_tokens,
                    headers=key_headers(key_env),
                ),
                json_file=json_file,
            )
        )

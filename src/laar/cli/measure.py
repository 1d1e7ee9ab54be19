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
    key_headers,
)
from laar.measuring.asking import Asking

_DEFAULTS = Asking()
_INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""
_INCOMPLETE = 1
"""Exit status if some requests got no answer."""


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
    from dataclasses import asdict

    import orjson
    from rich.console import Console

    from laar.measuring.measure import ask
    from laar.measuring.questions import read_questions

    check_places(out, json_file)
    questions, console = read_questions(task), Console()
    asking = Asking(
        concurrency=concurrency,
        stream=stream,
        timeout_s=timeout,
        max_tokens=max_tokens,
        headers=key_headers(key_env),
    )
    try:
        counts = ask(endpoint, model or (), questions, out, asking, console=console)
    except KeyboardInterrupt:
        console.print(
            f"stopped; the outcomes are in {out}. Run the command again to continue.",
            markup=False,
        )
        raise typer.Exit(_INTERRUPTED) from None
    console.print(f"{out}: {counts.asked} outcomes added to {counts.resumed}.", markup=False)
    for count, what in (
        (counts.mended_bytes, "bytes of an incomplete last line were removed first."),
        (counts.too_long, "were not sent: longer than the engine's window."),
        (counts.failed, "got no answer: run the command again to repeat them."),
    ):
        if count:
            console.print(f"{count} {what}")
    if json_file is not None:
        json_file.write_bytes(orjson.dumps(asdict(counts), option=orjson.OPT_INDENT_2))
    if counts.failed:
        raise typer.Exit(_INCOMPLETE)

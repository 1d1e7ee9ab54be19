"""`laar measure`: put every question to every model."""

from __future__ import annotations

from typing import Annotated

import typer

from laar.cli.asking import Concurrency, KeyVariable, MaxTokens, Models, OutcomesFile
from laar.cli.lookups import Languages, Lengths
from laar.cli.terminal import JsonFile, check_places, report_errors
from laar.measuring.asking import Asking

_DEFAULTS = Asking()


def measure(
    endpoint: Annotated[list[str], typer.Option(help="Base URL of an endpoint; repeatable.")],
    out: OutcomesFile,
    task: Annotated[
        str,
        typer.Option(
            help="Questions to ask: kv-lookup, or a file of questions with checks (JSONL)."
        ),
    ] = "kv-lookup",
    model: Models = None,
    per_cell: Annotated[
        int, typer.Option(help="Number of look-ups for each language and length.", min=1)
    ] = 50,
    language: Languages = None,
    length: Lengths = None,
    seed: Annotated[int, typer.Option(help="Random seed of the look-ups.")] = 0,
    concurrency: Concurrency = _DEFAULTS.concurrency,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests started per second at most. Default: no limit.", min=0.001),
    ] = _DEFAULTS.rate_per_s,
    stream: Annotated[
        bool, typer.Option(help="Request streamed answers, which show the time to first token.")
    ] = _DEFAULTS.stream,
    timeout: Annotated[
        float, typer.Option(help="Time-out of one request, in seconds.", min=0.1)
    ] = _DEFAULTS.timeout_s,
    check_timeout: Annotated[
        float, typer.Option(help="Time-out of one check, in seconds.", min=0.1)
    ] = _DEFAULTS.check_timeout_s,
    max_tokens: MaxTokens = _DEFAULTS.max_tokens,
    key_env: KeyVariable = None,
    json_file: JsonFile = None,
) -> None:
    """Ask every model every question and record the outcomes; resumable."""
    with report_errors():
        from laar.measuring.kv_lookup import LANGUAGES, LENGTHS_TOKENS
        from laar.measuring.run import key_headers, questions_of, run_measure

        check_places(out, json_file)
        questions = questions_of(
            task,
            languages=language or LANGUAGES,
            lengths_tokens=length or LENGTHS_TOKENS,
            per_cell=per_cell,
            seed=seed,
        )
        raise typer.Exit(
            run_measure(
                endpoint,
                model or (),
                questions,
                out,
                Asking(
                    concurrency=concurrency,
                    rate_per_s=rate,
                    stream=stream,
                    timeout_s=timeout,
                    check_timeout_s=check_timeout,
                    max_tokens=max_tokens,
                    headers=key_headers(key_env),
                ),
                json_file=json_file,
            )
        )

"""`laar calibrate`: measure engines for a minute and write an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import (
    Concurrency,
    KeyVariable,
    MaxTokens,
    Models,
    OutcomesFile,
    check_places,
    report_errors,
)
from laar.measuring.asking import Asking

_DEFAULTS = Asking()


def calibrate(
    endpoint: Annotated[list[str], typer.Argument(help="Base URLs of engines.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Artifact to write.")] = Path(
        "capability.json"
    ),
    outcomes: OutcomesFile = Path("calibration.jsonl"),
    seconds: Annotated[float, typer.Option(help="Seconds to ask questions for.", min=1)] = 60.0,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set of questions: lookups, arithmetic or formats; repeatable. Default: all "
            "three.",
        ),
    ] = None,
    model: Models = None,
    concurrency: Concurrency = _DEFAULTS.concurrency,
    max_tokens: MaxTokens = _DEFAULTS.max_tokens,
    seed: Annotated[int, typer.Option(help="Random seed of the questions.")] = 0,
    key_env: KeyVariable = None,
) -> None:
    """Measure engines for a minute, write an artifact and estimate its benefit."""
    with report_errors():
        check_places(out, outcomes)
        import sklearn  # noqa: F401 - fail before spending a minute

        from laar.measuring.calibrate import MAX_QUESTIONS, TIMEOUT_S
        from laar.measuring.calibrate import calibrate as run
        from laar.measuring.run import key_headers
        from laar.measuring.sets import SETS, made_questions

        run(
            endpoint,
            model or (),
            made_questions(sets or tuple(SETS), MAX_QUESTIONS, seed),
            Asking(
                concurrency=concurrency,
                timeout_s=TIMEOUT_S,
                max_tokens=max_tokens,
                headers=key_headers(key_env),
            ),
            seconds=seconds,
            outcomes=outcomes,
            out=out,
        )

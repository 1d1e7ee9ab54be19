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
    key_headers,
)
from laar.measuring.asking import Asking

_DEFAULTS = Asking()
_TIMEOUT_S = 60.0
"""Timeout of a request; a longer one could let a request outlast the measurement."""
_MAX_QUESTIONS = 3000
"""Maximum number of questions per model, which is more than fit in a minute."""


def calibrate(
    endpoint: Annotated[list[str], typer.Argument(help="Base URLs of engines.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Artifact to write.")] = Path(
        "capability.json"
    ),
    outcomes: OutcomesFile = Path("calibration.jsonl"),
    seconds: Annotated[float, typer.Option(help="Duration in seconds.", min=1)] = 60.0,
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
    check_places(out, outcomes)
    import sklearn  # noqa: F401 - fail before spending a minute
    from rich.console import Console

    from laar.accuracy.fitting.command import run_fit
    from laar.errors import SettingError
    from laar.measuring.measure import ask
    from laar.measuring.sets import SETS, made_questions

    asking = Asking(
        concurrency=concurrency,
        timeout_s=_TIMEOUT_S,
        max_tokens=max_tokens,
        headers=key_headers(key_env),
    )
    questions = made_questions(sets or tuple(SETS), _MAX_QUESTIONS, seed)
    console, models = Console(), model or ()
    counts = ask(endpoint, models, questions, outcomes, asking, console=console, seconds=seconds)
    if counts.failed:
        console.print(f"{counts.failed} requests got no answer; see {outcomes}.", markup=False)
    try:
        run_fit([outcomes], out=out, json_file=None)
    except SettingError as error:
        raise SettingError(
            f"{error} (--seconds allows more time, --max-tokens limits long answers)"
        ) from None

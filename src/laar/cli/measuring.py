"""`laar calibrate`, `laar measure`, `laar fit`: learn how fast and how accurate models are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laar.cli.terminal import (
    Concurrency,
    KeyVariable,
    MaxTokens,
    Models,
    ModesFile,
    OutcomesFile,
    check_places,
    key_headers,
)
from laar.errors import SettingError
from laar.measuring import Asking

if TYPE_CHECKING:
    from laar.plugins.modes import ByModel

_DEFAULTS = Asking()
_CALIBRATION_TIMEOUT_S = 60.0
"""Timeout of a request; a longer one could let a request outlast the measurement."""
_MAX_QUESTIONS = 3000
"""Maximum number of questions per model, which is more than fit in a minute."""
_INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""
_INCOMPLETE = 1
"""Exit status if some requests got no answer."""


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
    config: ModesFile = None,
) -> None:
    """Measure engines for a minute, write an artifact and estimate its benefit."""
    check_places(out, outcomes)
    import sklearn  # noqa: F401 - fail before spending a minute
    from rich.console import Console

    from laar.accuracy.fitting.command import run_fit
    from laar.measuring.measure import ask
    from laar.measuring.sets import SETS, made_questions

    asking = Asking(
        concurrency=concurrency,
        timeout_s=_CALIBRATION_TIMEOUT_S,
        max_tokens=max_tokens,
        headers=key_headers(key_env),
    )
    questions = made_questions(sets or tuple(SETS), _MAX_QUESTIONS, seed)
    console, models = Console(), model or ()
    modes = modes_in(config)
    counts = ask(
        endpoint, models, questions, outcomes, asking, console=console, seconds=seconds, modes=modes
    )
    if counts.failed:
        console.print(f"{counts.failed} requests got no answer; see {outcomes}.", markup=False)
    try:
        run_fit([outcomes], out=out)
    except SettingError as error:
        raise SettingError(
            f"{error} (--seconds allows more time, --max-tokens limits long answers)"
        ) from None


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
    config: ModesFile = None,
) -> None:
    """Ask every model every question and record the outcomes; resumable."""
    from rich.console import Console

    from laar.measuring.measure import ask
    from laar.measuring.questions import read_questions

    check_places(out)
    questions, console = read_questions(task), Console()
    asking = Asking(
        concurrency=concurrency,
        stream=stream,
        timeout_s=timeout,
        max_tokens=max_tokens,
        headers=key_headers(key_env),
    )
    modes = modes_in(config)
    try:
        counts = ask(endpoint, model or (), questions, out, asking, console=console, modes=modes)
    except KeyboardInterrupt:
        console.print(
            f"stopped; the outcomes are in {out}. Run the command again to continue.",
            markup=False,
        )
        raise typer.Exit(_INTERRUPTED) from None
    console.print(f"{out}: {counts.asked} outcomes added to {counts.resumed}.", markup=False)
    for count, what in (
        (counts.too_long, "were not sent: longer than the engine's window."),
        (counts.failed, "got no answer: run the command again to repeat them."),
    ):
        if count:
            console.print(f"{count} {what}")
    if counts.failed:
        raise typer.Exit(_INCOMPLETE)


def modes_in(config: Path | None) -> ByModel:
    """Return the modes in a settings file; none without a file."""
    from laar.settings import load

    return {} if config is None else load(config).settings.routing.asking.modes


def fit(
    outcomes: Annotated[
        list[Path],
        typer.Argument(
            help="Outcomes files of `laar measure`, or files of graded answers; may be .gz."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Artifact to write.")] = Path(
        "capability.json"
    ),
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="Share of the questions to hold out for `laar evaluate`. Default: 0.2 for graded "
            "answers, 0 for outcomes files of `laar measure`.",
            min=0.0,
            max=0.9,
        ),
    ] = None,
) -> None:
    """Learn each model's success rates and speed from outcomes, with their uncertainty."""
    from laar.accuracy.fitting.command import run_fit

    check_places(out)
    run_fit(outcomes, out=out, hold_out=hold_out)

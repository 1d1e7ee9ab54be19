"""`laar calibrate`: measure engines for a minute and fit an artifact.

This combines `laar measure` and `laar fit`, with generated questions and a time limit. Any prefix
of the questions is a balanced set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from laar.accuracy.fitting.command import run_fit
from laar.accuracy.fitting.fit import Fit
from laar.errors import SettingError
from laar.measuring.asking import Asking
from laar.measuring.questions import Question
from laar.measuring.run import ask

TIMEOUT_S = 60.0
"""Timeout of one request; a longer one would outlast the measurement."""
MAX_QUESTIONS = 3000
"""Maximum questions per model: more than fit in a minute."""


def calibrate(
    endpoints: Sequence[str],
    models: Sequence[str],
    questions: Sequence[Question],
    asking: Asking,
    *,
    seconds: float,
    outcomes: Path,
    out: Path,
) -> Fit:
    """Measure, fit, and report the artifact's gain on held-out questions.

    Args:
        endpoints: base URLs.
        models: models to ask; empty for all that are served.
        questions: questions, of which any prefix is balanced.
        asking: how to ask.
        seconds: duration of the measurement; the fit takes a little longer.
        outcomes: JSONL file of the outcomes; continued if it exists.
        out: file for the artifact.

    Raises:
        SettingError: an endpoint does not answer, or too few answers arrived in time.
    """
    console = Console()
    counts = ask(endpoints, models, questions, outcomes, asking, console=console, seconds=seconds)
    if counts.failed:
        console.print(f"{counts.failed} requests got no answer; {outcomes} says why.", markup=False)
    try:
        return run_fit([outcomes], out=out, json_file=None)
    except SettingError as error:
        raise SettingError(
            f"{error} (--seconds allows more time, --max-tokens limits long answers)"
        ) from None

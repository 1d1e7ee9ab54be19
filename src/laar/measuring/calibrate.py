"""`laar calibrate`: measure engines for a minute and fit an artifact.

`laar measure` and `laar fit` in one, with questions that are made on the spot and an end by the
clock. The questions come in an order that may be cut anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bar

from laar.accuracy.fitting.command import run_fit
from laar.accuracy.fitting.fit import Fit
from laar.errors import SettingError
from laar.measuring.asking import Asking
from laar.measuring.measure import Progress, measure
from laar.measuring.questions import Question
from laar.measuring.run import COLUMNS, targets_of

TIMEOUT_S = 60.0
"""Time-out of one request: a longer one outlives the measurement."""
MAX_QUESTIONS = 3000
"""Questions for each model: more than a minute allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The questions of a calibration, its length, and the files for its results.

    Args:
        endpoints: base URLs.
        models: the models to ask; empty for all that are served.
        questions: questions in an order that may be cut anywhere.
        seconds: time until the asking ends; the fit takes some more.
        outcomes: JSONL file of the outcomes; resumed if it exists.
        out: the artifact.
        asking: how they are asked.
    """

    endpoints: Sequence[str]
    models: Sequence[str]
    questions: Sequence[Question]
    seconds: float
    outcomes: Path
    out: Path
    asking: Asking


def calibrate(wanted: Calibration) -> Fit:
    """Measure, fit, and report the artifact's gain on questions that the fit had not seen.

    Raises:
        SettingError: an endpoint does not answer, or too few answers came in the time.
    """
    console = Console()
    failed = asyncio.run(_ask(wanted, console))
    try:
        fitted = run_fit([wanted.outcomes], out=wanted.out, json_file=None)
    except SettingError as error:
        raise SettingError(
            f"{error} (--seconds gives them more time, --max-tokens ends answers that go on)"
        ) from None
    if failed:
        console.print(f"{failed} requests got no answer; {wanted.outcomes} says why.", markup=False)
    console.print(fitted.evaluation.worth, markup=False)
    return fitted


async def _ask(wanted: Calibration, console: Console) -> int:
    """Ask until the time is over; return how many requests got no answer."""
    targets = await targets_of(wanted.endpoints, wanted.models, wanted.asking.headers)
    failed = 0
    with Bar(*COLUMNS, console=console) as bar:
        task = bar.add_task("asking", total=None, note="")

        def show(progress: Progress) -> None:
            nonlocal failed
            failed = progress.failed
            note = f"{progress.correct} right, {progress.failed} without an answer"
            bar.update(task, completed=progress.done, note=note)

        try:
            async with asyncio.timeout(wanted.seconds):
                await measure(
                    targets,
                    wanted.questions,
                    wanted.outcomes,
                    wanted.asking,
                    progress=show,
                )
        except TimeoutError:
            pass
    return failed

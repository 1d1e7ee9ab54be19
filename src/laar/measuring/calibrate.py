"""`laar calibrate`: engines measured in a minute, an artifact, and its worth.

`laar measure` and `laar fit` in one, with questions that are made on the spot and an end by the
clock. The questions come in an order that may be cut anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as Bar
from rich.table import Table

from laar.accuracy.fitting.command import run_fit
from laar.accuracy.fitting.evaluate import Replay
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
FEW_QUESTIONS = 60
"""Held-out questions below which a difference of ten points may be chance."""


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
    """Measure, fit, and print how much an artifact is worth here.

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
    show_worth(console, fitted.evaluation.replays, fitted.evaluation.queries)
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


_NAMES = {
    "any model": "any model, by chance",
    "laar without an artifact": "laar without an artifact: the fastest model",
    "laar": "laar with this artifact",
    "oracle": "the best choice for each question",
}
_ORDER = ("any model", "laar without an artifact", "best single", "laar", "oracle")


def show_worth(console: Console, replays: Sequence[Replay], questions: int) -> None:
    """Print the result of each way of choosing a model on held-out questions.

    Args:
        console: the console to print to.
        replays: replays of an evaluation.
        questions: number of held-out questions.
    """
    if len({replay.ttca_s for replay in replays}) < 2:
        console.print(
            "One model answers as well as the others, or is the only one: an artifact changes "
            "nothing here. laar is then worth its caches, queues, round trips and failures."
        )
        return
    table = Table(title=f"On {questions} questions that the fit had not seen, on idle engines")
    table.add_column("choice of the model", overflow="fold")
    for name in ("first answer right", "right after retries", "seconds to a right answer"):
        table.add_column(name, justify="right", overflow="fold", min_width=6)
    kinds = {replay.policy.partition(":")[0]: replay for replay in replays}
    for kind in _ORDER:
        replay = kinds[kind]
        table.add_row(
            escape(_NAMES.get(kind, f"always {replay.policy.partition(': ')[2]}, asked again")),
            f"{replay.first_right:.0%}",
            f"{replay.success_rate:.0%}",
            f"{replay.ttca_s:.3g}",
        )
    console.print(table)
    without, with_it = kinds["laar without an artifact"], kinds["laar"]
    points = 100 * (with_it.first_right - without.first_right)
    seconds = with_it.ttca_s - without.ttca_s
    console.print(
        f"The artifact changes the share of right first answers by {points:+.0f} points, and the "
        f"seconds to a right answer by {seconds:+.3g}. Without any artifact "
        "laar still chooses by cache, queue, round trip, failures and learned speed."
    )
    if questions < FEW_QUESTIONS:
        console.print(
            f"{questions} questions are few: ten points may be chance. --seconds 300 asks more."
        )

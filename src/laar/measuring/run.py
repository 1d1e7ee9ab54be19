"""Measure with a progress bar, for `laar measure` and `laar calibrate`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from laar.errors import SettingError
from laar.measuring.asking import Asking
from laar.measuring.measure import Counts, discover, measure
from laar.measuring.questions import Question

_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[note]}"),
    TimeElapsedColumn(),
)


def ask(
    endpoints: Sequence[str],
    models: Sequence[str],
    questions: Sequence[Question],
    out: Path,
    asking: Asking,
    *,
    console: Console,
    seconds: float | None = None,
) -> Counts:
    """Measure with a progress bar; return the counts.

    Args:
        endpoints: base URLs.
        models: models to ask; empty for all that are served.
        questions: the questions; if there is a time limit, any prefix should be balanced.
        out: JSONL file of the outcomes, as in `measure`.
        asking: how to ask.
        console: where to show the bar.
        seconds: time limit; None for no limit.

    Raises:
        SettingError: an endpoint, model or file does not exist or can't be used.
    """
    counts = Counts()

    async def run(bar: Bar) -> None:
        nonlocal counts
        targets = await discover(endpoints, headers=asking.headers)
        known = {target.model for target in targets}
        if missing := ", ".join(sorted(set(models) - known)):
            served = ", ".join(sorted(known))
            raise SettingError(f"no endpoint serves {missing}; they serve {served}")
        targets = [target for target in targets if not models or target.model in models]
        task = bar.add_task("asking", total=None, note="")

        def show(now: Counts) -> None:
            nonlocal counts
            counts = now
            note = f"{now.correct} right, {now.failed} without an answer"
            total = now.total if seconds is None else None
            bar.update(task, completed=now.resumed + now.asked, total=total, note=note)

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                counts = await measure(targets, questions, out, asking, progress=show)

    with Bar(*_COLUMNS, console=console) as bar:
        asyncio.run(run(bar))
    return counts

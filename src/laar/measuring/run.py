"""Run `laar measure` with a progress bar."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from laar.errors import SettingError
from laar.measuring.asking import Asking
from laar.measuring.measure import Counts, Target, discover, measure
from laar.measuring.questions import Question

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""
INCOMPLETE = 1
"""Exit status if some requests got no answer."""
COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[note]}"),
    TimeElapsedColumn(),
)


def run_measure(
    endpoints: Sequence[str],
    models: Sequence[str],
    questions: Sequence[Question],
    out: Path,
    asking: Asking,
    *,
    json_file: Path | None,
) -> int:
    """Measure, print the result, and return the exit status.

    Args:
        endpoints: base URLs.
        models: models to ask; empty for all that are served.
        questions: the questions.
        out: JSONL file of the outcomes, as in `measure`.
        asking: how to ask.
        json_file: file for the counts.

    Raises:
        SettingError: an endpoint, model or file does not exist or can't be used.
    """
    console = Console()
    try:
        counts = ask(endpoints, models, questions, out, asking, console=console)
    except KeyboardInterrupt:
        console.print(
            f"stopped; the outcomes are in {out}. Run the command again to continue.", markup=False
        )
        return INTERRUPTED
    _print(console, counts, out)
    if json_file is not None:
        json_file.write_bytes(orjson.dumps(asdict(counts), option=orjson.OPT_INDENT_2))
    return INCOMPLETE if counts.failed else 0


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
    """Measure with a progress bar, as `run_measure` does; at most for `seconds`.

    Raises:
        SettingError: an endpoint, model or file does not exist or can't be used.
    """
    counts = Counts()

    async def run(bar: Bar) -> None:
        nonlocal counts
        targets = await targets_of(endpoints, models, asking.headers)
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

    with Bar(*COLUMNS, console=console) as bar:
        asyncio.run(run(bar))
    return counts


async def targets_of(
    endpoints: Sequence[str], models: Sequence[str], headers: Mapping[str, str]
) -> list[Target]:
    """Return the models that endpoints serve, or the named ones among them.

    Raises:
        SettingError: an endpoint does not answer, or serves no such model.
    """
    targets = await discover(endpoints, headers=headers)
    missing = set(models) - {target.model for target in targets}
    if missing:
        known = ", ".join(sorted({target.model for target in targets}))
        raise SettingError(f"no endpoint serves {', '.join(sorted(missing))}; they serve {known}")
    return [target for target in targets if not models or target.model in models]


def key_headers(key_variable: str | None) -> Mapping[str, str]:
    """Return the header with the API key in an environment variable; empty if no name is given.

    Raises:
        SettingError: the variable is not set.
    """
    if key_variable is None:
        return {}
    key = os.environ.get(key_variable)
    if not key:
        raise SettingError(f"--key-env: the environment variable {key_variable} is not set")
    return {"authorization": f"Bearer {key}"}


def _print(console: Console, counts: Counts, out: Path) -> None:
    console.print(
        f"{out}: {counts.asked} outcomes added to {counts.resumed}.",
        markup=False,
    )
    if counts.mended_bytes:
        console.print(f"An incomplete last line of {counts.mended_bytes} bytes was removed first.")
    if counts.too_long:
        console.print(f"{counts.too_long} were not sent: longer than the engine's window.")
    if counts.failed:
        console.print(f"{counts.failed} got no answer: run the command again to repeat them.")

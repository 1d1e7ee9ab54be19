"""`laar fit`: fit an artifact to files of outcomes and estimate its quality."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from laar.accuracy.artifact import MAX_ARTIFACT_BYTES, MIN_CELL_OUTCOMES
from laar.accuracy.features import task_name
from laar.accuracy.fitting.fit import Fit, fit
from laar.accuracy.fitting.records import GradedAnswers, read_records
from laar.errors import SettingError

_HELD_OUT_OF_RECORDS = 0.2
_MOST_NAMED = 20  # tasks or models listed

FEW_QUERIES = 30
"""Number of held-out questions below which a share has a standard error of nine points or more."""


def run_fit(outcomes: Sequence[Path], *, out: Path, hold_out: float | None = None) -> None:
    """Fit an artifact, write it, and print its quality.

    Args:
        outcomes: files from `laar measure`, or files of graded answers in other forms.
        out: the artifact; an existing one is replaced.
        hold_out: share of the questions reserved for `laar evaluate`; None means the default.

    Raises:
        ModuleNotFoundError: scikit-learn is missing.
        SettingError: a file can't be read or written, or is both read and written, or there are too
            few outcomes or too many for an artifact.
    """
    import sklearn  # noqa: F401 - fail before reading the files

    if out.resolve() in [path.resolve() for path in outcomes]:
        raise SettingError(f"{out} holds outcomes: give another file to write the artifact to")
    console = Console()
    read = read_records(outcomes)
    if hold_out is None:
        hold_out = 0.0 if read.from_measure else _HELD_OUT_OF_RECORDS
    created = datetime.now(UTC).date().isoformat()
    with console.status(f"fitting {len(read.outcomes)} outcomes"):
        fitted = fit(read.outcomes, created=created, data_sha256=read.sha256, hold_out=hold_out)
    data = fitted.artifact.dump()
    if len(data) > MAX_ARTIFACT_BYTES:
        raise SettingError(
            f"the artifact has {len(data)} bytes; the limit is {MAX_ARTIFACT_BYTES}: fit fewer "
            f"models, languages, tasks or questions. {out} was not written"
        )
    notes = _notes(read)
    tasks = {cell.task for model in fitted.artifact.models.values() for cell in model.cells}
    notes += [
        f"no request can name the task `{task}` in x-laar-task: use lowercase letters, "
        "digits, `.`, `_` and `-`, 32 at most"
        for task in sorted(task for task in tasks if task_name(task) != task)[:_MOST_NAMED]
    ]
    notes += [
        f"{name} has no us/token: {reason}; laar learns it while serving"
        for name, reason in list(fitted.no_speed.items())[:_MOST_NAMED]
    ]
    if fitted.evaluation.queries < FEW_QUERIES:
        notes.append(
            f"{fitted.evaluation.queries} questions are too few to judge a model by: the held-out "
            f"figures are mostly luck. Measure {FEW_QUERIES} or more"
        )
    _write(out, data)
    _show(console, fitted, notes)
    if fitted.artifact.fitted_on is not None and hold_out:
        console.print(
            f"{hold_out:.0%} of the questions were held out: `laar evaluate {out} ...` tests on "
            "them. Fit with --hold-out 0 to learn from all.",
            markup=False,
        )
    if read.from_measure:
        console.print(fitted.evaluation.worth, markup=False)
    then = "set accuracy.capability to its path; a running picker loads it"
    console.print(f"Written to {out}: {then}.", markup=False)


def _write(out: Path, data: bytes) -> None:
    try:
        device = out.is_char_device() or out.is_fifo()  # such as /dev/stdout
        place = out if device else out.resolve()  # a link, as /dev/stdout is, must stay a link
        temporary = place if device else place.with_name(f".{place.name}.new")
        temporary.write_bytes(data)
        temporary.replace(place)
    except OSError as fault:
        raise SettingError(f"{out}: {fault.strerror}") from None


def _notes(read: GradedAnswers) -> list[str]:
    """Return notes on errors in the files, starting with those in single lines."""
    notes = list(read.faults)
    if read.unreadable > len(read.faults):
        notes.append(f"{read.unreadable - len(read.faults)} more lines could not be read")
    if read.unjudged:
        notes.append(f"{read.unjudged} outcomes have no verdict and were left out")
    if read.contradictions:
        notes.append(
            f"{read.contradictions} outcomes contradict an earlier one of the same query and model:"
            " the endpoint is not deterministic, or two runs had different settings"
        )
    return notes


def _show(console: Console, fitted: Fit, notes: list[str]) -> None:
    table = Table(title=f"Held out: {fitted.evaluation.queries} queries")
    table.add_column("model", overflow="fold")  # long names may wrap, numbers are never cut
    for name in ("outcomes", "correct", "Brier", "AUC", "calibration", "us/token"):
        table.add_column(name, justify="right", overflow="fold", min_width=6)
    for name, model in fitted.artifact.models.items():
        scores, speed = model.held_out, model.speed
        table.add_row(
            escape(name),
            str(model.outcomes),
            f"{model.mean:.1%}",
            f"{scores.brier:.3f}" if scores else "-",
            f"{scores.auc:.3f}" if scores and scores.auc is not None else "-",
            f"{scores.calibration_error:.3f}" if scores else "-",
            f"{speed.seconds_per_token * 1e6:.1f}" if speed else "-",
        )
    console.print(table)
    if (text := fitted.artifact.text) is not None:
        console.print(f"{len(text.tasks)} tasks are recognized by their questions' text.")
    cells = chain.from_iterable(model.cells for model in fitted.artifact.models.values())
    if thin := sum(cell.outcomes < MIN_CELL_OUTCOMES for cell in cells):
        console.print(
            f"{thin} cells have fewer than {MIN_CELL_OUTCOMES} outcomes and are shrunk toward "
            "their model's mean; the artifact lists the outcomes of each. Measure more of them."
        )
    for note in notes:
        console.print(f"note: {note}", markup=False)

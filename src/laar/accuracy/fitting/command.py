"""`laar fit`: from a file of outcomes to an artifact and a report of how far to trust it."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from laar.accuracy.artifact import MIN_CELL_OUTCOMES, Capability
from laar.accuracy.fitting.evaluate import Evaluation
from laar.accuracy.fitting.fit import Fit, fit
from laar.accuracy.fitting.outcomes import OutcomeFile, parse_outcomes
from laar.accuracy.fitting.report import render
from laar.errors import SettingError

__all__ = ["run_fit"]


def run_fit(outcomes: Path, *, out: Path, report: Path | None, json_file: Path | None) -> None:
    """Fits, writes the artifact, and says how good it is.

    Args:
        outcomes: JSONL of `laar measure`.
        out: the artifact; an earlier one is replaced as a whole.
        report: directory for ``index.html``; made if it does not exist.
        json_file: for the held-out figures.

    Raises:
        SettingError: a file that can't be read or written, too few outcomes, or no scikit-learn.
    """
    if find_spec("sklearn") is None:
        raise SettingError("`laar fit` needs scikit-learn: pip install 'laar[fit]'")
    console = Console()
    try:
        read = parse_outcomes(outcomes.read_bytes(), source=str(outcomes))
    except OSError as fault:
        raise SettingError(f"{outcomes}: {fault.strerror}; run `laar measure` first") from None
    created = datetime.now(UTC).date().isoformat()
    with console.status(f"fitting {len(read.outcomes)} outcomes"):
        fitted = fit(read.outcomes, created=created, data_sha256=read.sha256)
    notes = _notes(read)
    try:
        temporary = out.with_name(f".{out.name}.new")
        temporary.write_bytes(fitted.artifact.dump())
        temporary.replace(out)
        if report is not None:
            report.mkdir(parents=True, exist_ok=True)
            (report / "index.html").write_text(render(fitted, notes=notes), "utf-8")
        if json_file is not None:
            json_file.write_bytes(_as_json(fitted.evaluation))
    except OSError as fault:
        raise SettingError(f"{fault.filename}: {fault.strerror}") from None
    _show(console, fitted, notes)
    console.print(f"Written to {out}: name it in accuracy.capability.")


def _notes(read: OutcomeFile) -> list[str]:
    """What is wrong with the file, the faults of its lines first."""
    notes = list(read.faults)
    if read.unreadable > len(read.faults):
        notes.append(f"{read.unreadable - len(read.faults)} more lines could not be read")
    if read.unjudged:
        notes.append(f"{read.unjudged} outcomes have no verdict and were left out")
    if read.contradictions:
        notes.append(
            f"{read.contradictions} outcomes contradict an earlier one of the same query and model:"
            " an endpoint that is not deterministic, or two runs with different settings"
        )
    return notes


def _as_json(evaluation: Evaluation) -> bytes:
    document = {
        "queries": evaluation.queries,
        "overall": evaluation.overall.model_dump(),
        "models": {name: scores.model_dump() for name, scores in evaluation.models.items()},
        "retries": evaluation.retries._asdict(),
        "replays": [replay._asdict() for replay in evaluation.replays],
        "reliability": [each._asdict() for each in evaluation.reliability],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _show(console: Console, fitted: Fit, notes: list[str]) -> None:
    table = Table(title=f"Held out: {fitted.evaluation.queries} queries")
    for name in ("model", "outcomes", "correct", "Brier", "AUC", "calibration", "us/token"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for name, model in fitted.artifact.models.items():
        scores, speed = model.held_out, model.speed
        table.add_row(
            name,
            str(sum(cell.outcomes for cell in model.cells)),
            f"{model.mean:.1%}",
            f"{scores.brier:.3f}" if scores else "-",
            f"{scores.auc:.3f}" if scores and scores.auc is not None else "-",
            f"{scores.calibration_error:.3f}" if scores else "-",
            f"{speed.seconds_per_token * 1e6:.1f}" if speed else "-",
        )
    console.print(table)
    retries = fitted.evaluation.retries
    if retries.attempts:
        console.print(
            f"Attempts 2 and later, {retries.attempts} of them: Brier score "
            f"{retries.brier_unconditional:.4f} without what failed before, {retries.brier:.4f} "
            "with it."
        )
    if thin := _thin_cells(fitted.artifact):
        console.print(
            f"{thin} cells have fewer than {MIN_CELL_OUTCOMES} outcomes and lean on their model's "
            "mean; the report names them. Measure more queries for these."
        )
    for note in notes:
        console.print(f"note: {note}", markup=False)


def _thin_cells(artifact: Capability) -> int:
    return sum(cell.thin for model in artifact.models.values() for cell in model.cells)

"""`laar evaluate`: judge an artifact on graded answers, print the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from laar.accuracy.artifact import MAX_ARTIFACT_BYTES, parse_artifact
from laar.accuracy.fitting.records import read_records
from laar.errors import SettingError
from laar_lab.judging.judge import judge
from laar_lab.judging.questions import questions_of

_WAYS = ("best_single", "laar", "laar_task_told", "oracle")
_MAX_TASKS_SHOWN = 40


def run_evaluate(
    artifact: Path,
    records: Sequence[Path],
    *,
    seed: int,
    json_file: Path | None,
) -> None:
    """Judge an artifact, print the result and write the files.

    Args:
        artifact: path of an artifact made by `laar fit`.
        records: files of graded answers.
        seed: seed of the resampling.
        json_file: file to write the figures to.

    Raises:
        SettingError: a file can't be read or written, or all questions were used in the fit.
    """
    console = Console()
    try:
        with artifact.open("rb") as file:
            fitted = parse_artifact(file.read(MAX_ARTIFACT_BYTES + 1), source=str(artifact))
    except OSError as fault:
        raise SettingError(f"{artifact}: can't be read: {fault.strerror}") from None
    read = read_records(records)
    asked = questions_of(fitted, read.outcomes)
    figures = judge(fitted, asked, seed=seed)
    try:
        if json_file is not None:
            options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            json_file.write_bytes(orjson.dumps(figures, option=options))
    except OSError as fault:
        raise SettingError(f"{fault.filename}: {fault.strerror}") from None
    _show(console, figures)
    for note in read.faults:
        console.print(f"note: {note}", markup=False)


def _show(console: Console, figures: Mapping[str, Any]) -> None:
    console.print(
        f"{figures['questions']} questions, {figures['answers']} answers; the artifact was fitted "
        f"to {figures['excluded_fitted']} others in these files, which are left out."
    )
    if figures["alike_fitted"]:
        console.print(
            f"{figures['alike_fitted']} answers look like answers used in the fit (same question, "
            "length, model and verdict). They are judged anyway, because the file has answers "
            "that the fit did not use, and lacks some that it used."
        )
    if figures["ignored_models"]:
        names = ", ".join(figures["ignored_models"][:10])
        console.print(f"Models that the artifact does not know: {names}.", markup=False)
    table = Table(title="Correct at the first attempt, with the same cost for every model")
    table.add_column("task", overflow="fold")  # wrap long names, never cut numbers
    columns = ("best single", "laar", "task given", "oracle", "Brier", "calibration error")
    for name in ("questions", *columns):
        table.add_column(name, justify="right", overflow="fold", min_width=6)
    tasks = sorted(figures["tasks"].items(), key=lambda item: -item[1]["questions"])
    for name, row in [("all", figures), *tasks[:_MAX_TASKS_SHOWN]]:
        shares = [f"{row[way]:.1%}" for way in _WAYS]
        table.add_row(
            escape(name), str(row["questions"]), *shares, f"{row['brier']:.3f}", f"{row['ece']:.3f}"
        )
    console.print(table)
    low, high = figures["intervals"]["laar_less_best_single"]
    console.print(
        f"laar minus the best single model ({figures['best_single_model']}): "
        f"{100 * (figures['laar'] - figures['best_single']):+.1f} points, 95 % interval "
        f"{100 * low:+.1f} to {100 * high:+.1f}. Regret against the oracle: "
        f"{100 * figures['regret']:.1f} points. {figures['unlike']:.0%} of the questions are "
        "unlike anything it was fitted to; for these it mostly uses the base rates.",
        markup=False,
    )
    _show_attempts(console, figures["attempts"])


def _show_attempts(console: Console, attempts: Mapping[str, Any]) -> None:
    if not attempts:
        return
    within = ", ".join(f"{share:.1%}" for share in attempts["laar"])
    console.print(
        f"Correct within 1 to {len(attempts['laar'])} attempts: {within}, of the "
        f"{attempts['questions']} questions that at least {attempts['models']} models answered, "
        "each exactly once."
    )
    for number, found in attempts["value_of_attempt"].items():
        low, high = (100 * edge for edge in found["interval"])
        console.print(
            f"Attempt {number} adds {100 * found['value']:.1f} points ({low:.1f} to {high:.1f})."
        )
    if second := attempts.get("second_after_failure"):
        console.print(
            f"After a failure ({second['attempts']} cases) the second attempt's Brier score is "
            f"{second['brier']:.3f} with that knowledge, {second['brier_marginal']:.3f} without: "
            f"an improvement of {second['better_by']:.0%}."
        )

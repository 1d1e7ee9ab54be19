"""An experiment's report: tables and evidence for its claims, printed or as JSON.

The JSON is byte-identical for identical seeds. It therefore has no wall-clock times; these are in
remarks, which `dump` leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from rich.console import Console
from rich.table import Table as RichTable

from laar_lab.claims import Evidence, Judged
from laar_lab.statistics import Estimate, estimate

Value = str | float | int | Estimate
"""A value in a table cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of values under headings; the first column names the row.

    Args:
        title: description of the numbers and their unit.
        columns: headings.
        rows: rows with one value per column.
        digits: number of decimal places of floats and estimates.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]
    digits: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """An exact check made by a tool; for claims over seeds see `laar_lab.claims`.

    Args:
        claim: the expectation, in one sentence.
        held: whether it held.
        seen: the measured numbers.
    """

    claim: str
    held: bool
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An experiment's report; `remarks` may differ from run to run.

    Args:
        tables: tables to print; without any, the evidence is.
        evidence: numbers for each declared claim, which the report does not judge.
        numbers: numbers by case, metric and contestant, one per seed; given if `evidence` contains
            only the best rivals'.
        checks: exact checks made by tools.
        remarks: lines to print; not part of `dump`.
    """

    tables: Sequence[Table] = ()
    evidence: Evidence = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    remarks: Sequence[str] = ()

    @property
    def held(self) -> bool:
        """Whether every check held."""
        return all(check.held for check in self.checks)


def _tables(report: Report) -> Sequence[Table]:
    """Return the report's own tables, or one of the means of its evidence."""
    if report.tables or not report.evidence:
        return report.tables
    rows: list[tuple[Value, ...]] = []
    for claim, parts in report.evidence.items():
        for part, seen in parts.items():
            theirs = estimate(seen.theirs) if seen.theirs else ""
            rows.append((claim, part, estimate(seen.ours), theirs))
    columns = ("claim", "part", "ours", "theirs")
    return [Table(title="Evidence, means over the seeds", columns=columns, rows=rows, digits=3)]


def show(report: Report, console: Console, judged: Sequence[Judged] = ()) -> None:
    """Print tables, verdicts, checks and remarks."""
    for table in _tables(report):
        drawn = RichTable(title=table.title, title_justify="left")
        for index, column in enumerate(table.columns):
            drawn.add_column(column, justify="right" if index else "left", overflow="fold")
        for row in table.rows:
            drawn.add_row(*(_text(value, table.digits) for value in row))
        console.print(drawn)
    for one in judged:
        console.print(f"[bold]{one.verdict}[/]: {one.claim.says}", highlight=False)
        console.print(f"         {one.sentence}", highlight=False)
        if one.claim.published:
            console.print(f"         published: {one.claim.published}", highlight=False)
    for check in report.checks:
        verdict = "[green]held[/]    " if check.held else "[red]NOT held[/]"
        console.print(f"{verdict} {check.claim}: {check.seen}", highlight=False)
    for remark in report.remarks:
        console.print(f"         {remark}", highlight=False)


def as_records(judged: Sequence[Judged]) -> list[dict[str, str]]:
    """Return the verdicts as records for `dump`."""
    return [
        {"name": one.claim.name, "verdict": one.verdict, "seen": one.sentence} for one in judged
    ]


def dump(report: Report, **about: object) -> bytes:
    """Return the tables and checks as JSON, preceded by `about`."""
    data = {
        **about,
        **({"held": report.held, "checks": list(report.checks)} if report.checks else {}),
        "tables": list(_tables(report)),
    }
    return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _text(value: Value, digits: int) -> str:
    match value:
        case Estimate():
            half = "" if value.half != value.half else f" ± {value.half:.{digits}f}"
            return f"{value.mean:.{digits}f}{half}"
        case float():
            return f"{value:.{digits}f}"
        case _:
            return str(value)

"""What an experiment says: tables, checks of its claim, charts; printed, and written as JSON.

The JSON of one seed list is the same bytes each time. What a wall clock measured is therefore no
part of it: such figures are remarks, which are only printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson
from rich.console import Console
from rich.table import Table as RichTable

from laar.lab.intervals import Estimate

__all__ = ["Chart", "Check", "Report", "Table", "Value", "dump", "show"]

Value = str | float | int | Estimate
"""What a table's cell may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under columns; the first column names the row.

    Args:
        title: says what the numbers are, with their unit.
        columns: headings.
        rows: as many values each as there are columns.
        digits: behind the point of floats and estimates.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]
    digits: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One part of the claim.

    Args:
        claim: what must be seen.
        held: whether it was.
        seen: the numbers.
    """

    claim: str
    held: bool
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One panel of the figure: series of estimates over common x values."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float] | Sequence[str]
    series: Mapping[str, Sequence[Estimate]]
    kind: Literal["lines", "bars"] = "lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An experiment's outcome; `remarks` may differ from run to run."""

    tables: Sequence[Table]
    checks: Sequence[Check]
    charts: Sequence[Chart] = ()
    remarks: Sequence[str] = ()

    @property
    def held(self) -> bool:
        """Whether every part of the claim held."""
        return all(check.held for check in self.checks)


def show(report: Report, console: Console) -> None:
    """Prints tables, checks and remarks."""
    for table in report.tables:
        drawn = RichTable(title=table.title, title_justify="left")
        for index, column in enumerate(table.columns):
            drawn.add_column(column, justify="right" if index else "left", overflow="fold")
        for row in table.rows:
            drawn.add_row(*(_text(value, table.digits) for value in row))
        console.print(drawn)
    for check in report.checks:
        verdict = "[green]held[/]    " if check.held else "[red]NOT held[/]"
        console.print(f"{verdict} {check.claim}: {check.seen}", highlight=False)
    for remark in report.remarks:
        console.print(f"         {remark}", highlight=False)


def dump(report: Report, **about: object) -> bytes:
    """The report as JSON, `about` on top."""
    data = {
        **about,
        "held": report.held,
        "checks": list(report.checks),
        "tables": list(report.tables),
        "charts": list(report.charts),
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

"""Benchmark figures: printed as they are measured, and compared with their targets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from laar_lab.cli.lab.options import lab_console
from laar_lab.report import Report, Table, Value, show

__all__ = ["MISSED", "VERDICTS", "Figure", "Figures", "conclude", "print_table", "rank"]

MISSED = 3
"""Exit status if a target was missed."""

VERDICTS = {None: "-", True: "met", False: "MISSED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a part; `met` is None without a target."""

    part: str
    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None


@dataclass(slots=True)
class Figures:
    """The figures measured, and the parts that did not finish."""

    found: list[Figure] = field(default_factory=list)
    unfinished: dict[str, str] = field(default_factory=dict)

    def add(
        self,
        part: str,
        name: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Record a figure and print it."""
        target, met = "", None
        if at_most is not None:
            target, met = f"<= {at_most:g}", value <= at_most
        if at_least is not None:
            target, met = f">= {at_least:g}", value >= at_least
        one = Figure(part=part, name=name, value=value, unit=unit, target=target, met=met)
        self.found.append(one)
        verdict = "" if met is None else f"   target {target}: {'met' if met else 'MISSED'}"
        print(f"  {name}: {value:,.3f} {unit}{verdict}", flush=True)

    def conclude(self, path: Path | None, **about: object) -> int:
        """Print missed targets; write all figures and `about` if there is a path.

        Returns:
            The exit status.
        """
        missed = [one.name for one in self.found if one.met is False]
        unfinished = ", ".join(self.unfinished) or "none"
        print(f"targets missed: {'; '.join(missed) or 'none'}; parts unfinished: {unfinished}")
        if path is not None:
            figures = [asdict(one) for one in self.found]
            document = {**about, "figures": figures, "unfinished": self.unfinished}
            path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        return 1 if self.unfinished else MISSED if missed else 0

    async def run(self, part: str, within_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Run a part; record it as unfinished if it fails or takes too long."""
        print(f"{part} (at most {within_s:.0f} s)", flush=True)
        began = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                await work()
        except TimeoutError:
            self.unfinished[part] = f"not finished within {within_s:.0f} s"
        except (OSError, RuntimeError, ValueError) as fault:
            self.unfinished[part] = f"{type(fault).__name__}: {str(fault)[:500]}"
        if part in self.unfinished:
            print(f"  UNFINISHED: {self.unfinished[part]}")
        print(f"  took {time.monotonic() - began:.0f} s", flush=True)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[tuple[Value, ...]], digits: int = 2
) -> None:
    """Print a table; the first column names the row."""
    table = Table(title=title, columns=tuple(columns), rows=rows, digits=digits)
    show(Report(tables=[table]), lab_console())


def conclude(rows: Sequence[Mapping[str, object]], path: Path | None, **about: object) -> int:
    """Print how many rows missed their target (`met`); write all to a file if there is a path.

    Returns:
        The exit status.
    """
    if path is not None:
        document = {**about, "rows": rows}
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    verdicts = [row["met"] for row in rows]
    missed = verdicts.count(False)
    print(f"{missed} of {len(verdicts) - verdicts.count(None)} targets missed")
    return MISSED if missed else 0


def rank(values: list[float], share: float) -> float:
    """Return the value that a share of the values does not exceed; NaN without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

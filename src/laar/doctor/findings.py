"""The report of `laar doctor`: findings, each with an exact fix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from rich.console import Console
from rich.text import Text


class Level(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking one thing.

    Args:
        level: errors break requests or decisions; warnings make them worse.
        where: the file, address or object that was checked.
        what: its state and the effect.
        remedy: text to write or command to run; empty if none is needed.
    """

    level: Level
    where: str
    what: str
    remedy: str = ""


error, warning = partial(Finding, Level.ERROR), partial(Finding, Level.WARNING)
fine = partial(Finding, Level.OK)
_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.OK: "green"}


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print findings, worst first, each with its fix below."""
    for finding in sorted(findings, key=lambda finding: list(Level).index(finding.level)):
        # Engines' answers may contain line breaks, or control characters that a terminal obeys.
        text = re.sub(r"[\0-\t\v-\x1f\x7f-\x9f]", " ", f"{finding.where}: {finding.what}")
        text = text.replace("\n", "\n        ")
        line = Text.assemble((f"{finding.level:8}", _STYLES[finding.level]), text)
        console.print(line, soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"        -> {finding.remedy}"), soft_wrap=True)

"""Options that choose look-ups, for `laar measure` and `laar ttca`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class _Language(StrEnum):
    EN = "en"
    JA = "ja"
    ZH = "zh"


Languages = Annotated[
    list[_Language] | None,
    typer.Option("--language", help="Language of the look-ups; repeatable. Default: all."),
]
Lengths = Annotated[
    list[int] | None,
    typer.Option(
        "--length",
        help="Length of the look-ups in tokens; repeatable. Default: the paper's five lengths.",
        min=256,
    ),
]

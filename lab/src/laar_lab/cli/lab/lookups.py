"""`laar lab lookups`: write the paper's look-ups to a file of questions."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import check_places


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


def lookups(
    out: Annotated[Path, typer.Argument(help="File to write (JSONL).")],
    per_cell: Annotated[
        int, typer.Option(help="Number of look-ups for each language and length.", min=1)
    ] = 50,
    language: Languages = None,
    length: Lengths = None,
    seed: Annotated[int, typer.Option(help="Random seed of the look-ups.")] = 0,
) -> None:
    """Write look-ups with checks for `laar measure --task`. `laar demo` uses other look-ups."""
    from laar_lab.kv_lookup import LANGUAGES, LENGTHS_TOKENS, queries, write_questions

    check_places(out)
    drawn = queries(
        languages=language or LANGUAGES,
        lengths_tokens=length or LENGTHS_TOKENS,
        per_cell=per_cell,
        seed=seed,
        split="fit",
    )
    write_questions(drawn, out)
    typer.echo(f"{out}: {len(drawn)} questions")

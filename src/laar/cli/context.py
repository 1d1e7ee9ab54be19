"""`laar context`: ContextPilot's offline half on files.

Exit status: 0 planned, 2 something a person has to put right.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import JsonFile, report_errors
from laar.errors import SettingError

__all__ = ["app"]

app = typer.Typer(help="Documents in prompts: order them for the cache.", no_args_is_help=True)


@app.callback()
def main() -> None:
    """Documents in prompts: order them for the cache."""


@app.command()
def plan(
    requests: Annotated[
        Path, typer.Argument(help="JSON lines: request bodies, or batch-file lines with `body`.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The batch in sending order; NAME.planned.jsonl."),
    ] = None,
    capacity_docs: Annotated[
        int | None,
        typer.Option(min=1, help="Documents the cache holds; without it hits are for no limit."),
    ] = None,
    min_docs: Annotated[
        int, typer.Option(min=2, help="Shorter lists of documents are left alone.")
    ] = 3,
    annotate: Annotated[
        bool, typer.Option(help="Name the received order after documents that were moved.")
    ] = True,
    relabel: Annotated[
        bool, typer.Option("--relabel", help="Numbered labels are never cited; text may move.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Order a batch's documents and requests so that prefixes repeat; say what hits to expect.

    Lines are written in the order to send them in: keep `custom_id`, or answers can't be matched.
    """
    import orjson

    from laar.context import ContextSettings, plan_file

    out = out or requests.with_suffix(".planned.jsonl")
    settings = ContextSettings(min_docs=min_docs, annotate=annotate, relabel=relabel)
    with report_errors():
        if out.resolve() == requests.resolve():
            raise SettingError(f"--out {out} is the input; name another file")
        report = plan_file(requests, out, settings=settings, capacity_docs=capacity_docs)
    cache = f"a cache of {capacity_docs:,} documents" if capacity_docs else "a cache without limit"
    typer.echo(f"{report.requests:,} requests, {report.planned:,} of them planned ", nl=False)
    typer.echo(f"({report.documents:,} documents), {report.reordered:,} reordered")
    typer.echo(
        f"documents found in {cache}: {report.hit_received:.1%} as received, "
        f"{report.hit_planned:.1%} as planned"
    )
    for reason, count in sorted(report.left.items()):
        typer.echo(f"  left as received, {reason}: {count:,}")
    typer.echo(f"wrote {out}")
    if json_file is not None:
        json_file.write_bytes(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2))

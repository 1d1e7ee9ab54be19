"""`laar context plan`: run ContextPilot's offline half on files.

Exit status: 0 for success, 2 for an error that the user can correct.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import JsonFile
from laar.errors import SettingError


def plan(
    requests: Annotated[
        Path,
        typer.Argument(
            help="File of request bodies, or of batch-file lines with `body` (JSON lines)."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File for the batch in sending order. Default: NAME.planned.jsonl."
        ),
    ] = None,
    capacity_docs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of documents the cache holds, to estimate hits. Default: no limit."
        ),
    ] = None,
    min_docs: Annotated[int, typer.Option(min=2, help="Ignore lists with fewer documents.")] = 3,
    annotate: Annotated[
        bool,
        typer.Option(help="Add a note with the original order after documents that were moved."),
    ] = True,
    relabel: Annotated[
        bool, typer.Option(help="Move only the texts; numbered labels keep their places.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Order a batch's documents and requests so that prefixes repeat, and estimate the cache hits.

    Lines are written in sending order. Give each line a `custom_id` to match answers to requests.
    """
    import orjson

    from laar.context.settings import ContextSettings
    from laar_lab.offline import plan_file

    out = out or requests.with_suffix(".planned.jsonl")
    settings = ContextSettings(min_docs=min_docs, annotate=annotate, relabel=relabel)
    if out.resolve() == requests.resolve():
        raise SettingError(f"--out {out} is the input; give another file")
    report = plan_file(requests, out, settings=settings, capacity_docs=capacity_docs)
    cache = f"a cache of {capacity_docs:,} documents" if capacity_docs else "an unlimited cache"
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

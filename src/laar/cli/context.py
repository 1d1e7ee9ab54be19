"""`laar context`: ContextPilot's offline half on files, and the hook's view of a body.

Exit status: 0 done, 2 a fault that the user can correct.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laar.cli.terminal import JsonFile, report_errors
from laar.errors import SettingError, unknown

if TYPE_CHECKING:
    from laar.context import ContextSettings

__all__ = ["app"]

app = typer.Typer(
    help="Order the documents in prompts so that endpoints find more of them in their caches.",
    no_args_is_help=True,
)


@app.callback()
def main() -> None:
    """Order the documents in prompts so that endpoints find more of them in their caches."""


@app.command()
def doctor(
    body: Annotated[
        str, typer.Argument(help="File with a request body (JSON), or - for standard input.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="Settings file, to use the rules of one of its context routes. Default: no "
            "file, default rules.",
        ),
    ] = None,
    route: Annotated[
        str, typer.Option(help="Name of a route in `context.routes`. Default: the first.")
    ] = "",
) -> None:
    """Show the documents that the context hook finds in a request body, or why it finds none.

    The body never leaves this machine, and nothing of its text is printed.
    """
    import orjson

    from laar.context.doctor import diagnose

    with report_errors():
        settings = _of_route(config_file, route)
        raw = sys.stdin.buffer.read() if body == "-" else Path(body).read_bytes()
    told = diagnose(raw, settings)
    if as_json:
        typer.echo(orjson.dumps(asdict(told)).decode())
        return
    if told.shape is None:
        typer.echo(f"no documents: {told.reason}")
    for seen in told.lists:
        typer.echo(
            f"{seen.documents} documents ({seen.bytes:,} bytes), shape {seen.shape}, "
            f"in {seen.path} ({seen.role}); {seen.movable} may be moved"
            + (f": {seen.reason}" if seen.reason else "")
        )
    if told.why:
        typer.echo(told.why)


def _of_route(config_file: Path | None, name: str) -> ContextSettings | None:
    """The hook's settings of a route; None for the defaults."""
    from laar.settings import load_settings

    if config_file is None:
        return None
    routes = load_settings(config_file).context.routes
    for rule in routes:
        if not name or rule.name == name:
            return rule.hook
    known = [rule.name for rule in routes]
    raise SettingError(f"{config_file}: {unknown('context route', name, known)}")


@app.command()
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
            min=1, help="Documents that the cache holds, to estimate hits. Default: no limit."
        ),
    ] = None,
    min_docs: Annotated[
        int, typer.Option(min=2, help="Leave shorter lists of documents as they are.")
    ] = 3,
    annotate: Annotated[
        bool,
        typer.Option(help="After documents that were moved, add a note with their received order."),
    ] = True,
    relabel: Annotated[
        bool | None,
        typer.Option(
            help="Move texts below numbered labels, which keep their places. Default: only "
            "where the prompt makes no use of the numbers."
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Order a batch's documents and requests so that prefixes repeat, and estimate the hits.

    Lines are written in sending order. Give each line a `custom_id`, to match the answers with.
    """
    import orjson

    from laar.context import ContextSettings
    from laar.context.offline import plan_file

    out = out or requests.with_suffix(".planned.jsonl")
    settings = ContextSettings(
        min_docs=min_docs, annotate=annotate, relabel="auto" if relabel is None else relabel
    )
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
        with report_errors():
            json_file.write_bytes(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2))

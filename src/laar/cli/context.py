"""`laar context`: diagnose what the hook finds in a body.

Exit status: 0 for success, 2 for an error that the user can correct.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laar.cli.installed import ContextGroup
from laar.errors import SettingError, unknown

if TYPE_CHECKING:
    from laar.context.settings import ContextSettings

app = typer.Typer(
    cls=ContextGroup,
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def context() -> None:
    """Order the documents in prompts so that endpoints find more of them in their caches."""


@app.command()
def doctor(
    body: Annotated[
        str,
        typer.Argument(
            help="File with request bodies (JSON, one per line), or - for standard input."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="Settings file, to use the rules of one of its context routes. Default: the "
            "default rules.",
        ),
    ] = None,
    route: Annotated[
        str, typer.Option(help="Name of a route in `context.routes`. Default: the first.")
    ] = "",
) -> None:
    """Show the documents that the context hook finds in a request body, or why it finds none.

    With several bodies, one per line, shows the last, after learning from the others.
    No body leaves this machine, and none of its text is printed.
    """
    import orjson

    from laar.context.doctor import diagnose

    settings = _of_route(config_file, route)
    raw = sys.stdin.buffer.read() if body == "-" else Path(body).read_bytes()
    # One body per line, or a single body over several lines.
    lines = raw.splitlines() if raw.startswith(b"{") else []
    *earlier, last = lines if all(line.endswith(b"}") for line in lines) and lines else [raw]
    seen = diagnose(last, settings, earlier=earlier)
    if as_json:
        typer.echo(orjson.dumps(seen).decode())
        return
    if seen["shape"] is None:
        typer.echo(f"no documents: {seen['reason']}")
    else:
        typer.echo(
            f"{seen['documents']} documents ({seen['bytes']:,} bytes), shape {seen['shape']}; "
            f"{seen['movable']} may be moved" + (f": {seen['reason']}" if seen["reason"] else "")
        )
    if seen["why"]:
        typer.echo(seen["why"])


def _of_route(config_file: Path | None, name: str) -> ContextSettings | None:
    """Return the hook's settings for a route; None for the defaults."""
    from laar.settings import load

    if config_file is None:
        if name:
            raise SettingError("--route: give the settings file with the route as --config")
        return None
    routes = load(config_file).settings.context.routes
    for rule in routes:
        if not name or rule.name == name:
            return rule.hook
    known = [rule.name for rule in routes]
    raise SettingError(f"{config_file}: {unknown('context route', name, known)}")

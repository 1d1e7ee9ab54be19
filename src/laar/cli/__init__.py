"""The `laar` command; its subcommands are in `laar.cli.installed`.

Each command imports its dependencies when called: `laar --help` must not load Envoy's message
types, and serving must not load scikit-learn.
"""

from __future__ import annotations

from typing import Annotated

import typer

from laar.cli.installed import RootGroup
from laar.cli.terminal import handle_signals

app = typer.Typer(
    cls=RootGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def main(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Sends each LLM request to the endpoint where a correct answer is expected soonest."""
    if show_version:
        from laar.cli.version import described

        typer.echo(f"laar {described()}")
        raise typer.Exit
    handle_signals()

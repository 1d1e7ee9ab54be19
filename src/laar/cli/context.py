"""`laar context`: the commands of laar-lab for files of request bodies."""

from __future__ import annotations

import typer

from laar.cli.installed import ContextGroup

app = typer.Typer(cls=ContextGroup, no_args_is_help=True, add_completion=False)


@app.callback()
def context() -> None:
    """Order the documents in prompts so that endpoints find more of them in their caches."""

"""The `laar` command: its subcommands, in the order in which `laar --help` lists them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from laar.cli import context
from laar.cli.calibrate import calibrate
from laar.cli.check import check
from laar.cli.doctor import doctor
from laar.cli.envoy import envoy
from laar.cli.evaluate import evaluate
from laar.cli.explain import explain
from laar.cli.fit import fit
from laar.cli.from_llm_d import from_llm_d
from laar.cli.init import init
from laar.cli.installed import RootGroup
from laar.cli.measure import measure
from laar.cli.serve import serve
from laar.cli.terminal import handle_signals

__all__ = ["app"]

app = typer.Typer(
    cls=RootGroup,
    help="Sends each LLM request to the endpoint where a correct answer is expected soonest.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def main(
    ctx: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Sends each LLM request to the endpoint where a correct answer is expected soonest."""
    if show_version:
        typer.echo(f"laar {version('laar')}")
        raise typer.Exit
    ctx.with_resource(handle_signals())


app.command()(init)
app.command("from-llm-d")(from_llm_d)
app.command()(serve)
app.command()(check)
app.command()(explain)
app.command()(doctor)
app.command()(envoy)
app.command()(calibrate)
app.command()(measure)
app.command()(fit)
app.command()(evaluate)
app.add_typer(context.app, name="context")

if __name__ == "__main__":
    app()

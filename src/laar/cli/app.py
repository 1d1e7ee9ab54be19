"""The `laar` command: what there is, in the order in which `laar --help` lists it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from laar.cli import accuracy, context, lab, operating, serving, simulating
from laar.cli.init import init
from laar.cli.terminal import handle_signals

__all__ = ["app"]

app = typer.Typer(
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
app.command()(serving.serve)
app.command()(serving.check)
app.command()(operating.explain)
app.command()(operating.doctor)
app.command()(serving.envoy)
app.command("sim-endpoint")(simulating.sim_endpoint)
app.command()(simulating.up)
app.command()(simulating.overload)
app.command()(accuracy.measure)
app.command()(accuracy.fit)
app.command()(accuracy.evaluate)
app.command()(accuracy.ttca)
app.command()(operating.tune)
app.add_typer(lab.app, name="lab")
app.add_typer(context.app, name="context")

if __name__ == "__main__":
    app()

"""`laar context`: diagnose what the hook finds in a body, and what breaks shared prefixes.

Exit status: 0 for success, 2 for an error that the user can correct.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laar.cli.installed import ContextGroup
from laar.cli.terminal import TokenFile, admin_url, read_token
from laar.errors import SettingError, unknown

if TYPE_CHECKING:
    from laar.context.settings import ContextSettings

app = typer.Typer(
    cls=ContextGroup,
    help="Order the documents in prompts so that endpoints find more of them in their caches.",
    no_args_is_help=True,
    add_completion=False,
)


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


@app.command()
def advise(
    bodies: Annotated[
        str,
        typer.Argument(
            help="File with request bodies (JSON, one per line) in the order sent, or - for "
            "standard input. Default: ask the picker at --url."
        ),
    ] = "",
    url: Annotated[
        str, typer.Option(help="Admin URL of a running picker.")
    ] = "http://127.0.0.1:9090",
    token_file: TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Report what keeps prompts from sharing a prefix: a date, a path, tools in varying order.

    Prints where each agent's prompts differ, and how much prefill moving that text would save.
    An agent is a model with its tools. No prompt text is stored.
    """
    import asyncio

    import orjson

    from laar.cli.explain import ask_picker, same_version

    if bodies:
        raw = sys.stdin.buffer.read() if bodies == "-" else Path(bodies).read_bytes()
        advice = _advice_on(raw.splitlines())
    else:
        place, token = f"{admin_url(url)}/context", read_token(token_file)
        with same_version(url):
            advice = asyncio.run(ask_picker("GET", place, token))["advice"]
    if as_json:
        typer.echo(orjson.dumps(advice).decode())
        return
    for advised in advice:
        typer.echo(
            f"{advised['agent']}: {advised['found']:.0%} of the text recurred in the same place"
        )
        for sentence in advised["sentences"]:
            typer.echo(f"  {sentence}")
    if not advice:
        typer.echo("no advice yet: no agent has sent a dozen readable prompts")


def _advice_on(bodies: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the advice on bodies in the order sent; skip bodies without a prompt."""
    import orjson

    from laar.context.bodies import api_of
    from laar.core.request import Api
    from laar.errors import RequestError
    from laar.prefix.advice import Advisor
    from laar.prefix.templates import Template
    from laar.protocol.openai import read_body

    advisor = Advisor()
    for line in bodies:
        with suppress(orjson.JSONDecodeError, orjson.JSONEncodeError, RequestError):
            value = orjson.loads(line)
            if isinstance(value, dict) and isinstance(value.get("body"), dict):  # from a batch file
                line, value = orjson.dumps(value["body"]), value["body"]
            if isinstance(value, dict) and (api := api_of(value)):
                read = read_body(Api(api), line)
                advisor.look(read.model, "", read.spans, Template(), line)
    return advisor.advice()


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

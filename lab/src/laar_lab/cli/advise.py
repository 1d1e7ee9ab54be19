"""`laar context advise`: report what keeps prompts from sharing a prefix.

Exit status: 0 for success, 2 for an error that the user can correct.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer


def advise(
    bodies: Annotated[
        str,
        typer.Argument(
            help="File with request bodies (JSON, one per line) in the order sent, or - for "
            "standard input."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Report what keeps prompts from sharing a prefix: a date, a path, tools in varying order.

    Prints where each agent's prompts differ, and how much prefill moving that text would save.
    An agent is a model with its tools.
    """
    import orjson

    raw = sys.stdin.buffer.read() if bodies == "-" else Path(bodies).read_bytes()
    advice = _advice_on(raw.splitlines())
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
        typer.echo("no advice: no agent has a dozen readable prompts")


def _advice_on(bodies: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the advice on bodies in the order sent; skip bodies without a prompt."""
    import orjson

    from laar.core.request import Api
    from laar.errors import RequestError
    from laar.prefix.templates import Template
    from laar.protocol.openai import read_body
    from laar_lab.advice import Advisor, api_of

    advisor = Advisor()
    for line in bodies:
        with suppress(orjson.JSONDecodeError, orjson.JSONEncodeError, RequestError):
            value = orjson.loads(line)
            if isinstance(value, dict) and isinstance(value.get("body"), dict):  # from a batch file
                line, value = orjson.dumps(value["body"]), value["body"]
            if isinstance(value, dict) and (api := api_of(value)):
                read = read_body(Api(api), line)
                advisor.look(read.model, read.spans, Template(), line)
    return advisor.advice()

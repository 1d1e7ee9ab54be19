"""`laar explain`: show the cost terms of a request's candidates, with an explanation.

Offline, it builds the picker from its settings, without readings: queues and caches are empty and
round trips are unknown, so only accuracy and speed affect the choice. A running picker (`--url`)
also uses its readings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laar.cli.terminal import MIN_TABLE_WIDTH, ConfigFile, TokenFile, admin_url, read_token
from laar.errors import LaarError, SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from laar.settings import Settings

_TIMEOUT_S = 30.0
_MAX_BYTES = 64 << 20
_HEADER = re.compile(r"\s*([\w!#$%&'*+.^`|~-]+)\s*:(.*)", re.ASCII)
_ESTIMATES = {
    "P": "{sure}",
    "n": "{evidence:.0f}",
    "tokens": "{tokens:.0f}",
    "cached": "{cached_tokens:.0f}",
}
_TERMS = {
    "rtt s": "{rtt_s:.3f}",
    "answer s": "{base_s:.3f}",
    "read s": "{prefill_s:.3f}",
    "queue s": "{queue_s:.3f}",
    "penalty": "{factor}",
    "risk s": "{risk_s:.3f}",
    "cost s": "{cost_s:.3f}",
}
"""Numeric columns, each with the format of its value."""


def explain(
    request: Annotated[Path, typer.Argument(help="File with the request's body (JSON).")],
    config: ConfigFile = Path("laar.yaml"),
    url: Annotated[
        str | None,
        typer.Option(
            help="Admin URL of a running picker, whose queues and caches to use. Default: use the "
            "settings alone."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="Request header as 'name: value', such as x-laar-task; repeatable."),
    ] = None,
    path: Annotated[
        str | None, typer.Option(help="Path of the request. Default: inferred from the body.")
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="Pool to which the gateway sends the request.")
    ] = None,
    token_file: TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Show where a request would go and why: an explanation, and the cost of each candidate."""
    import asyncio

    from rich.console import Console

    from laar.settings import load

    body, headers = request.read_bytes(), read_headers(header or [])
    if path:
        headers[":path"] = path
    if pool:
        headers[":pool"] = pool
    if url is not None:
        shown = asyncio.run(explain_live(admin_url(url), body, headers, read_token(token_file)))
    else:
        shown = explain_offline(load(config).settings, body, headers)
    if as_json:
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        with nullcontext() if url is None else same_version(url):
            show_explanation(Console(width=max(Console().width, MIN_TABLE_WIDTH)), shown)


def read_headers(lines: list[str]) -> dict[str, str]:
    """Return ``name: value`` lines as a mapping with names in lower case.

    Raise `SettingError` if a line has no colon, or has a character that headers can't contain.
    """
    found = {}
    for line in lines:
        form = _HEADER.fullmatch(line)
        if form is None or not line.isprintable():
            raise SettingError(f"--header {line!r}: write it as 'name: value', on one line")
        found[form[1].lower()] = form[2].strip()
    return found


def explain_offline(settings: Settings, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the record of a decision based on the settings alone.

    Raise `LaarError` if the settings can't be used, or the request would be refused.
    """
    from laar.server.admin import explain as live
    from laar.server.picker import Picker

    picker = Picker(settings)
    picker.table.replace("settings", settings.listed())  # these win over the endpoints file's
    picker.table.replace("endpoints file", settings.declared())
    if not len(picker.table):
        raise SettingError(
            "these settings list no endpoints outside a cluster; ask the running picker: laar "
            "explain request.json --url http://picker:9090"
        )
    return live.explain(picker, live.read_request(picker, body, headers))


async def explain_live(
    url: str, body: bytes, headers: Mapping[str, str], token: str | None
) -> dict[str, Any]:
    """Return the record of the decision that a running picker would make now.

    Raises:
        LaarError: the picker can't be reached, or refuses the request; the error has its message.
    """
    sent = {**headers, "content-type": "application/json"}
    params = {name[1:]: sent.pop(name) for name in headers if name.startswith(":")}
    return await ask_picker("POST", f"{url}/explain", token, data=body, headers=sent, params=params)


async def ask_picker(method: str, url: str, token: str | None, **more: Any) -> dict[str, Any]:
    """Send a request to a running picker's admin port and return its JSON answer.

    Raise `LaarError` if it can't be reached, or refuses the request; the error has its message.
    """
    import aiohttp
    import orjson

    from laar.datalayer.fetching import fault_of, read_capped

    if token:
        more["headers"] = {**more.get("headers", {}), "authorization": f"Bearer {token}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as http,
            http.request(method, url, **more) as got,
        ):
            answer = orjson.loads(await read_capped(got.content, _MAX_BYTES))
            status = got.status
    except (aiohttp.ClientConnectorError, TimeoutError) as error:
        raise LaarError(f"{url}: no picker's admin port answers ({fault_of(error)})") from None
    except (aiohttp.ClientError, ValueError):  # ValueError: not JSON, or no host name
        status, answer = 0, None
    if not isinstance(answer, dict) or (status != 200 and "error" not in answer):
        raise LaarError(f"{url}: not the admin port of a picker (listen.admin, 9090 by default)")
    if status != 200:
        fault = answer["error"]
        raise LaarError(
            f"{url}: {status}: {fault.get('message') if isinstance(fault, dict) else fault}"
        )
    return answer


@contextmanager
def same_version(url: str) -> Iterator[None]:
    """Report an answer without the expected fields, which another version may have sent.

    Raise `LaarError` if the answer could not be read.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as fault:
        raise LaarError(
            f"{url}: its answer can't be shown ({type(fault).__name__}: {fault}): the picker must "
            f"be laar {version('laar')}, like this command; --json prints the answer unchanged"
        ) from None


def show_explanation(console: Console, shown: Mapping[str, Any]) -> None:
    """Print a decision's record as text."""
    from rich.table import Table

    say = partial(console.print, highlight=False, soft_wrap=True, markup=False)
    rows = shown["candidates"]
    columns = _ESTIMATES | (_TERMS if "cost_s" in rows[0] else {"score": "{score:.3g}"})
    if any(row.get("answers", 1.0) < 1.0 for row in rows):
        columns |= {"answers P": "{answers:.2f}"}
    table = Table(box=None, header_style="dim")
    for name in ("#", "endpoint", "model", *columns):
        text = name in ("endpoint", "model")
        table.add_column(
            name,
            justify="left" if text else "right",
            no_wrap=not text,
            overflow="fold",
            min_width=14 if text else 1,
        )
    for row in rows:
        table.add_row(*_cells(row, columns))
    say(shown["sentence"])
    say(
        f"policy {shown['policy']}, reason {shown['reason']}, asked for "
        f"{shown['asked_model'] or 'no model'}; priced as {shown['language'] or '-'}, "
        f"up to {shown['bucket_tokens']} tokens, {shown['task'] or 'no task'}",
        style="dim",
    )
    console.print(table)
    others = {aim: to for aim, to in shown.get("aims", {}).items() if to != shown["endpoint"]}
    if others:
        say("other aims: " + ", ".join(f"{aim} would choose {to}" for aim, to in others.items()))
    if shown.get("too_long"):
        say("The request is longer than the context window of every candidate: expect a refusal.")
    elif (sessions := shown.get("sessions")) and (room := _room(sessions)):
        say(room)
        if by := sessions["named_by"]:
            say(f"session {sessions['session']}, known by {by}".replace("  ", " "))
    reasons: dict[str, list[str]] = {}
    for row in (*rows, *shown.get("filtered", ())):
        if "why" in row:
            reasons.setdefault(row["why"], []).append(f"{row['endpoint']} ({row['model']})")
    for why, endpoints in reasons.items():
        say(f"not considered: {', '.join(endpoints)}: {why}")
    if shown["exhausted"]:
        console.print("After this attempt every model that can serve the request has been tried.")


def _room(sessions: Mapping[str, Any]) -> str:
    """Describe the cost of room for a session's context; "" if free and no session needs any."""
    inside, price = sessions["inside"], sessions["price"]
    waiting = [request for request in sessions["waiting"] if request["for_context"]]
    if sessions["has_place"]:
        said = "its session's context has a place in a cache"
    elif price is None:
        said = "turns in flight occupy the room for its context; it would wait for one to end"
    elif price > 1.0:
        said = f"it would wait for room for its context: a second of that saves others {price:.1f}"
    elif inside or waiting:
        said = "there is room for its context"
    else:
        return ""
    said += f"; sessions with a place: {len(inside)}, turns waiting for one: {len(waiting)}"
    if waiting:
        longest_s = max(session["waited_s"] for session in waiting)
        said += f" (longest {longest_s:.1f} s, limit {sessions['longest_hold_s']:.0f} s)"
    return said


def _cells(row: Mapping[str, Any], columns: Mapping[str, str]) -> list[str]:
    from rich.markup import escape

    # Escape brackets of IPv6 addresses and names, which are not markup.
    cells = [str(row.get("rank", 1)), escape(row["endpoint"]), escape(row["model"])]
    if "probability" not in row:  # the request is opaque
        return [*cells, *("-" for _ in columns)]
    p = row["probability"]
    values = {**row, "sure": "-" if p is None else f"{p:.2f}"}
    if "cost_s" in row:
        parts = ("rtt_s", "base_s", "prefill_s", "queue_s")
        values["risk_s"] = row["cost_s"] - sum(row[part] for part in parts)
        values["factor"] = f"x{row['penalty']:.3g}" if row["penalty"] > 1.0 else "-"
    return [*cells, *(text.format_map(values) for text in columns.values())]

"""`laar init`: create a configuration by inspecting running engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from laar.cli.terminal import KeyVariable, key_headers

if TYPE_CHECKING:
    from laar.datalayer.discovery import Engine
    from laar.datalayer.endpoints_file import Endpoint

_SETTINGS = """\
# Created by `laar init`. `laar check` prints every setting, and where each comes from.
endpoints_file: endpoints.yaml
envoy:
  eds_file: run/endpoints.json
"""


def init(
    endpoint: Annotated[
        list[str],
        typer.Option("--endpoint", "-e", help="URL or host:port of an engine; repeatable."),
    ],
    directory: Annotated[
        Path, typer.Option("--directory", "-d", help="Directory for the files; created if absent.")
    ] = Path(),
    key_env: KeyVariable = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="File with the engines' API key, which replaces the client's."),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="PEM file with the CAs of https engines.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Examine running engines and write laar.yaml and endpoints.yaml for them.

    Exits with status 1 if an engine listed no model; endpoints.yaml lists such engines as comments.
    """
    import asyncio

    from laar.datalayer.discovery import look_at
    from laar.envoy.endpoints_file import without_picker
    from laar.errors import SettingError

    headers = key_headers(key_env)
    declared = [_declared(url, key_file, ca_file) for url in endpoint]
    endpoints = list({endpoint.address: endpoint for endpoint in declared}.values())
    present = [name for name in ("laar.yaml", "endpoints.yaml") if (directory / name).exists()]
    if present and not force:
        raise SettingError(
            f"{directory / present[0]} exists; choose another --directory, or add --force"
        )
    engines = asyncio.run(look_at(endpoints, headers))
    _report(engines)
    left_out = sum(not engine.served.weights for engine in engines)
    if left_out == len(engines):
        raise SettingError(
            "no engine listed a model, so nothing was written; start the engines, or write "
            "endpoints.yaml by hand (docs: In front of vLLM)"
        )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "endpoints.yaml").write_text(
        _endpoints(engines, endpoints, has_key=bool(headers)), "utf-8"
    )
    (directory / "laar.yaml").write_text(_SETTINGS, "utf-8")
    found = [{*e.served.weights, *e.served.adapters} for e in engines if e.served.weights]
    typer.echo(f"\nEnvoy {without_picker(found)}")
    where = "" if directory == Path() else f"cd {quote(str(directory))} && "
    typer.echo(f"\nNext:\n  {where}laar serve --with-envoy")
    typer.echo("  curl http://127.0.0.1:8080/v1/models")
    if left_out:
        typer.echo(
            f"\n{left_out} of {len(engines)} engines left out: complete "
            f"{directory / 'endpoints.yaml'}"
        )
        raise typer.Exit(1)


def _declared(url: str, key_file: Path | None, ca_file: Path | None) -> Endpoint:
    """Return the endpoint to write, without its models."""
    from pydantic import ValidationError

    from laar.datalayer.endpoints_file import Endpoint
    from laar.errors import SettingError

    if ca_file is not None:
        ca_file = ca_file.absolute() if url.strip().startswith("https://") else None
    key_file = key_file and key_file.absolute()
    try:
        return Endpoint(address=url, models=("any",), key_file=key_file, ca_file=ca_file)
    except ValidationError as fault:
        why = fault.errors()[0]["msg"].removeprefix("Value error, ")
        raise SettingError(f"--endpoint {url}: {why}") from None


def _report(engines: Sequence[Engine]) -> None:
    for engine in engines:
        names = ", ".join(engine.served.weights) or "no model found"
        kind = f" ({engine.kind})" if engine.kind else ""
        typer.echo(f"{engine.address}{kind}: {names}")
        if engine.served.adapters:
            typer.echo(f"  adapters: {', '.join(engine.served.adapters)}")
        for remark in engine.remarks:
            typer.echo(f"  {remark}")


def _endpoints(engines: Sequence[Engine], declared: Sequence[Endpoint], *, has_key: bool) -> str:
    """Return the endpoints file as YAML for a person to edit.

    The picker discovers adapters by itself, except on engines that require a key.
    """
    import yaml

    listed, commented = [], []
    for engine, endpoint in zip(engines, declared, strict=True):
        entry: dict[str, object] = {
            "address": engine.address,
            "models": [*engine.served.weights, *(engine.served.adapters if has_key else ())],
        }
        for name in ("ca_file", "key_file"):
            if (file := getattr(endpoint, name)) is not None:
                entry[name] = str(file)
        if engine.kind and engine.kind != "vllm":
            entry["engine"] = engine.kind
        if not engine.served.weights:
            lines = yaml.safe_dump([entry], sort_keys=False).replace("\n", "\n# ")
            commented.append(
                f"# {engine.address} is left out. To add it, write its models, and remove the "
                f"'#':\n# {lines.removesuffix('# ')}"
            )
            continue
        if not engine.kind:
            entry["metrics_url"] = ""
        windows = {engine.served.window(name) for name in engine.served.weights}
        if len(windows) == 1 and (window := windows.pop()):
            entry["max_model_len"] = window
        listed.append(entry)
    heading = "# Created by `laar init`. laar reads this file again whenever it changes.\n"
    text = yaml.safe_dump({"endpoints": listed}, sort_keys=False, allow_unicode=True)
    return "".join([heading, text, *commented])

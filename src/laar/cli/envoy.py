"""`laar envoy`: render an Envoy bootstrap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from laar.declaring import field_texts
from laar.envoy.options import BootstrapOptions, Shape

_NAMES = {"eds_path": "eds-file", "endpoint_cas": "endpoint-ca", "listen_host": "listen-address"}
"""Option names that differ from their fields' names."""


def envoy(
    shape: Annotated[Shape, typer.Option(help="How Envoy is deployed.")],
    check_with_envoy: Annotated[
        bool, typer.Option("--validate", help="Check the bootstrap with a real Envoy.")
    ] = False,
    **options: Any,
) -> None:
    """Print an Envoy bootstrap for laar: as a sidecar, standalone, or behind a gateway."""
    from laar.envoy.bootstrap import render, to_yaml
    from laar.envoy.process import validate
    from laar.fleet.membership import SYSTEM_CA

    for name, path in options.items():
        if not isinstance(path, Path):
            continue
        options[name] = str(path.absolute())
        if name != "eds_path" and not path.is_file():
            typer.echo(
                f"laar: warning: {_option(name)} {path} is not a file here; Envoy needs it at "
                f"{path.absolute()} where it runs",
                err=True,
            )
    options["endpoint_cas"] = tuple(
        ca if ca == SYSTEM_CA else str(Path(ca).absolute()) for ca in options["endpoint_cas"] or ()
    )
    bootstrap = render(shape, BootstrapOptions(**options))
    if check_with_envoy:
        validate(bootstrap, Path(options["eds_path"]))
    typer.echo(to_yaml(bootstrap), nl=False)


def _option(field: str) -> str:
    name = _NAMES.get(field) or field.removesuffix("_path").removesuffix("_s").replace("_", "-")
    return f"--{name}"


def _parameters() -> Iterator[Parameter]:
    """Yield the command's own parameters, and one for each field of the options."""
    hints, texts = get_type_hints(BootstrapOptions), field_texts(BootstrapOptions)
    shape, validated, _ = signature(envoy, eval_str=True).parameters.values()
    yield shape
    for field in fields(BootstrapOptions):
        kind, default = hints[field.name], field.default
        if field.name == "eds_path":
            kind, default = Path, Path(str(default))
        elif field.name.endswith("_path"):
            kind = Path | None
        elif field.name == "endpoint_cas":
            kind, default = list[str] | None, None
        usual = f"--{field.name.replace('_', '-')}"  # Typer adds --no-... to a name like this
        own = [_option(field.name)] if _option(field.name) != usual else []
        option = typer.Option(*own, help=texts.get(field.name))
        mark = Annotated[kind, option]  # type: ignore[valid-type]
        yield Parameter(field.name, shape.kind, default=default, annotation=mark)
    yield validated


envoy.__signature__ = Signature(list(_parameters()))  # type: ignore[attr-defined]

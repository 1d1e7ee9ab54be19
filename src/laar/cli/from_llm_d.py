"""`laar from-llm-d`: translate an EndpointPickerConfig into settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def from_llm_d(
    config: Annotated[
        Path,
        typer.Argument(
            help="llm-d's EndpointPickerConfig, or Helm values or a ConfigMap containing it (YAML)."
        ),
    ],
    pool: Annotated[
        str, typer.Option(help="Name of the InferencePool whose pods are the endpoints.")
    ] = "fleet",
) -> None:
    """Print laar's settings for llm-d's EndpointPickerConfig, and list what laar cannot express."""
    import yaml
    from pydantic import ValidationError

    from laar.datalayer.document import read_document
    from laar.errors import SettingError, first_fault
    from laar.settings.from_llm_d import PickerConfig, move
    from laar.settings.settings import Settings

    moved = move(read_document(config, PickerConfig), pool)
    try:
        Settings.model_validate(moved.settings)
    except ValidationError as error:
        raise SettingError(f"{config}: laar does not accept this {first_fault(error)}") from None
    typer.echo(yaml.safe_dump(moved.settings, sort_keys=False).rstrip())
    for title, remarks in (("Built in:", moved.taken), ("No equivalent:", moved.absent)):
        if remarks:
            typer.echo(f"\n# {title}")
            for remark in dict.fromkeys(remarks):
                typer.echo(f"# - {' '.join(remark.split())}")

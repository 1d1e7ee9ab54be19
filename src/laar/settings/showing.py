"""Render the effective settings as YAML, with the origin of each."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import yaml

from laar.settings.settings import Loaded


def as_yaml(loaded: Loaded) -> str:
    """Return the settings as YAML that `load` can read, with origins as comments."""
    parts = []
    for name, value in loaded.settings.model_dump(mode="json").items():
        origin = loaded.origins.get(name)
        if origin is not None:
            parts.append(_entry(name, value, origin))
            continue
        parts.append(f"{name}:\n")
        parts += [
            textwrap.indent(_entry(key, below, loaded.origins[f"{name}.{key}"]), "  ")
            for key, below in value.items()
        ]
    return "".join(parts)


def _entry(name: str, value: Any, origin: str) -> str:
    # A comment may follow the first line only if no scalar continues on the next line.
    several = isinstance(value, str) and len(value.splitlines()) > 1
    style = '"' if several else None
    text = yaml.safe_dump({name: value}, sort_keys=False, width=math.inf, default_style=style)
    first, newline, rest = text.partition("\n")
    return f"{first}  # {origin}{newline}{rest}"

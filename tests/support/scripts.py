"""Modules of files that no package contains."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def module_of(path: Path) -> Any:
    """Return a new module, run from a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Generates `src/laar/v1` and `src/laar/wire` from `proto/`; a test compares."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"v1": ("--grpc_python_out",), "wire": ()}
"""The packages below `laar`, each with the outputs it needs besides messages and typing files."""


def generate(target: Path) -> None:
    """Writes messages, stubs and typing files below `target`."""
    for package, outputs in PACKAGES.items():
        sources = sorted((ROOT / "proto/laar" / package).glob("*.proto"))
        status = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'proto'}",
                f"-I{files('grpc_tools') / '_proto'}",
                *(f"{option}={target}" for option in ("--python_out", "--pyi_out", *outputs)),
                *map(str, sources),
            ]
        )
        if status:
            sys.exit(status)
        (target / "laar" / package / "__init__.py").touch()


if __name__ == "__main__":
    generate(ROOT / "src")

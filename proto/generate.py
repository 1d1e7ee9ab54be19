"""Generates `src/laar/wire` from `proto/`; a test compares."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("wire",)
"""Below `laar`. It needs no stubs: the server handles raw messages."""


def generate(target: Path) -> None:
    """Writes messages and typing files below `target`."""
    for package in PACKAGES:
        sources = sorted((ROOT / "proto/laar" / package).glob("*.proto"))
        status = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'proto'}",
                f"-I{files('grpc_tools') / '_proto'}",
                f"--python_out={target}",
                f"--pyi_out={target}",
                *map(str, sources),
            ]
        )
        if status:
            sys.exit(status)
        (target / "laar" / package / "__init__.py").touch()


if __name__ == "__main__":
    generate(ROOT / "src")

"""Generates `src/laar/v1` from `proto/laar/v1`; `make proto` runs it, and a test compares."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]


def generate(target: Path) -> None:
    """Writes messages, stubs and typing files below `target`."""
    sources = sorted((ROOT / "proto/laar/v1").glob("*.proto"))
    status = protoc.main(
        [
            "protoc",
            f"-I{ROOT / 'proto'}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            f"--grpc_python_out={target}",
            *map(str, sources),
        ]
    )
    if status:
        sys.exit(status)
    (target / "laar/v1/__init__.py").touch()


if __name__ == "__main__":
    generate(ROOT / "src")

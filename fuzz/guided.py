"""One target under atheris, in a process of its own: `python -m fuzz.guided TARGET [options]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["laar"]):
    from fuzz.targets import TARGETS


def main() -> None:
    """Fuzz until libFuzzer's options end it; never return."""
    target = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

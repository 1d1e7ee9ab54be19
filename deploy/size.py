"""Check the size of the project against limits: `make size`, part of `make check`.

Prints the lines and statements of `laar` (without laar-lab and generated code), the lines of data
that its modules read (`*.yaml`, `*.txt`), the modules and lines that a serving process loads, the
number of settings on the reference page, the lines of the core, of tests, and of laar-lab and the
benchmarks, and the words of README, of the documentation, of the lab's notes and claims, and of
what the changelog calls unreleased. When a figure falls, lower its limit.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "laar"

LIMITS = {
    "lines": 53_089,
    "statements": 32_936,
    "lines of data": 790,
    "modules": 244,
    "lines of core": 3_268,
    "lines loaded": 38_342,
    "settings": 125,
    "lines of tests": 61_915,
    "lines of lab and bench": 30_967,
    "words of README": 700,
    "words of docs": 65_100,
    "words of lab notes": 20_800,
    "words unreleased": 2_000,
}
"""The current figures, except those of words. A commit that raises one says what came, and what it
paid for."""

SETTINGS = ROOT / "docs" / "reference" / "settings.md"

_GENERATED = {"wire"}
_LOADED = """
import sys, laar.cli.serve, laar.server.runner
print(*(m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "laar"), sep="\\n")
"""


def figures() -> dict[str, int]:
    """Return the figures by the names of their limits."""
    texts = [
        path.read_text("utf-8")
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in _GENERATED
    ]
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    served = subprocess.run(
        [sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True
    )
    loaded = [Path(file) for file in served.stdout.split()]
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    unreleased = changelog.partition("\n## Unreleased\n")[2].partition("\n## ")[0]
    return {
        "lines": sum(text.count("\n") for text in texts),
        "statements": sum(isinstance(node, ast.stmt) for node in nodes),
        "lines of data": sum(
            path.read_text("utf-8").count("\n")
            for suffix in ("yaml", "txt")
            for path in PACKAGE.rglob(f"*.{suffix}")
        ),
        "modules": len(loaded),
        "lines of core": _lines("src/laar/core"),
        "lines loaded": sum(path.read_text("utf-8").count("\n") for path in loaded),
        "settings": SETTINGS.read_text("utf-8").count("\n| `"),
        "lines of tests": _lines("tests"),
        "lines of lab and bench": _lines("lab/src") + _lines("bench"),
        "words of README": len((ROOT / "README.md").read_text("utf-8").split()),
        "words of docs": _words("docs/**/*.md"),
        "words of lab notes": _words("lab/notes/*.md") + _words("lab/claims.md"),
        "words unreleased": len(unreleased.split()),
    }


def _words(pattern: str) -> int:
    return sum(len(page.read_text("utf-8").split()) for page in ROOT.glob(pattern))


def _lines(folder: str) -> int:
    return sum(path.read_text("utf-8").count("\n") for path in (ROOT / folder).rglob("*.py"))


def main() -> None:
    """Print the figures with their limits; exit with 1 if one is exceeded."""
    found = figures()
    for name, limit in LIMITS.items():
        print(f"{name:22}{found[name]:>8,} of {limit:,}{'' if found[name] <= limit else '  OVER'}")
    if any(found[name] > limit for name, limit in LIMITS.items()):
        sys.exit("over a limit of deploy/size.py: delete what is no longer needed")


if __name__ == "__main__":
    main()

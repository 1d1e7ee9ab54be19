"""Check the size of the router against limits: `make size`, part of `make check`.

Prints the lines and statements of `laar` (without laar-lab and generated code), the lines of data
that its modules read (`*.yaml`, `*.txt`), the modules and lines that a serving process loads, and
the number of settings on the reference page. When a figure falls, lower its limit.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "laar"

LIMITS = {
    "lines": 47_311,
    "statements": 28_799,
    "lines of data": 680,
    "modules": 216,
    "lines loaded": 32_320,
    "settings": 140,
}
"""The current figures, rounded up. Goal: 45,000 lines, and under 250 modules loaded to serve.

The session gate is on by default, so every picker loads its six modules. Advice on prompts and KV
events' blocks are loaded at the start as well, since the first requests would load them.
"""

SETTINGS = PACKAGE.parents[1] / "docs" / "reference" / "settings.md"

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
    return {
        "lines": sum(text.count("\n") for text in texts),
        "statements": sum(isinstance(node, ast.stmt) for node in nodes),
        "lines of data": sum(
            path.read_text("utf-8").count("\n")
            for suffix in ("yaml", "txt")
            for path in PACKAGE.rglob(f"*.{suffix}")
        ),
        "modules": len(loaded),
        "lines loaded": sum(path.read_text("utf-8").count("\n") for path in loaded),
        "settings": SETTINGS.read_text("utf-8").count("\n| `"),
    }


def main() -> None:
    """Print the figures with their limits; exit with 1 if one is exceeded."""
    found = figures()
    for name, limit in LIMITS.items():
        print(f"{name:14}{found[name]:>8,} of {limit:,}{'' if found[name] <= limit else '  OVER'}")
    if any(found[name] > limit for name, limit in LIMITS.items()):
        sys.exit("laar grew over a limit of deploy/size.py: delete what it no longer needs")


if __name__ == "__main__":
    main()

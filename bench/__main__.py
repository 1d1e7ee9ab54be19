"""Run benchmarks: `python -m bench [NAME ...]`; all the short ones by default.

A long benchmark (`chaos`, `cold`, `difficulty`, `failing`, `guard`, `hooked`, `kills`, `models`,
`picker`, `prompts`, `road`, `sharing`, `soak`, `stall`, `templates`, `vllm`) runs alone; arguments
after its name are its options.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

LONG = (
    "chaos", "cold", "difficulty", "failing", "guard", "hooked", "kills", "models", "picker",
    "prompts", "road", "sharing", "soak", "stall", "templates", "vllm",
)  # fmt: skip
"""Benchmarks run only by name; their `main` takes options and returns an exit status, or None."""


def main() -> int:
    """Run the named benchmarks and return an exit status."""
    known = sorted(p.stem.removeprefix("bench_") for p in Path(__file__).parent.glob("bench_*.py"))
    wanted = sys.argv[1:]
    if wanted and wanted[0] in LONG:
        return int(importlib.import_module(f"bench.bench_{wanted[0]}").main(wanted[1:]) or 0)
    wanted = wanted or [name for name in known if name not in LONG]
    if unknown := set(wanted) - set(known):
        print(f"no benchmark is called {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
        return 2
    for name in wanted:
        print(f"== {name}", flush=True)
        importlib.import_module(f"bench.bench_{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())

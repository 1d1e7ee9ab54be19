"""`python -m bench [NAME ...]`: runs the benchmarks, all of them by default."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> int:
    """Runs each named `bench_NAME.py`."""
    known = sorted(p.stem.removeprefix("bench_") for p in Path(__file__).parent.glob("bench_*.py"))
    wanted = sys.argv[1:] or known
    if unknown := set(wanted) - set(known):
        print(f"no benchmark is called {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
        return 2
    for name in wanted:
        print(f"== {name}", flush=True)
        importlib.import_module(f"bench.bench_{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())

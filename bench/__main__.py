"""Run benchmarks: `python -m bench [NAME ...]`; all the short ones by default.

A long benchmark (`blocks`, `chaos`, `failing`, `hooked`, `models`, `names`, `picker`,
`prompts`, `road`, `sharing`, `stall`, `starts`, `templates`, `useless`) runs alone; arguments
after its name are its options, and `python -m bench NAME --help` lists them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.options import name_of, parser_for
from laar.errors import SettingError

LONG = (
    "blocks", "chaos", "failing", "hooked", "models", "names", "picker", "prompts",
    "road", "sharing", "stall", "starts", "templates", "useless",
)  # fmt: skip
"""Benchmarks run only by name; their `main` takes options and returns an exit status, or None."""

SHORT = tuple(
    name
    for path in sorted(Path(__file__).parent.glob("bench_*.py"))
    if (name := path.stem.removeprefix("bench_")) not in LONG
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks and return an exit status."""
    given = sys.argv[1:] if argv is None else argv
    if given and given[0] in LONG:
        try:
            return int(importlib.import_module(f"bench.bench_{given[0]}").main(given[1:]) or 0)
        except SettingError as error:
            print(error, file=sys.stderr)
            return 2
    parser = parser_for("", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", type=name_of((*SHORT, *LONG)))
    names = parser.parse_args(given).names
    if long := [name for name in names if name in LONG]:
        parser.error(f"{long[0]} runs alone: python -m bench {long[0]}")
    for name in names or SHORT:
        print(f"== {name}", flush=True)
        importlib.import_module(f"bench.bench_{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())

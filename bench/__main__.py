"""Run a benchmark: `python -m bench [NAME [OPTIONS]]`; without a name, `decision`.

`python -m bench NAME --help` lists a benchmark's options.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.options import name_of, parser_for
from laar.errors import SettingError

NAMES = tuple(
    path.stem.removeprefix("bench_") for path in sorted(Path(__file__).parent.glob("bench_*.py"))
)
"""Each has a `main` that takes options and returns an exit status, or None."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmark and return its exit status."""
    given = (sys.argv[1:] if argv is None else argv) or ("decision",)
    parser = parser_for("", __doc__)
    parser.add_argument("name", metavar="NAME", type=name_of(NAMES), help=", ".join(NAMES))
    name = parser.parse_args(given[:1]).name
    try:
        return int(importlib.import_module(f"bench.bench_{name}").main(given[1:]) or 0)
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

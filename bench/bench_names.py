"""Compare turns a second by what clients say about their sessions, with the session gate.

Half as many agents again as the caches of four engines hold run in virtual time, on real sessions
of coding agents. Every kind of client sends the same prompts; each is compared with clients that
name every session in `x-laar-session`.

    python -m bench names --data DIR
    python -m bench names --data DIR --seeds 12 --first-seed 82000
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.options import count, parser_for
from laar.core.request import Request
from laar_lab.experiments.agents_cliff import run_cliff
from laar_lab.statistics import estimate, log_ratios

ENGINES, LOAD, RULE = 4, 1.5, "laar, gate"


def nothing(request: Request) -> None:
    request.session = ""


def unknown(request: Request) -> None:
    """Name it in a header that laar does not know."""
    request.hints = (("x-agent-conversation", request.session),)
    request.session = ""


def shared(request: Request) -> None:
    """Give the same `prompt_cache_key` to all sessions."""
    request.session = "app"


def alternating() -> Callable[[Request], None]:
    """Name every other request of a session."""
    turns = Counter[str]()

    def rename(request: Request) -> None:
        turns[request.session] += 1
        if turns[request.session] % 2:
            request.session = ""

    return rename


KINDS: Mapping[str, Callable[[], Callable[[Request], None] | None]] = {
    "x-laar-session": lambda: None,
    "no name": lambda: nothing,
    "unknown header": lambda: unknown,
    "one shared key": lambda: shared,
    "every other request": alternating,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each kind of client."""
    parser = parser_for("names", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory of real sessions")
    parser.add_argument("--seeds", type=count, default=6)
    parser.add_argument("--first-seed", type=count, default=81000)
    given = parser.parse_args(argv)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    print(f"{'':20}turns/s  / x-laar-session, 95 % interval")
    named: list[float] = []
    for kind, make in KINDS.items():
        seen = [
            run_cliff(given.data, 0, ENGINES, LOAD, RULE, seed, rename=make())["turns_per_s"]
            for seed in seeds
        ]
        named = named or seen
        log = estimate(log_ratios(seen, named))
        ratio, low, high = (math.exp(value) for value in (log.mean, log.low, log.high))
        mean = sum(seen) / len(seen)
        print(f"{kind:20}{mean:7.3f}  {ratio:.2f} ({low:.2f} to {high:.2f})", flush=True)

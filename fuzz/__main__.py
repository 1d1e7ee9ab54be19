"""`python -m fuzz`: fuzzes what laar reads, target after target, and says what was found.

    python -m fuzz --seconds 60 --inputs 100000 bodies streams

Each target ends after its seconds or its inputs, whichever comes first. Atheris chooses inputs by
the code that they reach; without it (it is in the dependency group `fuzz`) they are drawn blindly.
A finding is written to `fuzz/found/` and printed; the exit status is then 1. What was reached is
kept in `fuzz/corpus/`, where the next run begins.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fuzz import live
from fuzz.targets import TARGETS

HERE = Path(__file__).parent
HANG_S = 20
"""An input that takes longer is a finding."""


@dataclass
class Outcome:
    """Of one target."""

    name: str
    inputs: int
    seconds: float
    crashes: int
    hangs: int


def main() -> int:
    """Run the targets; 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    known = [*TARGETS, "live"]
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(known))
    parser.add_argument("--seconds", type=float, default=10.0, help="for each target")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of each target, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blind", action="store_true", help="without atheris")
    chosen = parser.parse_args()
    if unknown := set(chosen.targets) - set(known):
        parser.error(f"no target is called {', '.join(sorted(unknown))}; there are {known}")
    guided = find_spec("atheris") is not None and not chosen.blind
    outcomes = []
    for name in chosen.targets or known:
        began = time.monotonic()
        if name == "live":
            found = live.run(chosen.seconds, chosen.inputs, chosen.seed)
            outcome = Outcome(name, *found)
        else:
            outcome = _guided(name, chosen) if guided else _blind(name, chosen)
        outcome.seconds = time.monotonic() - began
        outcomes.append(outcome)
        print(_line(outcome), flush=True)
    total = Outcome(
        "total",
        sum(o.inputs for o in outcomes),
        sum(o.seconds for o in outcomes),
        sum(o.crashes for o in outcomes),
        sum(o.hangs for o in outcomes),
    )
    print(_line(total))
    return 1 if total.crashes or total.hangs else 0


def _line(outcome: Outcome) -> str:
    rate = outcome.inputs / max(outcome.seconds, 1e-9)
    return (
        f"{outcome.name:10} {outcome.inputs:>12,} inputs {outcome.seconds:8.1f} s {rate:>9,.0f}/s"
        f"  {outcome.crashes} crashes or changed bytes, {outcome.hangs} hangs"
    )


def _guided(name: str, chosen: argparse.Namespace) -> Outcome:
    corpus, found = HERE / "corpus" / name, HERE / "found" / name
    for directory in (corpus, found):
        directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "fuzz.guided", name, str(corpus)),
            f"-max_total_time={max(1, round(chosen.seconds))}",
            f"-runs={chosen.inputs}",
            f"-seed={chosen.seed}",
            f"-timeout={HANG_S}",
            f"-artifact_prefix={found}/",
            *("-print_final_stats=1", "-max_len=2048", "-rss_limit_mb=2048", "-verbosity=0"),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = done.stdout + done.stderr
    runs = re.search(r"number_of_executed_units: (\d+)", said)
    is_hang = "libFuzzer: timeout" in said
    failed = done.returncode != 0
    if failed:
        print(said[-6000:])
    return Outcome(
        name, int(runs[1]) if runs else 0, 0.0, int(failed and not is_hang), int(is_hang)
    )


def _blind(name: str, chosen: argparse.Namespace) -> Outcome:
    from fuzz.blind import run

    return Outcome(name, *run(name, chosen.seconds, chosen.inputs, chosen.seed, HERE / "found"))


if __name__ == "__main__":
    sys.exit(main())

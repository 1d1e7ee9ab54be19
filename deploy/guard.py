"""Say when each suite and experiment last ran, and what it showed: `make guard`.

With `--seeds MINUTES` it repeats the first seeds of stored runs, and with `--suites MINUTES` it
runs slow suites, each time the next ones: those that were checked longest ago, from a place that
moves with the number of commits, so that a checkout that keeps nothing takes turns as well. Suites
that are named are run instead. Results go to docs/results and deploy/guard.json, to be committed.

A suite that fails runs once more by itself, and is only reported. A seed fails the command (exit
status 3) if later code had repeated the stored run twice, and more than a tenth of its numbers now
differ by more than another processor's rounding explains.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import orjson

from laar_lab.experiments import all_experiments
from laar_lab.results import Stored, commit_of, load, write
from laar_lab.stale import check

ROOT = Path(__file__).parents[1]
RESULTS, LAST = ROOT / "docs" / "results", ROOT / "deploy" / "guard.json"
_GRACE_S = 20.0
_DAY_MINUTES = 24.0 * 60.0
_SHOWED = {0: "passed", 3: "missed a target"}  # by exit status, `bench.figures`; else failed
_PYTEST = f"{shlex.quote(sys.executable)} -m pytest -q"
_BENCH = f"{shlex.quote(sys.executable)} -m bench"

SUITES = {
    **{
        f"attack: {part}": (minutes, f"{_PYTEST} --attack-table tests/attack/test_attack_{part}.py")
        for part, minutes in (
            *(("bodies", 4.0), ("engines", 4.0), ("memory", 8.0), ("models", 2.0)),
            *(("ports", 3.0), ("store", 4.0), ("wire", 4.0)),
        )
    },
    "chaos": (4.0, f"{_BENCH} chaos --seconds 120 --shapes standalone"),
    **{
        f"failing: {rows}": (
            6.0,
            f'{_BENCH} failing --subjects laar --shapes standalone --rows "{rows}"',
        )
        for rows in (
            *("none,503,500", "reset,every second,error event", "html,empty,foreign model"),
            *("cut,429,401", "hang,ten times slower,heals", "full for 5 s,all fail,poison 500"),
            "poison 503,poison refuse,poison and a dead endpoint",
        )
    },
    **{
        f"costs: {name.split()[0]}": (minutes, f"{_BENCH} {name}")
        for name, minutes in (
            *(("decision", 2.0), ("hooked", 1.0), ("road", 1.0), ("sharing", 2.0)),
            ("picker --parts cpu,fleets --share 0.3", 9.0),
        )
    },
    "faults": (5.0, "make faults"),
    "models": (9.0, f"{_BENCH} models"),
    "prompts": (4.0, f"{_BENCH} prompts"),
    "real llama.cpp": (3.0, "make test-llama-cpp"),
    "real SGLang": (15.0, "make test-sglang"),
    "real vLLM": (15.0, "make test-vllm"),
    "reported": (8.0, "make reported"),
    "kills": (4.0, f"{_BENCH} stall --rows kill"),
    "stall": (4.0, f"{_BENCH} stall --rows restart"),
    "templates": (2.0, f"{_BENCH} templates"),
    "useless": (6.0, f"{_BENCH} useless --forms 5 --shapes native"),
}
"""Minutes on two cores, and the command. Real engines, whose packages are large, take more than CI
has: they run by hand."""


def main() -> None:
    """Run what the options name, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Format)
    parser.add_argument("names", nargs="*", help="suites, or the beginnings of their names")
    parser.add_argument("--seeds", type=float, default=0.0, metavar="MINUTES")
    parser.add_argument("--suites", type=float, default=0.0, metavar="MINUTES")
    parser.add_argument("--data", type=Path, default=os.environ.get("LAAR_DATA") or None)
    given = parser.parse_args()
    lost = repeat_seeds(given.seeds, given.data) if given.seeds else []
    named = [suite for suite in SUITES if given.names and suite.startswith(tuple(given.names))]
    for name in given.names:
        if not any(suite.startswith(name) for suite in named):
            parser.error(f"no suite begins with {name!r}; known: {', '.join(SUITES)}")
    if given.suites or named:
        run_suites(given.suites or _DAY_MINUTES, named)
    _print_table()
    if lost:
        print("no longer as stored:", ", ".join(lost), "(mend it, or commit docs/results)")
        sys.exit(3)


class _Format(argparse.RawDescriptionHelpFormatter):
    """Keep the paragraphs of the description."""


def in_turn(by_age: Sequence[str], commits: int) -> list[str]:
    """Return names, the oldest first, from a place that moves with the number of commits."""
    start = commits % max(1, len(by_age))
    return [*by_age[start:], *by_age[:start]]


def repeat_seeds(minutes: float, data: Path | None) -> list[str]:
    """Repeat first seeds within the time; return the runs that newly differ."""
    known, stored, commit = all_experiments(), load(RESULTS), commit_of()
    until, cores = time.monotonic() + 60.0 * minutes, os.cpu_count() or 1
    lost = []
    for name in in_turn(sorted(stored, key=lambda name: (_last(stored[name]), name)), _commits()):
        run = stored[name]
        needed_s = 60.0 * (run.minutes or known[name].minutes) / cores
        has_data = data is not None or "--data" not in run.command.split()
        if not has_data or time.monotonic() + needed_s > until:
            continue
        checked = check(known[name], run, data, commit)
        write(RESULTS, replace(checked, repeated=checked.repeated[-2:]))
        if is_lost(run, checked):
            lost.append(name)
    return lost


def is_lost(before: Stored, after: Stored) -> bool:
    """Whether a run that later code had repeated is repeated no longer, and nobody has said so.

    Repeated means twice: once may have been where it was made, and other processors round
    otherwise.
    """
    was_stale = before.checked is not None and before.checked.differ > 0
    moved = after.checked is not None and 10 * after.checked.moved > after.checked.numbers
    return moved and not was_stale and len(before.repeated) > 1


def _last(run: Stored) -> str:
    return run.checked.date if run.checked else run.date


def run_suites(minutes: float, named: Sequence[str] = ()) -> None:
    """Run suites within the time, the named ones or the next, and store what they showed."""
    last, until = _suites(), time.monotonic() + 60.0 * minutes
    ages = sorted(SUITES, key=lambda name: (last.get(name, {}).get("date", ""), name))
    for name in named or in_turn(ages, _commits()):
        takes, command = SUITES[name]
        if time.monotonic() + 60.0 * takes > until:
            continue
        shown = _showed(command, until)
        if shown != "passed" and time.monotonic() + 60.0 * takes <= until:
            shown = "passed when run again" if _showed(command, until) == "passed" else shown
        date = datetime.now(UTC).date().isoformat()
        # Read again, since another run may have stored something meanwhile.
        last = {**_suites(), name: {"commit": commit_of(), "date": date, "showed": shown}}
        written = orjson.dumps(last, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        LAST.write_bytes(written + b"\n")


def _showed(command: str, until: float) -> str:
    print(f"$ {command}", flush=True)
    left_s = max(1.0, until - time.monotonic())
    with subprocess.Popen(shlex.split(command), cwd=ROOT, start_new_session=True) as started:
        try:
            return _SHOWED.get(started.wait(left_s), "failed")
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGINT)  # Python stops what it has started
            with suppress(subprocess.TimeoutExpired):
                started.wait(_GRACE_S)
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            return "not finished"


def _suites() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = orjson.loads(LAST.read_bytes()) if LAST.exists() else {}
    return found


def _commits() -> int:
    told = ["git", "-C", str(ROOT), "rev-list", "--count", "HEAD"]
    return int(subprocess.run(told, capture_output=True, text=True, check=False).stdout or 0)


def _print_table() -> None:
    print(f"{'suite or experiment':60}last run    at          showed")
    last = _suites()
    for name in SUITES:
        one = last.get(name, {"date": "never", "commit": "", "showed": "not run"})
        print(f"{name:60}{one['date']:12}{one['commit']:12}{one['showed']}")
    for name, run in load(RESULTS).items():
        commit = run.checked.commit if run.checked else run.commit
        showed = "made" if run.checked is None else "as stored"
        if run.checked is not None and run.checked.differ:
            showed = f"{run.checked.differ} of {run.checked.numbers} numbers differ"
        print(f"{name:60}{_last(run):12}{commit:12}{showed}")


if __name__ == "__main__":
    main()

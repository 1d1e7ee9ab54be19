"""Inject faults into endpoints, pickers, store, Envoy, files, disk, clock and settings under load.

The stand is a real Envoy, two pickers sharing state through Redis or Valkey, and six endpoints of
two models. Up to three faults from a seeded schedule are active at a time. Every request must end
within its deadline with the correct answer or an error that states its reason. A failing endpoint
may receive only trials. Afterwards counters must return to zero and memory to its earlier level,
all endpoints must serve requests, and the pickers must share state again. Prints the number of
faults, the requests by outcome, and the cost of each kind of fault compared with the quiet period
of the same run.

    python -m bench chaos
    python -m bench chaos --seconds 60 --seed 7 --shapes standalone --json chaos.json

Setting the clock needs libfaketime (Debian: ``apt install libfaketime``); sharing needs
redis-server or valkey-server and the `share` extra. Exit status: 0 if every promise was kept, 3 if
one was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

import orjson

from bench.chaos.asking import End, Ended, Names, Question, draw
from bench.chaos.judging import Judgment, judge
from bench.chaos.load import OpenLoad
from bench.chaos.stand import Endpoint, Plan, Stand, standing
from bench.chaos.store_trouble import STORE_TROUBLES, apart
from bench.chaos.trouble import (
    CLOCK_TROUBLE,
    ENDPOINT_TROUBLES,
    SYSTEM_TROUBLES,
    Lane,
    Struck,
    Trouble,
)
from bench.figures import MISSED, print_table
from bench.options import names_of, output_file, parser_for, positive
from laar.envoy.options import Shape

SHAPES: tuple[Shape, ...] = ("standalone", "gateway")
PATIENCE_S = 15.0
RATE_PER_S = 20.0
WARM_UP_S = 3.0
QUIET_SHARE = 0.1
QUIET_S = (4.0, 30.0)
RECOVERY_S = 90.0
"""Time allowed for recovery; repeated failures delay trials up to `health.longest_trial_s`."""
SETTLE_S = 30.0
MEMORY_FACTOR = 1.5
MEMORY_SLACK_BYTES = 64 * 2**20
EXAMPLES = 8
ASKED = ("auto", "small", "large", "chat")
ZERO = (
    "laar_streams_open",
    "laar_held_body_bytes",
    "laar_endpoint_in_flight",
    "laar_endpoint_queued_tokens",
    "laar_flow_waiting",
    "laar_flow_held_bytes",
)
"""Metrics that must be zero when nothing is in flight."""

_SMALL = Endpoint(model="small", names=("small", "auto", "large", "chat"), known=("small", "auto"))
_LARGE = Endpoint(model="large", names=("large", "auto", "small", "chat"), known=("large", "auto"))
_FAKETIME = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
)


@dataclass(slots=True)
class Run:
    """The results of one shape."""

    shape: Shape
    seconds: float = 0.0
    ended: list[Ended] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    quiet_from_s: float = 0.0
    quiet_until_s: float = 0.0
    leftovers: dict[str, float] = field(default_factory=dict)
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)

    def broken_promises(self, judgment: Judgment) -> list[str]:
        """Return a message for each broken promise."""
        broken = []
        wrong = sum(e.end is End.WRONG for e in self.ended)
        if wrong:
            broken.append(f"{wrong} wrong answers were delivered")
        if judgment.unexplained:
            broken.append(f"{len(judgment.unexplained)} requests ended without a named reason")
        if judgment.overfed:
            broken.append(
                f"{len(judgment.overfed)} times a failing endpoint got more than its trials"
            )
        if self.leftovers:
            broken.append(f"counters did not return to zero: {self.leftovers}")
        if self.idle:
            broken.append(f"healthy again but without requests: {', '.join(self.idle)}")
        if self.apart:
            broken.append(f"not sharing again: {', '.join(self.apart)}")
        for name, (before, after) in self.memory.items():
            if after > before * MEMORY_FACTOR + MEMORY_SLACK_BYTES:
                broken.append(f"memory of {name} went from {before >> 20} to {after >> 20} MiB")
        return broken


def main(argv: Sequence[str] | None = None) -> int:
    """Run all shapes, print the results, and return 3 if a promise was broken."""
    options = _parser().parse_args(argv)
    clock, store = _clock_library(), _store()
    if store is None:
        print("SKIPPED: sharing; it needs redis-server or valkey-server, and redis")
    if clock is None:
        print("SKIPPED: setting the clock; it needs libfaketime")
    shapes: list[Shape] = options.shapes
    documents, broken, faults, requests = [], [], 0, 0
    for shape in shapes:
        each_s = options.seconds / len(shapes)
        run = asyncio.run(_run(shape, each_s, options.seed, clock, store))
        judgment = judge(
            run.ended,
            run.struck,
            quiet_from_s=run.quiet_from_s,
            quiet_until_s=run.quiet_until_s,
            gateway=shape == "gateway",
        )
        promises = run.broken_promises(judgment)
        _show(run, judgment)
        for line in promises:
            print(f"BROKEN ({shape}): {line}")
        examples = [_described(ended, run) for ended in judgment.unexplained[:EXAMPLES]]
        for line in (*examples, *(overfed(one, run) for one in judgment.overfed)):
            print(f"  {line}")
        documents.append(_document(run, judgment, promises))
        broken += promises
        faults += len(run.struck)
        requests += len(run.ended)
    verdict = "every promise held" if not broken else f"{len(broken)} promises broken"
    print(f"{faults} faults, {requests} requests, seed {options.seed}: {verdict}")
    if options.json:
        whole = {"seed": options.seed, "faults": faults, "requests": requests, "runs": documents}
        options.json.write_bytes(orjson.dumps(whole, option=orjson.OPT_INDENT_2))
    return MISSED if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_for("chaos", __doc__)
    parser.add_argument("--seconds", type=positive, default=780.0, help="total duration of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shapes", type=names_of(SHAPES), default=",".join(SHAPES))
    parser.add_argument("--json", type=output_file, help="write all figures")
    return parser


def _clock_library() -> Path | None:
    named = [os.environ["LIBFAKETIME"]] if "LIBFAKETIME" in os.environ else []
    return next((Path(p) for p in (*named, *_FAKETIME) if Path(p).is_file()), None)


def _store() -> Path | None:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    return Path(found) if found and find_spec("redis") else None


async def _run(
    shape: Shape, seconds: float, seed: int, clock: Path | None, store: Path | None
) -> Run:
    """Run one shape: a quiet period, the faults, and the recovery."""
    plan = Plan(
        endpoints=(_SMALL,) * 3 + (_LARGE,) * 3,
        pickers=2,
        shape=shape,
        all_files=True,
        clock=clock,
        store=store,
        settings={
            "routing": {"aliases": {"auto": [], "chat": ["small"]}},
            "shutdown": {"drain_s": 2.0, "grace_s": 5.0},
        },
    )
    deadline_s = seconds + QUIET_S[1] + RECOVERY_S + SETTLE_S + 240
    run = Run(shape=shape, seconds=seconds)
    async with standing(plan, deadline_s=deadline_s) as stand:
        rng = random.Random(f"{seed} questions")
        over = asyncio.Event()
        load = OpenLoad(
            url=lambda: stand.url,
            next_question=lambda number: None if over.is_set() else _question(rng, number),
            names=_names(stand),
            rate_per_s=RATE_PER_S,
            seed=seed,
            limit_s=PATIENCE_S,
            keep=run.ended.append,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            await _under_load(stand, run, seed, clock)
            over.set()
        run.leftovers = await leftovers(stand)
        for child in (*stand.pickers, stand.envoy):
            assert child is not None
            name = child.name.partition("-")[0]
            before = run.memory[name][0]
            run.memory[child.name] = (before, child.memory_bytes())
        del run.memory["picker"], run.memory["envoy"]
    return run


async def _under_load(stand: Stand, run: Run, seed: int, clock: Path | None) -> None:
    await asyncio.sleep(WARM_UP_S)
    run.quiet_from_s = time.monotonic()
    quiet_s = min(max(QUIET_S[0], run.seconds * QUIET_SHARE), QUIET_S[1])
    await asyncio.sleep(quiet_s)
    run.quiet_until_s = time.monotonic()
    assert stand.envoy is not None
    level = max(picker.memory_bytes() for picker in stand.pickers)
    run.memory = {"picker": (level, 0), "envoy": (stand.envoy.memory_bytes(), 0)}
    until_s = time.monotonic() + run.seconds
    system: tuple[Trouble, ...] = (
        SYSTEM_TROUBLES if clock is None else (*SYSTEM_TROUBLES, CLOCK_TROUBLE)
    )
    if stand.plan.store is not None:
        system = (*system, *STORE_TROUBLES)
    parts: tuple[tuple[str, tuple[Trouble, ...], tuple[int, ...]], ...] = (
        ("small", ENDPOINT_TROUBLES, (0, 1, 2)),
        ("large", ENDPOINT_TROUBLES, (3, 4, 5)),
        ("system", system, ()),
    )
    keep = run.struck.append
    async with asyncio.TaskGroup() as group:
        for name, troubles, endpoints in parts:
            rng = random.Random(f"{seed} {name}")
            lane = Lane(stand, rng, troubles, endpoints=endpoints, keep=keep)
            group.create_task(lane.run(until_s))
    run.idle = await _without_requests(stand, run)
    run.apart = await apart(stand, SETTLE_S)


def _question(rng: random.Random, number: int) -> Question:
    return draw(rng, number, names=ASKED, leave_share=0.05)


def _names(stand: Stand) -> Names:
    return Names(
        model_at={address: endpoint.model for address, endpoint in stand.by_address.items()},
        allowed={
            "auto": frozenset({"small", "large"}),
            "small": frozenset({"small"}),
            "chat": frozenset({"small"}),
            "large": frozenset({"large"}),
        },
    )


async def _without_requests(stand: Stand, run: Run) -> list[str]:
    """Return the endpoints that gave no correct answer within `RECOVERY_S` of the last fault."""
    since_s = time.monotonic()
    missing = set(stand.addresses)
    while missing and time.monotonic() < since_s + RECOVERY_S:
        await asyncio.sleep(0.5)
        recent = (e for e in reversed(run.ended[-2000:]) if e.began_s > since_s)
        missing -= {e.endpoint for e in recent if e.end is End.RIGHT}
    return sorted(missing)


async def leftovers(stand: Stand) -> dict[str, float]:
    """Return the pickers' metrics that did not return to zero within `SETTLE_S`."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        left: dict[str, float] = {}
        for index in range(stand.plan.pickers):
            metrics = await stand.metrics(index)
            left |= {f"picker-{index} {n}": metrics[n] for n in ZERO if metrics.get(n, 0.0) > 0}
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.5)


def _active(struck: Iterable[Struck], event: Ended | Struck) -> str:
    """Return the names of the faults that were active during a request or a fault."""
    active = (s.trouble.name for s in struck if s.overlaps(event.began_s, event.ended_s))
    return f"[{', '.join(active)}]"


def _described(ended: Ended, run: Run) -> str:
    shape = "stream" if ended.question.stream else "plain"
    at_s = ended.began_s - run.quiet_until_s
    return (
        f"{at_s:.1f} s: {ended.end} after {ended.took_s:.1f} s, {ended.question.asked} {shape}, "
        f"{ended.endpoint or 'endpoint unknown'}: {ended.detail[:160]} {_active(run.struck, ended)}"
    )


def overfed(struck: Struck, run: Run) -> str:
    """Return when an endpoint got too much, and what else might have sent it requests."""
    others = (s for s in run.struck if s is not struck)
    undecided = sum(
        e.end is End.FAILED_OPEN and struck.overlaps(e.began_s, e.ended_s) for e in run.ended
    )
    return (
        f"{struck.began_s - run.quiet_until_s:.1f} s: {struck.trouble.name}: {struck.fed} in "
        f"{struck.fed_s:.1f} s, {undecided} requests without laar meanwhile "
        f"{_active(others, struck)}"
    )


def _show(run: Run, judgment: Judgment) -> None:
    rows = [
        (
            cost.name,
            cost.times,
            cost.during,
            cost.lost,
            cost.p95_ratio,
            cost.fed if cost.fed_allowed else "",
            f"{cost.fed_allowed:.0f}" if cost.fed_allowed else "",
        )
        for cost in judgment.costs
    ]
    columns = ("times", "requests meanwhile", "lost", "p95 x", "sent to it", "trials allowed")
    title = f"Chaos, {run.shape}: cost of each fault, compared with the quiet fleet"
    print_table(title, ("fault", *columns), rows)
    counts = ", ".join(f"{end}: {count}" for end, count in judgment.ends.most_common())
    print(f"{len(run.struck)} faults; requests by end: {counts}")
    if judgment.reasons:
        counts = ", ".join(f"{reason}: {n}" for reason, n in judgment.reasons.most_common())
        print(f"reasons given: {counts}")


def _document(run: Run, judgment: Judgment, promises: list[str]) -> dict[str, object]:
    return {
        "shape": run.shape,
        "faults": len(run.struck),
        "ends_of_requests": judgment.ends,
        "reasons": judgment.reasons,
        "costs": [asdict(cost) for cost in judgment.costs],
        "quiet_p95_s": judgment.quiet_p95_s,
        "unexplained": [_described(ended, run) for ended in judgment.unexplained],
        "overfed": [overfed(struck, run) for struck in judgment.overfed],
        "leftovers": run.leftovers,
        "memory_bytes": run.memory,
        "broken_promises": promises,
    }


if __name__ == "__main__":
    sys.exit(main())

"""The demo: laar through a real Envoy, in three scenes and one table.

* Agents: more sessions of coding agents than two engines can cache, beside least-loaded.
* Failures: chats; of four engines one dies, and later another answers each with a web page, beside
  an Envoy of its own: least request with retries.
* Models: questions with checked answers, asked again until an answer is correct, to five models.

Runs of the scenes in virtual time show how large they must be for the intervals to exclude no
difference. Others' work on the machine widens them: the demo first waits for a quieter one, and if
none comes, lets the fleet's time pass as much more slowly as others leave less of a core.

laar and least-loaded run in the same picker, so they have the same retries and the same circuit
breaker; least-loaded holds no turns back. The rivals take turns with the same requests, as in
`laar race`: each turn starts a fresh picker. Times are in the fleet's seconds: real time divided by
the time scale.
"""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from statistics import fmean

import aiohttp
import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from laar.client import Outcome
from laar.core.decision import NEW_MODEL
from laar_lab.live.fleet import running_fleet
from laar_lab.live.processes import free_ports
from laar_lab.live.questions import Asked, ask, drawn
from laar_lab.race.engines import Engines, simulated
from laar_lab.race.result import Ratio, Turn, mean_of, ratio, ratios
from laar_lab.race.routers import OURS, Router, named
from laar_lab.race.run import Race, run
from laar_lab.race.traffic import Traffic, generated
from laar_lab.sim.fleet import BLOCK_TOKENS
from laar_lab.statistics import CONFIDENCE
from laar_lab.workloads.shared_prompts import AgentShape, agents

BROKEN = 1
"""Exit status if an exchange violated the contract."""
RIVAL = "least-loaded"
LIMIT_S = 60.0
"""How long a user waits for a correct answer; a question without one counts as twice as long."""
PLAIN = "Envoy alone"
BOTH = (OURS, PLAIN)
_FAULTS_SHOWN = 10
_RESAMPLES = 4000
CACHE_TOKENS = 100_000
"""Cache of each of the two engines of the agents."""
FEWEST = 20
"""Fewest questions that can show a difference."""
AGENTS = 16
AGENT = AgentShape(
    system_tokens=4096,
    first_log=(9.8, 0.3),
    max_growth_tokens=4000,
    output_log=(4.0, 0.5),
    max_output_tokens=150,
    pause_log=(0.7, 0.6),
    max_prompt_tokens=48_000,
)
"""Contexts of some 20,000 tokens: together 1.6 times as many as the caches hold."""
CHATS_PER_S = 4.0
LENGTHS_TOKENS = (4096, 8192)
"""Lengths of the questions. Longer ones would need most of the demo's time."""
_SHARE, _SPUN_S, _AGAIN_S = 0.7, 0.3, 5.0
"""Share of a core below which the machine is busy, and seconds to measure it and until the next."""
_SLOWEST = 4.0
"""Largest factor by which the fleet is slowed on a busy machine."""
_LATE_S = 0.5
"""The fleet's seconds by which requests may be late before the demo says the machine is busy."""
BLOCK = 10
"""Questions that a rule gets in a row: both rules see the same changes of the machine's load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything is run.

    Args:
        repeat: turns of each rule with agents, and with failures.
        agents_s: length of a turn with agents, in the fleet's seconds.
        failures_s: length of a turn with failures.
        questions: number of questions.
        patience_s: real seconds to wait for a quieter machine.
        slowed: factor by which the fleet's time passes more slowly than on a quiet machine.
    """

    repeat: int = 4
    agents_s: float = 36.0
    failures_s: float = 48.0
    questions: int = 80
    patience_s: float = 60.0
    slowed: float = 1.0


SHORT = Size(repeat=1, agents_s=15.0, failures_s=8.0, questions=6, patience_s=0.0)
"""A demo that runs everything, but is too short to show differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the table.

    Args:
        scene: what happens; empty for the scene of the line above.
        measure: what is measured.
        ours: laar's figure.
        theirs: the rival's figure.
        ratio: ours / theirs.
        more_is_better: whether a larger figure is better.
        rival: whose figure is theirs.
    """

    scene: str
    measure: str
    ours: str
    theirs: str
    ratio: Ratio
    more_is_better: bool = False
    rival: str = RIVAL

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or an empty string if no difference is shown."""
        return self.ratio.verdict(more_is_better=self.more_is_better)

    @property
    def said(self) -> str:
        """The difference with its interval; a tie if the interval contains no difference."""
        if not math.isfinite(self.ratio.high):
            return "tie: too few to show a difference"
        return f"{self.verdict or 'tie'}: {self.ratio.percent}"


@dataclass(slots=True)
class Demo:
    """What the demo has shown: lines, and violations of the contract."""

    lines: list[Line]
    faults: list[str]
    late_s: float = 0.0
    remark: str = ""


async def run_demo(console: Console, directory: Path, size: Size, *, seed: int) -> Demo:
    """Run all scenes."""
    [admin] = free_ports(1)
    console.print(
        f"The live page is http://127.0.0.1:{admin}/ (each turn starts a new picker there).",
        highlight=False,
    )
    demo = Demo(lines=[], faults=[])
    size = replace(size, slowed=await quiet(console, size.patience_s))
    rules = [named(OURS), _rival(directory)]
    await _agents(console, rules, size, demo, seed=seed, admin=admin)
    plain = Router(name=PLAIN, kind="envoy", argument="")
    await _failures(console, [rules[0], plain], size, demo, seed=seed, admin=admin)
    await _models(console, directory, size, demo, seed=seed, admin=admin)
    return demo


async def quiet(console: Console, patience_s: float) -> float:
    """Wait until others leave this process most of a core, or after a while at least some of it.

    Return the factor by which to slow the fleet. Without patience, measure nothing.
    """
    began_s, share = time.monotonic(), 1.0
    while patience_s > 0.0:
        before, (at_s, cpu_s) = share, (time.monotonic(), time.process_time())
        while time.monotonic() < at_s + _SPUN_S:
            pass
        share = (time.process_time() - cpu_s) / (time.monotonic() - at_s)
        if share >= (_SHARE if at_s < began_s + patience_s else 1.0 / _SLOWEST):
            break
        if before >= _SHARE:
            console.print("Others keep this machine busy: waiting until it is quieter.")
        await asyncio.sleep(_AGAIN_S)
    if share >= _SHARE:
        return 1.0
    console.print(f"It stays busy: the fleet runs {1.0 / share:.1f} times as slowly.")
    return 1.0 / share


def _rival(directory: Path) -> Router:
    """Return the same picker with the rival's rule, which holds no turn back."""
    path = directory / "rival.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "routing": {"policy": RIVAL, "baselines": {RIVAL: {}}},
                "flow": {"max_hold_s": 0},
                "endpoints": [{"address": "127.0.0.1:1", "models": ["replaced"]}],
            }
        )
    )
    return replace(named(str(path)), name=RIVAL)


async def _agents(
    console: Console, rules: Sequence[Router], size: Size, demo: Demo, *, seed: int, admin: int
) -> None:
    traffic = Traffic(
        about="coding agents",
        sessions=lambda seed, client: agents(AGENT, random.Random(f"{seed}-{client}"), client),
        clients=AGENTS,
    )
    with tempfile.TemporaryDirectory(prefix="laar-demo-") as directory:
        async with simulated(
            Path(directory),
            "gorgo-main",
            2,
            0.2 * size.slowed,
            num_blocks=CACHE_TOKENS // BLOCK_TOKENS,
        ) as engines:
            race = _race(
                rules,
                engines,
                lambda _: traffic,
                size,
                size.agents_s,
                warm_up_share=0.4,
                seed=seed,
                admin=admin,
            )
            turns = await _turns(console, "agents past the caches", race, demo)
    scene = "Agents need more than the caches hold"
    demo.lines += [
        _compared(scene, turns, "answers_per_s", "answers a second"),
        _compared("", turns, "ttft_mean_s", "mean time to first token, s"),
    ]
    demo.faults += [
        f"{turn.router}: {turn.numbers['failed_percent']:.2g} % of the agents' requests failed"
        for turn in turns
        if turn.numbers["failed_percent"]
    ]


async def _failures(
    console: Console, rules: Sequence[Router], size: Size, demo: Demo, *, seed: int, admin: int
) -> None:
    def traffic(most_tokens: int) -> Traffic:
        return generated(
            "chats",
            most_tokens=most_tokens,
            seconds=size.failures_s,
            rate_per_s=CHATS_PER_S,
            clients=0,
        )

    with tempfile.TemporaryDirectory(prefix="laar-demo-") as directory:
        async with simulated(Path(directory), "gorgo-main", 4, 0.12 * size.slowed) as engines:
            race = _race(
                rules,
                engines,
                traffic,
                size,
                size.failures_s,
                warm_up_share=0.25,  # until the first engine fails
                seed=seed,
                admin=admin,
            )
            race = replace(race, meanwhile=partial(trouble, seconds=size.failures_s))
            turns = await _turns(console, "failing engines", race, demo)
    demo.lines.append(_answered(turns))
    cut = {rule: sum(t.numbers["cut_off"] for t in turns if t.router == rule) for rule in BOTH}
    demo.remark = (
        "Not counted, as no router can repeat them: answers that were being sent when their engine "
        f"died, {cut[OURS]:.0f} with {OURS} and {cut[PLAIN]:.0f} with {PLAIN}."
    )


async def trouble(engines: Engines, *, seconds: float) -> None:
    """Let the first engine be down for a quarter of a turn; then the second sends web pages."""
    quarter_s = seconds * engines.time_scale / 4
    dying, mad, *_ = engines.urls
    async with aiohttp.ClientSession() as session:

        async def answers(faults: Sequence[str]) -> None:
            async with session.put(f"{mad}/sim/faults", json={"faults": faults}):
                pass

        try:
            await asyncio.sleep(quarter_s)
            async with session.post(f"{dying}/sim/outage", json={"seconds": quarter_s}):
                pass
            await asyncio.sleep(1.25 * quarter_s)
            await answers(["html"])
            await asyncio.sleep(quarter_s)
        finally:
            await answers([])


async def _models(
    console: Console, directory: Path, size: Size, demo: Demo, *, seed: int, admin: int
) -> None:
    scale = 0.15 * size.slowed
    asked = drawn(size.questions, seed, LENGTHS_TOKENS)
    found = {rule: Asked() for rule in (OURS, RIVAL)}
    async with AsyncExitStack() as stack:
        with _said(console, "models: starting five engines, the picker and Envoy"):
            fleet = await stack.enter_async_context(
                running_fleet(
                    directory,
                    time_scale=scale,
                    policies=[RIVAL],
                    admin_port=admin,
                    changes={"routing": {"retries": NEW_MODEL}},
                )
            )
        with _said(console, f"models: {len(asked)} questions by each rule"):
            for at in range(0, len(asked), BLOCK):
                for rule in (OURS, RIVAL) if at // BLOCK % 2 else (RIVAL, OURS):
                    block = asked[at : at + BLOCK]
                    await ask(fleet.url, block, rule, fleet.models, found[rule])
    demo.faults += [fault for each in found.values() for fault in each.faults]
    seconds = {
        rule: [penalized_s(each.outcomes[query.id], scale) for query in asked]
        for rule, each in found.items()
    }
    demo.lines.append(
        Line(
            scene="Five models, answers are checked",
            measure="seconds to a correct answer",
            ours=f"{fmean(seconds[OURS]):.1f}",
            theirs=f"{fmean(seconds[RIVAL]):.1f}",
            ratio=paired(seconds[OURS], seconds[RIVAL]),
        )
    )


def _race(
    rules: Sequence[Router],
    engines: Engines,
    traffic: Callable[[int], Traffic],
    size: Size,
    seconds: float,
    *,
    warm_up_share: float,
    seed: int,
    admin: int,
) -> Race:
    return Race(
        routers=rules,
        engines=engines,
        model=None,
        headers={},
        traffic=traffic,
        seconds=seconds,
        warm_up_s=seconds * warm_up_share,
        repeat=size.repeat,
        seed=seed,
        deadline_s=60.0,
        in_flight=256,
        admin_port=admin,
    )


async def _turns(console: Console, scene: str, race: Race, demo: Demo) -> list[Turn]:
    """Run the turns; note how late this machine sent requests."""
    turns: list[Turn] = []
    of = race.repeat * len(race.routers)
    with _said(console, f"{scene}: {of} turns of {race.seconds * race.time_scale:g} s"):
        async for ended in run(race, BytesIO()):
            turns.append(ended.turn)
            demo.late_s = max(demo.late_s, ended.turn.numbers["late_p95_s"])
    return turns


@contextmanager
def _said(console: Console, doing: str) -> Iterator[None]:
    if not console.is_terminal:  # a status line shows only on a terminal
        console.print(doing, highlight=False)
    with console.status(doing):
        yield


def penalized_s(outcome: Outcome, time_scale: float) -> float:
    """Return the seconds to a correct answer; without one in time, twice the limit (PAR-2)."""
    took_s = outcome.ttca_s / time_scale
    return took_s if outcome.correct and took_s <= LIMIT_S else 2 * LIMIT_S


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of two means, with its bootstrap interval over the common questions."""
    value = fmean(ours) / fmean(theirs)
    if len(ours) < FEWEST:
        return Ratio(value=value, low=0.0, high=math.inf)
    pairs = np.array([ours, theirs])
    drawn = np.random.default_rng(1).integers(pairs.shape[1], size=(_RESAMPLES, pairs.shape[1]))
    of_ours, of_theirs = pairs[:, drawn].mean(axis=2)
    low, high = np.quantile(of_ours / of_theirs, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(value=value, low=float(low), high=float(high))


def _compared(scene: str, turns: Sequence[Turn], metric: str, measure: str) -> Line:
    return Line(
        scene=scene,
        measure=measure,
        ours=f"{mean_of(turns, OURS, metric):.2f}",
        theirs=f"{mean_of(turns, RIVAL, metric):.2f}",
        ratio=ratios(turns, OURS, RIVAL)[metric],
        more_is_better=metric == "answers_per_s",
    )


def _answered(turns: Sequence[Turn]) -> Line:
    """Return a line with the requests that got no whole answer, though another engine had one."""
    lost, share = dict[str, str](), dict[str, list[float]]()
    for rule in BOTH:
        own = [turn.numbers for turn in turns if turn.router == rule]
        counts = [sum(each[of] for each in own) for of in ("lost", "requests")]
        lost[rule] = f"{counts[0]:.0f} of {counts[1]:.0f}"
        share[rule] = [1.0 - each["lost"] / each["requests"] for each in own]
    return Line(
        scene="One engine dies, another sends web pages",
        measure="requests lost by the router",
        ours=lost[OURS],
        theirs=lost[PLAIN],
        ratio=ratio(share[OURS], share[PLAIN]),
        more_is_better=True,  # of the share that is answered
        rival=PLAIN,
    )


def show(console: Console, demo: Demo) -> None:
    """Print the table, what is only a tie, and violations of the contract."""
    table = Table()
    for name in ("what happens", "measure"):
        table.add_column(name)
    for name in (OURS, "beside"):
        table.add_column(name, justify="right")
    table.add_column("")
    table.add_column("laar (95 % interval)")
    for line in demo.lines:
        row = (line.scene, line.measure, line.ours, line.theirs, line.rival, line.said)
        table.add_row(*row)
    console.print(table)
    ties = [line.measure for line in demo.lines if line.verdict == ""]
    for said in (
        f"laar only ties in: {'; '.join(ties)}." if ties else "",
        f"{RIVAL} runs in the same picker, with the same retries and circuit breaker; it holds no "
        f"turns back. {PLAIN} is least request with two retries.",
        demo.remark,
        "Requests were sent late, since this machine is busy, which changes all figures."
        if demo.late_s > _LATE_S
        else "",
        *(f"contract violated: {fault}" for fault in demo.faults[:_FAULTS_SHOWN]),
    ):
        if said:
            console.print(said, highlight=False, soft_wrap=True)

"""How hard a model thinks: laar's choice among modes against rules that people write.

The model is DeepSeek-R1-Distill-Qwen-7B with and without thinking, on GSM8K, MATH-500 and AIME
2024. The accuracies and mean lengths of answers are assumed: they were written down from memory of
AdaptThink (arXiv 2505.13417, table 1), which was not at hand. Another source, which was
(github.com/Muqi1029/NoThink-project, temperature 0.6), has the same model on two of the tasks: on
GSM8K .932 and .829 with 2,463 and 290 tokens, on AIME .530 and .236 with 13,258 and 3,938. So no
figure is taken as exact: each seed draws others around it (`world_of`), in a range that holds the
other source's, except for GSM8K's length with thinking. Four endpoints serve the model with the
lab's 7B engine on an A100. A third of the questions are of each task, and clients name it. All
clients check answers, report whether they were correct, and ask again.

An answer's length is log-normal around the mean (sigma 0.5). There are two cases for how a
question's attempts depend on each other:

* `same`: a mode always gives a question the same answer, as at temperature 0. As in
  `laar_lab.sim.answers`, the share `_SHARED` of a question's difficulty is common to both modes;
  for different models it is .5. The rules give up after a wrong answer, since they would get it
  again.
* `anew`: each answer is drawn anew, and both modes have one difficulty: log odds with a spread that
  each seed draws from `_SPREADS`. By the other source's repeated draws (1 and 5 on GSM8K, 1 and 64
  on AIME) it is 2.4 without thinking, and 5.8 and 4.4 with it. All ask up to `_ATTEMPTS` times; the
  rules stay in their mode.

The measure is `laar_ladder`'s: a question's time to its correct answer, at most T, as a share of
T, which is twice the time in which an idle engine answers it once in each mode. All know the same
answers to other questions than those asked: the rule by task takes for each task the mode with the
lower measure, laar's artifact is fitted, and where answers are drawn anew, laar has learned what
repeats are worth, as from reports (`laar, at first` has not).

How low a measure can be is shown for the questions that all know, on an idle engine, by the best
order of modes for each task, of all orders of five attempts of which the last is repeated; and if
each question's answers are known beforehand. `laar, two at once` asks in two modes, or twice in
one, at the same time where laar allows it, and takes the first correct answer.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, product, repeat
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from laar.accuracy.artifact import Capability
from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.fitting.fit import fit
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.online import OnlineOutcomes
from laar.core.modes import ModeSettings
from laar.core.request import Api, Request
from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report, Table, Value
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import (
    Exchange,
    FleetSettings,
    LinkProfile,
    Prompt,
    Question,
    Site,
    VirtualFleet,
    ask_until_correct,
)
from laar_lab.statistics import estimate
from laar_lab.sweep import grid

MODEL, FAST = "r1-7b", "r1-7b:fast"
WAYS = (MODEL, FAST)
ASSUMED: Mapping[str, Mapping[str, tuple[float, int]]] = {
    "gsm8k": {MODEL: (0.879, 682), FAST: (0.851, 283)},
    "math-500": {MODEL: (0.902, 3674), FAST: (0.806, 697)},
    "aime-2024": {MODEL: (0.535, 10306), FAST: (0.242, 1929)},
}
"""P(correct) and mean tokens of an answer, by task and mode: assumed."""

RULES = ("always thinks", "never thinks", "by task")
LAAR, AT_FIRST, TWO = "laar", "laar, at first", "laar, two at once"
USERS = (1, 32)
_ENDPOINTS = 4
_QUESTIONS = 90
_TRAINING = 300  # questions of each task
_ATTEMPTS = 20
_ORDERED = 5  # attempts that an order of modes lays down
_PREFILL_S = 6e-5  # per token, as measured for the artifact
_SHARED = 0.8
_SPREADS = 1.5, 5.0
_ODDS = 0.7  # largest change of the log odds of P(correct)
_LENGTHS = 2.1  # largest factor between lengths
_SIGMA = 0.5
_DECODE_S = 0.0085  # per token, of the engine alone; only T depends on it
_NORMAL = NormalDist()


class World(NamedTuple):
    """What a seed's model is like: `ASSUMED` varied, and the spread of questions' difficulty."""

    figures: Mapping[str, Mapping[str, tuple[float, int]]]
    spread: float


@dataclass(slots=True)
class _Asked:
    """A question: whether and how long each of its attempts in a mode answers it."""

    name: str
    task: str
    case: str
    world: World
    counts: dict[str, int]

    def draw(self, what: str) -> float:
        """Return a number in (0, 1) for a part of the question."""
        return min(max(random.Random(f"{self.name}/{what}").random(), 1e-9), 1.0 - 1e-9)

    def normal(self, what: str) -> float:
        return _NORMAL.inv_cdf(self.draw(what))

    def tokens(self, way: str) -> int:
        """Return the length of the answers in a mode."""
        mean = self.world.figures[self.task][way][1]
        drawn = math.exp(_SIGMA * self.normal(f"length {way}") - _SIGMA**2 / 2)
        return max(round(mean * drawn), 1)

    def is_correct(self, way: str) -> bool:
        """Return whether the next attempt in a mode is correct."""
        right = self.world.figures[self.task][way][0]
        if self.case == "same":
            own, both = self.normal(f"own {way}"), self.normal("both")
            latent = math.sqrt(_SHARED) * both + math.sqrt(1.0 - _SHARED) * own
            return _NORMAL.cdf(latent) < right
        number = self.counts[way] = self.counts.get(way, 0) + 1
        spread = self.world.spread
        odds = math.log(right / (1.0 - right)) * math.sqrt(1.0 + math.pi / 8.0 * spread**2)
        odds += spread * self.normal("both")
        return self.draw(f"{way} {number}") < 1.0 / (1.0 + math.exp(-odds))

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt, from 60 to 600 tokens."""
        return round(60.0 * math.pow(10.0, self.draw("prompt")))

    @property
    def limit_s(self) -> float:
        """T."""
        return 2.0 * _DECODE_S * sum(tokens for _, tokens in self.world.figures[self.task].values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Restricted mean time and the share answered by T, over all and by task."""

    restricted: float
    solved: float
    by_task: Mapping[str, float]


def run(scope: Scope) -> Report:
    """Run all rules by case and number of users."""
    users = USERS[1:2] if scope.quick else USERS
    names = (LAAR, AT_FIRST, TWO, *RULES)
    cases = {key: key for key in product(("same", "anew"), names, users)}
    for n in users:
        del cases["same", AT_FIRST, n]  # nothing is learned from repeats there
    found = grid(run_one, cases, scope.seeds, label="modes")
    idle = grid(on_idle_engine, {of: (of,) for of in ("same", "anew")}, scope.seeds, label="bounds")
    evidence: dict[str, dict[str, Seen]] = {"two-many": {}}
    for case, bounds in idle.items():
        evidence[case] = {}
        for n in users:
            mean = {rule: _means(found[case, rule, n]) for rule in RULES}
            best = min(RULES, key=lambda rule: float(np.mean(mean[rule])))
            ours, two = (_means(found[case, name, n]) for name in (LAAR, TWO))
            evidence[case][f"{n} users, {best}"] = Seen(ours, mean[best])
            if n == USERS[0]:
                evidence[f"{case}-two"] = {"": Seen(two, mean[best])}
            else:
                evidence["two-many"][f"answers {case}"] = Seen(two, ours)
        ruled, ordered, _ = zip(*bounds, strict=True)
        evidence[f"{case}-order"] = {"": Seen(ordered, ruled)}
    tables = [_table(case, names, users, found) for case in idle]
    return Report(tables=[*tables, _idle_table(idle)], evidence=evidence)


def run_one(case: str, rule: str, users: int, seed: int) -> _Run:
    """Ask a seed's questions by a rule."""
    asked = questions(case, seed, f"{seed}/asked", _QUESTIONS // len(ASSUMED))
    random.Random(seed).shuffle(asked)
    chosen, known, repeats = trained(case, seed)
    profile = load_profile("qwen2.5-7b-a100")
    link = LinkProfile(rtt_s=0.0005, jitter=0.1)
    sites = [Site(name=f"e{n}", model=MODEL, engine=profile, link=link) for n in range(_ENDPOINTS)]
    online = OnlineOutcomes(CapabilityModel(known))
    if rule != AT_FIRST:
        online.repeats.restore(repeats)
    assessor = CapabilityAssessor(online.capability, online)
    settings = FleetSettings(modes={MODEL: {"fast": ModeSettings(chat={"think": False})}})
    attempts, stays = _ATTEMPTS, rule in RULES
    if stays:
        settings = replace(settings, modes={})
        attempts = 1 if case == "same" else _ATTEMPTS
    fleet = VirtualFleet(sites, settings, seed=seed, assessor=assessor)
    ways = {"always thinks": MODEL, "never thinks": FAST}
    answered = ask_until_correct(
        fleet,
        [_question(one, ways.get(rule, chosen[one.task]) if stays else "") for one in asked],
        concurrency=users,
        max_attempts=attempts,
        at_once=2 if rule == TWO else 1,
        on_attempt=reporting(online),
        stop_when_exhausted=case == "same",
    )
    shares = [
        min(record.ttca_s / one.limit_s, 1.0) if record.correct else 1.0
        for record, one in zip(answered, asked, strict=True)
    ]
    tasks = [one.task for one in asked]
    of = {t: [s for s, own in zip(shares, tasks, strict=True) if own == t] for t in ASSUMED}
    return _Run(
        restricted=float(np.mean(shares)),
        solved=float(np.mean([share < 1.0 for share in shares])),
        by_task={task: float(np.mean(own)) for task, own in of.items()},
    )


def reporting(online: OnlineOutcomes) -> Callable[[Exchange, bool], None]:
    """Return a function that reports each answer, as clients do."""

    def report(exchange: Exchange, correct: bool) -> None:
        decision = exchange.decision
        assert decision.view is not None
        if isinstance(cell := decision.view.cell, Features):
            fixed, tried = decision.request.reproducible, decision.tried[:-1]
            now = decision.now + exchange.latency_s
            online.observe(decision.model, cell, correct, now, tried=tried, reproducible=fixed)

    return report


@lru_cache
def world_of(seed: int) -> World:
    """Draw a seed's figures around the assumed ones."""
    rng = random.Random(f"{seed}/world")
    shift = {way: rng.uniform(-_ODDS, _ODDS) for way in WAYS}
    length = {way: _LENGTHS ** rng.uniform(-1.0, 1.0) for way in WAYS}
    figures = {
        task: {
            way: (1.0 / (1.0 + (1.0 / p - 1.0) * math.exp(-shift[way])), round(n * length[way]))
            for way, (p, n) in of.items()
        }
        for task, of in ASSUMED.items()
    }
    return World(figures, rng.uniform(*_SPREADS))


def questions(case: str, seed: int, name: str, per_task: int) -> list[_Asked]:
    """Return some questions of each task, in a seed's world."""
    world = world_of(seed)
    asked = [(f"{name}/{task}/{n}", task) for task in ASSUMED for n in range(per_task)]
    return [_Asked(name, task, case, world, {}) for name, task in asked]


class Training(NamedTuple):
    """What all know: the mode that a rule takes for each task, and laar's artifact and repeats."""

    chosen: Mapping[str, str]
    artifact: Capability
    repeats: object


@lru_cache(maxsize=32)
def trained(case: str, seed: int) -> Training:
    """Learn from answers to other questions than those asked."""
    asked = questions(case, seed, "trained", _TRAINING)
    tries = {one.name: {way: _tries(one, way) for way in WAYS} for one in asked}
    outcomes = [
        MeasuredOutcome(
            query_id=one.name,
            model=way,
            base=None if way == MODEL else MODEL,
            correct=tries[one.name][way] == 1,
            language="en",
            task=one.task,
            prompt_chars=4 * one.prompt_tokens,
            prompt_tokens=one.prompt_tokens,
            completion_tokens=one.tokens(way),
            latency_s=_PREFILL_S * one.prompt_tokens + _DECODE_S * one.tokens(way),
            ttft_s=_PREFILL_S * one.prompt_tokens,
        )
        for one in asked
        for way in WAYS
    ]
    measured = _measured(asked, tries, [(way,) for way in WAYS])
    chosen = {task: min(WAYS, key=lambda way: measured[task, (way,)]) for task in ASSUMED}
    artifact = fit(outcomes, created="lab", data_sha256="0" * 64).artifact
    online = OnlineOutcomes(CapabilityModel(artifact))
    for one, way in product(asked, WAYS) if case == "anew" else ():
        last, cell = tries[one.name][way] or _ATTEMPTS, Features("en", 512, one.task)
        for n in range(1, last):
            right = n + 1 == tries[one.name][way]
            online.observe(way, cell, right, 0.0, tried=(way,) * n)
    return Training(chosen, artifact, online.repeats.state())


def on_idle_engine(case: str, seed: int) -> tuple[float, float, float]:
    """Return the measure of the best rule, of the best order by task, and with foresight."""
    asked = questions(case, seed, "trained", _TRAINING)
    tries = {one.name: {way: _tries(one, way) for way in WAYS} for one in asked}
    orders = list(product(WAYS, repeat=_ORDERED))
    measured = _measured(asked, tries, orders)
    ways = [(way,) * _ORDERED for way in WAYS]
    ruled, ordered = (
        float(np.mean([min(measured[task, order] for order in of) for task in ASSUMED]))
        for of in (ways, orders)
    )
    foreseen = [min(_alone(one, tries[one.name], (way,)) for way in WAYS) for one in asked]
    return ruled, ordered, float(np.mean(foreseen))


def _tries(one: _Asked, way: str) -> int:
    """Return which attempt in a mode is the first that is correct; 0 if none is."""
    most = 1 if one.case == "same" else _ATTEMPTS
    return next((n for n in range(1, most + 1) if one.is_correct(way)), 0)


def _measured(
    asked: Sequence[_Asked],
    tries: Mapping[str, Mapping[str, int]],
    orders: Sequence[tuple[str, ...]],
) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return the measure of each task's questions for each order."""
    of = {task: [one for one in asked if one.task == task] for task in ASSUMED}
    return {
        (task, order): float(np.mean([_alone(one, tries[one.name], order) for one in of[task]]))
        for task, order in product(ASSUMED, orders)
    }


def _alone(one: _Asked, tries: Mapping[str, int], order: Sequence[str]) -> float:
    """Return a question's measure on an idle engine, asked in an order whose last is repeated."""
    took_s, counts = 0.0, dict.fromkeys(WAYS, 0)
    each_s = {way: _DECODE_S * one.tokens(way) for way in WAYS}
    for way in chain(order, repeat(order[-1])):
        took_s += each_s[way]
        counts[way] += 1
        if took_s >= one.limit_s or sum(counts.values()) > _ATTEMPTS:
            return 1.0
        if counts[way] == tries[way]:
            return took_s / one.limit_s
    raise AssertionError("the order does not end")


def _question(one: _Asked, way: str) -> Question:
    """Return the question for the fleet; in one mode, or if that is empty, in any."""
    is_correct: Callable[[str], bool] = one.is_correct
    outputs = {name: one.tokens(name) for name in WAYS}
    if way:
        is_correct, outputs = lambda _model: one.is_correct(way), {MODEL: one.tokens(way)}
    request = Request(
        id=one.name,
        api=Api.CHAT,
        model=MODEL,
        question=one.name,
        chars=4 * one.prompt_tokens,
        task=one.task,
        any_mode=True,
        reproducible=one.case == "same",
    )
    prompt = Prompt(
        prompt_tokens=one.prompt_tokens, output_tokens=1, blocks=array("Q"), outputs=outputs
    )
    return Question(request=request, prompt=prompt, is_correct=is_correct, normals=(0.0,))


def _means(runs: Sequence[_Run]) -> list[float]:
    return [one.restricted for one in runs]


def _table(
    case: str,
    names: Sequence[str],
    users: Sequence[int],
    found: Mapping[tuple[str, str, int], list[_Run]],
) -> Table:
    def row(name: str) -> tuple[Value, ...]:
        runs = [found[case, name, n] for n in users]
        tasks = [estimate([one.by_task[task] for one in runs[-1]]) for task in ASSUMED]
        solved = estimate([one.solved for one in runs[-1]])
        return name, *(estimate(_means(each)) for each in runs), *tasks, solved

    most = f"{users[-1]} users"
    return Table(
        title=f"Restricted mean time, share of T, by users; answers {case}",
        columns=(
            "",
            *map(str, users),
            *(f"{t}, {most}" for t in ASSUMED),
            f"by T, {most}",
        ),
        rows=[row(name) for name in names if (case, name, users[0]) in found],
        digits=3,
    )


def _idle_table(idle: Mapping[str, list[tuple[float, float, float]]]) -> Table:
    def row(case: str) -> tuple[Value, ...]:
        ruled, ordered, foreseen = (list(each) for each in zip(*idle[case], strict=True))
        ratios = ([a / b for a, b in zip(of, ruled, strict=True)] for of in (ordered, foreseen))
        return f"answers {case}", *map(estimate, (ruled, ordered, foreseen, *ratios))

    return Table(
        title="Bounds: restricted mean time on an idle engine, share of T",
        columns=("", "best rule", "best order", "foresight", "order / rule", "foresight / rule"),
        rows=[row(case) for case in idle],
        digits=3,
    )


EXPERIMENTS = declared(__name__, {"modes": run})

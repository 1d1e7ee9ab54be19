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
T, which is twice the time in which an idle engine answers it once in each mode. The rule by task
takes for each task the mode with the lower measure, and laar's artifact is fitted, on other
questions than those asked. `by task, then the other` is a rule that knows as much as laar: it
changes the mode when it asks again. It is shown, but no claim is about it.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from laar.accuracy.artifact import Capability
from laar.accuracy.assessor import Assessment, CapabilityAssessor, RequestText
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.fitting.fit import fit
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.online import OnlineOutcomes
from laar.core.modes import ModeSettings
from laar.core.request import Api, Request
from laar_lab.claims import Evidence, Seen
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
CHANGES = "by task, then the other"
USERS = (1, 32)
_ENDPOINTS = 4
_QUESTIONS = 90
_TRAINING = 300  # questions of each task
_ATTEMPTS = 20
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
    names = ("laar", *RULES, CHANGES)
    cases = {key: key for key in product(("same", "anew"), names, users)}
    found = grid(run_one, cases, scope.seeds, label="modes")
    seen: dict[str, dict[str, Seen]] = {"same": {}, "anew": {}}
    for case, of in seen.items():
        for n in users:
            mean = {rule: _means(found[case, rule, n]) for rule in RULES}
            best = min(RULES, key=lambda rule: float(np.mean(mean[rule])))
            of[f"{n} users, {best}"] = Seen(_means(found[case, "laar", n]), mean[best])
    evidence: Evidence = {**seen}
    return Report(tables=[_table(case, names, users, found) for case in seen], evidence=evidence)


def run_one(case: str, rule: str, users: int, seed: int) -> _Run:
    """Ask a seed's questions by a rule."""
    asked = questions(case, seed, f"{seed}/asked", _QUESTIONS // len(ASSUMED))
    random.Random(seed).shuffle(asked)
    chosen, known = trained(case, seed)
    profile = load_profile("qwen2.5-7b-a100")
    link = LinkProfile(rtt_s=0.0005, jitter=0.1)
    sites = [Site(name=f"e{n}", model=MODEL, engine=profile, link=link) for n in range(_ENDPOINTS)]
    online = OnlineOutcomes(CapabilityModel(known))
    assessor = CapabilityAssessor(online.capability, online)
    settings = FleetSettings(modes={MODEL: {"fast": ModeSettings(chat={"think": False})}})
    attempts, stays = _ATTEMPTS, rule in RULES
    if stays:
        settings = replace(settings, modes={})
        attempts = 1 if case == "same" else _ATTEMPTS
    elif rule == CHANGES:
        assessor = Ruled(CapabilityModel(known), chosen)
    fleet = VirtualFleet(sites, settings, seed=seed, assessor=assessor)
    ways = {"always thinks": MODEL, "never thinks": FAST}
    answered = ask_until_correct(
        fleet,
        [_question(one, ways.get(rule, chosen[one.task]) if stays else "") for one in asked],
        concurrency=users,
        max_attempts=attempts,
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


@lru_cache(maxsize=2)
def trained(case: str, seed: int) -> tuple[Mapping[str, str], Capability]:
    """Return the mode that a rule takes for each task, and laar's artifact."""
    asked = questions(case, seed, "trained", _TRAINING)
    outcomes = [
        MeasuredOutcome(
            query_id=one.name,
            model=way,
            base=None if way == MODEL else MODEL,
            correct=one.is_correct(way),
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
    measured = {
        (task, way): [_alone(one, way) for one in questions(case, seed, "trained", _TRAINING)]
        for task, way in product(ASSUMED, WAYS)
    }
    chosen = {
        task: min(WAYS, key=lambda way: np.mean([s for t, s in measured[task, way] if t == task]))
        for task in ASSUMED
    }
    return chosen, fit(outcomes, created="lab", data_sha256="0" * 64).artifact


def _alone(one: _Asked, way: str) -> tuple[str, float]:
    """Return a question's task, and its measure on an idle engine in one mode."""
    took_s = 0.0
    for _ in range(1 if one.case == "same" else _ATTEMPTS):
        took_s += _DECODE_S * one.tokens(way)
        if one.is_correct(way):
            return one.task, min(took_s / one.limit_s, 1.0)
    return one.task, 1.0


class Ruled(CapabilityAssessor):
    """Thinks that only the mode of a rule is right, so that the other comes after it."""

    def __init__(self, capability: CapabilityModel, chosen: Mapping[str, str]) -> None:
        super().__init__(capability)
        self._chosen = chosen

    def assess(
        self, request: RequestText, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Assess with a probability of nearly 1 or 0."""
        known = super().assess(request, models, tried, now)
        first = self._chosen[request.task]
        right = np.array([0.999 if model == first else 0.001 for model in models])
        return replace(known, probability=right)


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
        columns=("", *map(str, users), *(f"{t}, {most}" for t in ASSUMED), f"by T, {most}"),
        rows=[row(name) for name in names],
        digits=3,
    )


EXPERIMENTS = declared(__name__, {"modes": run})

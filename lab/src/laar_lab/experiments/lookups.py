"""LAAR's evaluation in the lab: five models, 15 cells of KV look-ups, users who retry.

A run is one contestant on one cell and seed: 50 held-out queries, 8 users, a fresh fleet. Engines
are as in the simulated endpoint: the model's speeds, vLLM's scheduler, chunks of 2,048 tokens, and
the memory that a 7B model leaves on an A100.

There are two settings. In `repeat` a retry pays for its whole prompt again wherever it goes. In
`cached` engines cache prompts (vLLM's default), so asking the model that was just wrong costs only
the decoding of the same wrong answer. Policies that do so give up fast, which the paper's censored
times reward. Both are shown; see `laar_ttca`.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from laar.accuracy.artifact import Capability, parse_artifact
from laar.accuracy.assessment import Assessment, RequestText
from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.core.interfaces import Assessor
from laar.request import Request
from laar_lab.experiment import Scope
from laar_lab.kv_lookup import queries
from laar_lab.measure_fleet import default_artifact
from laar_lab.sim.answers import AccuracySurface
from laar_lab.sim.engine import EngineProfile, EngineSettings, LinearCost, load_profile
from laar_lab.sim.fleet import (
    Answered,
    FleetSettings,
    LinkProfile,
    Question,
    Site,
    VirtualFleet,
    ask_until_correct,
)
from laar_lab.sim.fleet.clients import MAX_ATTEMPTS
from laar_lab.sweep import grid
from laar_lab.workloads.kv_questions import as_questions

Cell = tuple[str, int]
"""Language, and length in tokens."""

USERS = 8
PER_CELL = 50
MIXED_PER_CELL = 8
BASELINES = (
    "load-aware",
    "session-affinity",
    "least-loaded",
    "round-robin",
    "random",
    "best-single",
)
CONTESTANTS = ("laar", "laar-paper", *BASELINES, "oracle")
_BLOCK_TOKENS = 128
"""Coarser than vLLM's 16, so that runs are eight times as fast. Prompts here share all or
nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The results of a run, as arrays over its queries.

    Args:
        latencies_s: seconds of each attempt, with shape (queries, MAX_ATTEMPTS); zero where there
            was no attempt.
        attempts: number of attempts.
        correct: whether the last attempt was correct.
    """

    latencies_s: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    attempts: np.ndarray[tuple[int], np.dtype[np.int64]]
    correct: np.ndarray[tuple[int], np.dtype[np.bool_]]

    @property
    def ttca_s(self) -> float:
        """Mean time until a query's correct answer or, if there is none, until giving up."""
        return float(self.latencies_s.sum() / len(self.correct))

    @property
    def success(self) -> float:
        """Share of the queries with a correct answer."""
        return float(self.correct.mean())


Results = dict[tuple[str, Cell], list[CellResult]]
"""Results by contestant and cell, one per seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The simulated models, and their accuracies as measured on other questions."""

    surface: AccuracySurface
    capability: Capability


@lru_cache(maxsize=1)
def simulated() -> World:
    """Return the fleet of laar-fleet.yaml, with its artifact, fitted to separate queries."""
    capability = parse_artifact(default_artifact(), source="laar-fleet.capability.json")
    return World(surface=AccuracySurface.load(), capability=capability)


def best_single(known: Capability) -> str:
    """Return the model that was correct most often when measured: the best fixed choice."""
    return max(known.models, key=lambda name: known.models[name].mean)


def cells_of(scope: Scope) -> list[Cell]:
    """Return the fleet file's cells; for a smoke test, one for each of at most three languages."""
    surface = simulated().surface
    languages, lengths = surface.languages, surface.lengths_tokens
    if scope.quick:
        return [(name, lengths[min(at, len(lengths) - 1)]) for at, name in enumerate(languages[:3])]
    return [(language, length) for language in languages for length in lengths]


def name_of(cell: Cell) -> str:
    """Return the name of a cell for tables."""
    return f"{cell[0]} {length_name(cell[1])}"


def length_name(tokens: int) -> str:
    """Return a length's unique label for tables."""
    return f"{tokens}" if tokens % 1024 else f"{tokens // 1024}K"


def sites_of(surface: AccuracySurface) -> list[Site]:
    """Return one endpoint per model."""
    blocks = load_profile("qwen2.5-7b-a100").settings.num_blocks * 16 // _BLOCK_TOKENS
    settings = EngineSettings(num_blocks=blocks, block_size=_BLOCK_TOKENS)
    return [
        Site(
            name=f"{name}:8000",
            model=name,
            engine=EngineProfile(
                name=name,
                cost=LinearCost(
                    seconds_per_token=model.seconds_per_token,
                    decode_s_per_token=model.decode_s_per_token,
                ),
                settings=settings,
            ),
            link=LinkProfile(rtt_s=0.0005, jitter=0.1),
        )
        for name, model in surface.models.items()
    ]


def run_cells(scope: Scope, contestants: Sequence[str], *, cached: bool, label: str) -> Results:
    """Run every contestant on every cell and seed; return results by contestant and cell."""
    cases = {key: (*key, cached) for key in product(contestants, cells_of(scope))}
    return grid(run_cell, cases, scope.seeds, label=label)


def run_cell(contestant: str, cell: Cell, cached: bool, seed: int) -> CellResult:
    """Run a contestant on a cell once; see the module's docstring."""
    world = simulated()
    surface, known = world.surface, world.capability
    asked = questions_of(surface, cell, seed, cached=cached)
    assessor: Assessor = CapabilityAssessor(CapabilityModel(known))
    policy, attempts = contestant, MAX_ATTEMPTS
    if contestant == "oracle":
        assessor, policy = Oracle(assessor, asked), "laar"
        attempts = 1  # the first answer is correct or none is
    elif contestant == "best-single":
        policy, name = "least-loaded", best_single(known)
        asked = [replace(q, request=replace(q.request, model=name)) for q in asked]
    fleet = VirtualFleet(
        sites_of(surface), FleetSettings(policy=policy), seed=seed, assessor=assessor
    )
    return result_of(ask_until_correct(fleet, asked, concurrency=USERS, max_attempts=attempts))


def questions_of(
    surface: AccuracySurface, cell: Cell, seed: int, *, cached: bool
) -> list[Question]:
    """Return a cell's held-out queries; unless cached, they have no block ids."""
    language, length = cell
    drawn = queries(languages=[language], lengths_tokens=[length], per_cell=PER_CELL, seed=seed)
    asked = as_questions(drawn, surface, seed=seed)
    return asked if cached else [uncached(question) for question in asked]


def asked_of(world: World, seed: int, quick: bool) -> list[Question]:
    """Return the questions of a seed in random order, like mixed traffic."""
    drawn = queries(
        languages=world.surface.languages,
        lengths_tokens=world.surface.lengths_tokens,
        per_cell=MIXED_PER_CELL // (4 if quick else 1),
        seed=seed,
    )
    random.Random(f"{seed}/shuffled").shuffle(drawn)
    return as_questions(drawn, world.surface, seed=seed)


def limit_s(surface: AccuracySurface, question: Question) -> float:
    """Return T: twice the time that an idle fleet takes to ask every model once."""
    prompt = question.prompt
    return 2.0 * sum(
        model.seconds_per_token * prompt.prompt_tokens
        + model.decode_s_per_token * prompt.output_tokens
        for model in surface.models.values()
    )


def uncached(question: Question) -> Question:
    """Return the question with a prompt that no engine caches."""
    return replace(question, prompt=replace(question.prompt, blocks=array("Q")))


def result_of(answered: Sequence[Answered]) -> CellResult:
    """Convert a run's answers to arrays."""
    latencies = np.zeros((len(answered), MAX_ATTEMPTS))
    for row, record in zip(latencies, answered, strict=True):
        row[: len(record.latencies_s)] = record.latencies_s
    return CellResult(
        latencies_s=latencies,
        attempts=np.array([len(record.models) for record in answered]),
        correct=np.array([record.correct for record in answered]),
    )


class ByModel(CapabilityAssessor):
    """Takes P(correct) from the model alone: its mean, given the failures of other models."""

    def assess(
        self, request: RequestText, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Assess with each model's mean, adjusted for earlier failures as in the artifact."""
        known = super().assess(request, models, tried, now)
        row = np.array([self.capability.base_rates[model] for model in models])
        return replace(
            known, sure=None, probability=self.capability.given_failures(row, models, tried)
        )


class AllRight:
    """Sets P(correct) to 1 for every model, so that the cost is time alone."""

    def __init__(self, inner: Assessor) -> None:
        self.inner = inner

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Assess with probability 1 for every model, and with each model's speed."""
        known = self.inner.assess(request, models, tried, now)
        return replace(known, sure=None, probability=np.ones(len(models)))


class Oracle:
    """The oracle, which knows the correct models; no picker can do better."""

    def __init__(self, inner: Assessor, asked: Sequence[Question]) -> None:
        self.inner = inner
        self._truth: Mapping[str, Question] = {q.request.id: q for q in asked}

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Assess with the known outcome: probability 1 or 0."""
        question = self._truth[request.id.rpartition("/")[0]]
        known = self.inner.assess(request, models, tried, now)
        right = np.array([float(question.is_correct(model)) for model in models])
        return replace(known, sure=None, probability=right)

"""Does the network term matter? One near and two far idle endpoints, decision by decision.

With physical weights (a millisecond is worth the tokens prefilled in it) a short cold prompt goes
to the near endpoint, and a cached prefix far away is worth its round trip if and only if prefilling
takes longer. GORGO's published weight, 0.276 tokens per millisecond, fails the second test by
design: it prices 456 ms the same as 126 tokens, which take 13 ms to prefill. The default weights
also favor cached prefixes, as a loaded fleet needs. If answers take long, the weighted round trip
is small enough for a near-tie, so cold prompts go anywhere, as the second column shows.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace

from laar.accuracy.assessor import Assessment
from laar.accuracy.capability import SpeedPrior
from laar.core.cost import CostWeights
from laar.core.picker import NEAR_TIE
from laar.core.policy import Policy
from laar.core.request import Request
from laar.policies import build_policies
from laar.policies.pickers import ShuffledMaxScore
from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import NEAR, sites_of
from laar_lab.policies.gorgo import Gorgo
from laar_lab.policies.published_cost import ExpectedTime, PublishedWeights
from laar_lab.report import Report, Table, Value
from laar_lab.sim.fleet import (
    Arrival,
    BlockPrefixes,
    FleetSettings,
    MeasuredAssessor,
    Prompt,
    VirtualFleet,
    request_of,
    spread,
)

_FAR = "seoul:8000"
_PHYSICAL = PublishedWeights(k_rtt=1.0, k_queue=0.0, k_delay=0.0, in_flight_tokens=0.0)
_PROMPTS = 200
_LEARNED = 100
_QUIET_S = 600.0
"""Idle seconds between the prompts that the picker learns from and the judged prompt."""
_TOKENS = 15_000
_ANSWER_S = 10.0
"""Seconds of decoding, the same at every endpoint."""
_SHARES = (0.0, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.6, 0.9)


class _LongAnswers(MeasuredAssessor):
    """Assessor with a prior for long answers."""

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        known = super().assess(request, models, tried, now)
        return replace(known, base_s=known.base_s + _ANSWER_S)

    def speed(self, model: str) -> SpeedPrior:
        return SpeedPrior(answer_s=super().speed(model).start_s + _ANSWER_S)


def _fleet(policy: Policy, seed: int, *, long_answers: bool = False) -> VirtualFleet:
    sites = sites_of("gorgo-main")
    return VirtualFleet(
        sites,
        FleetSettings(policy="x"),
        seed=seed,
        policies={"x": policy},
        assessor=_LongAnswers(sites) if long_answers else None,
    )


def _sent_to(fleet: VirtualFleet, number: int, prompt: Prompt) -> str:
    """Send a prompt to an idle fleet and return the endpoint that was chosen."""
    exchange = fleet.send(request_of(number, Arrival(at_s=0.0, prompt=prompt)), prompt, _ignored)
    assert exchange is not None  # without flow control nothing is held
    fleet.clock.run()
    return exchange.decision.address


def _ignored(_exchange: object) -> None:
    """Discard the answer, as no session is waiting for it."""


def _cold_near(policy: Policy, seed: int, *, long_answers: bool = False) -> float:
    """Return the share of short cold prompts that go to the near endpoint."""
    fleet, rng = _fleet(policy, seed, long_answers=long_answers), random.Random(seed)
    near = 0
    for number in range(1, _PROMPTS + 1):
        prompt = Prompt(prompt_tokens=rng.randint(32, 499), output_tokens=1, blocks=array("Q"))
        near += _sent_to(fleet, number, prompt) == NEAR
    return near / _PROMPTS


def _rightly(policy: Policy, seed: int, share: float) -> bool:
    """Return whether the picker uses a distant cache if and only if that saves time.

    Either choice is right if the two differ by less than the picker's margin for near-ties. Some
    prompts are sent first, so that the picker learns its engines' prefill times, which have no
    quadratic term.
    """
    fleet, rng = _fleet(policy, seed), random.Random(seed)
    for number in range(2, 2 + _LEARNED):
        tokens = rng.randint(1000, 2 * _TOKENS)
        _sent_to(fleet, number, Prompt(prompt_tokens=tokens, output_tokens=1, blocks=array("Q")))
    now = fleet.clock.now + _QUIET_S
    table, director = fleet.director.table, fleet.director
    for slot in table.active.tolist():  # probes continue
        table.round_trip(table.spec(slot).address, float(table.rtt_s[slot]), now)
    prefixes = director.prefixes
    assert isinstance(prefixes, BlockPrefixes)
    cached = int(share * _TOKENS) // 16
    blocks = spread(1, _TOKENS // 16)
    prompt = Prompt(prompt_tokens=_TOKENS, output_tokens=1, blocks=blocks)
    request = request_of(1, Arrival(at_s=0.0, prompt=prompt))
    if cached:
        prefixes.upcoming = Prompt(
            prompt_tokens=cached * 16, output_tokens=1, blocks=blocks[:cached]
        )
        prefixes.insert(table.slot(_FAR), prefixes.chain(request), now)
    prefixes.upcoming = prompt
    decision = director.choose(request, now)
    view = decision.view
    assert view is not None
    names = [view.table.spec(int(slot)).address for slot in view.slots]
    far, near = names.index(_FAR), names.index(NEAR)
    taken_s = view.rtt_s + (view.tokens - view.cached_tokens) * view.seconds_per_token
    if abs(taken_s[far] - taken_s[near]) <= 2.0 * NEAR_TIE * taken_s[near]:
        return True
    return (decision.address == _FAR) == bool(taken_s[far] < taken_s[near])


def run(scope: Scope) -> Report:
    """Run both kinds of decision with physical, default and published weights."""
    policies = {
        "physical": Policy(name="x", scorers=[(ExpectedTime(_PHYSICAL), 1.0)]),
        "laar": build_policies(CostWeights())["laar"],
        "gorgo, published": Policy(name="x", scorers=[(Gorgo(), 1.0)], picker=ShuffledMaxScore()),
    }
    rows: list[tuple[Value, ...]] = []
    found: dict[str, tuple[list[float], list[float]]] = {}
    for name, policy in policies.items():
        near = [_cold_near(policy, seed) for seed in scope.seeds]
        by_seed = [
            sum(_rightly(policy, seed, share) for share in _SHARES) / len(_SHARES)
            for seed in scope.seeds
        ]
        right = sum(by_seed) / len(by_seed)
        found[name] = (near, by_seed)
        patient = [_cold_near(policy, seed, long_answers=True) for seed in scope.seeds]
        shares = (sum(near) / len(near), sum(patient) / len(patient), right)
        rows.append((name, *(100 * share for share in shares)))
    table = Table(
        title=f"Idle replicas: cold prompts below 500 tokens, and {_TOKENS:,} tokens partly cached",
        columns=(
            "weights",
            "cold to the nearest %",
            f"the same, answers of {_ANSWER_S:g} s",
            "far prefix: correct decisions %",
        ),
        rows=rows,
        digits=1,
    )
    return Report(
        tables=[table],
        evidence={
            "cold-go-near": {name: Seen(found[name][0]) for name in ("physical", "laar")},
            "far-prefixes": {name: Seen(found[name][1]) for name in ("physical", "laar")},
            "published-weight": {"": Seen(found["gorgo, published"][1])},
        },
    )


EXPERIMENTS = declared(__name__, {"gorgo-rtt": run})

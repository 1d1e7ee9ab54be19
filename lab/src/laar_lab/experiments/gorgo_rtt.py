"""Does the network term matter? One near and two far idle endpoints, decision by decision.

A short cold prompt belongs at the near endpoint, and a cached prefix far away is worth the distance
if and only if prefilling takes longer than the round trips. Of these a long prompt needs several,
most of all on a new connection: the experiment counts them on the lab's link. GORGO's network term
is one round trip, which is too little even with a physical weight (a millisecond is worth the
tokens prefilled in it), and so all the more with its published one, 0.276 tokens per millisecond.
"""

from __future__ import annotations

import random
from array import array

import numpy as np

from laar.core.cost import CostWeights
from laar.core.picker import NEAR_TIE
from laar.core.policy import Policy
from laar.policies import build_policies
from laar_lab.claims import level
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import NEAR, sites_of
from laar_lab.policies.published_cost import ExpectedTime, PublishedWeights
from laar_lab.report import Report
from laar_lab.sim.fleet import (
    Arrival,
    BlockPrefixes,
    FleetSettings,
    Link,
    Prompt,
    VirtualFleet,
    request_of,
    spread,
)
from laar_lab.sweep import grid

_FAR = "seoul:8000"
_PROFILE = "gorgo-main"
_PHYSICAL = PublishedWeights(k_rtt=1.0, k_queue=0.0, k_delay=0.0, in_flight_tokens=0.0)
_PROMPTS = 200
_LEARNED = 100
_QUIET_S = 600.0
"""Idle seconds between the prompts that the picker learns from and the judged prompt."""
_TOKENS = 30_000
_SHARES = (0.0, 0.2, 0.4, 0.6, 0.7, 0.75, 0.8, 0.85, 0.95)


def _fleet(policy: Policy, seed: int) -> VirtualFleet:
    return VirtualFleet(
        sites_of(_PROFILE),
        FleetSettings(policy="x"),
        seed=seed,
        policies={"x": policy},
    )


def _sent_to(fleet: VirtualFleet, number: int, prompt: Prompt, only: str = "") -> str:
    """Send a prompt to an idle fleet, or to one endpoint; return the endpoint that was chosen."""
    request = request_of(number, Arrival(at_s=0.0, prompt=prompt))
    request.subset = frozenset({only}) if only else None
    exchange = fleet.send(request, prompt, _ignored)
    assert exchange is not None  # without flow control nothing is held
    fleet.clock.run()
    return exchange.decision.address


def _ignored(_exchange: object) -> None:
    """Discard the answer, as no session is waiting for it."""


def _cold_near(policy: Policy, seed: int) -> float:
    """Return the share of short cold prompts that go to the near endpoint.

    The first are not judged: to learn its pace, the picker tries each idle endpoint ten times.
    """
    fleet, rng = _fleet(policy, seed), random.Random(seed)
    near = 0
    for number in range(1, _LEARNED + _PROMPTS + 1):
        prompt = Prompt(prompt_tokens=rng.randint(32, 499), output_tokens=1, blocks=array("Q"))
        near += (_sent_to(fleet, number, prompt) == NEAR) and number > _LEARNED
    return near / _PROMPTS


def _rightly(policy: Policy, seed: int) -> float:
    """Return the share of `_SHARES` with which the picker rightly uses, or leaves, a distant cache.

    Either choice is right if the two differ by less than the picker's margin for near-ties. Some
    prompts are sent to each endpoint first, so that the picker knows its prefill times, which have
    no quadratic term, and has nothing to try.
    """
    fleet, rng = _fleet(policy, seed), random.Random(seed)
    sites = sites_of(_PROFILE)
    for number in range(2, 2 + _LEARNED):
        prompt = Prompt(
            prompt_tokens=rng.randint(1000, _TOKENS), output_tokens=1, blocks=array("Q")
        )
        _sent_to(fleet, number, prompt, only=sites[number % len(sites)].name)
    now = fleet.clock.now + _QUIET_S
    table, director = fleet.director.table, fleet.director
    for slot in table.active.tolist():  # probes continue
        table.round_trip(table.spec(slot).address, float(table.rtt_s[slot]), now)
    prefixes = director.prefixes
    assert isinstance(prefixes, BlockPrefixes)
    blocks = spread(1, _TOKENS // 16)
    prompt = Prompt(prompt_tokens=_TOKENS, output_tokens=1, blocks=blocks)
    request = request_of(1, Arrival(at_s=0.0, prompt=prompt))
    size, links = request.body_bytes, {site.name: site.link for site in sites}
    right = 0
    for share in _SHARES:  # ascending, as each adds to what is cached
        if cached := int(share * _TOKENS) // 16:
            prefixes.upcoming = Prompt(
                prompt_tokens=cached * 16, output_tokens=1, blocks=blocks[:cached]
            )
            receipt = prefixes.insert(table.slot(_FAR), prefixes.chain(request), now)
            prefixes.settle(receipt, None)
        prefixes.upcoming = prompt
        decision = director.choose(request, now)
        view = decision.view
        assert view is not None
        names = [view.table.spec(int(slot)).address for slot in view.slots]
        far, near = names.index(_FAR), names.index(NEAR)
        rounds = [1 + Link(links[name], rng).upload_rounds(now, size) for name in names]
        uncached_tokens = view.tokens - view.cached_tokens
        taken_s = view.rtt_s * np.array(rounds) + uncached_tokens * view.seconds_per_token
        is_tie = abs(taken_s[far] - taken_s[near]) <= 2.0 * NEAR_TIE * taken_s[near]
        right += is_tie or (decision.address == _FAR) == bool(taken_s[far] < taken_s[near])
    return right / len(_SHARES)


def _policy(weights: str) -> Policy:
    """Return the policy with the weights of a row of the table."""
    if weights == "physical":
        return Policy(name="x", scorers=[(ExpectedTime(_PHYSICAL), 1.0)])
    return build_policies(CostWeights())["laar"]


def run_one(weights: str, seed: int) -> dict[str, float]:
    """Run both kinds of decision with a policy of its own each."""
    return {
        "near": _cold_near(_policy(weights), seed),
        "right": _rightly(_policy(weights), seed),
    }


def run(scope: Scope) -> Report:
    """Run both kinds of decision with physical and with default weights."""
    cases = {name: (name,) for name in ("physical", "laar")}
    runs = grid(run_one, cases, scope.seeds, label="gorgo-rtt")
    return Report(
        evidence={
            "cold-go-near": {name: level(runs[name], "near") for name in ("physical", "laar")},
            "far-prefixes": {"": level(runs["laar"], "right")},
            "one-round-trip": {"": level(runs["physical"], "right")},
        },
    )


EXPERIMENTS = declared(__name__, {"gorgo-rtt": run})

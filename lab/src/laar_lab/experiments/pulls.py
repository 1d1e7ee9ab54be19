"""KV pulled from other endpoints by cost, compared with no pulls and with a pull whenever it can.

Conversations with long contexts keep two to four endpoints of one model (8B on an A100 each) busy.
Halfway something moves traffic away from where its prefixes are cached: an endpoint is added or
drains, or a prefix of 16,000 tokens becomes hot and is requested by 60 users within 15 s. What
counts is the later turns of conversations within 25 s, or the requests with the hot prefix.

All rules choose endpoints by the same cost. `always` is llm-d's rule: after the choice, the
endpoint pulls if another candidate has more of the prompt cached, as the picker believes. Pulls
from one endpoint share its bandwidth, 100,000 tokens per second. On the slow network it is 10,000,
and pulls are hardly worth their time, so that no gain over `never` is claimed there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import merge
from itertools import product
from random import Random
from typing import Literal

import numpy as np

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.sim.fleet import (
    BLOCK_TOKENS,
    Arrival,
    Exchange,
    FleetSettings,
    Prompt,
    VirtualFleet,
    replay_open,
    spread,
)
from laar_lab.sim.fleet.link import generator
from laar_lab.sim.fleet.operation import Operation
from laar_lab.suite.fleets import of_one
from laar_lab.sweep import grid
from laar_lab.workloads.sessions import ChatShape, chats

Rule = Literal["never", "by-cost", "always"]
RULES: tuple[Rule, ...] = ("by-cost", "never", "always")

MOVES_S, COUNTED_S, SECONDS = 30.0, 25.0, 56.0
HOT_TOKENS, HOT_USERS, HOT_S = 16_000, 60, 15.0
_HOT_BASE = 1 << 50

_TALKS = ChatShape(
    single_share=0.1,
    mean_turns=8.0,
    pause_s=15.0,
    first_log=(8.8, 0.5),
    output_log=(5.0, 0.5),
    max_output_tokens=300,
    template_share=0.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A fleet, its traffic and what happens.

    Args:
        before: number of endpoints at first.
        after: number of endpoints from `MOVES_S` on.
        talks_per_s: requests per second in conversations.
        hot: whether a prefix becomes hot.
        tokens_per_s: rate of pulls from an endpoint.
    """

    before: int
    after: int
    talks_per_s: float
    hot: bool = False
    tokens_per_s: float = 100_000.0

    def arrivals(self, rng: Random) -> Iterator[Arrival]:
        """Yield the requests in chronological order."""
        shape = replace(_TALKS, requests_per_s=self.talks_per_s)
        talks = _turns(chats(shape, Random(rng.getrandbits(64)), SECONDS))
        return merge(talks, _hot(rng) if self.hot else (), key=lambda arrival: arrival.at_s)


WORLDS = {
    "one added": World(before=3, after=4, talks_per_s=4.5),
    "one drained": World(before=3, after=2, talks_per_s=3.0),
    "hot prefix": World(before=3, after=3, talks_per_s=2.0, hot=True),
    "hot prefix, slow network": World(
        before=3, after=3, talks_per_s=2.0, hot=True, tokens_per_s=10_000.0
    ),
}


def _turns(arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
    """Mark the turns of conversations after the first, whose prefix was cached somewhere."""
    seen = set[str]()
    for arrival in arrivals:
        yield replace(arrival, kind="turn") if arrival.session in seen else arrival
        seen.add(arrival.session)


def _hot(rng: Random) -> Iterator[Arrival]:
    """Yield the requests with the hot prefix; the first comes early enough to be cached."""
    times = sorted(MOVES_S + rng.uniform(0.0, HOT_S) for _ in range(HOT_USERS))
    prefix = spread(_HOT_BASE, HOT_TOKENS // BLOCK_TOKENS)
    for number, at_s in enumerate([MOVES_S - 5.0, *times], 1):
        tokens = HOT_TOKENS + rng.randint(50, 500)
        own = spread(_HOT_BASE + (number << 20), 64)
        prompt = Prompt(prompt_tokens=tokens, output_tokens=100, blocks=prefix + own)
        yield Arrival(at_s=at_s, prompt=prompt, session=f"hot {number}", kind="hot")


def run_one(world: World, rule: Rule, seed: int) -> dict[str, float]:
    """Run a world under a rule once."""
    count = max(world.before, world.after)
    sites = [
        replace(site, transfer_tokens_per_s=world.tokens_per_s)
        for site in of_one("llama-3-8b-a100", count)
    ]
    fleet = VirtualFleet(sites, FleetSettings(pulls=rule), seed=seed)
    names = [site.name for site in sites]
    operation = Operation(fleet, names, world.before, generator(seed, "operation"))
    operation.drains = True
    operation.scale(MOVES_S, world.after, COUNTED_S)
    ttft = []

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        is_counted = MOVES_S <= arrival.at_s < MOVES_S + COUNTED_S
        if not is_counted or arrival.kind != ("hot" if world.hot else "turn"):
            return
        ttft.append(exchange.first_s - arrival.at_s)

    arrivals = world.arrivals(generator(seed, "pulls"))
    replay_open(fleet, arrivals, ended, max_in_flight=4096)
    return {
        "ttft_p95_s": float(np.percentile(ttft, 95)),
    }


def run(scope: Scope) -> Report:
    """Run every world under every rule."""
    names = ("hot prefix",) if scope.quick else tuple(WORLDS)
    cases = {(name, rule): (WORLDS[name], rule) for name, rule in product(names, RULES)}
    runs = grid(run_one, cases, scope.seeds, label="pulls")

    def beside(rule: Rule) -> dict[str, Seen]:
        return {
            name: paired(runs[name, "by-cost"], runs[name, rule], "ttft_p95_s")
            for name in names
            if rule == "always" or name != "hot prefix, slow network"
        }

    evidence = {"beside-none": beside("never"), "beside-always": beside("always")}
    return Report(evidence=evidence)


EXPERIMENTS = declared(__name__, {"pulls": run})

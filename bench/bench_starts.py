"""Measure whom the default policy chooses before it knows the engines' speeds, in virtual time.

`fresh`: fleets of three to six idle endpoints of unequal speed start under light load; most of the
requests 20 to 60, and of those after 100, should go to the fastest. `added`: a replica as fast as
the fastest endpoint joins such a fleet; it should get one of the next 50 requests. `useless`: one
of five equal endpoints ends its answers at once, whatever it says about their length; its speed
alone should bring it no more than a fifth of 1,400 requests.

    python -m bench starts
    python -m bench starts --seeds 5
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from bench.options import count, parser_for
from laar.core.decision import Completion, Decision
from laar.health import Kind, Reply
from laar_lab.sim.engine import EngineProfile, EngineSettings, LinearCost
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    Prompt,
    Site,
    VirtualFleet,
    replay_open,
    spread,
)
from laar_lab.suite.fleets import nothing

WARM_UP, NEXT, SOON = 100, 100, 50
EQUALS, USUAL_S, AT_ONCE_S = 5, 0.06, 0.001
TOKENS = 20
"""Median length of an answer."""

FORMS: Mapping[str, Callable[[int | None], int | None]] = {
    "as many tokens": lambda tokens: tokens,
    "one token": lambda tokens: tokens and 1,
    "no count": lambda _tokens: None,
}
"""What the useless endpoint reports about the length of an answer."""


def site(name: str, model: str, answer_s: float) -> Site:
    """Return an endpoint whose usual answer takes `answer_s` seconds."""
    cost = LinearCost(seconds_per_token=answer_s / 4000, decode_s_per_token=answer_s / TOKENS)
    return Site(
        name=name,
        model=model,
        engine=EngineProfile(name=name, cost=cost, settings=EngineSettings(num_blocks=4096)),
    )


def fleet_of(sites: Sequence[Site], seed: int) -> VirtualFleet:
    """Return a fleet of which the picker knows nothing."""
    return VirtualFleet(sites, FleetSettings(), seed=seed, assessor=nothing(sites))


def chosen(fleet: VirtualFleet, rng: random.Random, requests: int, gap_s: float) -> list[str]:
    """Send requests for any model; return the addresses that they went to."""
    addresses: list[str] = []

    def arrivals() -> Iterator[Arrival]:
        at_s = fleet.clock.now
        for _ in range(requests):
            at_s += rng.expovariate(1.0 / gap_s)
            tokens = rng.randint(50, 400)
            length = max(1, round(TOKENS * rng.lognormvariate(0.0, 0.5)))
            blocks = spread(rng.getrandbits(63), tokens // 16)
            prompt = Prompt(prompt_tokens=tokens, output_tokens=length, blocks=blocks)
            yield Arrival(at_s=at_s, prompt=prompt)

    def ended(_arrival: Arrival, exchange: Exchange) -> None:
        addresses.append(exchange.address)

    replay_open(fleet, arrivals(), ended, max_in_flight=requests)
    return addresses


def unequal(rng: random.Random) -> tuple[float, list[Site]]:
    """Return the seconds of the fastest endpoint's answers, and three to six endpoints.

    The fastest is the last; they serve one or two models.
    """
    fastest_s = rng.uniform(0.1, 0.5)
    slower = [fastest_s * rng.uniform(1.4, 5.0) for _ in range(rng.randint(2, 5))]
    return fastest_s, [
        site(f"e{at}", f"m{rng.randint(1, 2)}", answer_s)
        for at, answer_s in enumerate([*slower, fastest_s])
    ]


REPORTED = [site("e0", "granite", 1.2), site("e1", "phi", 0.38), site("e2", "granite", 0.25)]
"""The fleet of the report that led to this benchmark."""


def fresh(seed: int, sites: Sequence[Site] | None = None) -> tuple[float, float]:
    """Return the fastest endpoint's share of the requests 20 to 60, and after the warm-up."""
    rng = random.Random(f"fresh {seed}")
    sites = sites or unequal(rng)[1]
    addresses = chosen(fleet_of(sites, seed), rng, WARM_UP + NEXT, 1.0)
    name = sites[-1].name
    return addresses[20:60].count(name) / 40, addresses[WARM_UP:].count(name) / NEXT


def added(seed: int) -> int:
    """Return how many of the next requests, six at a time, go to a replica that joins."""
    rng = random.Random(f"added {seed}")
    fastest_s, sites = unequal(rng)
    twin = replace(sites[-1], name="added")
    fleet = fleet_of([*sites, twin], seed)
    fleet.discover([one.name for one in sites])
    chosen(fleet, rng, WARM_UP, 1.0)
    fleet.discover([one.name for one in [*sites, twin]])
    sent: list[str] = []
    fleet.director.watch(decided=lambda decision: sent.append(decision.address))
    chosen(fleet, rng, SOON, fastest_s / 6)
    return sent[:SOON].count("added")


def useless(
    seed: int, form: str, equals: int = EQUALS, at_once_s: float = AT_ONCE_S, per_s: float = 60.0
) -> float:
    """Return the share of an endpoint that answers at once, after the warm-up."""
    rng = random.Random(f"useless {seed} {form}")
    sites = [site(f"e{at}", "m", USUAL_S) for at in range(equals - 1)]
    fleet = fleet_of([*sites, site("quick", "m", at_once_s)], seed)
    settle = fleet.director.settle

    def report(decision: Decision, end: Completion) -> None:
        if decision.address == "quick":
            end.completion_tokens = FORMS[form](end.completion_tokens)
            if end.shown is not None:  # the same text for every prompt
                end.shown = end.shown._replace(said=1)
        settle(decision, end)

    fleet.director.settle = report  # type: ignore[method-assign]
    questions = fleet.director.health.questions
    answered, quick = questions.answered, fleet.director.table.slot("quick")

    def differ(slot: int, reply: Reply | None, now: float, failed: Kind | None) -> None:
        if reply is not None and slot == quick:  # it does not know what its siblings say
            reply.said = 2
        answered(slot, reply, now, failed)

    questions.answered = differ  # type: ignore[assignment]
    addresses = chosen(fleet, rng, 1500, 1.0 / per_s)[WARM_UP:]
    return addresses.count("quick") / len(addresses)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the three parts and print a line for each."""
    parser = parser_for("starts", __doc__)
    parser.add_argument("--seeds", type=count, default=30, help="runs of each part")
    seeds = range(parser.parse_args(argv).seeds)
    for name, sites in (("reported fleet", REPORTED), ("drawn fleets", None)):
        by_time = zip(*(fresh(seed, sites) for seed in seeds), strict=True)
        for when, of_time in zip(("requests 20 to 60", "later"), by_time, strict=True):
            right = sum(share >= 0.5 for share in of_time)
            print(f"fresh, {name}, {when}: {right} of {len(of_time)} send most to the fastest")
    got = [added(seed) for seed in seeds]
    print(f"added: {min(got)} to {max(got)} of the next {SOON} requests go to the new replica")
    for form in FORMS:
        shares = [useless(seed, form) for seed in seeds]
        mean = sum(shares) / len(shares)
        print(f"useless, {form}: {max(shares):.0%} at most, {mean:.0%} on average")

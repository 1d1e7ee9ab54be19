"""Medha's order in the picker's queue, with engines as shipped by vLLM.

The load of `laar_lab.workloads.overload` runs behind the production director and flow control on a
virtual clock: a minute at 1.2 times the fleet's capacity, until the queue has been served or shed.
The same requests run with the queue in slack order, in order of arrival, and without a queue. Slack
order includes rules for long prompts: only some endpoints take them, and a short prompt need not
wait behind a long one that has no endpoint. Order of arrival also runs with these rules, to
separate the two effects. In two more rows, a static pool of one or two endpoints takes the long
prompts and nothing else, in order of arrival.

The fleet's capacity is measured as the time it takes to serve thousands of simultaneous requests.
The picker sees the first token of every answer, as in the gateway shape, except in one row. There
it reads only 1 answer in 100, and one every 0.25 s, as by default in the native shape.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from laar.errors import RequestError
from laar.flow.settings import FlowSettings
from laar.protocol.sampling import Sampler
from laar.request import Api, Request
from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import FIRST_SEED, Scope
from laar_lab.report import Report
from laar_lab.sim.fleet import Exchange, FleetSettings, Prompt, VirtualFleet, generator
from laar_lab.sweep import grid
from laar_lab.workloads.overload import (
    MODEL,
    PROBE_POLICY,
    QUEUES,
    Ask,
    asks,
    assessor,
    overload,
    sites,
    weight,
)

_MINUTE_S = 60.0
_SAMPLED = "slack, 1 in 100 read"
_POOLS = {"arrival, a pool of 1": 1, "arrival, a pool of 2": 2}
"""Number of endpoints that take only long prompts, which go nowhere else."""
_ROUTES = ("slack", _SAMPLED, *list(QUEUES)[1:], *_POOLS)
PROBE_REQUESTS = 3000
"""Enough that the end of the run, when some endpoints are already idle, hardly matters."""
_CHARS = 4


@dataclass(slots=True, kw_only=True)
class _Asked:
    """A request of the load, and its outcome."""

    ask: Ask
    ttft_s: float = math.inf
    is_shed: bool = False


def _fleet(route: str, seed: int) -> VirtualFleet:
    """Return the fleet behind one of `_ROUTES`; prompts share nothing."""
    flow = QUEUES[{_SAMPLED: "slack", **dict.fromkeys(_POOLS, "arrival")}.get(route, route)]
    settings = FleetSettings(use_prefixes=False, sample_answers=0.0)
    return VirtualFleet(sites(), settings, seed=seed, assessor=assessor(), flow=flow)


def _serve(
    fleet: VirtualFleet, load: Sequence[Ask], sampler: Sampler, policy: str = "", pool: int = 0
) -> list[_Asked]:
    """Serve a load until every request has ended; `pool` endpoints take only long prompts."""
    asked = [_Asked(ask=ask) for ask in load]
    names, long_tokens = [site.name for site in sites()], FlowSettings().long_tokens

    def arrive(one: _Asked) -> None:
        ask = one.ask
        own = names[:pool] if ask.prompt_tokens > long_tokens else names[pool:]
        request = Request(
            id=str(ask.number),
            api=Api.CHAT,
            model=MODEL,
            chars=_CHARS * ask.prompt_tokens,
            body_bytes=_CHARS * ask.prompt_tokens,
            tenant=ask.tenant,
            subset=frozenset(own) if pool else None,
            policy=policy,
            ttft_objective_s=ask.objective_s,
            first_token_seen=sampler.draw(fleet.clock.now),
        )

        def end(exchange: Exchange) -> None:
            one.ttft_s = exchange.first_s - exchange.sent_s

        def refused(_error: RequestError) -> None:
            one.is_shed = True

        prompt = Prompt(
            prompt_tokens=ask.prompt_tokens, output_tokens=ask.output_tokens, blocks=array("Q")
        )
        fleet.enqueue(request, prompt, end, refused)

    for one in asked:
        fleet.clock.at(one.ask.at_s, arrive, one)
    fleet.clock.run()
    return asked


@lru_cache(maxsize=4)
def carried_per_s(requests: int = PROBE_REQUESTS) -> float:
    """Return the `weight` per second that the fleet serves if all requests arrive together."""
    load = asks(math.inf, requests, FIRST_SEED)
    fleet = _fleet("no queue", FIRST_SEED)
    _serve(fleet, load, _sampler("no queue", FIRST_SEED), PROBE_POLICY)
    return sum(map(weight, load)) / fleet.clock.now


def _sampler(route: str, seed: int) -> Sampler:
    """Return a sampler that chooses the requests whose first tokens are seen."""
    return Sampler(
        FleetSettings().sample_answers if route == _SAMPLED else 1.0,
        every_s=FleetSettings().sample_every_s,
        rng=generator(seed, "read"),
    )


def serve(route: str, duration_s: float, seed: int) -> dict[str, float]:
    """Serve an overload by a route; return the share within the objective."""
    fleet = _fleet(route, seed)
    asked, pool = overload(carried_per_s(), duration_s, seed), _POOLS.get(route, 0)
    load = _serve(fleet, asked, _sampler(route, seed), pool=pool)

    return {"within": sum(one.ttft_s <= one.ask.objective_s for one in load) / max(1, len(load))}


def run_picker(scope: Scope) -> Report:
    """Run the same requests by every route."""
    duration_s = 20.0 if scope.quick else _MINUTE_S
    cases = {route: (route, duration_s) for route in _ROUTES}
    runs = grid(serve, cases, scope.seeds, label="medha-picker")

    def more(ours: str, theirs: str) -> Seen:
        return paired(runs[ours], runs[theirs], "within")

    return Report(
        evidence={
            "slack": {"": more("slack", "arrival")},
            "order-alone": {"": more("slack", "arrival, kept apart")},
            "pool": {route: more("slack", route) for route in _POOLS},
            "sampled": {"": more(_SAMPLED, "slack")},
            "sampled-no-queue": {"": more(_SAMPLED, "no queue")},
        },
    )


EXPERIMENTS = declared(__name__, {"medha-picker": run_picker})

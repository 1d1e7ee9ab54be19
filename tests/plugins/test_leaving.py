"""No plug-in fails because an endpoint has left, whatever it still knows of it."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from laar.core.decision import Completion
from laar.errors import RequestError
from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec
from laar.health import Health, HealthSettings
from laar.health.explained import Shown
from laar.prefix.beliefs import PrefixBeliefs
from support.directors import director_of
from support.requests import request_of

SEEDS, STEPS = 20, 300
ADDRESSES = [f"10.0.0.{number}:80" for number in range(1, 6)]


def spec_of(address):
    number = int(address[7])
    labels = {"laar.dev/pull": "true"} if number % 2 else {}
    names = ("m", "lora") if number < 4 else ("m",)
    return EndpointSpec(address=address, models=names, adapters=frozenset(names[1:]), labels=labels)


class Fleet:
    """Clients, engines that answer, fail and die, and a list of endpoints that changes."""

    def __init__(self, seed):
        self.rng, self.now, self.flights = random.Random(seed), 0.0, []
        self.director = director_of(
            *map(spec_of, ADDRESSES),
            seed=seed,
            health=Health(HealthSettings(), rng=random.Random(seed)),
            prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 20),
            aliases={"auto": ("m",)},
        )

    def change(self):
        rng = self.rng
        listed = rng.sample(ADDRESSES, rng.randint(1, len(ADDRESSES)))
        self.director.table.replace("t", map(spec_of, listed))

    def ask(self):
        rng = self.rng
        text = f"{rng.randrange(4)} " * 400
        decision = self.director.decide(
            request_of(
                text,
                model=rng.choice(("m", "lora", "auto")),
                digest=rng.randrange(1, 60),
                tenant=rng.choice(("", "a")),
                tried=rng.choice(("", "", "m")),
                first_token_seen=True,
            ),
            self.now,
        )
        if rng.random() < 0.3 and decision.fallbacks:
            self.director.served_by(decision, decision.fallbacks[0], self.now)
        self.flights.append(decision)

    def end(self):
        if not self.flights:
            return
        rng = self.rng
        decision = self.flights.pop(rng.randrange(len(self.flights)))
        took_s = self.now - decision.now
        if rng.random() < 0.6:
            self.director.answering(decision, self.now)
            end = Completion(
                status=200,
                cause="complete",
                latency_s=took_s,
                ttft_s=took_s / 2,
                prompt_tokens=200,
                completion_tokens=rng.choice((1, 100)),
                cached_tokens=rng.choice((None, 0, 150)),
                shown=Shown("chat", rng.choice((1, 100)), "content", rng.random()),
            )
        else:
            status, cause = rng.choice(((None, "reset"), (500, "complete"), (None, "disconnect")))
            end = Completion(status=status, cause=cause, latency_s=took_s)
        self.director.settle(decision, end)

    def die(self):
        table = self.director.table
        slot = self.rng.choice(list(table.by_slot))
        self.director.health.died(slot, self.now)
        self.director.plugins.ask("restarted", slot)
        self.director.plugins.ask("read", slot, Reading(waiting=0.0, running=1.0))

    def look(self):
        plugins = self.director.plugins
        plugins.restore(plugins.save())
        for point in ("problems", "samples"):
            for answer in plugins.each(point):
                list(answer)
        for slot in list(self.director.table.by_slot):
            self.director.holds(slot, self.now)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_endpoints_may_leave_whenever_and_no_plugin_fails(seed):
    fleet = Fleet(seed)
    for _ in range(STEPS):
        fleet.now += fleet.rng.choice((0.01, 0.5, 20.0))
        does = (fleet.ask, fleet.ask, fleet.end, fleet.change, fleet.die, fleet.look)
        with suppress(RequestError):  # no such model now, or a body that kills
            fleet.rng.choice(does)()
        assert not fleet.director.degraded

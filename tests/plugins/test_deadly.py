"""Bodies in doubt: who is refused, and for how long."""

from __future__ import annotations

import math
import random

import pytest

from laar.core.decision import Completion
from laar.errors import RequestError
from laar.health import Health, HealthSettings
from laar.plugins.deadly import DEATHS, LINGER_S, DeadlyBodies
from support.directors import director_of
from support.requests import request_of


class Fleet:
    """A director with one plug-in, and endpoints with slots from 0 on."""

    def __init__(self, count=3):
        self.bodies = DeadlyBodies()
        self.addresses = tuple(f"10.0.0.{n}:80" for n in range(1, 1 + count))
        health = Health(HealthSettings(), rng=random.Random(1))
        self.director = director_of(*self.addresses, plugins=[self.bodies], health=health)
        self.records = self.director.health.records
        for slot in range(count):
            self.records.of(slot, "m", 0.0)

    def ask(self, digest, now, tenant="a"):
        return self.director.decide(request_of("x", digest=digest, tenant=tenant), now)

    def failed(self, digest, slot, now, tenant="a"):
        decision = self.director.choose(request_of("x", digest=digest, tenant=tenant), now)
        self.director.plugins.ask("failed", decision, slot, now)

    def gone(self, slot, now):
        self.records.gone(self.records.endpoints[slot], now)


def test_a_body_that_was_where_two_endpoints_died_is_refused():
    fleet = Fleet()
    fleet.failed(1, 0, 1.0)
    fleet.gone(0, 1.5)
    fleet.gone(0, 1.6)  # the same death
    assert fleet.bodies.case(1, 2.0).deaths == 1
    second = fleet.ask(1, 2.0).slot
    fleet.gone(second, 100.0)  # however long it took
    assert fleet.bodies.case(1, 3000.0).deaths == DEATHS
    assert fleet.bodies.case(1, 6000.0) is not None  # it is asked for again and again
    assert fleet.bodies.case(1, 10_000.0) is None


def test_a_failure_that_no_death_follows_is_soon_forgotten_also_if_nobody_asks():
    fleet = Fleet()
    fleet.failed(1, 0, 1.0)
    assert fleet.bodies.case(1, 2.0).places == {0: 1.0}
    assert fleet.director.plugins.wary
    fleet.ask(2, 2.0 + LINGER_S)
    assert not fleet.director.plugins.wary
    fleet.gone(0, 60.0)
    assert fleet.bodies.case(1, 60.0) is None


def test_a_good_answer_clears_a_body_that_only_met_a_failure():
    fleet = Fleet()
    fleet.failed(1, 0, 1.0)
    decision = fleet.ask(1, 1.05)
    assert len(decision.fallbacks) <= 1
    fleet.director.settle(decision, Completion(status=200, cause="complete", latency_s=0.05))
    assert fleet.bodies.case(1, 1.2) is None


@pytest.mark.parametrize("seed", range(8))
def test_copies_are_at_two_endpoints_whichever_of_them_their_clients_give_up(seed):
    rng, fleet, now, running = random.Random(seed), Fleet(8), 0.0, []
    for slot in range(8):
        fleet.records.endpoints[slot].prove(0.0, "m")
    for _ in range(15):
        now += rng.choice([0.05, 1.0, LINGER_S + 2.0])
        running.append(fleet.ask(1, now))
        rng.shuffle(running)
        if rng.random() < 0.6 and len(running) > 1:
            given_up = running.pop()
            taken_s = now + 0.01 - given_up.now
            gone = Completion(status=None, cause="disconnect", latency_s=taken_s)
            fleet.director.settle(given_up, gone)
        assert len({each.slot for each in running}) <= DEATHS


@pytest.mark.parametrize("lives", [True, False])
@pytest.mark.parametrize("gap_s", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("sign", ["given up", "cut off", "repeated"])
def test_however_often_a_body_fails_only_deaths_refuse_it(sign, gap_s, lives):
    """On a machine without CPU time nobody answers, Envoy repeats, and nobody has died."""
    fleet, rng = Fleet(5), random.Random(f"{sign} {gap_s}")
    director, health, now, reached = fleet.director, fleet.director.health, 1.0, {}
    status, cause = (200, "reset") if sign == "cut off" else (None, "disconnect")
    for number in range(8):
        decision, took_s = fleet.ask(1, now), rng.uniform(0.0, 1.5)
        now += took_s
        reached[decision.slot] = now
        if sign == "repeated" and decision.fallbacks:
            director.served_by(decision, decision.fallbacks[0], now)
            reached[decision.flight.slot] = now
        director.settle(decision, Completion(status=status, cause=cause, latency_s=took_s))
        assert sum(now - at <= LINGER_S for at in reached.values()) <= DEATHS
        if lives:
            health.read(decision.slot, 0.1 * number, 0.0, now)
        now += gap_s
    for slot in range(DEATHS):
        fleet.failed(1, slot, now)
        fleet.gone(slot, now)
    with pytest.raises(RequestError, match="died"):
        fleet.ask(1, now)


def test_a_tenant_with_many_deadly_bodies_displaces_only_its_own():
    fleet = Fleet(1)
    fleet.failed(7, 0, 1.0)
    fleet.gone(0, 1.0)
    for digest in range(100, 5000):
        fleet.records.endpoints[0].is_gone = False
        fleet.failed(digest, 0, 1.0, tenant="b")
        fleet.gone(0, 1.0)
    assert fleet.bodies.case(7, 1.0).deaths == 1
    assert len(fleet.bodies.cases) <= 4096
    assert fleet.bodies.case(4999, 1.0).deaths == 1


def test_another_picker_and_a_restarted_one_refuse_it_too():
    fleet, others, restarted = Fleet(2), Fleet(2).bodies, Fleet(2).bodies
    fleet.bodies.on_case = lambda digest, case: others.heard(
        digest, list(case.places), case.deaths, case.failures, 1.0
    )
    for slot in (0, 1):
        fleet.bodies.failed(fleet.director.choose(request_of("x", digest=1), 0.5), slot, 1.0)
    assert others.case(1, 1.0).places.keys() == {0, 1}
    for slot in (0, 1):
        fleet.gone(slot, 1.0)
    restarted.restore([list(each) for each in fleet.bodies.save()])
    everywhere = (fleet.bodies, others, restarted)
    assert [each.case(1, 2.0).deaths for each in everywhere] == [DEATHS] * 3
    assert restarted.case(1, math.inf) is None

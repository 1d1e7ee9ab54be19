"""Bodies in doubt: who is refused, and for how long."""

from __future__ import annotations

import random

from laar.health import Health, HealthSettings
from laar.health.bodies import DEATHS, LINGER_S, Bodies


def endpoints(count):
    health = Health(HealthSettings(), rng=random.Random(0))
    return health, [health.records.of(slot, "m", 0.0) for slot in range(count)]


def test_a_body_that_was_where_two_endpoints_died_is_refused():
    health, (first, second, _) = endpoints(3)
    bodies = health.records.bodies
    bodies.failed(1, "a", first.slot, 1.0)
    bodies.gone(first, 1.5)
    bodies.gone(first, 1.6)  # the same death
    assert bodies.case(1, 2.0).deaths == 1
    bodies.sent(1, second.slot)
    bodies.gone(second, 100.0)  # however long it took
    assert bodies.case(1, 3000.0).deaths == DEATHS
    assert bodies.case(1, 6000.0) is not None  # it is asked for again and again
    assert bodies.case(1, 10_000.0) is None


def test_a_failure_that_no_death_follows_is_soon_forgotten():
    health, (first, _) = endpoints(2)
    bodies = health.records.bodies
    bodies.failed(1, "a", first.slot, 1.0)
    assert bodies.case(1, 2.0).places == {first.slot: 1.0}
    assert bodies.case(1, 2.0 + LINGER_S) is None
    bodies.gone(first, 60.0)
    assert bodies.case(1, 60.0) is None


def test_a_good_answer_clears_a_body_that_only_met_a_failure():
    health, (first, second) = endpoints(2)
    bodies = health.records.bodies
    bodies.failed(1, "a", first.slot, 1.0)
    bodies.sent(1, second.slot)
    bodies.ended(1, second.slot, 1.1, good=True)
    assert bodies.case(1, 1.2) is None


def test_a_tenant_with_many_deadly_bodies_displaces_only_its_own():
    health, (first, *_) = endpoints(1)
    bodies = health.records.bodies
    bodies.failed(7, "a", first.slot, 1.0)
    bodies.gone(first, 1.0)
    for digest in range(100, 1000):
        first.is_gone = False
        bodies.failed(digest, "b", first.slot, 1.0)
        bodies.gone(first, 1.0)
    assert bodies.case(7, 1.0).deaths == 1
    assert len(bodies.deadly) < 300
    assert bodies.case(999, 1.0).deaths == 1


def test_another_picker_and_a_restarted_one_refuse_it_too():
    health, (first, second) = endpoints(2)
    bodies, others, restarted = health.records.bodies, Bodies(), Bodies()
    bodies.on_case = lambda digest, case: others.heard(
        digest, list(case.places), case.deaths, case.failures, 1.0
    )
    for endpoint in (first, second):
        bodies.failed(1, "a", endpoint.slot, 1.0)
    assert others.case(1, 1.0).places.keys() == {first.slot, second.slot}
    for endpoint in (first, second):
        bodies.gone(endpoint, 1.0)
    for digest, deaths in bodies.state():
        restarted.heard(digest, [], deaths, deaths, 2.0)
    assert [each.case(1, 2.0).deaths for each in (bodies, others, restarted)] == [DEATHS] * 3

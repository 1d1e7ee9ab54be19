"""How long clients are held is learned from those that break off and ask again."""

import itertools
import random

import pytest

from laar.flow.bearing import LEAST_S, Bearing, ClientKind, Hold

FIRST_S, MOST_S = 60.0, 300.0


KIND = ClientKind("tenant", "name", None)
CLOCK = itertools.count(0.0, 1_000.0)


def hold(bearing, needs_s, own_timeout_s, *, kind=KIND, leaves=False, digest=7):
    """Hold a client, and again if its own timeout ends that; return its limit, if that held."""
    for attempt in range(10):
        now = next(CLOCK)
        first = Hold(kind, digest, now, bearing.limit_s(kind, FIRST_S, MOST_S))
        limit_s = bearing.begins(first)
        lasts_s = min(limit_s, needs_s)
        if leaves:
            bearing.left(first, now + 0.5 * lasts_s)
            return None
        if lasts_s < own_timeout_s:
            bearing.borne(first._replace(limit_s=limit_s), now + lasts_s)
            return limit_s if attempt == 0 else None
        bearing.left(first, now + own_timeout_s)
    raise AssertionError("no attempt was borne")


@pytest.mark.parametrize("own_timeout_s", [8.0, 20.0, 30.0, 59.0, 120.0, 250.0])
@pytest.mark.parametrize("seed", range(3))
def test_one_hold_in_a_hundred_meets_a_timeout_whatever_that_is(own_timeout_s, seed):
    rng, bearing = random.Random(seed), Bearing()
    holds = [hold(bearing, rng.uniform(1.0, 900.0), own_timeout_s) for _ in range(2_000)]
    assert holds.count(None) <= 0.015 * len(holds)
    assert sum(filter(None, holds[1_000:])) / 1_000 > 0.4 * own_timeout_s


def test_clients_that_bear_everything_are_held_as_long_as_their_gateway_allows():
    bearing = Bearing()
    holds = [hold(bearing, 900.0, 1e9) for _ in range(400)]
    assert holds[0] == FIRST_S
    assert holds == sorted(holds)
    assert holds[-1] == MOST_S


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_users_that_stop_a_turn_do_not_shorten_the_holds_of_others_much(share):
    rng, bearing = random.Random(1), Bearing()
    for number in range(3_000):
        hold(bearing, 900.0, 1e9, leaves=rng.random() < share, digest=number)
    assert bearing.limit_s(KIND, FIRST_S, MOST_S) > FIRST_S


def test_holds_that_end_together_count_once():
    bearing = Bearing()
    holds = [Hold(KIND, digest, 0.0, 60.0) for digest in range(1, 101)]
    for each in holds:
        bearing.left(each, 10.0 + 0.4 * each.digest)  # the gateway restarts, say
    for each in holds:
        bearing.begins(each._replace(since=55.0))
    assert bearing.limit_s(KIND, FIRST_S, MOST_S) == pytest.approx(10.4 * 1.01**-99)


@pytest.mark.parametrize("limit_s", [0.0, 20.0, 60.0, 1e9])
@pytest.mark.parametrize("seed", range(4))
def test_the_wait_that_is_enough_is_that_of_clients_who_wait_for_the_same_room(seed, limit_s):
    rng, bearing, now = random.Random(seed), Bearing(), 0.0
    held, patient, waits_s = [], [], []  # with the limit, and without one
    for number in range(400):
        now += rng.expovariate(0.2)
        for old in [old for old in held if now - old.since > limit_s]:
            bearing.ends(old, old.since + limit_s, has_room=False)
            held.remove(old)
        new = Hold(KIND, number, now, limit_s, session=f"{number}")
        held.append(new)
        patient.append(new)
        if rng.random() < 0.3 * (1 + seed):
            bearing.ends(held.pop(0), now, has_room=True)
            waits_s.append(now - patient.pop(0).since)
    waits_s = waits_s[-256:] + [now - old.since for old in patient if old not in held]
    assert bearing.enough_s(now) == sorted(waits_s)[int(0.9 * len(waits_s))]
    assert bearing.ended["room"] + bearing.ended["limit"] + len(held) == 400


def test_no_client_shortens_the_holds_of_another_kind_or_tenant_or_its_own_to_nothing():
    bearing, good = Bearing(), KIND._replace(tenant="good")
    for number in range(20_000):
        one = Hold(KIND._replace(named_by=f"{number % 3_000}"), number, 0.0, 60.0)
        bearing.left(one, 0.1)
        bearing.begins(one)
        if number % 100 == 0:
            hold(bearing, 900.0, 1e9, kind=good)
    assert bearing.limit_s(good, FIRST_S, MOST_S) == MOST_S
    assert bearing.limit_s(one.kind, FIRST_S, MOST_S) >= LEAST_S


def test_turns_of_one_tenant_that_wait_on_push_out_none_of_anothers():
    bearing, good = Bearing(), KIND._replace(tenant="good")
    for number in range(100):
        bearing.ends(Hold(good, 0, 0.0, 60.0, f"good {number}", 1), 60.0, has_room=False)
    for has_room in (False, True):
        for number in range(2_000):
            bearing.ends(Hold(KIND, 0, 900.0, 60.0, f"{number}", 2), 900.0, has_room=has_room)
    assert bearing.enough_s(1_000.0) == 1_000.0

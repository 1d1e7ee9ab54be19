"""The number of requests lost to failing endpoints, in virtual time and without retries.

If one of five endpoints refuses, a random pick loses a fifth of the requests. A picker that ignores
outcomes loses four fifths, since an endpoint that refuses has no requests in flight.
"""

import functools
import itertools

import pytest
from virtual_fleet import (
    Answer,
    VirtualFleet,
    error_event,
    hangs,
    no_room,
    refuses,
    slow,
)

from laar.policies import POLICY_NAMES

pytestmark = pytest.mark.long

REQUESTS = 900
SEEDS = (1, pytest.param(2, marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def sound():
    """Return a run of the same fleet without failures, by seed."""
    return functools.cache(lambda seed: VirtualFleet(seed=seed).run(REQUESTS))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("behavior", "at_most"),
    [
        pytest.param(refuses(503), 3, id="503 at once"),
        pytest.param(refuses(503, since=5.0), 3, id="503 after a while"),
        pytest.param(refuses(500), 3, id="500 at once"),
        pytest.param(refuses(500, since=5.0), 3, id="500 after a while"),
        pytest.param(refuses(503, share=0.5), 6, id="every second one"),
        pytest.param(error_event(), 3, id="error event"),
        pytest.param(refuses(401), 4, id="401 from one replica"),
        pytest.param(refuses(404, since=5.0), 5, id="404 from one replica"),
        pytest.param(refuses(400), 12, id="400 from one replica"),
        pytest.param(refuses(422, since=5.0), 12, id="422 from one replica"),
        pytest.param(refuses(429, retry_after_s=2.0), 7, id="429"),
        pytest.param(hangs(), 9, id="silence"),
        pytest.param(hangs(since=5.0), 12, id="silence after a while"),
    ],
)
def test_one_failing_endpoint_of_five_costs_almost_nothing(behavior, at_most, seed, sound):
    fleet = VirtualFleet(behave={0: behavior}, seed=seed, probes=True)
    seen = fleet.run(REQUESTS)
    assert len(seen.failed) <= at_most
    assert seen.total == REQUESTS
    # Slightly slower, as four endpoints do the work of five.
    assert seen.p95() <= 1.2 * sound(seed).p95()
    assert not fleet.table.in_flight.any()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_endpoint_that_rejects_a_probe_waits_for_that_of_a_slower_sibling(seed):
    """Its own refusals are the fastest answers, so it would attract most requests meanwhile."""
    behave = {0: refuses(422, since=5.0)}
    seen = VirtualFleet(behave=behave, seed=seed, probes=True, service_s=1.0).run(500)
    assert len(seen.failed) <= 8


@pytest.mark.parametrize(
    ("behavior", "at_most"),
    [pytest.param(refuses(401), 12, id="401"), pytest.param(hangs(), 13, id="silence")],
)
def test_endpoints_that_join_and_fail_start_slowly_and_cost_little(behavior, at_most):
    """At their full share at once, two of five lost 469 to 5,215 requests by 401, 16 by silence."""
    fleet = VirtualFleet(behave={3: behavior, 4: behavior}, probes=True)
    fleet.join(fleet.addresses[:3])
    fleet.call(30.0, lambda: fleet.join(fleet.addresses))
    fleet.run(10**6, until=60.0)
    assert 1 <= len(fleet.seen.failed) <= at_most


@pytest.mark.parametrize("seed", SEEDS)
def test_no_answer_is_lost_to_errors_inside_answers_once_they_are_known(seed):
    """Envoy does not retry these answers, so neither the price nor trials may lose requests."""
    fleet = VirtualFleet(behave={0: error_event(since=5.0)}, seed=seed, probes=True, clients=8)
    fleet.run(10**6, until=90.0)
    assert 0 < len(fleet.seen.failed) <= 6  # those in flight when the errors began
    assert max(fleet.seen.failed) < 7.0
    assert fleet.health.records.endpoints[0].breaker.trials == 0
    assert fleet.probes >= 5


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("behavior", "clients", "at_most"),
    [
        pytest.param(refuses(503), 150, 1, id="503"),
        pytest.param(error_event(), 12, 2, id="error event"),
        pytest.param(hangs(), 150, 30, id="silence"),  # its share of those in flight is 25
    ],
)
def test_a_new_endpoint_that_never_answers_costs_few_requests(behavior, clients, at_most, seed):
    """It is idle, so it attracts the longest prompts, which are the likeliest to be at fault."""
    fleet = VirtualFleet(behave={5: behavior}, clients=clients, seed=seed, probes=True)
    fleet.addresses.append("10.0.0.6:80")
    fleet.call(20.0, lambda: fleet.join(fleet.addresses))
    fleet.run(10**6, until=45.0)
    assert 1 <= len(fleet.seen.failed) <= at_most


@pytest.mark.parametrize("policy", ["least-loaded", "round-robin", "random", "llm-d"])
def test_a_failing_endpoint_gets_no_requests_under_any_policy(policy):
    assert policy in POLICY_NAMES
    fleet = VirtualFleet(behave={0: refuses(503)}, policy=policy, probes=True)
    assert len(fleet.run(REQUESTS).failed) <= 8


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("since", [0.0, 5.0])
def test_an_endpoint_that_is_ten_times_slower_hardly_matters(since, seed, sound):
    fleet = VirtualFleet(behave={0: slow(10.0, since)}, seed=seed, probes=True)
    seen = fleet.run(REQUESTS)
    assert not seen.failed
    paces = fleet.director.engines.paces.relative()[:5]
    assert (paces >= 1.2).tolist() == [True] + 4 * [
        False
    ]  # slow ones get few requests to learn from
    # Four endpoints do the work of five.
    assert seen.p95() <= 1.25 * sound(seed).p95()


def test_no_endpoint_is_excluded_if_all_are_slow():
    """If all endpoints slow down, requests stay spread over them."""
    fleet = VirtualFleet(behave={n: slow(10.0, 5.0) for n in range(5)}, probes=True)
    seen = fleet.run(600)
    assert len(seen.failed) <= 3  # some clients give up after fifteen seconds
    assert max(seen.asked.values()) < 2.5 * min(seen.asked.values())
    assert all(fleet.health.records.endpoints[slot].breaker.openings == 0 for slot in range(5))


def test_a_500_for_lack_of_memory_excludes_no_endpoint():
    """All endpoints refuse the longest prompts; other requests are not affected."""
    fleet = VirtualFleet(behave={n: no_room(1500) for n in range(5)}, probes=True)
    seen = fleet.run(REQUESTS)
    heavy = sum(seen.statuses[status] for status in (500,))
    assert 0.05 * REQUESTS < heavy == len(seen.failed)
    assert all(fleet.health.records.endpoints[slot].breaker.openings == 0 for slot in range(5))
    assert seen.reasons == {"laar": REQUESTS}


def test_a_healed_endpoint_regains_its_share_within_a_minute():
    fleet = VirtualFleet(behave={0: refuses(503, since=2.0, until=60.0)}, probes=True, clients=6)
    fleet.call(120.0, fleet.seen.asked.clear)
    fleet.run(10**6, until=160.0)
    seen = fleet.seen
    fair = sum(seen.asked.values()) / 5
    assert seen.asked[0] >= 0.8 * fair
    assert sum(at > 65.0 for at in seen.failed) == 0
    assert len(seen.failed) <= 10


def test_without_probes_trials_are_few_and_increasingly_rare():
    fleet = VirtualFleet(behave={0: refuses(503)}, clients=6)
    fleet.run(10**6, until=120.0)
    late = [at for at in fleet.seen.failed if at > 2.0]
    assert 3 <= len(late) <= 9
    gaps = [b - a for a, b in itertools.pairwise(late)]
    assert gaps[-1] > 5.0 * gaps[0]


def test_if_all_endpoints_fail_all_are_tried():
    fleet = VirtualFleet(behave={n: refuses(503) for n in range(5)}, probes=True)
    seen = fleet.run(500)
    assert len(seen.failed) == 500
    assert min(seen.asked.values()) > 60
    assert seen.reasons["all-failing"] > 400
    assert seen.statuses == {503: 500}


def test_full_endpoints_still_get_requests_if_all_are_full():
    fleet = VirtualFleet(behave={n: refuses(429, retry_after_s=5.0) for n in range(5)}, think_s=0.1)
    seen = fleet.run(500)
    assert seen.statuses == {429: 500}
    assert all(fleet.health.records.endpoints[slot].breaker.openings == 0 for slot in range(5))


@pytest.mark.parametrize("seed", SEEDS)
def test_clients_that_stop_reading_exclude_no_endpoint(seed):
    """Envoy buffers the rest of their answers, and the picker does not see unread ones end."""

    def buffered(_fleet, job, _now, ordinary):
        if job.number < 0 or job.client >= 3 or job.decision.flight.read:
            return ordinary
        return Answer(head_s=0.002)

    fleet = VirtualFleet(
        behave=dict.fromkeys(range(5), buffered), seed=seed, clients=8, think_s=1.0, streams=1.0,
        probes=True,
    )  # fmt: skip
    seen = fleet.run(600)
    assert len(seen.failed) > 20
    assert all(fleet.health.records.endpoints[slot].breaker.openings == 0 for slot in range(5))


@pytest.mark.parametrize("seed", SEEDS)
def test_unread_answers_that_stall_exclude_an_endpoint_if_probes_need_a_key(seed):
    """Such probes prove nothing, and must not go on for as long as the answers stall."""

    def keyed(stalls_at, _fleet, job, now, ordinary):
        if job.number < 0:
            return Answer(status=401, head_s=0.001, seconds=0.002)
        return ordinary if now < stalls_at else Answer(head_s=0.002)

    behave = {n: functools.partial(keyed, 1e9 if n else 5.0) for n in range(5)}
    fleet = VirtualFleet(
        behave=behave, seed=seed, clients=8, think_s=0.5, streams=1.0, probes=True
    )  # fmt: skip
    fleet.health.reads = False
    seen = fleet.run(10**6, until=60.0)
    assert fleet.health.records.endpoints[0].breaker.openings >= 3
    assert len(seen.failed) <= 6
    assert fleet.probes <= 12


@pytest.mark.parametrize(("is_keyed", "at_most"), [(True, 2), (False, 0)])
def test_one_client_with_a_wrong_key_does_not_exclude_endpoint_after_endpoint(is_keyed, at_most):
    """It repeats one prompt, which always goes to the endpoint that has it cached."""

    def denies(_fleet, job, _now, ordinary):
        is_denied = job.client == 0 or (is_keyed and job.number < 0)
        return Answer(status=401, seconds=0.05) if is_denied else ordinary

    fleet = VirtualFleet(
        behave=dict.fromkeys(range(5), denies), clients=8, probes=True, prefixes=True, think_s=0.1
    )
    fleet.text = lambda job: "the same " * 50 if job.client == 0 else None
    fleet.run(1200)
    openings = [fleet.health.records.endpoints[slot].breaker.openings for slot in range(5)]
    assert sum(openings) <= at_most


def test_a_new_endpoint_starts_slowly_and_is_not_starved():
    fleet = VirtualFleet(endpoints=5, clients=12)
    fleet.join(fleet.addresses[:4])
    fleet.call(30.0, lambda: fleet.join(fleet.addresses))
    counts = {}
    for at in (32.0, 60.0, 80.0):
        fleet.call(at, lambda at=at: counts.update({at: dict(fleet.seen.asked)}))
    fleet.run(10**6, until=81.0)
    first = counts[32.0].get(4, 0)
    assert first < 0.5 * (counts[32.0][0] / 16.0) * 1.0 + 20
    gained = {n: counts[80.0][n] - counts[60.0][n] for n in range(5)}
    assert gained[4] >= 0.8 * sum(gained.values()) / 5


def test_a_reused_slot_has_no_record_of_the_previous_endpoint():
    fleet = VirtualFleet(behave={0: refuses(503)})
    fleet.run(200)
    slot = fleet.table.slot(fleet.addresses[0])
    assert fleet.health.records.endpoints[slot].breaker.is_out
    fleet.join(fleet.addresses[1:])
    assert slot not in fleet.health.records.endpoints
    fleet.behave.clear()
    fleet.addresses[0] = "10.0.0.99:80"
    fleet.join(fleet.addresses)
    assert fleet.table.slot("10.0.0.99:80") == slot
    before = len(fleet.seen.failed)
    fleet.run(600)
    assert len(fleet.seen.failed) == before
    assert fleet.health.records.endpoints[slot].failures == {}


def test_a_distant_endpoint_is_not_considered_slow():
    """The round trip has its own price, with a deliberately low weight."""
    rtt_s = 0.5

    def far(_fleet, job, _now, ordinary):
        head_s = rtt_s + ordinary.head_s
        return Answer(head_s=head_s, seconds=rtt_s + ordinary.seconds)

    fleet = VirtualFleet(behave={0: far}, probes=True)
    for address in fleet.addresses:
        fleet.table.round_trip(address, rtt_s if address == fleet.addresses[0] else 0.001, 0.0)
    fleet.run(600)
    assert fleet.director.engines.paces.relative()[0] < 1.5
    assert fleet.health.records.endpoints[0].breaker.openings == 0


@pytest.mark.parametrize(
    ("pause_s", "works", "probes", "is_excluded"),
    [
        (5.0, False, False, True),
        (5.0, True, False, False),
        (50.0, True, False, False),
        (50.0, True, True, False),
        (150.0, True, False, True),
    ],
)
def test_work_on_its_page_excuses_an_engine_whose_answers_pause(
    pause_s, works, probes, is_excluded
):
    """A full KV cache makes requests wait for memory, or for prompts of 100,000 tokens."""
    until = 5.0 + pause_s

    def pauses(_fleet, _job, now, ordinary):
        if not 5.0 <= now < until:
            return ordinary
        return Answer(head_s=until - now, seconds=ordinary.seconds + until - now)

    fleet = VirtualFleet(behave={0: pauses}, clients=8, streams=1.0, think_s=1.0, probes=probes)
    usage = itertools.count()
    for second in range(int(until) + 10):
        fleet.call(second, lambda: fleet.health.read(0, next(usage) * works, 0.0, fleet.now))
    seen = fleet.run(10**6, until=until + 10.0)
    assert not seen.failed
    assert (fleet.health.records.endpoints[0].breaker.openings > 0) is is_excluded

"""A virtual fleet whose endpoints crash, are removed or added, and restart with empty caches."""

from __future__ import annotations

import random

import pytest

from laar.health import HealthSettings
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    Operation,
    Prompt,
    Site,
    VirtualFleet,
    replay_open,
    request_of,
    spread,
)
from laar_lab.workloads.shared_prompts import Questions, questions
from support.engines import linear_engine

ENGINE = linear_engine(1e-3)
NAMES = ["a", "b", "c"]
TROUBLED = FleetSettings(fallbacks=2, health=HealthSettings(probe=False))


def fleet_of(settings: FleetSettings = TROUBLED) -> VirtualFleet:
    sites = [Site(name=name, model="m", engine=ENGINE) for name in NAMES]
    return VirtualFleet(sites, settings, seed=1)


def ask(fleet: VirtualFleet, number: int, ended: list[Exchange], start: int = 1) -> Exchange:
    prompt = Prompt(prompt_tokens=1000, output_tokens=50, blocks=spread(start, 62))
    request = request_of(number, Arrival(at_s=fleet.clock.now, prompt=prompt))
    return fleet.send(request, prompt, ended.append)


def test_in_the_native_shape_first_tokens_are_seen_only_in_answers_read() -> None:
    settings = FleetSettings(first_tokens="sampled", sample_answers=0.5, sample_every_s=3600.0)
    fleet, ended = fleet_of(settings), list[Exchange]()
    for number in range(40):
        fleet.clock.at(4.0 * number, ask, fleet, number, ended)
    fleet.clock.run()
    shown = [each.request.first_token_seen for each in ended]
    assert 10 < sum(shown) < 30
    assert [each.decision.flight.answering for each in ended] == shown


def test_a_fallback_serves_the_request_of_an_engine_that_crashes() -> None:
    fleet, ended = fleet_of(), list[Exchange]()
    sent = ask(fleet, 1, ended)
    fleet.host(sent.decision.address).stop()
    fleet.clock.run()
    assert [each.status for each in ended] == [200]
    assert sent.failed == (sent.decision.address,)
    assert sent.address == sent.decision.fallbacks[0] == sent.decision.flight.address
    known = fleet.director.health.records.endpoints
    slots = [fleet.director.table.slot(name) for name in (sent.decision.address, sent.address)]
    assert [bool(known[slot].failures) for slot in slots] == [True, False]
    assert not fleet.director.table.in_flight.any()


def test_an_endpoint_that_refuses_is_excluded_soon_and_returns() -> None:
    fleet, ended = fleet_of(), list[Exchange]()
    fleet.host("a").stop()
    fleet.clock.at(20.0, fleet.host("a").start)
    load = questions(Questions(requests_per_s=1.0, question_log=(6.0, 0.3)), random.Random(1), 60.0)
    replay_open(fleet, load, lambda _arrival, exchange: ended.append(exchange))
    assert all(each.status == 200 for each in ended)
    refused = sum(each.failed == ("a",) for each in ended)
    assert 1 <= refused <= 6
    assert any(each.address == "a" for each in ended if each.sent_s > 20.0)


def test_a_restarted_engine_is_believed_to_hold_nothing() -> None:
    fleet, ended = fleet_of(), list[Exchange]()
    first = ask(fleet, 1, ended)
    fleet.clock.run()
    host = fleet.host(first.decision.address)
    fleet.clock.at(10.0, host.stop)
    fleet.clock.at(10.0, host.start)
    fleet.clock.at(20.0, lambda: None)
    fleet.clock.run()
    ask(fleet, 2, ended)
    fleet.clock.run()
    assert ended[1].decision.uncached_tokens == pytest.approx(1000)
    assert ended[1].cached_tokens == 0


def test_a_deployment_replaces_every_endpoint_without_losing_a_request() -> None:
    fleet, ended = fleet_of(), list[Exchange]()
    operation = Operation(fleet, NAMES, 2, random.Random(1))
    operation.deploy(10.0, 20.0)
    load = questions(Questions(requests_per_s=1.0, question_log=(6.0, 0.3)), random.Random(1), 80.0)
    replay_open(fleet, load, lambda _arrival, exchange: ended.append(exchange))
    assert all(each.status == 200 for each in ended)
    assert [fleet.host(name).starts for name in NAMES] == [1, 1, 0]
    served = [{e.address for e in ended if a < e.sent_s < b} for a, b in ((0, 9), (51, 80))]
    assert served == [{"a", "b"}, {"a", "c"}]


def test_health_learns_that_answers_which_are_read_continue() -> None:
    fleet = fleet_of()
    prompt = Prompt(prompt_tokens=1000, output_tokens=300, blocks=spread(1, 62))
    request = request_of(1, Arrival(at_s=0.0, prompt=prompt))
    attempt = fleet.send(request, prompt, lambda _ended: None).decision.flight.attempt
    assert attempt is not None
    seen: list[float] = []
    for at_s in (0.9, 1.9, 2.9, 3.9):  # 1 s of prefill, 3 s of answer
        fleet.clock.at(at_s, lambda: seen.append(attempt.progress_at))
    fleet.clock.run()
    assert seen[0] == 0.0
    assert 1.0 <= seen[1] < seen[2] < seen[3]


def test_probes_detect_a_crashed_engine() -> None:
    failed = []
    for probe in (True, False):
        fleet = fleet_of(FleetSettings(health=HealthSettings(probe=probe)))
        ended: list[Exchange] = []
        for number in range(120):
            fleet.clock.at(0.5 * number, ask, fleet, number, ended, 100 * number + 1)
        host = fleet.host("a")
        fleet.clock.at(10.0, host.stop)
        fleet.clock.at(30.0, host.start)
        fleet.clock.run()
        failed.append(sum(each.status != 200 for each in ended))
        assert any(each.address == "a" and each.sent_s > 31.0 for each in ended)
    assert failed[0] < failed[1]

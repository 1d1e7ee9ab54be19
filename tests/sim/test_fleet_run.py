"""The virtual fleet compared with closed forms, the age of its readings, and bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar_lab.sim.fleet import (
    Arrival,
    BlockPrefixes,
    Conversation,
    Exchange,
    FleetSettings,
    LinkProfile,
    Prompt,
    Site,
    VirtualFleet,
    converse,
    replay_open,
    request_of,
    spread,
)
from laar_lab.tally import Tally
from support.engines import DECODE_S, linear_engine
from support.exploring import examples

PREFILL_S = 1e-3
ENGINE = linear_engine(PREFILL_S)


def sites(count: int = 2, rtt_s: float = 0.1, jitter: float = 0.0) -> list[Site]:
    link = LinkProfile(rtt_s=rtt_s, jitter=jitter)
    return [Site(name=f"e{i}:80", model="m", engine=ENGINE, link=link) for i in range(count)]


def prompt(tokens: int = 100, output: int = 5, start: int = 1) -> Prompt:
    return Prompt(prompt_tokens=tokens, output_tokens=output, blocks=spread(start, tokens // 16))


def arrivals(count: int, gap_s: float, **about: int) -> list[Arrival]:
    return [
        Arrival(at_s=i * gap_s, prompt=prompt(**about, start=1 + (i << 20))) for i in range(count)
    ]


def collected(fleet: VirtualFleet, asked: list[Arrival], cap: int = 64) -> list[Exchange]:
    ended: list[Exchange] = []
    replay_open(fleet, asked, lambda _arrival, exchange: ended.append(exchange), max_in_flight=cap)
    return ended


def test_a_lone_request_takes_its_round_trip_plus_prefill_plus_decoding() -> None:
    fleet = VirtualFleet(sites(1), FleetSettings(), seed=0)
    (seen,) = collected(fleet, arrivals(1, 0.0))
    assert seen.first_s - seen.sent_s == pytest.approx(0.2 + 100 * PREFILL_S), "0.1 s to connect"
    assert seen.latency_s == pytest.approx(0.2 + 100 * PREFILL_S + 4 * DECODE_S)


@pytest.mark.parametrize("at_s", [0.01, 0.2, 0.3, 1.13, 1.3])
def test_a_cancelled_request_frees_its_engine_and_its_reservation(at_s: float) -> None:
    """It is cancelled in transit, in the queue, during its prefill and while it decodes."""
    fleet = VirtualFleet(sites(1), FleetSettings(), seed=0)
    ended: list[Exchange] = []
    first = fleet.send(
        request_of(1, Arrival(at_s=0.0, prompt=prompt(1000, output=5000))),
        prompt(1000, output=5000),
        ended.append,
    )
    fleet.clock.at(at_s, fleet.cancel, first)
    fleet.clock.at(
        2.0,
        lambda: fleet.send(
            request_of(2, Arrival(at_s=2.0, prompt=prompt(start=9 << 20))),
            prompt(start=9 << 20),
            ended.append,
        ),
    )
    fleet.clock.run()
    (second,) = ended
    assert second.latency_s == pytest.approx(0.2 + 100 * PREFILL_S + 4 * DECODE_S, abs=DECODE_S)
    assert first.latency_s == pytest.approx(at_s)
    table = fleet.director.table
    for column in (table.in_flight, table.queued_tokens, table.prefill_tokens):
        assert not column.any()


def test_a_scrape_is_as_old_as_its_return_trip() -> None:
    fleet = VirtualFleet(sites(1, rtt_s=0.4), FleetSettings(scrape_interval_s=1.0), seed=0)
    reads = []
    table = fleet.director.table
    original = table.read
    table.read = lambda name, reading, now: (
        reads.append((now, reading.running)),
        original(name, reading, now),
    )[1]  # type: ignore[method-assign]
    collected(fleet, [Arrival(at_s=0.0, prompt=prompt(tokens=5000, output=2))])
    # The request is in the engine from 1 s (to connect .4, 20 KB in two round trips) to 6.01 s.
    for now, running in reads:
        made = now - 0.2
        assert running == (1 if 1.0 <= made < 6.0 else 0), (now, running)
    gaps = np.diff([now for now, _ in reads])
    np.testing.assert_allclose(gaps, 1.0)


def test_beyond_the_cap_requests_wait_and_the_schedule_is_not_read_further() -> None:
    read = []

    def schedule() -> Iterator[Arrival]:
        for arrival in arrivals(50, 0.001):
            read.append(arrival)
            yield arrival

    fleet = VirtualFleet(sites(1), FleetSettings(), seed=0)
    ahead, late = [], []

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        ahead.append(len(read) - len(ahead))
        late.append(exchange.sent_s - arrival.at_s)

    replay_open(fleet, schedule(), ended, max_in_flight=4)
    assert len(ahead) == 50
    assert max(ahead) <= 5, "four in flight, and one that waits"
    assert late[0] == 0.0
    assert late[-1] > 1.0


def test_a_turn_is_sent_once_it_is_due_and_the_previous_one_is_answered() -> None:
    fleet = VirtualFleet(sites(1), FleetSettings(), seed=0)
    turns = (prompt(), prompt(tokens=200), prompt(tokens=300))
    seen: list[Exchange] = []
    converse(
        fleet,
        [Conversation(session="s", turns=turns, due_s=(1.0, 1.0001, 60.0))],
        lambda _arrival, exchange: seen.append(exchange),
    )
    assert [exchange.sent_s for exchange in seen] == [1.0, seen[0].end_s, 60.0]
    assert seen[0].end_s > 1.0001
    assert all(exchange.cached_tokens > 0 for exchange in seen[1:])


def test_a_run_is_determined_by_its_seed() -> None:
    def run(seed: int) -> dict[str, float]:
        fleet = VirtualFleet(sites(3, jitter=0.3), FleetSettings(policy="random"), seed=seed)
        tally = Tally()
        replay_open(fleet, arrivals(80, 0.02), tally.add)
        return tally.numbers()

    assert run(5) == run(5)
    assert run(5) != run(6)


@given(shared=st.integers(0, 300), more=st.integers(0, 300), other=st.integers(0, 300))
@settings(max_examples=examples(60))
def test_the_index_treats_ids_like_the_text_they_represent(
    shared: int, more: int, other: int
) -> None:
    """The index uses whole blocks of 64, 256 and 1,024 bytes, four bytes to a token."""
    head = spread(7, shared)
    first = array("Q", [*head, *spread(10**6, more)])
    second = array("Q", [*head, *spread(2 * 10**6, other)])
    beliefs = BlockPrefixes(key=b"k", max_bytes=1 << 20)
    chains = []
    for blocks in (first, second):
        asked = Prompt(prompt_tokens=16 * len(blocks) + 5, output_tokens=1, blocks=blocks)
        beliefs.upcoming = asked
        chains.append(beliefs.chain(request_of(1, Arrival(at_s=0.0, prompt=asked))))
    beliefs.make_room(2)
    beliefs.index.settle(beliefs.index.insert(1, chains[0]), None)
    share = beliefs.match(chains[1])[0]
    ends = [*range(0, 4097, 64), *range(4352, 32769, 256), *range(33792, 10**6, 1024)]
    whole = max(end for end in ends if end <= 64 * shared)
    assert share[0] == 0.0
    assert share[1] * (16 * len(second) + 5) * 4 == pytest.approx(whole)

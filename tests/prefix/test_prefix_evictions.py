"""What comes back after a cache pushed it out: counted for each endpoint."""

from __future__ import annotations

from array import array

import pytest

from laar.prefix import GROWING, Chain
from laar.prefix.evictions import MAX_SHARE, Evictions

PROMPT_BYTES = 32_768
ROOM_BYTES = 1_000_000


def chain_of(name: int) -> Chain:
    blocks = GROWING.blocks(PROMPT_BYTES)
    return Chain(array("Q", [name * 100_000 + at for at in range(1, blocks + 1)]), PROMPT_BYTES)


class Fleet:
    """Two endpoints; what is sent is in no cache unless the test says so."""

    def __init__(self) -> None:
        self.evictions = Evictions()
        self.evictions.resize(2)
        self.now = 1000.0

    def send(self, slot: int, name: int, *, is_cached: bool = False) -> None:
        chain = chain_of(name)
        self.evictions.note(
            *(slot, chain, self.now),
            held=len(chain) if is_cached else 0,
            anywhere_bytes=PROMPT_BYTES if is_cached else 0,
            capacity_bytes=lambda _slot: ROOM_BYTES,
        )

    def again(self) -> list[float]:
        return self.evictions.again().tolist()


def test_prompts_that_come_back_after_they_left_make_only_their_endpoint_dear() -> None:
    fleet = Fleet()
    for name in range(20):
        fleet.send(0, name)
        fleet.send(1, 1000 + name)
    assert fleet.again() == [0.0, 0.0]
    for name in range(20):
        fleet.send(0, name)
        fleet.send(1, 2000 + name)
    assert fleet.again()[0] == pytest.approx(0.46, abs=0.05)  # 20 of 40 prompts, less the doubt
    assert fleet.again()[1] == 0.0


def test_what_is_found_in_a_cache_was_not_pushed_out() -> None:
    fleet = Fleet()
    for _ in range(5):
        for name in range(20):
            fleet.send(0, name, is_cached=name > 0)
    assert fleet.again()[0] < 0.5
    fleet = Fleet()
    fleet.send(0, 1)
    for _ in range(20):
        fleet.send(0, 1, is_cached=True)
    assert fleet.again()[0] == 0.0


def test_what_left_long_before_says_nothing_of_a_little_more_room() -> None:
    fleet = Fleet()
    for name in range(100):  # three times what the cache holds
        fleet.send(0, name)
    for name in range(10):
        fleet.send(0, name)
    assert fleet.again()[0] == 0.0


def test_the_share_has_a_cap_fades_and_goes_with_its_endpoint() -> None:
    fleet = Fleet()
    for _ in range(200):
        fleet.send(0, 1)
    assert fleet.again()[0] == MAX_SHARE
    for _ in range(40):
        fleet.now += 60.0
        fleet.send(0, 2, is_cached=True)
    assert fleet.again()[0] < 0.01
    for _ in range(50):
        fleet.send(1, 3)
    assert fleet.again()[1] > 0.5
    fleet.evictions.drop(1)
    assert fleet.again()[1] == 0.0
    fleet.send(0, 3)  # its ghost was the one that left
    assert fleet.again()[1] == 0.0


@pytest.mark.parametrize("now", [float("nan"), float("inf"), -float("inf"), -1e300, 1e300])
def test_no_clock_makes_it_anything_but_a_share(now: float) -> None:
    fleet = Fleet()
    for moment in (1000.0, now, 999.0, now, 2000.0):
        fleet.now = moment
        fleet.send(0, 1)
        assert all(0.0 <= share <= MAX_SHARE for share in fleet.again())

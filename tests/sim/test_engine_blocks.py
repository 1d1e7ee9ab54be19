"""The block pool compared with a naive oracle, and the order of eviction."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from laar_lab.sim.engine import BlockPool, KvEvent
from support.exploring import examples


class NaivePool:
    """Blocks as a plain list, least recently freed first; everything by linear search."""

    def __init__(self, num_blocks: int) -> None:
        self.nameless_free = num_blocks
        self.users: dict[int, int] = {}
        self.idle: list[int] = []

    def free(self) -> int:
        return self.nameless_free + len(self.idle)

    def take(self, count: int) -> None:
        for _ in range(count):
            if self.nameless_free:
                self.nameless_free -= 1
            else:
                del self.users[self.idle.pop(0)]

    def use(self, key: int) -> None:
        if key in self.users:
            if key in self.idle:
                self.idle.remove(key)
            self.users[key] += 1
        else:
            self.users[key] = 1

    def release(self, hashes: list[int], nameless: int) -> None:
        self.nameless_free += nameless
        for key in reversed(hashes):
            self.users[key] -= 1
            if not self.users[key]:
                self.idle.append(key)


def chain(branch: int, length: int) -> list[int]:
    """Return the hashes of a prompt; all branches share their first two blocks."""
    return [1, 2, *(100 * branch + i for i in range(2, length))][:length]


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(0, 2), st.booleans()),
        max_size=40,
    )
)
def test_the_block_pool_agrees_with_a_naive_one(steps: list[tuple[int, int, int, bool]]) -> None:
    """Admissions and releases in any order leave the same blocks cached, free and evicted."""
    pool, naive = BlockPool(16, record=True), NaivePool(16)
    held: list[tuple[list[int], int]] = []
    known: set[int] = set()
    for branch, length, extra, give_back in steps:
        if give_back and held:
            hashes, nameless = held.pop(0)
            pool.release(hashes, nameless)
            naive.release(hashes, nameless)
        hashes = chain(branch, length)
        found, idle = pool.match(hashes, length)
        assert found == next((i for i, key in enumerate(hashes) if key not in naive.users), length)
        assert idle == sum(key in naive.idle for key in hashes[:found])
        need = length - found + extra
        if need + idle > pool.free:
            continue
        pool.share(hashes[:found])
        pool.take(need)
        pool.publish(hashes[found:], hashes[found - 1] if found else None)
        for key in hashes[:found]:
            naive.use(key)
        naive.take(need)
        for key in hashes[found:]:
            naive.use(key)
        held.append((hashes, extra))
        assert pool.free == naive.free()
        for event in pool.drain():
            known = known - set(event.hashes) if event.kind == "removed" else known
            known = known | set(event.hashes) if event.kind == "stored" else known
        assert known == set(naive.users)
    assert pool.usage == 1 - naive.free() / 16


def test_events_name_the_parent_block_and_that_the_cache_was_cleared() -> None:
    pool = BlockPool(3, record=True)
    pool.take(2)
    pool.publish([7, 8], 6)
    pool.clear()
    assert pool.drain() == (KvEvent("cleared"),)
    pool.take(2)
    pool.publish([7, 8], 6)
    assert pool.drain() == (KvEvent("stored", (7, 8), 6),)
    assert pool.drain() == ()

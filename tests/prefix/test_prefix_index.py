"""The prefix index compared with a brute-force oracle, and tested by its main cases."""

import random
import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.prefix.blocks import ENDS, Chain, blocks_in
from laar.prefix.index import PrefixIndex, Receipt
from support.exploring import examples
from support.hashing import Hasher

HASHER = Hasher(b"test")
SLOTS = 3
# The offsets in bytes where the letters of a prompt end. A miss counts only from 4 KiB on.
LETTERS = (0, 1024, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 36864)


def held(index: PrefixIndex, chain: Chain) -> list[int]:
    """Return the leading blocks that each slot probably holds."""
    return [blocks_in(round(share * chain.total_bytes)) for share in index.shares(chain)]


@dataclass
class Entry:
    """The oracle's record of one block at one slot."""

    used: int
    proof: int  # when a finished request last proved the block cached; 0 if none did
    claim: int  # when the last request that used the block was sent


@dataclass
class Oracle:
    """Each slot's blocks one by one, keyed by their hash (equal hash, equal prefix)."""

    capacity: list[int]
    clock: int = 0
    slots: list[dict[int, tuple[int, Entry]]] = field(
        default_factory=lambda: [{} for _ in range(SLOTS)]
    )
    missed: dict[int, tuple[Chain, int, int]] = field(default_factory=dict)
    open: list[dict[int, Chain]] = field(default_factory=lambda: [{} for _ in range(SLOTS)])

    def match(self, chain: Chain) -> list[int]:
        def held(blocks: dict[int, tuple[int, Entry]]) -> int:
            missing = (i for i, hash_ in enumerate(chain.hashes) if hash_ not in blocks)
            return next(missing, len(chain))

        return [held(blocks) for blocks in self.slots]

    def claim(self, slot: int, chain: Chain, *, settled: bool, claim: int = 0) -> tuple[int, int]:
        before = self.use(slot, chain, settled=settled, claim=claim)
        self.fit(slot)
        return before

    def use(self, slot: int, chain: Chain, *, settled: bool, claim: int) -> tuple[int, int]:
        self.clock += 1
        blocks = self.slots[slot]
        matched = self.match(chain)[slot]
        path = [blocks[hash_][1] for hash_ in chain.hashes[:matched]]
        proven = next((i for i, entry in enumerate(path) if not entry.proof), matched)
        proof = path[proven - 1].proof if proven else 0
        for place, hash_ in enumerate(chain.hashes):
            proof_now = self.clock if settled else proof * (place < proven)
            blocks[hash_] = (place, Entry(self.clock, proof_now, claim or self.clock))
        return proven, proof

    def fit(self, slot: int) -> None:
        blocks = self.slots[slot]
        spared = 0
        while self.held_bytes(slot) > self.capacity[slot]:
            first = min(blocks, key=lambda hash_: (blocks[hash_][1].used, -blocks[hash_][0]))
            claim = blocks[first][1].claim
            if claim in self.open[slot] and spared < 8:
                spared += 1
                claimed = self.open[slot][claim]
                held = Chain(claimed.hashes[: self.match(claimed)[slot]], claimed.total_bytes)
                self.use(slot, held, settled=False, claim=claim)
                continue
            del blocks[first]

    def held_bytes(self, slot: int) -> int:
        return sum(ENDS[place + 1] - ENDS[place] for place, _ in self.slots[slot].values())

    def retract(self, slot: int, chain: Chain, open_chains: list[Chain]) -> None:
        claimed = {hash_ for other in open_chains for hash_ in other.hashes}
        for hash_ in set(chain.hashes) - claimed:
            if hash_ in self.slots[slot] and not self.slots[slot][hash_][1].proof:
                del self.slots[slot][hash_]

    def restore(self, slot: int, before: dict[int, tuple[int, Entry]]) -> None:
        """Restore what an entry evicted, the latest used first, as far as all of it fits."""
        gone = [before[hash_] for hash_ in before.keys() - self.slots[slot].keys()]
        for used in sorted({entry.used for _, entry in gone}, reverse=True):
            of = {h: block for h, block in before.items() if block[1].used == used}
            of = {h: block for h, block in of.items() if h not in self.slots[slot]}
            missing = sum(ENDS[place + 1] - ENDS[place] for place, _ in of.values())
            if not all(entry.proof for _, entry in of.values()):
                continue
            if self.held_bytes(slot) + missing > self.capacity[slot]:
                break
            self.slots[slot] |= of

    def weigh(self, slot: int, chain: Chain, proven: int, proof: int, *, miss: bool) -> None:
        before = self.missed.get(slot)
        if not miss:
            if before is not None and proof <= before[2]:
                del self.missed[slot]
            return
        if before is not None:
            other, other_proven, other_proof = before
            least = min(proven, other_proven)
            if chain.hashes[:least] != other.hashes[:least]:
                self.disprove(slot, min(proof, other_proof))
                proof = max(proof, other_proof)
        self.missed[slot] = (chain, proven, proof)

    def disprove(self, slot: int, proof: int) -> None:
        self.slots[slot] = {
            hash_: (place, entry)
            for hash_, (place, entry) in self.slots[slot].items()
            if entry.used > proof
        }


PROMPTS = st.lists(st.sampled_from("abc"), max_size=9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, SLOTS - 1), PROMPTS),
        st.tuples(st.just("insert"), st.integers(0, SLOTS - 1), PROMPTS),
        st.tuples(st.just("retract"), st.integers(0, 20), st.none()),
        st.tuples(
            st.just("settle"),
            st.integers(0, 20),
            st.one_of(st.none(), st.just(float("nan")), st.floats(0, 1)),
        ),
        st.tuples(st.just("drop"), st.integers(0, SLOTS - 1), st.none()),
        st.tuples(st.just("clear"), st.integers(0, SLOTS - 1), st.none()),
        st.tuples(st.just("capacity"), st.integers(0, SLOTS - 1), st.integers(0, 60_000)),
    ),
    max_size=40,
)


def blocks_of(letters: list[str]) -> Chain:
    """Return a prompt of whole blocks, filled with a few letters."""
    sizes = np.diff(LETTERS)
    return HASHER.chain([letter * int(size) for letter, size in zip(letters, sizes, strict=False)])


@settings(max_examples=examples(250))
@given(STEPS, PROMPTS)
def test_the_index_agrees_with_a_brute_force_cache_of_each_endpoint(
    steps: list[tuple[str, int, object]], probe: list[str]
) -> None:
    index, oracle = PrefixIndex(SLOTS), Oracle([2_000_000] * SLOTS)
    open_: list[tuple[int, Receipt, int, int]] = []
    stamps: dict[int, int] = {}
    entered: dict[int, tuple[dict[int, tuple[int, Entry]], dict[int, tuple[int, Entry]]]] = {}
    for action, number, argument in steps:
        if action == "insert":
            chain = blocks_of(argument)  # type: ignore[arg-type]
            receipt = index.insert(number, chain)
            sent, before = oracle.clock + 1, dict(oracle.slots[number])
            proven, proof = oracle.claim(number, chain, settled=False)
            entered[id(receipt)] = before, dict(oracle.slots[number])
            assert receipt.proven == proven
            open_.append((number, receipt, proven, proof))
            stamps[id(receipt)] = sent
            oracle.open[number][sent] = chain
        elif action in ("retract", "settle") and open_:
            slot, receipt, proven, proof = open_.pop(number % len(open_))
            del oracle.open[slot][stamps[id(receipt)]]
            if action == "retract":
                index.retract(receipt)
                others = [entry[1].chain for entry in open_ if entry[0] == slot]
                before, after = entered[id(receipt)]
                is_latest = after == oracle.slots[slot]
                oracle.retract(slot, receipt.chain, others)
                if is_latest:
                    oracle.restore(slot, before)
            else:
                fraction: float | None = argument  # type: ignore[assignment]
                index.settle(receipt, fraction)
                believed_bytes = ENDS[proven]
                believed = believed_bytes / max(receipt.chain.total_bytes, 1)
                if fraction is not None and believed_bytes >= 4096:
                    miss = fraction < believed / 2
                    oracle.weigh(slot, receipt.chain, proven, proof, miss=miss)
                oracle.claim(slot, receipt.chain, settled=True)
        elif action == "drop":
            index.drop(number)
            oracle.slots[number].clear()
            oracle.missed.pop(number, None)
            oracle.capacity[number] = 2_000_000
            oracle.open[number].clear()
            open_ = [entry for entry in open_ if entry[0] != number]
        elif action == "clear":
            index.clear(number)
            oracle.slots[number].clear()
            oracle.missed.pop(number, None)
            for slot, receipt, _, _ in open_:
                if slot == number:
                    sent = stamps[id(receipt)]
                    oracle.claim(slot, receipt.chain, settled=False, claim=sent)
        elif action == "capacity":
            index.set_capacity(number, argument)  # type: ignore[arg-type]
            oracle.capacity[number] = argument  # type: ignore[call-overload]
            oracle.fit(number)
        seen = [entry[1].chain for entry in open_[-2:]] + [blocks_of(probe)]
        for chain in seen:
            assert held(index, chain) == oracle.match(chain)
            shares = [chain.fraction(blocks) for blocks in oracle.match(chain)]
            assert index.shares(chain).tolist() == shares
        assert index.held_bytes.tolist() == [oracle.held_bytes(slot) for slot in range(SLOTS)]
    assert index._segments.blocks == len(set().union(*oracle.slots))


@settings(max_examples=examples(250))
@given(st.lists(st.tuples(st.integers(0, SLOTS - 1), PROMPTS, st.booleans()), max_size=20))
def test_a_restored_index_has_the_same_content_and_evictions(
    entered: list[tuple[int, list[str], bool]],
) -> None:
    index, restored = PrefixIndex(SLOTS), PrefixIndex(SLOTS)
    for slot, letters, ok in entered:
        receipt = index.insert(slot, blocks_of(letters))
        index.settle(receipt) if ok else index.retract(receipt)
    uses = index.dump(1 << 20, 0.0)()
    assert restored.restore(uses + uses[:2], 0.0) == len(uses)  # a repeated use is skipped
    for room_bytes in (2_000_000, 20_000, 3_000, 0):
        for slot in range(SLOTS):
            for each in (index, restored):
                each.set_capacity(slot, room_bytes)
            assert restored.held_bytes.tolist() == index.held_bytes.tolist()
            for _, letters, _ in entered:
                chain = blocks_of(letters)
                assert held(restored, chain) == held(index, chain)
    assert restored.size_bytes == 0


def test_a_failure_after_a_restart_keeps_the_prompt_of_a_request_that_was_open() -> None:
    index, restored = PrefixIndex(1), PrefixIndex(1)
    open_, other = blocks_of(["a", "b", "c"]), blocks_of(["a", "b", "d"])
    index.insert(0, open_)
    restored.restore(index.dump(1 << 20, 0.0)(), 0.0)
    restored.retract(restored.insert(0, other))
    assert held(restored, open_) == [len(open_)]
    restored.settle(restored.insert(0, other))
    restored.clear(0)
    assert restored.size_bytes == 0


def text(seed: int, size: int) -> str:
    return random.Random(seed).randbytes(size // 2 + 1).hex()[:size]


def settled(count: int) -> tuple[PrefixIndex, list[Chain]]:
    """Return an index with `count` prompts in one cache, and their chains, the oldest first."""
    index, chains = PrefixIndex(1), [HASHER.chain([text(seed, 8192)]) for seed in range(count)]
    for chain in chains:
        index.settle(index.insert(0, chain), 0.0)
    return index, chains


def test_two_reported_misses_forget_older_prompts_and_keep_the_computed_prompts() -> None:
    index, (old, first, between, second, young) = settled(5)
    for chain in (second, first):
        index.settle(index.insert(0, chain), cached_fraction=0.0)
    assert held(index, old) == [0]
    for kept in (first, between, second, young):
        assert held(index, kept) == [len(kept)]
    assert index.forgotten_blocks["disproved"] == len(old)


def test_a_hit_on_an_older_prompt_invalidates_a_miss() -> None:
    index, chains = settled(6)
    index.settle(index.insert(0, chains[4]), cached_fraction=0.0)
    index.settle(index.insert(0, chains[0]), cached_fraction=1.0)
    index.settle(index.insert(0, chains[3]), cached_fraction=0.0)
    assert [held(index, chain) for chain in chains] == [[len(chain)] for chain in chains]


def test_a_receipt_has_no_effect_once_its_slot_was_dropped() -> None:
    index, chain = PrefixIndex(1), HASHER.chain([text(1, 5000)])
    settled, retracted = index.insert(0, chain), index.insert(0, chain)
    index.drop(0)
    index.settle(settled)
    index.retract(retracted)
    assert held(index, chain) == [0]
    again = index.insert(0, chain)
    index.retract(settled)
    assert held(index, chain) == [len(chain)]
    index.retract(again)


@pytest.mark.parametrize("slots", [1, 7, 64, 65, 1000])
def test_every_slot_is_matched_in_one_walk(slots: int) -> None:
    index, rng = PrefixIndex(slots), random.Random(slots)
    prompt = text(1, 40_000)
    expected = []
    for slot in range(slots):
        length = rng.randrange(0, 40_000)
        index.insert(slot, HASHER.chain([prompt[:length], text(slot + 2, 3000)]))
        expected.append(blocks_in(length))
    matched = held(index, HASHER.chain([prompt]))
    # The random ends may match the prompt for a few characters, but hardly for a block.
    assert matched == expected


@pytest.mark.long
def test_memory_stays_within_its_limit_under_churn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laar.prefix.blocks.MAX_KNOWN", 1)  # so that only the index counts
    rng, limit = random.Random(3), 1 << 20
    system = [text(seed, 2000) for seed in range(5)]
    tracemalloc.start()
    try:
        index = PrefixIndex(20, max_bytes=limit)
        base, _ = tracemalloc.get_traced_memory()
        for step in range(3000):
            slot = rng.randrange(20)
            chain = HASHER.chain([rng.choice(system), text(step, rng.randrange(4000))])
            receipt = index.insert(slot, chain)
            index.settle(receipt) if rng.random() < 0.9 else index.retract(receipt)
        del chain, receipt
        grown = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    assert index.forgotten_blocks["memory"] > 0
    assert index.size_bytes <= limit
    assert grown < 1.2 * limit

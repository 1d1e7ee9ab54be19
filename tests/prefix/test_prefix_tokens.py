from __future__ import annotations

from array import array
from random import Random

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.prefix import tokens
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.tiers import HOST
from laar.prefix.tokens import Stored, TokenBlocks, hash_blocks, root
from laar.protocol.openai import read_body
from laar.request import Api, Request
from support.exploring import examples
from support.hashing import Hasher

SIZE = 16
WORDS = ["a", "few", "words", "that", "make", "tokens", "of", "different", "lengths"]


def text_of(seed: int, words: int) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), words)) + " "


def ids_of(text: str) -> np.ndarray:
    """Return one id per word, like an engine's tokenizer."""
    return np.array([WORDS.index(word) for word in text.split()], np.uint32)


class Engine:
    """An engine's cache, with its own names for blocks, and its events.

    A name depends on the next `ahead` tokens, too, as where a drafter reads them.
    """

    def __init__(self, beliefs: PrefixBeliefs, slot: int, ahead: int = 0) -> None:
        self.beliefs, self.slot, self.ahead = beliefs, slot, ahead
        self.held: list[int] = []

    def names(self, text: str, salt: str = "") -> array[int]:
        ids = ids_of(text)
        ends = range(SIZE, len(ids) + 1, SIZE)
        more = [str(ids[end : end + self.ahead]) for end in ends] if self.ahead else ()
        return hash_blocks(ids, SIZE, root("engine", salt) ^ 0x5555, more)

    def run(self, text: str, salt: str = "", session: str = "") -> None:
        """Add a prompt to the cache; `session` is the request's."""
        names, ids = self.names(text, salt), ids_of(text)
        fresh = next((at for at, name in enumerate(names) if name not in self.held), len(names))
        if fresh < len(names):
            extra = [salt] + [""] * (len(names) - 1) if salt and not fresh else ()
            event = Stored(
                hashes=list(names[fresh:]),
                parent=names[fresh - 1] if fresh else None,
                ids=ids[fresh * SIZE : len(names) * SIZE],
                block_size=SIZE,
                extra=extra,
                session=session,
            )
            self.held += names[fresh:]
            self.beliefs.blocks_held.stored(self.slot, "m", event)

    def let_go(self, names: list[int]) -> None:
        self.held = [name for name in self.held if name not in names]
        self.beliefs.blocks_held.removed(self.slot, names)


def request(text: str, salt: str = "") -> Request:
    return Request(id="r", api=Api.COMPLETIONS, spans=(text,), chars=len(text), salt=salt)


def beliefs_of(slots: int) -> PrefixBeliefs:
    made = PrefixBeliefs(key=b"k", max_bytes=1 << 24)
    made.make_room(slots)
    for slot in range(slots):
        made.emptied(slot, "m")
    return made


def known(beliefs: PrefixBeliefs, text: str, salt: str = "") -> None:
    ids = ids_of(text)
    blocks = hash_blocks(ids, SIZE, root("", salt))
    beliefs.blocks_held.learn("m", beliefs.chain(request(text, salt)), len(ids), SIZE, blocks)


def share(beliefs: PrefixBeliefs, text: str, slot: int = 0, salt: str = "") -> float:
    return float(beliefs.match(beliefs.chain(request(text, salt)))[0][slot])


def served(beliefs: PrefixBeliefs, text: str, slot: int = 0) -> None:
    receipt = beliefs.insert(slot, beliefs.chain(request(text)), 0.0)
    beliefs.settle(receipt, None)


def test_a_request_in_flight_counts_before_its_events_arrive() -> None:
    beliefs = beliefs_of(1)
    text = text_of(1, 640)
    engine = Engine(beliefs, 0)
    engine.run(text_of(2, 64))
    known(beliefs, text)
    receipt = beliefs.insert(0, beliefs.chain(request(text)), 0.0)
    assert share(beliefs, text) > 0.95
    beliefs.settle(receipt, None)  # the request ended, and the engine has not stored its prompt
    assert share(beliefs, text) == 0.0


def test_a_request_in_flight_still_counts_after_the_cache_is_cleared() -> None:
    beliefs = beliefs_of(1)
    old, new = text_of(1, 640), text_of(2, 640)
    engine = Engine(beliefs, 0)
    served(beliefs, old)
    engine.run(old)
    known(beliefs, old)
    beliefs.insert(0, beliefs.chain(request(new)), 0.0)
    beliefs.emptied(0, "m")
    assert share(beliefs, old) == 0.0
    assert share(beliefs, new) > 0.95


def test_after_lost_events_only_seen_blocks_are_evidence() -> None:
    beliefs = beliefs_of(1)
    old, new = text_of(1, 640), text_of(2, 640)
    engine = Engine(beliefs, 0)
    engine.run(old)
    known(beliefs, old)
    known(beliefs, new)
    beliefs.blocks_held.lost(0)
    assert share(beliefs, old) == 0.0
    served(beliefs, old)  # cached before, so the engine sends no event
    engine.run(new)
    assert share(beliefs, old) > 0.95
    assert share(beliefs, new) > 0.95


@settings(max_examples=examples(60), deadline=None)
@given(
    system=st.integers(20, 400),
    turns=st.lists(st.tuples(st.integers(5, 300), st.integers(0, 3)), min_size=2, max_size=8),
    ahead=st.sampled_from([0, 12]),
)
def test_conversations_are_matched_exactly_to_the_block(
    system: int, turns: list[tuple[int, int]], ahead: int
) -> None:
    """Wherever texts fork, the estimate is off by at most one block of text and one of tokens."""
    beliefs = beliefs_of(1)
    engine = Engine(beliefs, 0, ahead)
    texts = [text_of(0, system)]
    for number, (words, parent) in enumerate(turns):
        before = texts[parent % len(texts)]
        text = before + text_of(number + 1, words)
        names = engine.names(text)
        held = next((at for at, name in enumerate(names) if name not in engine.held), len(names))
        exact = held * SIZE / len(ids_of(text))
        believed = share(beliefs, text)
        slack = (64 + SIZE * 6) / len(text.encode())
        assert believed <= exact + slack + 0.05
        if number > 1 and parent % len(texts) == len(texts) - 1:  # continues the last text
            assert believed >= exact - slack - 0.05
        engine.run(text)
        served(beliefs, text)
        known(beliefs, text)
        texts.append(text)
    last = engine.names(texts[-1])
    engine.let_go([name for name in engine.held if name not in last])
    assert share(beliefs, texts[-1]) >= len(last) * SIZE / len(ids_of(texts[-1])) - slack - 0.05


def test_blocks_with_a_copy_in_host_memory_stay_until_that_is_gone_too() -> None:
    beliefs = beliefs_of(1)
    engine, text = Engine(beliefs, 0), text_of(1, 640)
    engine.run(text)
    known(beliefs, text)
    names = list(engine.names(text))
    for _ in range(2):  # the second report adds no copy
        beliefs.blocks_held.stored(0, "m", Stored(hashes=names[:20], tier=HOST))
    beliefs.blocks_held.removed(0, names)
    assert abs(share(beliefs, text) - 0.5) < 0.03
    beliefs.blocks_held.removed(0, names[:10], HOST)
    assert share(beliefs, text) == 0.0
    engine.held = []
    engine.run(text)  # as if read or fetched again
    beliefs.blocks_held.removed(0, names, HOST)
    beliefs.blocks_held.removed(0, names, HOST)
    assert share(beliefs, text) > 0.95
    beliefs.blocks_held.removed(0, names)
    assert share(beliefs, text) == 0.0
    assert beliefs.blocks_held.blocks == 0


def test_a_block_with_several_engine_names_is_held_until_the_last_is_removed() -> None:
    """Two images may have the same token ids, and the same events if these lack the extra keys."""
    blocks = TokenBlocks()
    ids = np.arange(SIZE, dtype=np.uint32)
    for name in (7, 8, 7):
        blocks.stored(0, "m", Stored(hashes=[name], ids=ids, block_size=SIZE))
    for name, left in ((8, 1), (7, 1), (7, 0), (8, 0)):
        blocks.removed(0, [name])
        assert blocks.blocks == left
    for name in (8, 7):
        blocks.stored(0, "m", Stored(hashes=[name], ids=ids, block_size=SIZE))
    blocks.drop(0)
    assert blocks.blocks == 0


def test_blocks_without_ids_or_after_an_unknown_parent_are_not_counted() -> None:
    blocks = TokenBlocks()
    ids = np.arange(SIZE, dtype=np.uint32)
    blocks.stored(0, "m", Stored(hashes=[8], parent=7, ids=ids, block_size=SIZE))
    blocks.stored(0, "m", Stored(hashes=[9], block_size=SIZE))
    blocks.removed(0, [8, 9])
    assert blocks.blocks == 0


def test_memory_is_bounded_by_blocks_and_by_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_BLOCKS", 100)
    monkeypatch.setattr(tokens, "MAX_TEXTS", 300)
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 24)
    beliefs.make_room(2)
    held = TokenBlocks()
    beliefs.blocks_held = held
    for slot, words in ((0, 1400), (1, 300)):
        beliefs.emptied(slot, "m")
        Engine(beliefs, slot).run(text_of(slot, words))
    assert held.blocks == 300 // SIZE  # the fuller slot falls back to the text index
    for seed in range(50):
        known(beliefs, text_of(seed, 300))
    assert 0 < held.texts <= 300
    assert share(beliefs, text_of(1, 300), 1) == 0.0  # the oldest text is forgotten
    known(beliefs, text_of(1, 300))
    assert share(beliefs, text_of(1, 300), 1) > 0.9


def test_a_restart_shown_first_by_the_metrics_page_empties_the_cache() -> None:
    """An engine's first event comes only with its first request, so the page may come first."""
    beliefs = beliefs_of(1)
    beliefs.emptied(0, "m", at_s=100.0)  # the first event is seen, but no page before the restart
    engine, text = Engine(beliefs, 0), text_of(1, 640)
    served(beliefs, text)
    engine.run(text)
    known(beliefs, text)
    assert share(beliefs, text) > 0.95
    beliefs.restarted(0, started_s=200.0)
    assert share(beliefs, text) == 0.0


def test_a_restart_shown_first_by_events_keeps_later_blocks() -> None:
    beliefs = beliefs_of(1)
    exact, text = text_of(1, 640), text_of(2, 640)
    beliefs.emptied(0, "m", at_s=201.0)
    served(beliefs, exact)
    Engine(beliefs, 0).run(exact)
    known(beliefs, exact)
    served(beliefs, text)
    beliefs.restarted(0, started_s=200.0)  # the page comes after the first events
    assert share(beliefs, exact) > 0.95
    assert share(beliefs, text) > 0.95
    beliefs.restarted(0)  # a page without a start time
    assert share(beliefs, exact) == share(beliefs, text) == 0.0


def test_a_cache_emptied_in_the_past_holds_what_was_sent_since() -> None:
    beliefs = beliefs_of(1)
    text, other = text_of(1, 640), text_of(2, 640)
    served(beliefs, text)
    served(beliefs, other)
    known(beliefs, other)
    beliefs.emptied(0, "m", past=True)
    Engine(beliefs, 0).run(text)
    assert share(beliefs, text) > 0.95
    assert share(beliefs, other) == 0.0  # its blocks are known, but no event stored them


def asked(
    beliefs: PrefixBeliefs, engine: Engine, prompt: str, answer: str, session: str, *, usage: bool
) -> None:
    """Send a prompt; the engine's events name its session."""
    blocks, tokens = beliefs.blocks_held, len(ids_of(prompt))
    chain = beliefs.chain(request(prompt))
    assert blocks.expect(session, engine.slot, chain, 1.1 * tokens)
    engine.run(prompt, session=session)
    # Blocks of the answer are stored while it is generated.
    engine.run(prompt + answer, session=session)
    blocks.answered(session, tokens if usage else 0)


def test_a_prompt_is_learned_in_blocks_of_its_own_endpoints_size() -> None:
    beliefs = beliefs_of(2)
    blocks, text, size = beliefs.blocks_held, text_of(1, 640), 2 * SIZE
    Engine(beliefs, 1).run(text_of(2, 64))  # serves the same model, in smaller blocks
    blocks.stored(0, "m", Stored(hashes=[99], ids=ids_of(text_of(3, size)), block_size=size))
    assert blocks.expect("s", 0, beliefs.chain(request(text)), 640.0)
    names = list(range(640 // size))
    blocks.stored(0, "m", Stored(hashes=names, ids=ids_of(text), block_size=size, session="s"))
    blocks.answered("s", 640)
    served(beliefs, text)
    blocks.removed(0, names[len(names) // 2 :])
    assert abs(share(beliefs, text) - 0.5) < 0.03


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(20, 400), st.integers(5, 200)), min_size=2, max_size=6),
    st.integers(0, 6),
)
def test_events_that_name_the_session_need_no_tokenizer(
    turns: list[tuple[int, int]], gone: int
) -> None:
    beliefs = beliefs_of(1)
    engine = Engine(beliefs, 0)
    engine.run(text_of(999, 64))  # so that the endpoint is known to publish events
    prompt = answer = before = ""
    for number, (said, answered) in enumerate(turns):
        prompt += answer + text_of(number, said)
        total = len(ids_of(prompt))
        if number:  # all except the last answer, which the client may have changed
            least = (len(ids_of(before)) - SIZE) / total
            most = (len(ids_of(before + answer)) + SIZE) / total
            assert least - 0.05 <= share(beliefs, prompt) <= most + 0.05
        answer, before = text_of(100 + number, answered), prompt
        asked(beliefs, engine, prompt, answer, f"s{number}", usage=number % 2 == 0)
    engine.let_go(list(engine.names(prompt + answer)[gone:]))
    left = min(1.0, gone * SIZE / len(ids_of(prompt)))
    assert share(beliefs, prompt) == pytest.approx(left, abs=0.12)


def test_nothing_is_learned_from_foreign_sessions_or_skipped_blocks() -> None:
    beliefs = beliefs_of(2)
    engine = Engine(beliefs, 0)
    engine.run(text_of(1, 64))
    first, other = text_of(2, 300), text_of(3, 300)
    engine.run(first, session="a client's own")
    blocks, chain = beliefs.blocks_held, beliefs.chain(request(first + other))
    assert not blocks.expect("s1", 1, chain, 600.0)  # this slot has never published an event
    assert blocks.expect("s", 0, chain, 600.0)
    engine.let_go(list(engine.names(first)[:2]))
    engine.held = list(engine.names(first))  # as if it had cached blocks without events
    engine.run(first + other, session="s")
    blocks.answered("s", 600)
    blocks.answered("s", 600)
    assert not blocks.texts


def test_a_cyclic_chain_of_blocks_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is not cryptographic, so a client may search for token ids that make a cycle."""
    found = iter([1, 3, 1, 2, 3, 2, 5])  # the hashes of roots (1) and blocks
    monkeypatch.setattr(tokens, "xxh3_64_intdigest", lambda *_: next(found))
    beliefs = beliefs_of(2)
    blocks = beliefs.blocks_held

    def store(slot: int, names: list[int], parent: int | None, session: str = "") -> None:
        ids = np.zeros(SIZE * len(names), np.uint32)
        event = Stored(hashes=names, parent=parent, ids=ids, block_size=SIZE, session=session)
        blocks.stored(slot, "m", event)

    store(1, [20], None)
    store(0, [10, 11], None)
    store(1, [21], 20)
    chain = beliefs.chain(request(text_of(1, 64)))
    assert blocks.expect("s", 1, chain, 64.0)
    store(1, [22], 21, "s")
    blocks.answered("s", 64)
    assert not blocks.texts


def test_an_engine_cannot_name_more_blocks_for_a_prompt_than_it_can_have() -> None:
    beliefs = beliefs_of(1)
    engine = Engine(beliefs, 0)
    first, short = text_of(1, 80_000), text_of(2, 64)
    engine.run(first)
    names = list(engine.names(first))
    blocks = beliefs.blocks_held
    assert blocks.expect("s", 0, beliefs.chain(request(short)), 64.0)
    ids = np.ones(SIZE, np.uint32)
    blocks.stored(
        0, "m", Stored(hashes=[7], parent=names[-1], ids=ids, block_size=SIZE, session="s")
    )
    blocks.answered("s", 64)
    assert not blocks.texts


def test_the_blocks_of_expected_prompts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    beliefs = beliefs_of(1)
    engine = Engine(beliefs, 0)
    engine.run(text_of(9, 64))
    prompts = [text_of(n, 320) for n in (1, 2)]
    monkeypatch.setattr(tokens, "MAX_EXPECTED_BLOCKS", 3 * len(list(engine.names(prompts[0]))) // 2)
    for n, prompt in enumerate(prompts):
        assert beliefs.blocks_held.expect(f"s{n}", 0, beliefs.chain(request(prompt)), 320.0)
        engine.run(prompt, session=f"s{n}")
    for n in range(2):
        beliefs.blocks_held.answered(f"s{n}", 320)
        assert bool(beliefs.blocks_held.texts) == bool(n)
    assert share(beliefs, prompts[1]) == 1.0


def test_blocks_cached_before_a_session_are_found_by_their_events() -> None:
    beliefs = beliefs_of(1)
    engine = Engine(beliefs, 0)
    first, other = text_of(2, 320), text_of(3, 320)
    engine.run(first)  # as if sent by another picker
    asked(beliefs, engine, first + other, "", "s", usage=True)
    assert share(beliefs, first + other) == 1.0
    engine.let_go(list(engine.names(first + other)[20:]))
    assert share(beliefs, first + other) == 0.5


def test_blocks_reported_after_the_answer_are_learned_then() -> None:
    beliefs = beliefs_of(1)
    engine = Engine(beliefs, 0)
    engine.run(text_of(1, 64))
    prompt = text_of(2, 320)
    chain = beliefs.chain(request(prompt))
    assert beliefs.blocks_held.expect("s", 0, chain, 320.0)
    beliefs.blocks_held.answered("s", 320)
    assert not beliefs.blocks_held.texts
    engine.run(prompt, session="s")
    assert share(beliefs, prompt) == 1.0


class BruteForce:
    """vLLM's cache: blocks depend on all earlier tokens; each prompt's last token is computed."""

    def __init__(self, beliefs: PrefixBeliefs, slot: int, size: int) -> None:
        self.beliefs, self.slot, self.size = beliefs, slot, size
        self.held: set[bytes] = set()
        self.unsent: list[Stored] = []

    def leading(self, ids: list[int]) -> int:
        """Return the leading blocks that are held."""
        whole = range(self.size, len(ids) + 1, self.size)
        return next(
            (n for n, end in enumerate(whole) if bytes(ids[:end]) not in self.held), len(whole)
        )

    def found(self, ids: list[int]) -> int:
        return self.leading(ids[:-1]) * self.size

    def store(self, ids: list[int], session: str = "") -> None:
        size, first = self.size, self.leading(ids)
        names = [bytes(ids[:end]) for end in range(size, len(ids) + 1, size)]
        if first < len(names):
            self.held |= {*names[first:]}
            event = Stored(
                hashes=names[first:],
                parent=names[first - 1] if first else None,
                ids=np.array(ids[first * size : len(names) * size], np.uint32),
                block_size=size,
                session=session,
            )
            self.unsent.append(event)

    def publish(self) -> None:
        """Send the events of the blocks stored since the last call."""
        for event in self.unsent:
            self.beliefs.blocks_held.stored(self.slot, "m", event)
        self.unsent.clear()


@pytest.mark.parametrize("late", [1, 4], ids=["at once", "late"])
@pytest.mark.parametrize("size", [16, 32, 128])
@pytest.mark.parametrize("seed", range(3))
def test_prompts_of_token_ids_are_estimated_within_one_point(
    size: int, seed: int, late: int
) -> None:
    random, beliefs = Random(seed), beliefs_of(2)
    engines = [BruteForce(beliefs, slot, size) for slot in range(2)]
    for engine in engines:
        engine.store([1] * size)
        engine.publish()
    talks: list[list[int]] = [[n] for n in range(8)]
    total = off = 0.0
    for number in range(80):
        talk, engine = random.choice(talks), random.choice(engines)
        talk += random.choices(range(5, 250), k=random.choice([0, size, random.randint(40, 200)]))
        spans = read_body(Api.COMPLETIONS, orjson.dumps({"prompt": talk})).spans
        prompt = Request(id="r", api=Api.COMPLETIONS, spans=spans, chars=0, tokens=len(talk))
        match = beliefs.look_up(prompt, "", ["m"], np.full(1, float(len(talk))), float(number))
        found, session = engine.found(talk), f"s{number}"
        total += len(talk)
        off += float(match.shares[engine.slot]) * len(talk) - found
        receipt = beliefs.insert(engine.slot, match.chain, float(number))
        beliefs.blocks_held.expect(session, engine.slot, match.chain, float(len(talk)))
        engine.store(talk, session)
        # Blocks of the answer are stored while it is generated.
        engine.store(talk + random.choices(range(5, 250), k=9), session)
        beliefs.blocks_held.answered(session, len(talk))
        beliefs.settle(receipt, found / len(talk), len(talk), "m")
        for engine in engines if number % late == 0 else ():
            engine.publish()
    assert abs(off) <= 0.01 * total


@pytest.mark.parametrize("count", [1, 4])
def test_a_text_that_shares_no_block_with_a_known_text_is_believed_uncached(count: int) -> None:
    blocks, hasher = TokenBlocks(), Hasher(b"k")
    blocks.emptied(0, "m")
    for number, letter in enumerate("ab"):  # the texts have less than a block of tokens in common
        ids = np.arange(16 * count, dtype=np.uint32) + 999 * number
        own = hash_blocks(ids, 16, root("", ""))
        blocks.stored(0, "m", Stored(hashes=list(own), ids=ids, block_size=16))
        blocks.learn("m", hasher.chain_of(b"x" * 128 + letter.encode() * 1000), len(ids), 16, own)
    shares = np.zeros(2)
    blocks.correct(
        hasher.chain_of(b"x" * 128 + b"z" * 500), shares, lambda _slot: 0.0, np.ones(len(shares))
    )
    assert shares[0] == 0.0

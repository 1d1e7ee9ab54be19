from __future__ import annotations

import random

import numpy as np
import pytest

from laar.accuracy.capability import CapabilityModel
from laar.core.beliefs import CapabilityAssessor, PrefixBeliefs
from laar.core.cost import CostWeights
from laar.core.decision import Completion, DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointSpec, EndpointTable
from laar.core.request import Api, Request
from laar.policies import build_policies
from laar.prefix import PromptHasher
from laar.prefix import lengths as lengths_module
from laar.prefix.lengths import PromptLengths, kind_of

HASHER = PromptHasher(b"k")
WORDS = [
    "the",
    "price",
    "of",
    "a",
    "ticket",
    "to",
    "every",
    "city",
    "was",
    "higher",
    "than",
    "people",
    "had",
    "expected",
]


def prose(rng: random.Random, chars: int) -> str:
    return " ".join(rng.choices(WORDS, k=chars // 6))


def numbers(rng: random.Random, chars: int) -> str:
    return "".join(
        f'{{"id": {rng.randrange(10**6)}, "x": {rng.random():.6f}}},' for _ in range(chars // 32)
    )


def code(rng: random.Random, chars: int) -> str:
    return "".join(
        f"    if a[{rng.randrange(99)}] == b.c(d):\n        e += f({rng.choice(WORDS)})\n"
        for _ in range(chars // 55)
    )


def japanese(rng: random.Random, chars: int) -> str:
    return "".join(rng.choices("東京都の料金は人々が思うよりも高い。切符", k=chars))


CHARS_PER_TOKEN = {prose: 4.6, numbers: 1.9, code: 2.9, japanese: 1.3}


def tokens_of(parts: list[tuple[object, str]]) -> int:
    return int(sum(len(text) / CHARS_PER_TOKEN[make] for make, text in parts)) + 12  # type: ignore[index]


def fleet() -> Director:
    table = EndpointTable()
    table.replace("test", [EndpointSpec(address="a:1", models=("m",))])
    return Director(
        table,
        build_policies(CostWeights()),
        DirectorSettings(),
        rng=random.Random(1),
        assessor=CapabilityAssessor(CapabilityModel()),
        prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 26),
    )


@pytest.mark.parametrize("reported", [1.0, 7 / 120])
def test_mixed_traffic_is_estimated_within_15_percent_for_nine_of_ten(reported: float) -> None:
    """Four kinds of conversations, each of its own density; few answers report their tokens."""
    director, rng, errors = fleet(), random.Random(4), []
    conversations = []
    for number in range(900):
        if len(conversations) < 40 or rng.random() < 0.1:
            make = rng.choice(list(CHARS_PER_TOKEN))
            conversations.append((make, [(prose, prose(rng, 300))]))
        make, parts = conversations[
            rng.randrange(max(0, len(conversations) - 40), len(conversations))
        ]
        if len(parts) < 12:
            parts.append((make, make(rng, rng.randrange(600, 4000))))
        spans = tuple(text for _, text in parts)
        request = Request(
            id="r",
            api=Api.CHAT,
            model="m",
            spans=spans,
            question=spans[-1],
            marks=("api=chat",),
            chars=sum(map(len, spans)),
        )
        decision = director.decide(request, float(number))
        real = tokens_of(parts)
        if number >= 450:
            errors.append(abs(decision.tokens / real - 1.0))
        said = real if rng.random() < reported else None
        end = Completion(status=200, cause="complete", latency_s=0.5, prompt_tokens=said)
        director.settle(decision, end)
    assert np.quantile(errors, 0.9) <= 0.15


def test_a_conversation_goes_by_its_own_tokens() -> None:
    lengths = PromptLengths()
    text = "a conversation of an unusual kind " * 200
    first, more = HASHER.chain([text]), HASHER.chain([text + "and one more turn of it " * 5])
    kind = kind_of(text, ())
    for _ in range(50):
        lengths.learn(HASHER.chain(["x" * 4000]), kind, "m", 1000)
    lengths.learn(first, kind, "m", first.total_bytes)  # a token a byte: four times the others
    found = lengths.estimate(more, kind, ["m", "n"], np.array([1.0, 7.0]))
    assert found[0] == pytest.approx(more.total_bytes, rel=0.05)
    assert found[1] == pytest.approx(7.0)  # nothing is known of that model


def test_nothing_learned_changes_nothing_and_nonsense_is_kept_in_bounds() -> None:
    lengths, chain = PromptLengths(), HASHER.chain(["x" * 4000])
    guess = np.array([1000.0])
    assert lengths.estimate(chain, (), ["m"], guess)[0] == 1000.0
    for tokens in (-5, 0):
        lengths.learn(chain, (), "m", tokens)
    lengths.learn(HASHER.chain(["short"]), (), "m", 500)
    assert lengths.estimate(chain, (), ["m"], guess)[0] == 1000.0
    lengths.learn(chain, (), "m", 10**15)
    assert lengths.estimate(chain, (), ["m"], guess)[0] <= 5.0 * 4000 + 1
    assert np.isfinite(lengths.estimate(chain, (), ["m"], np.zeros(1))).all()


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths_module, "MAX_KNOWN", 10)
    monkeypatch.setattr(lengths_module, "MAX_KINDS", 10)
    lengths = PromptLengths()
    for number in range(100):
        chain = HASHER.chain([f"{number} " + "x" * 1000])
        lengths.learn(chain, (str(number),), "m", 300)
    assert len(lengths._known) <= 10
    assert len(lengths._kinds) <= 10


def test_kinds_are_few_and_tell_numbers_from_prose() -> None:
    rng = random.Random(1)
    kinds = {kind_of(make(rng, 3000), ("api=chat", "turns=3")) for make in CHARS_PER_TOKEN}
    assert len(kinds) == len(CHARS_PER_TOKEN)
    assert kind_of("hello", ("api=chat", "turns=3")) == kind_of("hello", ("api=chat", "turns=9"))
    assert kind_of("", ()) == ("00",)

"""Dishonest reporters are outvoted, honest ones keep their weight, and memory is capped."""

from __future__ import annotations

import math
import random

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.accuracy import online as online_module
from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.reporters import MAX_REPORTERS

MODELS = tuple("abcd")
CELLS = tuple(Features("en", 2**n, "qa") for n in range(12, 18))
TRUE = {(m, c): 0.2 + 0.6 * random.Random(f"{m}{c}").random() for m in MODELS for c in CELLS}


def reports(
    online: OnlineOutcomes, reporters: dict[str, str], each: int = 10, seed: int = 1
) -> None:
    """Send `each` outcomes by each reporter for every cell of every model, in mixed order."""
    rng = random.Random(seed)
    turns = [(r, key) for r in reporters for key in TRUE for _ in range(each)]
    rng.shuffle(turns)
    for name, (which, cell) in turns:
        right = rng.random() < TRUE[which, cell]
        kind = reporters[name]
        shown = {
            "honest": right,
            "inverts": not right,
            "at random": rng.random() < 0.5,
            "favours a": which == "a",
        }[kind]
        online.observe(which, cell, shown, 0.0, reporter=name)


def error(online: OnlineOutcomes) -> float:
    """Return the mean distance of the posterior from the truth."""
    prior = np.array([0.5])
    return float(
        np.mean(
            [abs(online.posterior(prior, (m,), c, 0.0)[0][0] - p) for (m, c), p in TRUE.items()]
        )
    )


def unlimited() -> OnlineOutcomes:
    return OnlineOutcomes(half_life_s=math.inf, cap_per_hour=1e9)


@pytest.mark.parametrize("lie", ["inverts", "at random", "favours a"])
def test_a_dishonest_reporter_is_outvoted_by_honest_ones(lie: str) -> None:
    online, honest = unlimited(), unlimited()
    reports(online, {"x": "honest", "y": "honest", "z": "honest", "liar": lie}, each=20)
    reports(honest, {"x": "honest", "y": "honest", "z": "honest"}, each=20)
    weights = online.reporters.weights()
    assert weights.pop("liar") < (0.5 if lie == "at random" else 0.1)
    assert all(weight > 0.9 for weight in weights.values())
    assert error(online) < error(honest) + 0.02


def test_a_reporter_with_harder_questions_is_not_distrusted() -> None:
    online, rng = unlimited(), random.Random(3)
    for _ in range(10):
        for (which, cell), p in TRUE.items():
            for name, harder in (("x", 0.0), ("y", 0.0), ("support", 0.12)):
                right = rng.random() < p - harder
                online.observe(which, cell, right, 0.0, reporter=name)
    assert min(online.reporters.weights().values()) > 0.8


def test_a_reporter_that_becomes_honest_regains_its_weight() -> None:
    online = OnlineOutcomes(half_life_s=10.0, cap_per_hour=1e9)
    kinds = {"x": "honest", "y": "honest", "z": "inverts"}
    reports(online, kinds)
    assert online.reporters.weights()["z"] < 0.1
    rng = random.Random(4)
    for name in kinds:  # a hundred half-lives later
        for (which, cell), p in TRUE.items():
            for _ in range(10):
                right = rng.random() < p
                online.observe(which, cell, right, 1000.0, reporter=name)
    assert online.reporters.weights()["z"] > 0.9


def test_evidence_about_reporters_survives_a_restart() -> None:
    online = unlimited()
    reports(online, {"": "honest", "x": "honest", "y": "honest", "z": "inverts"})
    saved = orjson.loads(orjson.dumps(online.state(0.0)))
    again = unlimited()
    assert again.restore(saved, 0.0) == len(TRUE)
    assert again.reporters.weights()["z"] < 0.1
    assert error(again) == pytest.approx(error(online), abs=0.01)


def test_one_reporter_uses_at_most_half_of_a_cells_cap() -> None:
    online = OnlineOutcomes(cap_per_hour=40)
    cell = CELLS[0]
    while online.observe("a", cell, False, 0.0, reporter="liar"):
        pass
    for name in ("x", "y"):
        for _ in range(5):
            assert online.observe("a", cell, True, 0.0, reporter=name)
    assert online.by_model(0.0)["a"].outcomes == 20


def test_the_numbers_of_reporters_and_shares_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_module, "MAX_SHARES", 30)
    online = unlimited()
    for number in range(200):
        for cell in CELLS:
            assert online.observe("a", cell, True, 0.0, reporter=f"r{number}")
    assert len(online.reporters.weights()) <= MAX_REPORTERS
    assert online._shares <= 30 + len(CELLS)
    assert online.by_model(0.0)["a"].outcomes == 200 * len(CELLS)


def test_forgotten_reporters_make_room_for_new_names() -> None:
    """For example, a checker named after its pod has a new name after each deployment."""
    online = OnlineOutcomes(half_life_s=60.0, cap_per_hour=1e9)
    for number in range(MAX_REPORTERS):
        online.observe("a", CELLS[0], number % 2 == 0, 0.0, reporter=f"old-{number}")
    assert online.observe("a", CELLS[0], True, 1.0, reporter="new")
    assert "new" not in online.reporters.weights()  # as all old reporters still count
    for name in ("new", "newer"):
        online.observe("a", CELLS[0], True, 700.0, reporter=name)
    assert set(online.reporters.weights()) == {"new", "newer"}
    (cell,) = online.cells.values()
    assert sum(s.outcomes for s in cell.shares.values()) == pytest.approx(cell.total.outcomes)
    assert sum(s.correct for s in cell.shares.values()) == pytest.approx(cell.total.correct)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "x", "y", "z"]),
            st.sampled_from(MODELS[:2]),
            st.sampled_from(CELLS[:2]),
            st.booleans(),
            st.floats(0, 10),
        ),
        max_size=60,
    )
)
def test_the_shares_of_reporters_always_add_up_to_the_cell(
    steps: list[tuple[str, str, Features, bool, float]],
) -> None:
    online, now = OnlineOutcomes(half_life_s=20.0, cap_per_hour=50), 0.0
    for name, which, cell, correct, gap_s in steps:
        now += gap_s
        online.observe(which, cell, correct, now, reporter=name)
    for cell in online.cells.values():
        if cell.shares:
            for part in ("correct", "outcomes"):
                total = sum(getattr(share, part) for share in cell.shares.values())
                assert total == pytest.approx(getattr(cell.total, part))

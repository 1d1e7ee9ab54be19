"""The figures of a comparison, and `laar ttca` through a real Envoy."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from laar_lab.kv_lookup import Query, queries
from laar_lab.live.agreement import Figures, agreements, in_lab, in_order
from laar_lab.live.comparison import Tally
from laar_lab.live.figures import Step, improvements, plot, steps
from support.commands import run_in_thread
from support.outcomes import outcome


def query(language: str, length: int) -> Query:
    return Query(id="", language=language, length_tokens=length, key="", answer="")


def test_each_attempt_adds_its_time_for_unanswered_questions() -> None:
    tally = Tally(
        "laar",
        [
            (query("en", 4096), outcome(1.0, correct=True)),
            (query("en", 4096), outcome(2.0, 3.0, correct=True)),
            (query("en", 8192), outcome(4.0, 5.0, 6.0, correct=False)),
            (query("en", 8192), outcome(1.0, correct=True)),
        ],
    )
    rates = [0.5, 0.75, 0.75]
    times = [8.0 / 4, (8.0 + 3.1 + 5.1) / 4, (8.0 + 3.1 + 5.1 + 6.1) / 4]
    assert steps(tally, time_scale=0.5) == [
        Step(policy="laar", attempts=at, success_rate=rate, ttca_s=pytest.approx(2 * time))
        for at, (rate, time) in enumerate(zip(rates, times, strict=True), start=1)
    ]


def test_improvement_is_the_share_of_the_baseline_time_saved_in_each_cell(tmp_path: Path) -> None:
    ours = Tally(
        "laar",
        [
            (query("ja", 4096), outcome(1.0, correct=True)),
            (query("en", 4096), outcome(3.0, correct=True)),
            (query("en", 4096), outcome(1.0, correct=True)),
        ],
    )
    theirs = Tally(
        "random",
        [
            (query("en", 4096), outcome(4.0, correct=False)),
            (query("en", 4096), outcome(4.0, correct=True)),
            (query("ja", 4096), outcome(0.5, correct=True)),
        ],
    )
    bars = improvements(ours, [theirs], time_scale=0.1)
    assert [(b.baseline, b.language, b.questions, b.ratio) for b in bars] == [
        ("random", "en", 2, pytest.approx(0.5)),
        ("random", "ja", 1, pytest.approx(-1.0)),
    ]
    assert bars[0].ours_s == pytest.approx(20.0)
    plot(tmp_path / "figure.svg", [steps(ours), steps(theirs)], bars)
    assert b"</svg>" in (tmp_path / "figure.svg").read_bytes()


@pytest.mark.slow
@pytest.mark.envoy
@pytest.mark.usefixtures("envoy_binary")
async def test_held_out_questions_are_replayed_through_envoy(tmp_path: Path) -> None:
    figures, drawing = tmp_path / "ttca.json", tmp_path / "ttca.png"
    ran = await run_in_thread(
        *("ttca", "--policy", "laar", "--policy", "session-affinity", "--per-cell", 6),
        *("--language", "en", "--length", 65536, "--time-scale", 0.002),
        *("--json", figures, "--plot", drawing),
    )
    assert ran.status == 0, ran.text
    found = orjson.loads(figures.read_bytes())
    curves = {
        policy: [step for step in found["by_attempt"] if step["policy"] == policy]
        for policy in ("laar", "session-affinity")
    }
    assert len(curves["laar"]) <= 5  # one attempt per model, then all are exhausted
    # At least one question always goes to a wrong model.
    assert len(curves["session-affinity"]) == 10
    finals = {policy: curve[-1]["success_rate"] for policy, curve in curves.items()}
    # laar asks every model. Session affinity may be as good by luck, as ports are random.
    assert finals["laar"] >= finals["session-affinity"]
    assert [(bar["language"], bar["questions"]) for bar in found["improvement"]] == [("en", 6)]
    assert drawing.read_bytes().startswith(b"\x89PNG")


def test_a_run_drawn_like_those_of_the_lab_rarely_disagrees() -> None:
    rng = random.Random(5)

    def draw() -> float:
        return rng.gauss(10.0, 1.0)

    alarms = 0
    for _ in range(400):
        lab = {name: [Figures(1.0, 1.0, draw()) for _ in range(8)] for name in "abcd"}
        tallies = [
            Tally(name, [(query("en", 4096), outcome(draw(), correct=True))]) for name in lab
        ]
        alarms += not all(one.agrees for one in agreements(tallies, lab, time_scale=1.0))
    # Twelve intervals share an error of 5 %, and only four are of values that vary: a third of 5 %.
    assert 1 <= alarms <= 20


def test_a_run_with_different_engine_settings_disagrees() -> None:
    asked = queries(languages=["en"], lengths_tokens=[65536], per_cell=15)

    def lab(runs: int, *, keep_prompts: bool) -> dict[str, list[Figures]]:
        return in_lab(
            asked,
            ["session-affinity"],
            runs=runs,
            capability=None,
            concurrency=8,
            keep_prompts=keep_prompts,
        )

    (other,) = lab(1, keep_prompts=False)["session-affinity"]
    results = [(query("en", 65536), outcome(other.ttca_s, correct=True))]
    found = agreements(
        [Tally("session-affinity", results)], lab(5, keep_prompts=True), time_scale=1.0
    )
    assert {one.figure: one.agrees for one in found}["ttca_s"] is False


def test_questions_are_shuffled_only_within_a_cell() -> None:
    asked = queries(languages=["en", "ja"], lengths_tokens=[4096], per_cell=20)
    orders = [in_order(asked, seed) for seed in ("1", "1", "2")]
    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        assert [q.language for q in order] == ["en"] * 20 + ["ja"] * 20
        assert {q.id for q in order} == {q.id for q in asked}


@pytest.mark.slow
@pytest.mark.envoy
@pytest.mark.usefixtures("envoy_binary")
async def test_envoy_and_the_lab_make_the_same_decisions(tmp_path: Path) -> None:
    figures = tmp_path / "ttca.json"
    ran = await run_in_thread(
        *("ttca", "--against-lab", 12, "--drop-prompts", "--per-cell", 8, "--time-scale", 0.2),
        *("--policy", "laar", "--policy", "load-aware", "--json", figures),
        *("--length", 4096, "--length", 8192, "--length", 16384),
    )
    assert ran.status in (0, 3), ran.text  # 3 if other work on the machine changed the times
    entries = orjson.loads(figures.read_bytes())["against_lab"]
    found = {(entry["policy"], entry["figure"]): entry for entry in entries}
    assert len(found) == 2 * 3
    for (_, figure), entry in found.items():
        # One run in twenty lies outside the interval, but none should lie outside twice its width.
        near = abs(entry["envoy"] - entry["lab"]) <= 2 * entry["half"] + 1e-9
        assert near or figure == "ttca_s", entry
    # A policy that asks every model finds all answers that any model knows, so nothing varies.
    assert found["laar", "success_rate"]["half"] == 0

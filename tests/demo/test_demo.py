"""The demo: its figures, and a short form of it through a real Envoy."""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path

import numpy as np
import orjson
import pytest
from rich.console import Console

from laar.client import Attempt, Outcome
from laar_lab.live import demo
from laar_lab.live.demo import FEWEST, LIMIT_S, Line, paired, penalized_s
from laar_lab.live.questions import breaches
from laar_lab.race.result import Ratio
from support.commands import run_in_thread
from support.outcomes import outcome


def verdict(ours: np.ndarray, theirs: np.ndarray) -> str:
    return paired(list(ours), list(theirs)).verdict(more_is_better=False)


def test_a_question_without_an_answer_in_time_counts_as_twice_the_limit() -> None:
    scale = 0.5
    assert penalized_s(outcome(1.0, correct=True), scale) == pytest.approx(2.0)
    for late in (outcome(1.0, correct=False), outcome(LIMIT_S, correct=True)):
        assert penalized_s(late, scale) == 2 * LIMIT_S


@pytest.mark.parametrize(("factor", "said"), [(0.5, "better"), (2.0, "worse")])
def test_a_consistent_difference_is_shown(factor: float, said: str) -> None:
    theirs = np.random.default_rng(7).uniform(5.0, 25.0, 60)
    assert verdict(theirs * factor, theirs) == said


def test_equal_rules_are_nearly_always_a_tie() -> None:
    rng = np.random.default_rng(3)
    ties = [verdict(rng.exponential(20.0, 60), rng.exponential(20.0, 60)) for _ in range(60)]
    assert ties.count("") >= 50


def test_few_questions_show_no_difference() -> None:
    few = np.full(FEWEST - 1, 8.0)
    assert verdict(few / 8, few) == ""


class Machine:
    """The clocks of a process that gets a share of a core, another at each measurement."""

    def __init__(self, shares: list[float]) -> None:
        self._shares, self._at_s, self._cpu_s = iter([0.0, *shares]), 0.0, 0.0

    def monotonic(self) -> float:
        self._at_s += 1.0
        return self._at_s

    def process_time(self) -> float:
        self._cpu_s += next(self._shares)
        return self._cpu_s


@pytest.mark.parametrize(
    ("shares", "slowed", "said"),
    [
        ([0.9], 1.0, ""),
        ([0.2, 0.0, 0.1, 0.0, 0.8], 1.0, "waiting until it is quieter"),
        ([0.5, 0.0] * 100, 2.0, "the fleet runs 2.0 times as slowly"),
        ([0.1, 0.0] * 200 + [0.25], 4.0, "the fleet runs 4.0 times as slowly"),
    ],
)
async def test_the_demo_waits_for_a_quieter_machine_and_says_so(
    monkeypatch: pytest.MonkeyPatch, shares: list[float], slowed: float, said: str
) -> None:
    async def sleep(_seconds: float) -> None:
        pass

    # Two seconds pass while it measures.
    machine, console = Machine([2.0 * share for share in shares]), Console(file=StringIO())
    monkeypatch.setattr(demo, "time", machine)
    monkeypatch.setattr(demo.asyncio, "sleep", sleep)
    assert await demo.quiet(console, 60.0) == pytest.approx(slowed)
    assert said in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_tie_is_called_one() -> None:
    once = Ratio(value=1.1, low=math.nan, high=math.nan)
    few = Line(scene="", measure="", ours="", theirs="", ratio=once)
    assert few.said == "tie: too few to show a difference"
    line = Line(scene="", measure="", ours="", theirs="", ratio=Ratio(value=1.1, low=0.9, high=1.3))
    assert line.said == "tie: +10 % (-10 to +30)"
    better = Ratio(value=2.0, low=1.5, high=2.5)
    for more_is_better, word in ((True, "better"), (False, "worse")):
        shown = Line(
            scene="",
            measure="",
            ours="",
            theirs="",
            ratio=better,
            more_is_better=more_is_better,
        )
        assert shown.said.startswith(word)


def attempt(model: str, **changed: object) -> Attempt:
    fields: dict[str, object] = {
        "model": model,
        "endpoint": f"at-{model}",
        "decision_id": "d",
        "reason": "laar",
        "status": 200,
        "latency_s": 1.0,
        "ttft_s": None,
        "waited_s": 0.0,
        "prompt_tokens": None,
        "answer": "",
        "correct": False,
        "error": None,
    }
    return Attempt(**(fields | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempts", "exhausted", "found"),
    [
        ([attempt("a"), attempt("b")], True, ""),
        ([attempt("a")], False, ""),
        ([attempt("a")], True, "exhausted"),
        ([attempt("a"), attempt("a")], False, "tried twice"),
        ([attempt("a", endpoint="at-b")], False, "does not serve"),
        ([attempt("a", reason="random")], False, "decided as"),
        ([attempt("a", decision_id=None)], False, "decided as"),
        ([attempt("a", status=503, error="gone")], False, "status 503"),
    ],
)
def test_violations_of_the_contract_are_found(
    attempts: list[Attempt], exhausted: bool, found: str
) -> None:
    made = Outcome(
        answer="",
        correct=False,
        attempts=tuple(attempts),
        ttca_s=1.0,
        censored=True,
        exhausted=exhausted,
    )
    said = breaches("laar", made, {"at-a": "a", "at-b": "b"})
    assert bool(said) == bool(found)
    assert all(found in each for each in said)


@pytest.mark.envoy
@pytest.mark.timeout(200)
@pytest.mark.usefixtures("envoy_binary")
async def test_a_short_demo_runs_every_scene(tmp_path: Path) -> None:
    figures = tmp_path / "demo.json"
    ran = await run_in_thread("demo", "--short", "--json", figures)
    assert ran.status == 0, ran.text
    assert "The live page is http://127.0.0.1:" in ran.text
    assert "laar only ties in: " in ran.text
    found = orjson.loads(figures.read_bytes())
    assert [line["scene"] for line in found["lines"] if line["scene"]] == [
        "Agents need more than the caches hold",
        "One engine dies, another sends web pages",
        "Five models, answers are checked",
    ]
    assert found["faults"] == []
    for line in found["lines"]:
        assert math.isfinite(line["ratio"]["value"])

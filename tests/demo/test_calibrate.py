"""`laar calibrate` on simulated endpoints whose speeds and accuracies are known."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest
from laar_command import MODELS

from laar.accuracy.artifact import parse_artifact
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.client.until import Message
from laar.errors import SettingError
from laar.measuring.checks import decide
from laar.measuring.sets import SETS, made_questions
from laar_lab.kv_lookup import solve
from laar_lab.sim.answers import AccuracySurface
from support.commands import run, run_in_thread

Endpoints = Callable[..., Awaitable[list[str]]]


async def test_calibration_recovers_the_properties_of_engines(
    sim_endpoints: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laar.cli.measuring._MAX_QUESTIONS", 60)  # it ends after these, not by time
    urls = await sim_endpoints(time_scale=0.005)
    out, outcomes = tmp_path / "capability.json", tmp_path / "calibration.jsonl"
    ran = await run_in_thread(
        *("calibrate", *urls, "--out", out, "--outcomes", outcomes, "--set", "lookups"),
        *("--seconds", 100, "--concurrency", 8),
    )
    assert ran.status == 0, ran.text
    artifact = parse_artifact(out.read_bytes(), source="")
    surface = AccuracySurface.load()
    for name in MODELS:
        model = artifact.models[name]
        asked = sum(cell.outcomes for cell in model.cells)
        assert asked == 60, ran.text
        longest = max(model.cells, key=lambda cell: cell.bucket)
        expected = surface.accuracy(name, "en", 8192)
        assert abs(longest.correct / longest.outcomes - expected) < 0.3
    assert "Held out" in ran.text
    assert "of the first answers are correct with this artifact" in ran.text
    done = [
        MeasuredOutcome.model_validate_json(line) for line in outcomes.read_bytes().splitlines()
    ]
    assert all(outcome.ttft_s is not None for outcome in done if outcome.status == 200)


@pytest.mark.slow
async def test_a_slow_engine_is_measured_as_slow_and_a_wrong_one_as_wrong(
    sim_endpoints: Endpoints, tmp_path: Path
) -> None:
    """One engine has a quarter of the speed; both models answer only look-ups correctly."""
    fast, slow = await sim_endpoints(time_scale=0.02), await sim_endpoints(time_scale=0.08)
    out = tmp_path / "capability.json"
    ran = await run_in_thread(
        *("calibrate", fast[0], slow[1], "-o", out, "--outcomes", tmp_path / "o.jsonl"),
        *("--set", "lookups", "--set", "arithmetic", "--seconds", 8, "--concurrency", 2),
    )
    assert ran.status == 0, ran.text
    artifact = parse_artifact(out.read_bytes(), source="")
    speeds = {name: artifact.models[name].speed for name in MODELS}
    quick, late = (speeds[name] for name in MODELS)
    assert quick is not None
    assert late is not None
    # The true speeds are 4 * 1.30e-4 and 1.37e-4 seconds per token; a busy machine adds noise.
    assert 1.5 < late.seconds_per_token / quick.seconds_per_token < 12
    for model in artifact.models.values():
        by_task = {cell.task: cell.correct / cell.outcomes for cell in model.cells}
        assert by_task["kv-lookup"] > 0.5
        assert any(share == 0 for task, share in by_task.items() if task != "kv-lookup")


def test_an_unreachable_engine_is_an_error_that_suggests_a_fix(tmp_path: Path) -> None:
    ran = run("calibrate", "http://127.0.0.1:1", "--outcomes", tmp_path / "o.jsonl")
    assert ran.status == 2
    assert "is it running?" in ran.text


@pytest.mark.parametrize("name", SETS)
def test_generated_questions_are_answered_correctly_only_by_their_solutions(name: str) -> None:
    """The solutions are computed here from the text of the questions alone."""
    for question in made_questions([name], 30, seed=7):
        (message,) = question.ask()
        assert decide(question.check, solved(message))
        assert not decide(question.check, "I do not know: 0")


def solved(message: Message) -> str:
    text = str(message["content"])
    if (found := solve(text)) is not None:
        return found.value
    if sum_ := re.match(r"What is ([\d +*()-]+)\?", text):
        return f"It is {eval(sum_[1])}."
    listed = text.partition(": ")[2].partition(". ")[0]
    counts = {pair.split()[0]: int(pair.split()[1]) for pair in listed.split(", ")}
    if "total" in text:
        best = max(counts, key=lambda word: counts[word])
        return (
            "```json\n"
            + orjson.dumps({"largest": best, "total": sum(counts.values())}).decode()
            + "\n```"
        )
    return orjson.dumps(sorted(counts) if "alphabet" in text else counts).decode()


def test_sets_alternate_and_seeds_share_no_question() -> None:
    one, other = (made_questions(list(SETS), 90, seed=seed) for seed in (1, 2))
    assert len({question.id for question in [*one, *other]}) == 180
    assert [q.id.partition("-")[0] for q in one[:3]] == ["kv", "arithmetic", "formats"]
    with pytest.raises(SettingError, match="did you mean `lookups`"):
        made_questions(["lookup"], 1)

"""A stored run can be repeated in part: policies without changes keep their stored numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from laar.cli import app
from laar_lab.results import Stored, load, write
from laar_lab.suite.case import Case, Numbers
from laar_lab.suite.table import SUITE
from laar_lab.suite.verdict import MARGINS

CASES = (replace(SUITE[0], name="one", role="choose"), replace(SUITE[1], name="two", role="judge"))
RULES = ("lmetric", "smg", "p2c", "round-robin")


class World:
    """Made-up runs by the speed of each policy, and the commit of the code."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.times_s = {"laar": 1.0, "lmetric": 1.0, "smg": 1.1, "p2c": 1.2, "round-robin": 1.5}
        self.slower = {"one": 1.0, "two": 1.0}
        self.commit = ""
        self.ran: Counter[tuple[str, str, int]] = Counter()

    def run(self, case: Case, policy: str, seed: int, *, share: float) -> Numbers:
        self.ran[case.name, policy, seed] += 1
        drawn = Random(f"{case.name} {policy} {seed}").uniform(0.99, 1.01)
        time_s = (
            self.times_s[policy] * drawn * (self.slower[case.name] if policy == RULES[0] else 1)
        )
        return {**dict.fromkeys(MARGINS, time_s), "hit_rate": 0.5, "busiest": 0.5, "failed": 0.0}

    def results(self, where: str, commit: str, *words: str) -> tuple[Stored, str]:
        """Make the results with the code of a commit; return the run and what was printed."""
        self.commit = commit
        self.ran.clear()
        told = ["results", "no-regret", "--jobs", "1", "--directory", str(self.directory / where)]
        done = CliRunner().invoke(app, ["lab", *told, *words])
        assert done.exit_code == 0, done.output
        return load(self.directory / where)["no-regret"], done.output

    def seeds(self, case: str, policy: str) -> int:
        return len({seed for of, by, seed in self.ran if (of, by) == (case, policy)})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    monkeypatch.setattr("laar_lab.suite.runs.run_case", made.run)
    monkeypatch.setattr("laar_lab.experiments.no_regret.cases", lambda _data: CASES)
    monkeypatch.setattr("laar_lab.experiments.no_regret.BASELINES", RULES)
    monkeypatch.setattr("laar_lab.results.commit_of", lambda: made.commit)
    monkeypatch.setattr("laar_lab.stale.digest_of_code", lambda _: "d")
    return made


def flat(run: Stored) -> dict[tuple[str, str, str, int], float]:
    return {
        (claim, part, side, at): value
        for claim, parts in run.evidence.items()
        for part, seen in parts.items()
        for side, values in (("ours", seen.ours), ("theirs", seen.theirs))
        for at, value in enumerate(values)
    }


@pytest.mark.parametrize("slower", [0.85, 1.3])
def test_a_partly_repeated_run_equals_a_complete_one(world: World, slower: float) -> None:
    """A policy changes on one workload, where others then fall far behind, or no longer do."""
    world.results("stored", "aaaaaaa")
    world.slower["one"] = slower
    world.times_s["laar"] = 1.01
    whole, _ = world.results("whole", "bbbbbbb")
    part, said = world.results("stored", "bbbbbbb", "--reuse")

    assert part.numbers == whole.numbers
    assert flat(part) == pytest.approx(flat(whole), rel=1e-6)
    assert part.first == whole.first
    assert (part.commit, part.checked) == (whole.commit, whole.checked)
    lengths = {p: len(values) for p, values in part.numbers["one"]["e2e_mean_s"].items()}
    assert lengths["smg"] == (5 if slower < 1.0 else 15)
    assert lengths["p2c"] == (5 if slower < 1.0 else 15)

    assert set(world.ran.values()) == {1}, "nothing runs twice"
    assert world.seeds("two", "laar") == world.seeds("one", "laar") == 15
    assert world.seeds("two", "lmetric") == 15, "a changed policy runs on all workloads"
    assert world.seeds("one", "smg") == world.seeds("two", "smg") == 1
    assert world.seeds("one", "p2c") == (1 if slower < 1.0 else 11), "the stored run has five seeds"
    assert "changed: lmetric on 1 of 2 workloads: one\n" in said
    assert "changed: laar on 2 of 2 workloads: one, two\n" in said
    assert "changed: smg" not in said
    kept = 5 if slower < 1.0 else 15
    assert part.reused == {
        "aaaaaaa": {
            "one": {"smg": kept, "p2c": 5, "round-robin": 5},
            "two": {"smg": 15, "p2c": 5, "round-robin": 5},
        }
    }
    assert f"{kept + 35} of " in said


def test_numbers_that_are_reused_again_keep_their_commit(world: World) -> None:
    world.results("stored", "aaaaaaa")
    world.slower["one"] = 1.3
    world.results("stored", "bbbbbbb", "--reuse")
    world.times_s["smg"] = 1.12
    third, said = world.results("stored", "ccccccc", "--reuse")
    assert world.seeds("one", "lmetric") == world.seeds("one", "p2c") == 1
    assert third.reused["aaaaaaa"]["one"] == {"p2c": 5, "round-robin": 5}
    assert third.reused["bbbbbbb"]["one"] == {"lmetric": 5, "p2c": 10}
    assert "changed: smg on 2 of 2 workloads" in said


@pytest.mark.parametrize("stored", [False, True])
def test_all_seeds_run_without_stored_numbers_of_the_same_seeds(world: World, stored: bool) -> None:
    if stored:
        run, _ = world.results("results", "aaaaaaa")
        command = run.command.replace("--first-seed 50000", "--first-seed 50001")
        write(world.directory / "results", replace(run, command=command))
    run, said = world.results("results", "bbbbbbb", "--reuse")
    assert world.seeds("one", "smg") == 15
    assert not run.reused
    assert "0 of " in said

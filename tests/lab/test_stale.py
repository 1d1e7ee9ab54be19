"""Checking stored runs with later code finds changed numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from typer.testing import CliRunner

from laar.cli import app
from laar_lab.claims import Claim, Seen
from laar_lab.experiment import Experiment, Scope
from laar_lab.report import Report
from laar_lab.results import Stored, load, store, write
from laar_lab.stale import check, differing, first_numbers, just_made

CLAIM = Claim(
    name="c", says="It is so.", metric="m", effect="level", direction="below", bound=9.0, seeds=3
)


def experiment(*values: float) -> Experiment:
    def run(scope: Scope) -> Report:
        return Report(tables=(), evidence={"c": {"": Seen(ours=list(values[: len(scope.seeds)]))}})

    return Experiment(name="e", about="", source="no paper", run=run, claims=(CLAIM,), seeds=3)


def stored(directory: Path, *values: float) -> Stored:
    its = experiment(*values)
    scope = Scope(seeds=(7, 8, 9))
    return store(directory, its, its.run(scope), scope, "abcdef0")


def test_a_number_that_is_missing_or_new_differs() -> None:
    before = first_numbers({"c": {"": Seen([1.0], [2.0]), "part": Seen([math.nan])}})
    assert not differing(before, before)
    gone = differing(before, first_numbers({"c": {"": Seen([1.0])}}))
    new = differing(first_numbers({"c": {"": Seen([1.0])}}), before)
    assert list(gone) == list(new) == ["c (theirs)"]


def test_a_single_seed_may_have_a_different_best_policy_and_mean(tmp_path: Path) -> None:
    def its(*ours: float) -> Experiment:
        def run(scope: Scope) -> Report:
            seen, best = list(ours[: len(scope.seeds)]), "smg" if scope.seeds[1:] else "lmetric"
            shares = [one / mean(seen) for one in seen]
            return Report(tables=(), evidence={"c": {f"chats, {best}": Seen(seen, shares)}})

        return replace(experiment(), run=run)

    scope = Scope(seeds=(7, 8, 9))
    run = store(tmp_path, its(1.0, 2.0, 3.0), its(1.0, 2.0, 3.0).run(scope), scope, "abcdef0")
    write(tmp_path, just_made(its(1.0, 2.0, 3.0), run, None))
    held = check(its(1.0, 5.0, 5.0), load(tmp_path)["e"], None, "1234567").checked
    assert held is not None
    assert (held.numbers, held.differ) == (4, 0)
    stale = check(its(1.1, 2.0, 3.0), load(tmp_path)["e"], None, "1234567").checked
    assert stale is not None
    assert (stale.differ, stale.worst) == (1, "c chats, lmetric: 1, now 1.1")


def test_the_command_stores_its_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path, 1.0, 2.0, 3.0)
    monkeypatch.setattr("laar_lab.experiments.find_experiment", lambda _name: experiment(1.5))
    command = ["results", "--check", "--directory", str(tmp_path)]
    result = CliRunner().invoke(app, ["lab", *command])
    assert result.exit_code == 3
    assert "e: 1 of 1 numbers differ; c: 1, now 1.5" in result.output
    checked = load(tmp_path)["e"].checked
    assert checked is not None
    assert checked.differ == 1
    again = CliRunner().invoke(app, ["lab", *command])  # does not run the same code again
    assert again.exit_code == 3
    assert "e:" not in again.output


def test_a_run_is_repeated_by_later_commits_only(tmp_path: Path) -> None:
    its, run = experiment(1.0, 2.0, 3.0), stored(tmp_path, 1.0, 2.0, 3.0)
    made = just_made(its, run, None)
    assert (made.checked, made.repeated) == (None, ())
    again = check(its, check(its, made, None, "1234567"), None, "89abcde")
    assert again.repeated == ("1234567", "89abcde")
    stale = check(experiment(1.5), again, None, "fedcba9")
    assert stale.repeated == again.repeated
    assert stale.checked is not None
    assert stale.checked.differ == 1

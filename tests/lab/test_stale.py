"""Stored runs are checked with later code: what changes numbers is seen, texts are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from laar_lab.claims import Claim, Seen
from laar_lab.cli import lab as commands
from laar_lab.experiment import Experiment, Scope
from laar_lab.report import Report
from laar_lab.results import Stored, load, store
from laar_lab.stale import check, differences, digest_of_code

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


def test_a_run_whose_first_seed_comes_out_again_holds(tmp_path: Path) -> None:
    run = check(experiment(1.0, 5.0, 5.0), stored(tmp_path, 1.0, 2.0, 3.0), None, "1234567")
    assert run.checked is not None
    assert (run.checked.numbers, run.checked.differ, run.checked.worst) == (1, 0, "")


def test_a_run_whose_first_seed_differs_is_stale(tmp_path: Path) -> None:
    run = check(experiment(1.5), stored(tmp_path, 1.0, 2.0, 3.0), None, "1234567")
    assert run.checked is not None
    assert (run.checked.differ, run.checked.worst) == (1, "c: 1, now 1.5")


def test_a_number_that_is_no_longer_made_differs() -> None:
    before = {"c": {"": Seen([1.0], [2.0]), "part": Seen([float("nan")])}}
    assert not list(differences(before, before))
    after = {"c": {"": Seen([1.0])}}
    assert [text for _, text in differences(before, after)] == ["c (theirs): 2, now nan"]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('"""Other words."""\nx = 1  # why\n', True),
        ("x = 1\n", True),
        ("x = 2\n", False),
        ("x = 1\ny = 1\n", False),
    ],
)
def test_texts_are_no_code(tmp_path: Path, text: str, same: bool) -> None:
    for name, source in (("a", '"""Words."""\nx = 1\n'), ("b", text)):
        (tmp_path / name / "server").mkdir(parents=True)
        (tmp_path / name / "m.py").write_text(source)
        (tmp_path / name / "server" / "m.py").write_text(text)
    assert (digest_of_code((tmp_path / "a",)) == digest_of_code((tmp_path / "b",))) is same


def test_the_command_stores_what_it_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path, 1.0, 2.0, 3.0)
    monkeypatch.setattr("laar_lab.experiments.find_experiment", lambda _name: experiment(1.5))
    monkeypatch.setattr("laar_lab.stale.digest_of_code", lambda: "d")
    command = ["results", "--check", "--directory", str(tmp_path)]
    result = CliRunner().invoke(commands.app, command)
    assert result.exit_code == 3
    assert "e: 1 of 1 numbers differ; c: 1, now 1.5" in result.output
    checked = load(tmp_path)["e"].checked
    assert checked is not None
    assert checked.differ == 1
    again = CliRunner().invoke(commands.app, command)  # the same code is not run again
    assert again.exit_code == 3
    assert "e:" not in again.output

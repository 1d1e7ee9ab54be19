"""Checking stored runs with later code finds changed numbers, and ignores changed texts."""

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
from laar_lab.stale import check, differing, digest_of_code, first_numbers, just_made

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


@pytest.fixture
def _one_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laar_lab.stale.digest_of_code", lambda _: "d")


@pytest.mark.usefixtures("_one_code")
def test_a_run_whose_first_seed_is_reproduced_is_up_to_date(tmp_path: Path) -> None:
    run = check(experiment(1.0, 5.0, 5.0), stored(tmp_path, 1.0, 2.0, 3.0), None, "1234567")
    assert run.checked is not None
    assert (run.checked.numbers, run.checked.differ, run.checked.worst) == (1, 0, "")


@pytest.mark.usefixtures("_one_code")
def test_a_run_whose_first_seed_differs_is_stale(tmp_path: Path) -> None:
    run = check(experiment(1.5), stored(tmp_path, 1.0, 2.0, 3.0), None, "1234567")
    assert run.checked is not None
    assert (run.checked.differ, run.checked.worst) == (1, "c: 1, now 1.5")


def test_a_number_that_is_missing_or_new_differs() -> None:
    before = first_numbers({"c": {"": Seen([1.0], [2.0]), "part": Seen([math.nan])}})
    assert not differing(before, before)
    gone = differing(before, first_numbers({"c": {"": Seen([1.0])}}))
    new = differing(first_numbers({"c": {"": Seen([1.0])}}), before)
    assert list(gone) == list(new) == ["c (theirs)"]


@pytest.mark.usefixtures("_one_code")
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


@pytest.mark.parametrize(
    ("changed", "text", "same"),
    [
        ("used", '"""Other words."""\nx = 1  # why\nif not x:\n    raise ValueError("0")\n', True),
        ("used", 'x = 2\nif not x:\n    raise ValueError("no")\n', False),
        ("used", 'x = 1\nif x:\n    raise ValueError("no")\n', False),
        ("unused", "x = 2\n", True),
        ("policies/one", "x = 2\n", False),
    ],
)
def test_the_code_of_a_run_is_what_it_imports(
    tmp_path: Path, changed: str, text: str, same: bool
) -> None:
    def digest(root: str, **files: str) -> str:
        package = tmp_path / root / "laar"
        (package / "policies").mkdir(parents=True)
        written = {
            "__init__": "",
            "run": "def f():\n    from laar.used import x\n    import laar.policies\n",
            "used": '"""Words."""\nx = 1\nif not x:\n    raise ValueError("no")\n',
            "unused": "x = 1\n",
            "policies/__init__": "from laar.policies import one\n",
            "policies/one": "x = 1\n",
        }
        for name, content in (written | files).items():
            (package / f"{name}.py").write_text(content)
        run = lambda scope: Report(tables=())  # noqa: E731
        run.__module__ = "laar.run"
        its = Experiment(name="e", about="", source="no paper", run=run)
        return digest_of_code(its, (package,))

    assert (digest("a") == digest("b", **{changed: text})) is same


def test_data_files_next_to_the_code_are_part_of_its_digest(tmp_path: Path) -> None:
    def digest(room: str, rate: str) -> str:
        for name in ("laar", f"laar/{room}", f"laar/{room}/data"):
            (tmp_path / name).mkdir(exist_ok=True)
        for name in ("laar", f"laar/{room}"):
            (tmp_path / name / "__init__.py").touch()
        (tmp_path / "laar" / "engine").mkdir(exist_ok=True)
        (tmp_path / "laar" / "engine" / "__init__.py").touch()
        (tmp_path / "laar" / room / "data" / "rates.yaml").write_text(rate)
        run = lambda scope: Report(tables=())  # noqa: E731
        run.__module__ = "laar.engine"
        its = Experiment(name="e", about="", source="no paper", run=run)
        return digest_of_code(its, (tmp_path / "laar",))

    assert digest("engine", "1") != digest("engine", "2")
    assert digest("other", "1") == digest("other", "2")
    (tmp_path / "laar" / "engine" / "data" / "rates.py").touch()
    # Now the file declares the experiments of a module.
    assert digest("engine", "1") == digest("engine", "2")


@pytest.mark.usefixtures("_one_code")
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


@pytest.mark.usefixtures("_one_code")
def test_runs_of_other_code_are_listed_with_the_pages_that_quote_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "docs" / "results"
    directory.mkdir(parents=True)
    (tmp_path / "README.md").write_text("`laar lab run e` makes the figure")
    (tmp_path / "docs" / "other.md").write_text("`laar lab run e-large` makes another")
    its = experiment(1.0, 2.0, 3.0)
    write(directory, just_made(its, stored(directory, 1.0, 2.0, 3.0), None))
    monkeypatch.setattr("laar_lab.experiments.find_experiment", lambda _name: its)
    command = ["results", "--stale", "--directory", str(directory)]
    fresh = CliRunner().invoke(app, ["lab", *command])
    assert (fresh.exit_code, fresh.output) == (0, "0 of 1 stored runs are stale\n")
    monkeypatch.setattr("laar_lab.stale.digest_of_code", lambda _: "other")
    changed = CliRunner().invoke(app, ["lab", *command])
    assert changed.exit_code == 3
    assert (
        "e: as stored at abcdef0, and its code has changed since; quoted in README.md"
        in " ".join(changed.output.split())
    )

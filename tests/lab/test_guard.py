"""`make guard` takes turns, and fails for runs that later code had repeated and this does not."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from bench.__main__ import NAMES
from bench.chaos.rows import ROWS

from laar_lab.results import Checked, Stored
from support.scripts import module_of


@pytest.fixture(scope="module")
def guard() -> ModuleType:
    return module_of(Path(__file__).parents[2] / "deploy" / "guard.py")


def run(differ: int | None, repeated: tuple[str, ...] = (), moved: int = 0) -> Stored:
    checked = None
    if differ is not None:
        checked = Checked(commit="c", date="2026-01-01", numbers=90, differ=differ, moved=moved)
    return Stored(
        experiment="e",
        command="laar lab run e --first-seed 1",
        commit="a",
        date="2026-01-01",
        evidence={},
        checked=checked,
        repeated=repeated,
    )


@pytest.mark.parametrize(
    ("before", "after", "is_lost"),
    [
        (run(0, ("a", "b")), run(40, ("a", "b"), moved=10), True),
        (run(None, ("a", "b")), run(10, ("a", "b"), moved=10), True),
        (run(None), run(90, moved=90), False),  # no other code ever gave these numbers
        (run(2, ("a", "b")), run(90, ("a", "b"), moved=90), False),  # the page says so already
        (run(0, ("a", "b")), run(40, ("a", "b"), moved=9), False),  # another processor's rounding
        (run(0, ("b",)), run(90, ("b",), moved=90), False),  # perhaps where it was made,
    ],
)
def test_a_run_is_lost_if_it_was_repeated_and_is_no_longer(guard, before, after, is_lost) -> None:
    assert guard.is_lost(before, after) is is_lost


def test_all_get_their_turn_whatever_is_kept(guard: ModuleType) -> None:
    names = [f"e{number}" for number in range(7)]
    assert {guard.in_turn(names, commits)[0] for commits in range(100, 107)} == {*names}
    assert sorted(guard.in_turn(names, 3)) == names


def test_every_suite_gets_a_turn_in_ci_and_every_bench_is_one(guard: ModuleType) -> None:
    called = (Path(__file__).parents[2] / ".ci" / "run").read_text("utf-8")
    allowed = float(called.partition("suites=")[2].split()[0])
    late = {name for name, (minutes, _) in guard.SUITES.items() if minutes > allowed}
    assert late == {"real SGLang", "real vLLM"}
    tried = ",".join(name[9:] for name in guard.SUITES if name.startswith("failing: "))
    assert tried == ",".join(row.name for row in ROWS)
    parts = {path.stem[12:] for path in Path(__file__).parents[1].glob("attack/test_attack_*.py")}
    assert {name[8:] for name in guard.SUITES if name.startswith("attack: ")} == parts
    runs = [command.partition("-m bench ")[2].split() for _, command in guard.SUITES.values()]
    assert {words[0] for words in runs if words} == {*NAMES}


@pytest.mark.parametrize("names", [["atack"], ["faults", "nothing"]])
def test_a_suite_that_does_not_exist_is_named_and_none_runs(
    guard, monkeypatch, capsys, names
) -> None:
    monkeypatch.setattr("sys.argv", ["guard.py", *names])
    monkeypatch.setattr(guard, "run_suites", pytest.fail)
    with pytest.raises(SystemExit) as ended:
        guard.main()
    assert ended.value.code == 2
    assert f"no suite begins with '{names[-1]}'" in capsys.readouterr().err


def test_named_suites_run_in_their_order(
    guard: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("sys.argv", ["guard.py", "stall", "attack: m"])
    monkeypatch.setattr(guard, "run_suites", lambda _minutes, named: ran.append([*named]))
    guard.main()
    assert ran == [["attack: memory", "attack: models", "stall"]]

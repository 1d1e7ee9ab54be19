"""docs/results: pages match the stored numbers, and give the reasons for failed claims."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laar.cli import app
from laar_lab.experiment import Scope
from laar_lab.experiments import all_experiments
from laar_lab.report import Report
from laar_lab.results import (
    claims_of,
    commit_of,
    hours,
    index_of,
    load,
    sources_of,
    store,
    verdicts,
)

RESULTS = Path(__file__).parents[2] / "docs" / "results"
KNOWN = {name: each for name, each in all_experiments().items() if each.claims}
STORED = load(RESULTS)


CLAIMS = RESULTS.parents[1] / "lab" / "claims.md"


def test_the_pages_are_generated_from_the_stored_numbers() -> None:
    assert (RESULTS / "index.md").read_text("utf-8") == index_of(KNOWN, STORED)
    assert CLAIMS.read_text("utf-8") == claims_of(KNOWN, STORED)


def test_each_claim_that_is_not_shown_is_named_on_the_results_page() -> None:
    rows = {
        line.split(" | ")[0].removeprefix("| "): line
        for line in (RESULTS / "index.md").read_text("utf-8").splitlines()
    }
    for name, run in STORED.items():
        for one in verdicts(KNOWN[name], run):
            if one.outcome != "shown" or one.larger:
                assert re.search(rf"[:,] {one.claim.name}\b", rows[name]), one.claim.name


@pytest.mark.parametrize("name", sorted(STORED))
def test_stored_runs_have_a_known_commit_and_enough_seeds(name: str) -> None:
    run = STORED[name]
    assert re.fullmatch(r"[0-9a-f]{7,12}", run.commit), "uncommitted code can't be run again"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run.date)
    assert run.command.startswith(f"laar lab run {name} --seeds ")
    for one in verdicts(KNOWN[name], run):
        assert one.outcome != "no verdict"
        if (one.larger or one.outcome in ("contrary", "open")) and one.claim.paper:
            assert one.claim.why, f"{one.claim.name}: {one.verdict}, without a `why`"


@pytest.mark.slow  # a shallow checkout lacks the history
def test_each_stored_commit_can_be_checked_out() -> None:
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        told = ["git", "-C", str(RESULTS), *words]
        return subprocess.run(told, capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("not a checkout with its full history")
    lost = {
        run.commit
        for run in STORED.values()
        if git("merge-base", "--is-ancestor", run.commit, "HEAD").returncode
    }
    assert not lost


def test_all_experiments_run_in_a_night() -> None:
    assert hours(KNOWN, STORED) <= 6.0
    assert sum(len(each.claims) for each in KNOWN.values()) <= 120


def test_each_experiment_is_a_papers_or_cited_on_a_page() -> None:
    root = RESULTS.parents[1]
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), root / "CONTRIBUTING.md"]
    text = "\n".join(page.read_text("utf-8") for page in pages if page.name != "index.md")
    for name, each in KNOWN.items():
        is_papers = any(claim.published for claim in each.claims) or each.source[:1].isupper()
        assert is_papers or re.search(rf"`(laar lab run )?{name}\b|lab run {name}\b", text), name


def test_what_pages_cite_as_retired_is_there() -> None:
    root = RESULTS.parents[1]
    rows = (root / "lab" / "retired" / "README.md").read_text("utf-8")
    for path in (root / "lab" / "retired").glob("*.yaml"):
        assert f"| {path.stem.replace('_', '-')} |" in rows
    for page in (root / "docs").rglob("*.md"):
        for cited in re.findall(r"`(lab/retired/[\w.-]+)`", page.read_text("utf-8")):
            assert (root / cited).is_file(), f"{page.name}: {cited}"


def test_cited_decisions_exist() -> None:
    decisions = RESULTS.parent / "decisions"
    numbers = [re.search(r"decision (\d+)", one.source) for one in all_experiments().values()]
    found = {int(number[1]) for number in numbers if number}
    assert found
    for number in found:
        assert list(decisions.glob(f"{number:04d}-*.md")), number


def test_a_run_is_stored_and_the_page_generated(tmp_path: Path) -> None:
    told = ["results", "engine-validation", "--directory", str(tmp_path), "--jobs", "1"]
    ran = CliRunner().invoke(app, ["lab", *told])
    assert ran.exit_code == 0, ran.output
    assert "reproduced" in ran.output
    again = CliRunner().invoke(
        app, ["lab", "results", "--minutes", "0", "--directory", str(tmp_path)]
    )
    assert again.exit_code == 0, again.output
    page = (tmp_path / "index.md").read_text("utf-8")
    assert page == index_of(KNOWN, load(tmp_path))
    assert "| engine-validation | The engine model agrees with the figures" in page
    assert "not run yet: needs about" in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"experiment": ', "day.json: not a stored run"),
        ("[1]", "day.json: not a stored run"),
        ('{"experiment": "day"}', "day.json: not a stored run"),
        (
            '{"experiment": "day", "command": "", "commit": "", "date": "", "evidence": {"old": '
            '{"": {"ours": [1], "theirs": []}}}}',
            "`laar lab results day`",
        ),
    ],
)
def test_a_stored_run_that_cannot_be_judged_is_reported(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "day.json").write_text(text, "utf-8")
    told = ["results", "--minutes", "0", "--directory", str(tmp_path)]
    ran = CliRunner().invoke(app, ["lab", *told])
    assert ran.exit_code == 2
    assert said in ran.stderr


def test_the_numbers_of_every_other_policy_are_stored(tmp_path: Path) -> None:
    numbers = {"chats": {"ttft_p95_s": {"laar": [1.0, 1.23456789], "smg": [2.0, 3.0]}}}
    report = Report(tables=[], numbers=numbers)
    store(tmp_path, KNOWN["no-regret"], report, Scope(seeds=(7, 8)), "c0ffee0", 3.0)
    kept = load(tmp_path)["no-regret"]
    assert kept.numbers == {"chats": {"ttft_p95_s": {"laar": [1.0, 1.234568], "smg": [2.0, 3.0]}}}
    assert kept.minutes == 1.5


def test_a_run_on_real_traffic_is_stored_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    scope = Scope(seeds=(7, 8), data=tmp_path / "traffic")
    stored = store(tmp_path, KNOWN["agents-gpu"], Report(tables=[]), scope, "c0ffee0")
    assert stored.command == "laar lab run agents-gpu --seeds 2 --first-seed 7 --data DIR"


@pytest.mark.parametrize("changed", ["core/cost.py", "sim/data/engine.yaml", "policies/new.py"])
def test_a_run_of_changed_code_is_marked_wherever_the_change_is(
    tmp_path: Path, changed: str
) -> None:
    package, lab = tmp_path / "src" / "laar", tmp_path / "lab" / "src" / "laar_lab"
    lab.mkdir(parents=True)
    (lab / "runs.py").write_text("1", "utf-8")
    for name in ("core/cost.py", "sim/data/engine.yaml"):
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text("1", "utf-8")
    (package / "policies").mkdir()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *words], check=True)
    made = commit_of([package, lab])
    assert re.fullmatch("[0-9a-f]+", made)
    digest = sources_of(made, [package, lab])
    (package / changed).write_text("2", "utf-8")
    assert commit_of([package, lab]).endswith("+")
    assert not sources_of(commit_of([package, lab]), [package, lab])
    for words in (["add", "."], ["commit", "-q", "-m", "other"]):
        subprocess.run([*git, *words], check=True)
    other = sources_of("HEAD", [package, lab])
    subprocess.run([*git, "commit", "-q", "--amend", "-m", "reworded"], check=True)
    assert sources_of("HEAD", [package, lab]) == other != digest


def test_stored_digests_are_those_of_the_commits_that_made_the_runs() -> None:
    for run in STORED.values():
        found = sources_of(run.commit)
        assert not (found and run.sources) or found == run.sources, run.experiment


def test_what_cites_a_run_has_its_intervals_or_its_commit_if_it_is_stale() -> None:
    root = RESULTS.parents[1]
    claims = (root / "lab" / "claims.md").read_text("utf-8")
    paths = [root / "README.md", *(root / "docs").rglob("*.md")]
    pages = {path: path.read_text("utf-8") for path in paths if path.parent.name != "results"}
    for (name, run), (page, text) in itertools.product(STORED.items(), pages.items()):
        lines = re.findall(rf"(?m)^.*(?:`|lab run ){name}\b.*$", text)
        if lines and run.checked and run.checked.differ:
            assert f"`{run.commit}`" in text, f"{page.relative_to(root)} cites {name}"
        for interval in re.findall(r"[-\d.]+ \([-\d.]+ \.\. [-\d.]+\)", "\n".join(lines)):
            assert interval in claims, f"{page.relative_to(root)}, {name}: {interval}"

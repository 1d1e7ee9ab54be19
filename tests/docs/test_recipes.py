"""The recipes of the tour are applied to a copy of the tree.

With all edits of a recipe its tests pass; without any one edit a test fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from docs_pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Edit:
    """Replace the first match of a pattern in one file; without a pattern, create the file."""

    path: str
    pattern: str
    text: str

    def apply(self, tree: Path) -> None:
        file = tree / self.path
        if not self.pattern:
            file.write_text(self.text)
            return
        changed, count = re.subn(
            self.pattern, self.text, file.read_text(), count=1, flags=re.MULTILINE
        )
        assert count, f"{self.path} has no line like {self.pattern}: the recipe is out of date"
        file.unlink()  # as the file is a hard link to the original
        file.write_text(changed)


@dataclass(frozen=True)
class Generate:
    """Write the generated reference pages, as `make reference` does."""

    def apply(self, tree: Path) -> None:
        for path in (tree / "docs/reference").iterdir():
            text = path.read_bytes()
            path.unlink()
            path.write_bytes(text)
        run(tree, "docs/reference/generate.py")


REFERENCE = "tests/test_reference.py"
HEADERS = "src/laar/protocol/stream/contract_headers.py"
METRICS_PAGE = "src/laar/datalayer/metrics_page.py"

RECIPES: dict[str, tuple[list[Edit | Generate], list[str]]] = {
    "a scorer": (
        [
            Edit(
                "src/laar/policies/shortest.py",
                "",
                '''"""A scorer of short prompts."""

import numpy as np

from laar.fleet.endpoints import Floats
from laar.core.interfaces import View


class ShortestPrompt:
    """Every candidate alike, and better for shorter prompts."""

    def score(self, view: View) -> Floats:
        """Return one score, 0..1, for each candidate."""
        return np.full(len(view.slots), 1.0 / (1.0 + float(np.min(view.tokens))))
''',
            ),
            Edit(
                "src/laar/policies/own.py",
                r"^from laar\.policies\.registry import .*$",
                r"\g<0>\nfrom laar.policies.shortest import ShortestPrompt",
            ),
            Edit(
                "src/laar/policies/own.py",
                r'^        "least-loaded": LeastLoaded,$',
                r'\g<0>\n        "shortest-prompt": ShortestPrompt,',
            ),
            Edit(
                "docs/guides/write-a-scorer.md",
                r"^\| `least-loaded` .*$",
                r"\g<0>\n| `shortest-prompt` | short prompts | |",
            ),
        ],
        ["tests/policies/test_conformance.py", "tests/docs/test_docs_reference.py"],
    ),
    "an engine kind": (
        [
            Edit(
                METRICS_PAGE,
                r"^ENGINES: .*$",
                r"""\g<0>
    "mii": EngineNames(
        prefix=b"mii:",
        waiting=(b"mii:num_requests_waiting",),
        running=(b"mii:num_requests_running",),
        kv_usage=(b"mii:gpu_cache_usage_perc",),
    ),""",
            ),
            Generate(),
        ],
        ["tests/datalayer/test_metrics_page.py", REFERENCE],
    ),
    "a header": (
        [
            Edit(
                "src/laar/protocol/headers.py",
                r'^COST_MS = "x-laar-cost-ms"$',
                r'\g<0>\nPROMPT_TOKENS = "x-laar-prompt-tokens"',
            ),
            Edit(
                HEADERS,
                r"^(\s+)\w+ \+= \[\(names\.ENDPOINT, .*$",
                r"\g<0>\n\1headers.append((names.PROMPT_TOKENS, str(round(decision.tokens))))",
            ),
            Edit(
                "docs/reference/headers.md",
                r"^\| `x-laar-cost-ms`.*$",
                r"\g<0>\n| `x-laar-prompt-tokens` | tokens of the prompt |",
            ),
        ],
        ["tests/docs/test_docs_reference.py", "tests/protocol/stream/test_stream_machine.py"],
    ),
    "a metric": (
        [
            Edit(
                "src/laar/telemetry/metrics.py",
                r"^        self\.moved = 0$",
                r"\g<0>\n        self.moved_twice = 0",
            ),
            Edit(
                "src/laar/server/admin/metrics.txt",
                r"^laar_moved_total .*$",
                r"\g<0>\nlaar_moved_twice_total | counter | - | metrics.moved_twice | Moved again.",
            ),
            Generate(),
        ],
        ["tests/telemetry/test_own_metrics_page.py", REFERENCE],
    ),
    "how long a breaker stays open": (
        [Edit("src/laar/health/breaker.py", r"^FIRST_TRIAL_S = 1\.0$", "FIRST_TRIAL_S = 1.5")],
        ["tests/health/test_breaker.py"],
    ),
}

LEFT_OUT = [
    pytest.param(name, left_out, id=f"{name} without {left_out + 1}")
    for name, (edits, _) in RECIPES.items()
    for left_out in range(len(edits))
    if any(isinstance(edit, Edit) for n, edit in enumerate(edits) if n != left_out)
]


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy, with the packages of the copy."""
    path = os.pathsep.join(str(tree / folder) for folder in ("src", "lab/src"))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": path, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=800,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """Yield a copy of the tracked files, made of hard links if the file system has them."""
    copy = tmp_path / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, copy / name
        if not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)
    yield copy
    shutil.rmtree(copy)


def test_the_recipes_match_the_tour() -> None:
    rows = (ROOT / "docs/tour.md").read_text().partition("## Where to change what")[2]
    assert list(RECIPES) == re.findall(r"^\| (an? .*?|how .*?) \|", rows, re.MULTILINE)


@pytest.mark.parametrize("name", RECIPES)
def test_with_every_edit_the_tests_pass(tree: Path, name: str) -> None:
    edits, tests = RECIPES[name]
    for edit in edits:
        edit.apply(tree)
    ended = run(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]


@pytest.mark.parametrize(("name", "left_out"), LEFT_OUT)
def test_without_one_edit_a_test_fails(tree: Path, name: str, left_out: int) -> None:
    edits, tests = RECIPES[name]
    for number, edit in enumerate(edits):
        if number != left_out:
            edit.apply(tree)
    ended = run(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    assert ended.returncode in {1, 2, 4}, ended.stdout[-4000:]

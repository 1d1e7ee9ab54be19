"""Benchmarks that no other test runs work, in tiny sizes; their figures mean nothing here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]

RUNS = {
    "decision": ("FLEETS, REQUESTS, COLD_EVERY_S = (5,), 20, 0.0", (), "of the cold row"),
    "hooked": ("LEARNT, SCORED, SIZES = 5, 5, (6,)", ("json tool",), "at most"),
    "prompts": ("", ("langchain stuff", "--chunks", "20", "--learnt", "20"), "order matters"),
    "stall": ("LEAD_S = 1.0", ("--rows", "pause 0.5", "--shapes", "native"), "targets missed"),
    "templates": ("TALKS = 2", ("qwen3",), "difference at most"),
}
"""By benchmark: the sizes to set in its module, its arguments, and a text near its end."""


def run(name: str, sizes: str, words: tuple[str, ...]) -> str:
    """Run a benchmark in a process of its own, as some freeze its memory; return what it prints."""
    script = f"import bench.bench_{name} as b; exec({sizes!r}, vars(b)); b.main({[*words]})"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", RUNS)
def test_a_benchmark_prints_its_figures(name: str) -> None:
    sizes, words, text = RUNS[name]
    assert text in run(name, sizes, words)

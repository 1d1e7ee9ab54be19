"""The slack scheduler inside a real vLLM on CPU: what `make test-vllm` runs.

Needs vLLM 0.32 in this Python, or in the one that LAAR_VLLM_PYTHON names. Each experiment starts an
engine of its own, about 2.5 GiB and half a minute. Only ratios are asserted.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("LAAR_VLLM_PYTHON", sys.executable)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(360),
    pytest.mark.skipif(
        sys.executable == PYTHON and importlib.util.find_spec("vllm") is None,
        reason="NO vLLM HERE: install vllm 0.32 into this environment, or set LAAR_VLLM_PYTHON to "
        "the python of one that has it",
    ),
]

ROOT = Path(__file__).parents[2]


def run(experiment: str, work: Path) -> dict[str, Any]:
    driver = Path(__file__).with_name("vllm_driver.py")
    done = subprocess.run(
        [PYTHON, driver, experiment, work],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, f"vLLM gave no result:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    result: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    sys.stdout.write(f"\n{experiment}: {json.dumps(result)}\n")
    return result


def test_short_prompts_overtake_long_ones_and_the_long_ones_hardly_notice(tmp_path):
    seen = run("convoy", tmp_path)
    assert seen["slack_short_median_s"] <= seen["stock_short_median_s"] / 10
    assert seen["slack_long_median_s"] <= 1.2 * seen["stock_long_median_s"]


def test_more_prompts_than_fit_cause_no_storm_of_preemptions(tmp_path):
    result = run("pressure", tmp_path)
    assert result["finished"] == 26
    assert result["preemptions"] <= 2


def test_greedy_answers_are_the_same_alone_and_together(tmp_path):
    result = run("identity", tmp_path)
    assert result["distinct"] == result["prompts"] == 17, "the prompts do tell the answers apart"
    assert (result["fresh"], result["cached"]) == (17, 17)

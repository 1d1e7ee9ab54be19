"""A real vLLM on a CPU, with the slack scheduler or compared with the lab (`make test-vllm`).

Needs vLLM 0.32 in this Python, or in the one that LAAR_VLLM_PYTHON names. Each experiment starts
its own engine, which takes about 2.5 GiB and half a minute. Only ratios are asserted.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import spearmanr
from vllm_driver import MODEL, QUIET
from vllm_server import NEEDS_VLLM, PYTHON

from laar_lab.fit_engine import FitSettings, fit_engine, write_profile
from laar_lab.report import show
from laar_lab.sim.engine import load_profile

pytestmark = [*NEEDS_VLLM, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


@cache
def installed() -> str:
    """Return a directory with `laar-vllm` as its guide installs it, for that Python."""
    target = tempfile.mkdtemp(prefix="laar-vllm-")
    atexit.register(shutil.rmtree, target)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target]
    subprocess.run([*pip, ROOT / "engine"], check=True)  # `pip install ./engine`
    return target


def run(experiment: str, work: Path) -> dict[str, Any]:
    driver = Path(__file__).with_name("vllm_driver.py")
    done = subprocess.run(
        [PYTHON, driver, experiment, work],
        env=os.environ | {"PYTHONPATH": installed()},
        capture_output=True,
        text=True,
        timeout=1500,
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
    assert result["distinct"] == result["prompts"] == 17, "different prompts get different answers"
    assert (result["fresh"], result["cached"]) == (17, 17)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a vLLM that serves the tiny model over HTTP; yield its URL."""
    work = tmp_path_factory.mktemp("vllm")
    (work / "config.json").write_text(json.dumps(MODEL))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = ["--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
    options += ["--max-model-len", "8192", "--max-num-batched-tokens", "2048"]
    options += ["--enable-prompt-tokens-details", "--host", "127.0.0.1", "--port", str(port)]
    said = work / "log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", work, *options],
            env=os.environ | {**QUIET, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            time.sleep(0.5)
        else:
            pytest.fail(f"vLLM did not start:\n{said.read_text()[-3000:]}")
        yield url
    finally:
        process.terminate()
        process.wait(60)


def test_the_labs_engine_model_has_the_shape_of_a_real_engine(server: str, tmp_path: Path) -> None:
    fitted = fit_engine(FitSettings(url=server, repeat=3, headers={}), lambda *_: None)
    console = Console(file=sys.stdout, width=160)
    show(fitted.report, console)
    rows = fitted.report.tables[1].rows
    assert {row[3] for row in rows if row[0] == "cached share"} == {1920, 3968, 5888, 7936}
    for group in ("prompt length", "cached share", "batching"):
        of = [(float(row[5]), float(row[6])) for row in rows if row[0] == group]
        # Two neighbors of four may be swapped.
        assert spearmanr(*zip(*of, strict=True)).statistic > 0.79
        # Times under 30 ms depend too much on other work on the machine.
        assert all(0.5 <= ours / seen <= 2.0 for seen, ours in of if seen > 30.0)
    write_profile(fitted, tmp_path / "tiny.yaml")
    assert load_profile(str(tmp_path / "tiny.yaml")) == fitted.profile

"""Intervals, reports, traces, and the command `laar lab`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from uuid import uuid4

import joblib
import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from typer.testing import CliRunner

from laar.cli import app
from laar.errors import SettingError
from laar_lab import experiments
from laar_lab.claims import Claim, Seen
from laar_lab.experiment import Experiment, Scope
from laar_lab.report import Report, Table
from laar_lab.sim.engine import profile
from laar_lab.statistics import Estimate, estimate
from laar_lab.sweep import KERNEL, has_kernel, kept_in, placed, sweep
from laar_lab.trace import read_trace

RUN = CliRunner()
FLEET = """
endpoints:
  - {name: "a:80", profile: gorgo-main, rtt_ms: 5}
  - {name: "b:80", profile: gorgo-main, rtt_ms: 50, settings: {max_num_seqs: 8}}
"""

OWN = """
own:
  linear:
    seconds_per_token: {value: 0.0001, source: made up}
    decode_s_per_token: {value: 0.01, source: made up}
  settings: {num_blocks: 9999}
"""


def lines(count: int) -> str:
    return "".join(
        json.dumps(
            {
                "timestamp": 200 * i,
                "input_length": 1500,
                "output_length": 20,
                "hash_ids": [i % 7, 100 + i % 7, 1000 + i],
                "request": {"messages": []},
            }
        )
        + "\n"
        for i in range(count)
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(lines(60), "utf-8")
    return path


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET, "utf-8")
    return path


def test_intervals_use_the_t_distribution() -> None:
    seen = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    # sd 1.5811, t(0.975, 4) = 2.7764
    assert (seen.mean, seen.half) == (3.0, pytest.approx(2.7764 * 1.5811 / math.sqrt(5), rel=1e-4))


CLAIM = Claim(
    name="c", says="it is short", metric="s", effect="level", direction="below", bound=2.0, seeds=3
)


def small_report(seconds: float = 1.0, seeds: int = 3) -> Report:
    return Report(
        tables=[Table(title="t", columns=("policy", "s"), rows=[("a", Estimate(1.0, 0.25))])],
        evidence={"c": {"": Seen([seconds] * seeds)}},
        remarks=["took 3 ms"],
    )


@pytest.mark.parametrize(
    ("seconds", "told", "status", "said"),
    [
        (1.0, ["--seeds", "3"], 0, "1 of 1 claims shown"),
        (5.0, ["--seeds", "3"], 3, "0 of 1 claims shown"),
        (1.0, ["--seeds", "2"], 4, "no verdict: needs 3 seeds"),
        (5.0, ["--quick"], 0, "a smoke test without a verdict"),
    ],
)
def test_the_exit_status_shows_the_verdict(
    seconds: float,
    told: list[str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def run(scope: Scope) -> Report:
        return small_report(seconds, len(scope.seeds))

    known = Experiment(name="e", about="c", source="s", run=run, claims=(CLAIM,))
    monkeypatch.setattr(experiments, "find_experiment", lambda _name: known)
    data = tmp_path / "f.json"
    told = ["run", "e", *told, "--jobs", "1", "--json", str(data)]
    result = RUN.invoke(app, ["lab", *told])
    assert result.exit_code == status, result.output
    assert said in result.output
    written = json.loads(data.read_bytes())
    assert written["seeds"][0] == 1000
    assert bool(written["claims"]) == ("--quick" not in told)


@pytest.mark.parametrize("option", ["policy", "workload"])
def test_claims_are_not_judged_on_user_selected_policies_or_workloads(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user could choose weak policies to compare with."""
    known = Experiment(
        name="e",
        about="c",
        source="s",
        run=lambda _: small_report(),
        claims=(CLAIM,),
        takes=frozenset({"policies", "workloads"}),
    )
    monkeypatch.setattr(experiments, "find_experiment", lambda _name: known)
    told = ["run", "e", "--seeds", "3", "--jobs", "1", f"--{option}", "random"]
    result = RUN.invoke(app, ["lab", *told])
    assert result.exit_code == 4
    assert "shown" not in result.output


@pytest.mark.parametrize(
    "told",
    [
        ["run", "nope"],
        ["run", "engine-validation", "--jobs", "1", "--json", "/nowhere/at/all.json"],
        ["replay", "missing.jsonl", "--fleet", "missing.yaml"],
    ],
)
def test_an_impossible_run_exits_2_with_a_message(told: list[str]) -> None:
    result = RUN.invoke(app, ["lab", *told])
    assert result.exit_code == 2
    assert "laar: " in result.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        "llm-router-valve",
        pytest.param("llm-router-slope", marks=pytest.mark.slow),
        pytest.param("laar-ttca", marks=pytest.mark.slow),
        pytest.param("gorgo-saturation", marks=pytest.mark.slow),
        pytest.param("context-hits", marks=pytest.mark.slow),
    ],
)
def test_a_quick_run_yields_the_same_bytes_with_any_number_of_processes(
    name: str, tmp_path: Path
) -> None:
    written = []
    for jobs in ("1", "2"):
        path = tmp_path / jobs
        told = ["run", name, "--quick", "--jobs", jobs, "--json", str(path)]
        assert RUN.invoke(app, ["lab", *told]).exit_code == 0
        written.append(path.read_bytes())
    assert written[0] == written[1]


def _noted(number: int, notes: Path) -> int:
    (notes / f"{number} {uuid4()}").touch()
    return number * number


def test_a_sweep_resumes_after_a_stop(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    for many in (3, 5, 5):
        with placed(2), kept_in(tmp_path / "kept"):
            squares = sweep(_noted, [(n, notes) for n in range(many)], label="")
        assert squares == [n * n for n in range(many)]
    assert sorted(path.name.split()[0] for path in notes.iterdir()) == list("01234")
    with placed(2):
        sweep(_noted, [(0, notes)], label="")
    assert len(list(notes.iterdir())) == 6, "without a directory no results are kept"


# -- traces and replay -------------------------------------------------------------------------


def test_equal_ids_in_a_trace_are_equal_prefixes(trace: Path) -> None:
    asked = list(read_trace(trace, time_scale=2.0))
    assert [a.at_s for a in asked[:3]] == [0.0, 0.4, 0.8]
    first, same, other = asked[0].prompt, asked[7].prompt, asked[1].prompt
    assert len(first.blocks) == 1500 // 16
    assert first.blocks[:64] == same.blocks[:64]
    assert not set(first.blocks[64:]) & set(same.blocks[64:])
    assert not set(first.blocks) & set(other.blocks)
    assert len(set(first.blocks)) == len(first.blocks)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"input_length": 1, "output_length": 1, "hash_ids": []}', "`timestamp`"),
        (
            '{"timestamp": 99999, "input_length": 1.5, "output_length": 1, "hash_ids": []}',
            "`input_length`",
        ),
        (
            '{"timestamp": 99999, "input_length": 0, "output_length": 1, "hash_ids": []}',
            "`input_length`",
        ),
        ('{"timestamp": 99999, "input_length": 1, "hash_ids": []}', "`output_length`"),
        ('{"timestamp": 99999, "input_length": 1, "output_length": 1}', "`hash_ids`"),
        (
            '{"timestamp": 99999, "input_length": 1, "output_length": 1, "hash_ids": ["x"]}',
            "`hash_ids`",
        ),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": []}', "goes back"),
        (
            '{"timestamp": 1e15, "input_length": 1, "output_length": 1, "hash_ids": []}',
            "`timestamp` is more than a year after",
        ),
    ],
)
def test_a_bad_line_is_reported_with_its_field(
    trace: Path, fleet: Path, line: str, told: str
) -> None:
    with trace.open("a") as file:
        file.write("\n" + line + "\n")
    with pytest.raises(SettingError, match=r"line 62: .*" + told):
        list(read_trace(trace))
    ran = RUN.invoke(
        app,
        ["lab", "replay", str(trace), "--fleet", str(fleet), "--jobs", "1", "--policy", "random"],
    )
    assert ran.exit_code == 2
    assert "line 62" in ran.stderr


def test_replay_prints_one_row_for_each_policy(trace: Path, fleet: Path, tmp_path: Path) -> None:
    data = tmp_path / "r.json"
    told = ["replay", str(trace), "--fleet", str(fleet), "--policy", "laar", "--policy", "random"]
    told += ["--jobs", "1", "--json", str(data)]
    result = RUN.invoke(app, ["lab", *told])
    assert result.exit_code == 0, result.output
    rows = json.loads(data.read_bytes())["tables"][0]["rows"]
    assert [row[0] for row in rows] == ["laar", "random"]
    assert all(row[11] == 1.0 for row in rows), "every request succeeded"


@pytest.mark.parametrize("changed", ["trace.jsonl", "fleet.yaml", "own.yaml"])
def test_stored_runs_are_reused_only_for_unchanged_files(
    tmp_path: Path, trace: Path, changed: str
) -> None:
    (tmp_path / "own.yaml").write_text(OWN, "utf-8")
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET.replace("gorgo-main", "own.yaml"), "utf-8")

    def replayed(*kept: str) -> bytes:
        data = tmp_path / "r.json"
        told = ["replay", str(trace), "--fleet", str(fleet), "--policy", "random", "--jobs", "1"]
        ran = RUN.invoke(app, ["lab", *told, "--json", str(data), *kept])
        assert ran.exit_code == 0, ran.output
        return data.read_bytes()

    kept = ("--keep", str(tmp_path / "kept"))
    before = replayed(*kept)
    text = (tmp_path / changed).read_text("utf-8")
    for old, new in (("rtt_ms: 5}", "rtt_ms: 700}"), ("value: 0.0001", "value: 0.001")):
        text = text.replace(old, new)
    (tmp_path / changed).write_text(text if ".yaml" in changed else lines(20), "utf-8")
    profile._read.cache_clear()  # as if in a new process
    assert replayed(*kept) == replayed() != before


def kernel_of_this_process() -> str:
    from threadpoolctl import threadpool_info

    np.zeros((2, 2)) @ np.zeros((2, 2))
    [kernel] = {pool["architecture"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    return str(kernel)


@pytest.mark.slow
@pytest.mark.skipif(not has_kernel(), reason="this CPU has no AVX-512")
def test_workers_round_numbers_as_the_stored_runs_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    get_reusable_executor().shutdown(wait=True)
    with placed(2):
        kernels = joblib.Parallel()(joblib.delayed(kernel_of_this_process)() for _ in range(2))
    get_reusable_executor().shutdown(wait=True)
    assert kernels == [KERNEL] * 2

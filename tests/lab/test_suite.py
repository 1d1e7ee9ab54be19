"""The suite: workloads match their descriptions, runs are reproducible, the verdict is sound."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from laar.cli import app
from laar_lab.sim.fleet import Arrival, generator
from laar_lab.statistics import holm
from laar_lab.suite.case import Case, Open, run_case
from laar_lab.suite.runs import OURS
from laar_lab.suite.table import SUITE, cases
from laar_lab.suite.verdict import MARGINS, compare, contenders, geometric, regrets
from laar_lab.workloads.shared_prompts import (
    AgentShape,
    Questions,
    agents,
    in_bursts,
    questions,
)
from support.exploring import examples

RUN = CliRunner()
BY_NAME = {case.name: case for case in SUITE}


def cached_share(arrivals: list[Arrival]) -> float:
    """Return the share of the prompts' tokens that an unlimited cache would find."""
    seen: set[int] = set()
    found = total = 0
    for arrival in arrivals:
        prompt = arrival.prompt
        blocks = prompt.blocks[: prompt.prompt_tokens // 16]
        found += 16 * sum(1 for _ in itertools.takewhile(seen.__contains__, blocks))
        total += prompt.prompt_tokens
        seen.update(prompt.blocks)
    return found / total


# -- workloads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
def test_a_workload_is_reproducible(name: str) -> None:
    """Run a part of the workload twice."""
    first, again = (run_case(BY_NAME[name], "lmetric", 3, share=0.02) for _ in range(2))
    assert first == again
    assert first["requests"] >= 4
    assert first["failed"] == 0
    assert all(math.isfinite(first[metric]) and first[metric] > 0 for metric in MARGINS)


@pytest.mark.slow
def test_long_prompts_resemble_the_published_benchmarks() -> None:
    load = BY_NAME["art-x1"].load
    assert isinstance(load, Open)
    arrivals = list(load.draw(generator(5, "x"), 900.0))
    tokens = np.mean([arrival.prompt.prompt_tokens for arrival in arrivals])
    assert 15_000 < tokens < 22_000
    later = cached_share(arrivals)
    assert 0.85 < later < 0.95


def test_agents_share_a_system_prompt_and_keep_their_history() -> None:
    shape = AgentShape(system_tokens=8192)
    sessions = [list(turns) for _, turns in itertools.islice(agents(shape, random.Random(3)), 20)]
    firsts = {tuple(turns[0].prompt.blocks[:512]) for turns in sessions}
    assert len(firsts) == 1, "the first 8,192 tokens, or 512 blocks, are shared"
    assert len({turns[0].prompt.blocks[520] for turns in sessions}) == 20
    for turns in sessions:
        for before, after in itertools.pairwise(turns):
            answered = (before.prompt.prompt_tokens + before.prompt.output_tokens) // 16
            assert after.prompt.blocks[:answered] == before.prompt.blocks[:answered]
            assert after.prompt.prompt_tokens > before.prompt.prompt_tokens


def test_bursts_keep_the_requests_and_move_their_times() -> None:
    def drawn() -> list[Arrival]:
        return list(questions(Questions(requests_per_s=10.0), random.Random(4), 600.0))

    plain, moved = drawn(), list(in_bursts(iter(drawn())))
    assert [one.prompt.prompt_tokens for one in plain] == [
        one.prompt.prompt_tokens for one in moved
    ]
    times = [one.at_s for one in moved]
    assert times == sorted(times)
    busy = sum(at % 60.0 < 15.0 for at in times) / len(times)
    assert busy == pytest.approx(0.75, abs=0.03)


def test_background_requests_load_engines_and_are_not_counted() -> None:
    """Compare with a run without the background requests."""
    case = BY_NAME["strangers"]
    assert isinstance(case.load, Open)
    shared = run_case(case, "least-loaded", 1, share=0.25)
    light = Open(draw=case.load.draw, strangers=0.0)
    whole = run_case(
        Case(name="strangers", about="", role="judge", fleet=case.fleet, load=light, minutes=6.0),
        "least-loaded",
        1,
        share=0.25,
    )
    assert 0.3 < shared["requests"] / whole["requests"] < 0.7
    assert shared["ttft_mean_s"] > 0.3 * whole["ttft_mean_s"]


# -- the verdict -------------------------------------------------------------------------------


def runs_of(values: dict[str, list[float]]) -> dict[str, list[dict[str, float]]]:
    """Return runs with the same figure for every metric."""
    return {name: [dict.fromkeys(MARGINS, v) for v in of] for name, of in values.items()}


@given(st.lists(st.floats(0, 1), max_size=12))
@settings(max_examples=examples(100))
def test_holm_lies_between_bonferroni_and_no_correction(p_values: list[float]) -> None:
    for p, refuted in zip(p_values, holm(p_values), strict=True):
        assert refuted or p > 0.05 / len(p_values)
        assert not refuted or p <= 0.05


def test_the_verdict_distinguishes_a_loss_a_tie_and_too_few_seeds() -> None:
    rng = random.Random(7)
    seeds = 30
    base = [math.exp(rng.gauss(0, 0.5)) for _ in range(seeds)]
    near = [b * math.exp(rng.gauss(0, 0.01)) for b in base]
    worse = [1.2 * b * math.exp(rng.gauss(0, 0.05)) for b in base]
    noisy = [b * math.exp(rng.gauss(0, 0.8)) for b in base]
    results = {
        "tie": runs_of({OURS: near, "a": base, "b": worse}),
        "loss": runs_of({OURS: worse, "a": base, "b": noisy}),
        "noise": runs_of({OURS: noisy, "a": base}),
    }
    found = {(each.case, each.metric): each for each in compare(results, OURS, ["a"])}
    assert {found["tie", metric].verdict for metric in MARGINS} == {"shown"}
    assert {found["loss", metric].verdict for metric in MARGINS} >= {"lost"}
    assert found["loss", "ttft_p95_s"].log_ratio.mean == pytest.approx(math.log(1.2), abs=0.03)
    assert not found["loss", "ttft_p95_s"].within
    assert found["noise", "ttft_mean_s"].verdict == "open"


def test_the_best_baseline_is_chosen_by_workload_and_metric() -> None:
    results = {
        "one": runs_of({OURS: [2.0, 2.1], "a": [1.0, 1.1], "b": [3.0, 3.1]}),
        "two": runs_of({OURS: [2.0, 2.1], "a": [5.0, 5.1], "b": [4.0, 4.1]}),
    }
    best = {each.case: each.best for each in compare(results, OURS, ["a", "b"])}
    assert best == {"one": "a", "two": "b"}
    name, less = geometric(results, OURS, ["a", "b"], "e2e_mean_s")
    assert name == "a"
    assert less.mean == pytest.approx(1 - math.sqrt((2.05 * 2.05) / (1.05 * 5.05)), abs=0.01)


def test_only_baselines_that_are_far_behind_everywhere_are_eliminated() -> None:
    fast, slow = dict.fromkeys(MARGINS, 1.0), dict.fromkeys(MARGINS, 1.2)
    runs = {"a": [fast], "b": [slow], "c": [slow | {"ttft_p50_s": 1.1}], "d": [fast]}
    assert contenders(runs, list(runs)) == ["a", "c", "d"]


def test_regret_is_zero_for_the_best_policy_and_the_gap_for_the_others() -> None:
    results = {
        "one": runs_of({OURS: [2.0], "a": [1.0, 5.0]}),
        "two": runs_of({OURS: [3.0], "a": [6.0, 1.0]}),
    }
    found = regrets(results, [OURS, "a"])
    n = len(MARGINS)
    assert found[OURS] == pytest.approx([math.log(2)] * n + [0.0] * n)
    assert found["a"] == pytest.approx([0.0] * n + [math.log(2)] * n)


# -- the commands ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_loss_is_reported_and_a_subset_of_workloads_has_no_verdict() -> None:
    """On conversations, round-robin is worse than any policy that considers prefixes."""
    told = ["run", "no-regret", "--jobs", "1", "--seeds", "3", "--workload", "art-x2"]
    told += ["--policy", "round-robin", "--policy", "lmetric"]
    ran = RUN.invoke(app, ["lab", *told])
    assert ran.exit_code == 4, ran.output
    assert "no verdict with chosen policies or workloads" in ran.output
    ours, theirs = re.search(
        r"art-x2, mean TTFT, lmetric\W+([\d.]+) ±\D+[\d.]+\W+([\d.]+)", ran.output
    ).groups()
    assert float(ours) > 1.5 * float(theirs)


def real_traffic(folder: Path) -> Path:
    """Write small files in the formats of the real traces."""
    rng = random.Random(11)
    with gzip.open(folder / "agent-sessions.jsonl.gz", "wt") as file:
        for session, turn in itertools.product(range(30), range(12)):
            ids = list(range(4 + 2 * turn))
            line = {
                "session": f"s{session}",
                "t_s": 10.0 * turn,
                "think_s": 2.0,
                "input_length": 512 * len(ids) - 7,
                "output_length": 60,
                "hash_ids": ids,
            }
            file.write(json.dumps(line) + "\n")
    with (folder / "conversation-trace.jsonl").open("w") as file:
        for number in range(2000):
            ids = [0, 1, *rng.sample(range(2, 10_000), 6)]
            line = {
                "timestamp": 400 * number,
                "input_length": 512 * len(ids),
                "output_length": 50,
                "hash_ids": ids,
            }
            file.write(json.dumps(line) + "\n")
    return folder


def test_real_traffic_becomes_workloads(tmp_path: Path) -> None:
    data = real_traffic(tmp_path)
    real = cases(data)[len(SUITE) :]
    assert {case.name for case in real} >= {"agents", "conversations", "conversations-overload"}
    for case in real:
        one, other = (run_case(case, "lmetric", seed, share=0.05) for seed in (0, 1))
        assert one["requests"] > 5
        assert one["failed"] == 0
        assert one != other, "each seed has a different order or window"

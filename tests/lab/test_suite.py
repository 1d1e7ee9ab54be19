"""The suite: workloads match their descriptions, runs are reproducible, the verdict is sound."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from laar.cli import app
from laar.errors import SettingError
from laar.settings.reading import Bodies, Readings
from laar.settings.routing import Prefix
from laar_lab.experiments import find_experiment
from laar_lab.policy_text import parse_policy
from laar_lab.sim.fleet import Arrival, FleetSettings, generator
from laar_lab.statistics import holm
from laar_lab.suite.case import Case, Closed, Open, Together, run_case
from laar_lab.suite.real import agent_cases, conversation_cases, day_chats
from laar_lab.suite.runs import BASELINES, OURS, run_screened
from laar_lab.suite.split import split
from laar_lab.suite.table import SUITE, cases
from laar_lab.suite.verdict import MARGINS, compare, contenders, geometric, regrets
from laar_lab.workloads.shared_prompts import (
    AgentShape,
    BatchShape,
    Questions,
    agents,
    batches,
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


def test_workloads_have_unique_names_and_both_roles_occur() -> None:
    names = [case.name for case in SUITE]
    assert len(set(names)) == len(names)
    assert {case.role for case in SUITE} == {"choose", "judge"}
    assert all(parse_policy(policy) for policy in BASELINES)


def test_a_run_has_the_defaults_of_the_settings_file() -> None:
    run, readings, bodies, prefix = FleetSettings(), Readings(), Bodies(), Prefix()
    assert (run.use_prefixes, run.prefix_bytes) == (prefix.enabled, prefix.max_bytes)
    assert run.scrape_interval_s == readings.scrape_interval_s
    assert run.probe_interval_s == readings.probe_interval_s
    assert run.sample_answers == bodies.sample_answers
    assert run.sample_every_s == bodies.sample_every_s


def test_counts_are_split_by_the_role_of_a_workload() -> None:
    level = {"laar": [1.0, 1.0], "a": [1.0, 1.0], "b": [2.0, 2.0]}
    behind = {"laar": [1.2, 1.2], "a": [1.3, 1.3], "b": [1.0, 1.0]}
    numbers = {
        "router-8": dict.fromkeys(MARGINS, level | {"b": [2.0]}),  # eliminated after one seed
        "router-12": dict.fromkeys(MARGINS, level) | {"ttft_p50_s": behind},
        "agents": dict.fromkeys(MARGINS, level) | {"e2e_p95_s": behind},
    }
    text = split(numbers)
    assert text is not None
    assert "best of 2 rules in 13 of 15 cases (5 of 5 generated, for selection;" in text
    assert "; 4 of 5 generated, held out; 4 of 5 real, held out)" in text
    assert "laar is in 13; the next rule, `a`, in 13." in text
    assert split({}) is None
    assert split({"x": {"another metric": {"laar": [1.0]}}}) is None


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


def test_documents_are_shared_and_questions_are_not() -> None:
    rng = random.Random(1)
    shape = Questions(requests_per_s=20.0, texts=10)
    assert cached_share(list(questions(shape, rng, 60.0))) > 0.9
    alone = Questions(requests_per_s=20.0, question_log=(7.0, 0.5))
    assert cached_share(list(questions(alone, rng, 60.0))) < 0.1


def test_a_batch_asks_many_questions_about_one_document_within_half_a_second() -> None:
    shape = BatchShape(every_s=20.0, size=(10, 20))
    asked = [one for one in batches(shape, random.Random(2), 200.0) if one.kind == "batch"]
    assert len(asked) >= 30
    assert [one.at_s for one in asked] == sorted(one.at_s for one in asked)
    by_document: dict[int, list[float]] = {}
    for one in asked:
        by_document.setdefault(one.prompt.blocks[100], []).append(one.at_s)
    for times in by_document.values():
        assert 10 <= len(times) <= 20
        assert max(times) - min(times) <= 0.5


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


def test_every_kind_of_traffic_is_in_the_suite() -> None:
    assert {type(case.load) for case in SUITE} == {Open, Closed, Together}


# -- the verdict -------------------------------------------------------------------------------


def runs_of(values: dict[str, list[float]]) -> dict[str, list[dict[str, float]]]:
    """Return runs with the same figure for every metric."""
    return {name: [dict.fromkeys(MARGINS, v) for v in of] for name, of in values.items()}


def test_holm_stops_at_the_first_hypothesis_that_is_not_rejected() -> None:
    assert holm([0.01, 0.04, 0.03]) == [True, False, False], "0.03 is over 0.05 / 2"
    assert holm([0.001, 0.02, 0.04]) == [True, True, True]
    assert holm([0.2, 0.001]) == [False, True]
    assert holm([]) == []


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
    assert found["loss", "ttft_p95_s"].percent.mean == pytest.approx(20, abs=4)
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


def test_an_eliminated_baseline_stays_in_the_table_and_out_of_comparisons() -> None:
    results = {"one": runs_of({OURS: [2.0] * 7, "a": [2.1] * 7, "far": [1.0, 9.0]})}
    assert {each.best for each in compare(results, OURS, ["a", "far"])} == {"a"}
    name, less = geometric(results, OURS, ["a", "far"], "ttft_p95_s")
    assert name == "a"
    assert less.mean == pytest.approx(1 - 2.0 / 2.1)


def test_regret_is_zero_for_the_best_policy_and_the_gap_for_the_others() -> None:
    results = {
        "one": runs_of({OURS: [2.0], "a": [1.0, 5.0]}),
        "two": runs_of({OURS: [3.0], "a": [6.0, 1.0]}),
    }
    found = regrets(results, [OURS, "a"])
    n = len(MARGINS)
    assert found[OURS] == pytest.approx([math.log(2)] * n + [0.0] * n)
    assert found["a"] == pytest.approx([0.0] * n + [math.log(2)] * n)


@pytest.mark.parametrize("name", ["no-regret", "agents", "conversations"])
def test_claims_use_the_margins_of_the_table(name: str) -> None:
    asked = {
        claim.name.partition("-")[2]: claim.bound
        for claim in find_experiment(name).claims
        if claim.name.startswith(("judge-", "choose-"))
    }
    slugs = ("mean-ttft", "p50-ttft", "p95-ttft", "mean-e2e", "p95-e2e")
    assert asked == {slug: 1.0 + MARGINS[m] for slug, m in zip(slugs, MARGINS, strict=True)}


@pytest.mark.slow
def test_screened_runs_keep_the_contenders_on_every_seed() -> None:
    case = replace(BY_NAME["art-x2"], minutes=0.3)
    policies = [OURS, "lmetric", "random"]
    results = run_screened([case], policies, range(7), "test").results[case.name]
    assert {name: len(runs) for name, runs in results.items()} == {
        OURS: 7,
        "lmetric": 7,
        "random": 5,
    }


# -- the commands ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_quick_version_judges_nothing(tmp_path: Path) -> None:
    data = tmp_path / "r.json"
    ran = RUN.invoke(
        app, ["lab", "run", "no-regret", "--quick", "--jobs", "1", "--json", str(data)]
    )
    assert ran.exit_code == 0, ran.output
    assert "a smoke test without a verdict" in ran.output
    report = json.loads(data.read_bytes())
    assert report["claims"] == []
    assert {row[1] for row in report["tables"][0]["rows"]} >= {"laar", "lmetric"}


@pytest.mark.slow
def test_a_loss_is_reported_and_a_subset_of_workloads_has_no_verdict() -> None:
    """On conversations, round-robin is worse than any policy that considers prefixes."""
    told = ["run", "no-regret", "--jobs", "1", "--seeds", "3", "--workload", "art-x2"]
    told += ["--policy", "round-robin", "--policy", "lmetric"]
    ran = RUN.invoke(app, ["lab", *told])
    assert ran.exit_code == 4, ran.output
    assert "no verdict with chosen policies or workloads" in ran.output
    assert "lost" in ran.output
    assert "lmetric" in ran.output


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["no-regret", "--workload", "nothing"], "router-8"),
        (["no-regret", "--policy", "laar"], "two policies"),
        (["day", "--policy", "laar"], "two policies"),
        (["suite", "--quick", "--policy", "nothing"], "lmetric"),
        (["agents"], "--data"),
        (["conversations", "--data", "."], "conversation-trace.jsonl"),
        (["gorgo-rtt", "--data", "."], "does not take data"),
        (["gorgo-rtt", "--fleet", "."], "does not take fleet"),
        (["laar-ttca", "--records", "."], "does not take records"),
    ],
)
def test_workloads_that_cannot_be_run_are_reported(told: list[str], said: str) -> None:
    ran = RUN.invoke(app, ["lab", "run", *told, "--jobs", "1"])
    assert ran.exit_code == 2
    assert said in ran.output + ran.stderr


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
        one, other = (run_case(case, "lmetric", seed, share=0.02) for seed in (0, 1))
        assert one["requests"] > 5
        assert one["failed"] == 0
        assert one != other, "each seed has a different order or window"


@pytest.mark.slow
def test_the_agents_experiment_runs_on_a_directory(tmp_path: Path) -> None:
    data = real_traffic(tmp_path)
    experiment = find_experiment("agents")
    report = experiment.run(experiment.scope(1, quick=True, data=data, policies=["laar", "smg"]))
    rows = report.tables[0].rows
    assert {(row[0], row[1]) for row in rows} >= {("agents", "laar"), ("agents-parallel", "smg")}


def sessions_that_begin_with(folder: Path, lengths: list[int]) -> Path:
    """Write a file of sessions with one request each; return its folder."""
    with (folder / "agent-sessions.jsonl").open("w") as file:
        for number, tokens in enumerate(lengths):
            line = {
                "session": f"s{number}",
                "t_s": 0.0,
                "input_length": tokens,
                "output_length": 5,
                "hash_ids": [number],
            }
            file.write(json.dumps(line) + "\n")
    return folder


@pytest.mark.parametrize("lengths", [[], [130_000] * 3])
def test_a_file_without_any_session_that_can_be_sent_is_refused(
    tmp_path: Path, lengths: list[int]
) -> None:
    case = agent_cases(sessions_that_begin_with(tmp_path, lengths))[0]
    with pytest.raises(SettingError, match=r"agent-sessions\.jsonl: no session begins"):
        run_case(case, "lmetric", 0, share=0.01)


@pytest.mark.slow
def test_sessions_that_are_too_long_to_send_are_skipped(tmp_path: Path) -> None:
    case = agent_cases(sessions_that_begin_with(tmp_path, [130_000] * 1100 + [600]))[0]
    assert run_case(case, "lmetric", 0, share=0.01)["requests"] > 0


def chats(folder: Path, *requests: tuple[int, int]) -> Path:
    """Write a chat trace with these times in ms and prompt lengths in tokens."""
    with (folder / "conversation-trace.jsonl").open("w") as file:
        for at_ms, tokens in requests:
            line = {
                "timestamp": at_ms,
                "input_length": tokens,
                "output_length": 5,
                "hash_ids": [0],
            }
            file.write(json.dumps(line) + "\n")
    return folder


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([(0, 99), (900_000, 99), (1000, 99)], "line 3: `timestamp` goes back"),
        ([], "no request"),
        ([(0, 130_000), (900_000, 130_000)], "no request of at most 120000 tokens"),
        ([(0, 99)], "shorter than"),
    ],
)
def test_a_chat_trace_that_cannot_be_sent_is_refused(
    tmp_path: Path, requests: list[tuple[int, int]], said: str
) -> None:
    case = conversation_cases(chats(tmp_path, *requests))[0]
    with pytest.raises(SettingError, match=said):
        run_case(case, "lmetric", 0, share=0.1)


def test_a_day_of_chats_without_a_duration_is_refused(tmp_path: Path) -> None:
    data = chats(tmp_path, (5, 99), (5, 99))
    with pytest.raises(SettingError, match="same `timestamp`"):
        next(day_chats(data, 1.0, random.Random(0), 60.0))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"agent-sessions\.jsonl"):
        cases(tmp_path)

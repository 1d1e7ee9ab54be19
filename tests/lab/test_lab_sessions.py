"""Recorded sessions: the files, the closed loop, and the command."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laar.cli import app
from laar_lab.sessions import has_sessions, read_sessions
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import Arrival, Exchange, FleetSettings, Site, VirtualFleet, hold_sessions

RUN = CliRunner()


def line(session: str, **given: object) -> dict[str, object]:
    return {
        "session": session,
        "input_length": 1100,
        "output_length": 20,
        "hash_ids": [0, 1, 2],
    } | given


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    text = "\n".join(json.dumps(each) for each in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """Write six sessions of four turns, in the format of kv-cache-tester."""
    lines = [
        line(
            f"s{s}",
            t_s=20.0 * turn,
            think_s=3.0 * turn,
            api_s=2.0,
            input_length=1100 + 512 * turn,
            hash_ids=list(range(3 + turn)),
        )
        for s in range(6)
        for turn in range(4)
    ]
    return write(tmp_path / "agents.jsonl.gz", lines)


def test_ids_are_local_to_a_session_unless_the_file_is_a_trace(
    tmp_path: Path, agents: Path
) -> None:
    one, two = (next(each.turns()).prompt for each in read_sessions(agents)[:2])
    assert len(one.blocks) == 1100 // 16
    assert not set(one.blocks) & set(two.blocks)
    last = list(read_sessions(agents)[0].turns())[-1].prompt
    assert last.blocks[: len(one.blocks)] == one.blocks, (
        "each prompt of a session begins with the one before"
    )
    path = write(tmp_path / "t.jsonl", [line("a", timestamp=0), line("b", timestamp=1)])
    one, two = (next(each.turns()).prompt for each in read_sessions(path))
    assert one.blocks == two.blocks


@pytest.mark.parametrize("at_once", [1, 4, 10])
def test_each_request_waits_for_the_answer_before_it_and_its_pause(
    agents: Path, at_once: int
) -> None:
    site = Site(name="one", model="m", engine=load_profile("parallel"))
    fleet = VirtualFleet([site], FleetSettings(), seed=0)
    seen: dict[str, list[Exchange]] = defaultdict(list)
    under_way: list[tuple[float, int]] = []

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        seen[arrival.session].append(exchange)

    recorded = read_sessions(agents)
    hold_sessions(
        fleet, ((each.name, each.turns()) for each in recorded), ended, at_once=at_once, ramp_s=5.0
    )
    assert {name: len(turns) for name, turns in seen.items()} == {f"s{s}": 4 for s in range(6)}
    for turns in seen.values():
        for number, (before, after) in enumerate(pairwise(turns), 1):
            assert after.sent_s == pytest.approx(before.end_s + 3.0 * number)
        under_way += [(turns[0].sent_s, 1), (turns[-1].end_s, -1)]
    open_now = most = 0
    for _, change in sorted(under_way):
        open_now += change
        most = max(most, open_now)
    assert most == min(at_once, 6)


# -- the command -------------------------------------------------------------------------------


def run(*told: str) -> tuple[int, str]:
    ran = RUN.invoke(app, ["lab", "replay", *told, "--jobs", "1"])
    return ran.exit_code, ran.output + ran.stderr


def test_sessions_are_replayed_with_several_policies_and_engines(
    agents: Path, tmp_path: Path
) -> None:
    data = tmp_path / "r.json"
    told = [str(agents), "--closed-loop", "--sessions", "3", "--json", str(data)]
    told += ["--engine", "parallel", "--engine", "parallel@2.5", "--endpoints", "2"]
    told += ["--policy", "laar", "--policy", "smg:balance_abs_threshold=1", "--policy", "p2c"]
    code, text = run(*told)
    assert code == 0, text
    tables = json.loads(data.read_bytes())["tables"]
    assert [row[0] for row in tables[0]["rows"]] == ["laar", "smg:balance_abs_threshold=1", "p2c"]
    assert tables[1]["columns"][3] == "requests"
    assert all(row[3] == 24 for row in tables[1]["rows"])


def test_the_limit_is_respected_and_a_seed_determines_the_run(agents: Path, tmp_path: Path) -> None:
    written = []
    for seed in ("0", "0", "1"):
        data = tmp_path / "r.json"
        told = [str(agents), "--closed-loop", "--limit", "10", "--engine", "parallel"]
        code, text = run(*told, "--seed", seed, "--policy", "laar", "--json", str(data))
        assert code == 0, text
        (row,) = json.loads(data.read_bytes())["tables"][1]["rows"]
        assert row[3] == 10
        written.append(data.read_bytes())
    assert written[0] == written[1]


def test_a_trace_without_sessions_is_sent_at_its_recorded_times(tmp_path: Path) -> None:
    lines = [line("", timestamp=100 * i) for i in range(20)]
    for each in lines:
        del each["session"]
    path = write(tmp_path / "t.jsonl.gz", lines)
    assert not has_sessions(path)
    data = tmp_path / "r.json"
    told = ["--closed-loop", "--sessions", "5", "--engine", "parallel", "--policy", "laar"]
    code, text = run(str(path), *told, "--json", str(data))
    assert code == 0
    assert "open loop" in text
    (remark,) = json.loads(data.read_bytes())["remarks"]
    assert "open loop" in remark

"""The memory of decisions is bounded; the decision log rotates, and survives a full disk."""

import asyncio
import json
import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from laar.core.decision import Completion, DirectorSettings
from laar.datalayer.visits import cancel
from laar.fleet.membership import EndpointSpec
from laar.request import Api, Request
from laar.telemetry.decisions import DecisionMemory
from laar.telemetry.log import DecisionLog
from support import eventually
from support.directors import director_of

END = Completion(status=200, cause="complete", latency_s=1.0)
SETTINGS = DirectorSettings()


def director(endpoints=3, **hooks):
    return director_of(*(f"10.0.{i // 250}.{i % 250}:80" for i in range(endpoints)), **hooks)


def remembering(endpoints=3):
    made = director(endpoints)
    memory = DecisionMemory(made.table, wall_clock=lambda: 5.0)
    made.watch(memory.decided, memory.settled)
    return made, memory


def request(**fields):
    return Request(id="r", api=Api.CHAT, model="m", spans=("x",), question="x", chars=1, **fields)


def test_decisions_are_found_by_id_newest_first_up_to_the_limit(monkeypatch):
    monkeypatch.setattr("laar.telemetry.decisions.MAX_DECISIONS", 3)
    made, memory = remembering()
    ids = [made.decide(request(), 0.0).id for _ in range(5)]
    assert [record.decision.id for record in memory.latest(9)] == ids[:1:-1]
    assert memory.get(ids[0]) is None
    assert memory.explained(memory.get(ids[4]))["id"] == ids[4]
    assert memory.decided_total == 5


def test_bytes_are_bounded_whatever_the_size_of_the_fleet(monkeypatch):
    monkeypatch.setattr("laar.telemetry.decisions.MAX_BYTES", 1 << 20)
    made, memory = remembering(500)
    for _ in range(100):
        made.settle(made.decide(request(), 0.0), END)
    assert memory.held_bytes <= 1 << 20
    assert 5 < len(memory) < 25
    for _ in range(60):
        made.settle(made.decide(Request(id="r", api=Api.OPAQUE, model=""), 0.0), END)
    assert memory.held_bytes == sum(
        3000 + (104 * 500 if a.decision.view else 0) for a in memory.latest(999)
    )


@pytest.mark.parametrize("field", ["salt", "response_id"])
def test_texts_that_clients_send_do_not_outlive_their_requests(field):
    made, memory = remembering(1)
    tracemalloc.start()
    for n in range(30):
        made.settle(made.decide(request(**{field: f"{n}" + "x" * 100_000}), 0.0), END)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(memory) == 30
    assert held_bytes < 500_000


def test_a_record_gets_the_end_and_the_serving_endpoint():
    made, memory = remembering()
    plain, moved = made.decide(request(), 0.0), made.decide(request(), 0.0)
    picked = moved.address
    other = next(s.address for s in made.table.specs() if s.address != picked)
    made.served_by(moved, other, 0.0)
    for decision in (plain, moved):
        made.settle(decision, END)
    assert memory.get(plain.id).served == plain.address
    assert (moved.address, memory.get(moved.id).served) == (picked, other)
    assert memory.explained(memory.get(moved.id))["completion"]["served"] == other


@pytest.mark.parametrize("shadow", [False, True])
def test_a_record_names_the_model_that_answered(shadow):
    """Another endpoint may answer after Envoy's retry, or by Envoy's choice in shadow mode."""
    made, memory = remembering()
    specs = [EndpointSpec(address=f"10.0.0.{m}:80", models=(m, "m")) for m in "12"]
    made.table.replace("t", specs)
    decided = [made.decide(request(shadow=shadow), 0.0) for _ in range(2)]
    other = next(spec for spec in specs if spec.address != decided[0].address)
    made.served_by(decided[0], other.address, 0.0)
    for decision in decided:
        made.settle(decision, END)
    lines = [memory.explained(memory.get(decision.id)) for decision in decided]
    assert [line["model"] for line in lines] == [decision.model for decision in decided]
    # unknown in shadow mode if Envoy did not report it
    unknown = "" if shadow else decided[1].model
    assert [line["completion"]["model"] for line in lines] == [other.models[0], unknown]


def test_in_shadow_mode_only_envoy_names_the_serving_endpoint():
    made, memory = remembering()
    unknown, known = (made.decide(request(shadow=True), 0.0) for _ in range(2))
    made.served_by(known, known.address, 0.0)
    for decision in (unknown, known):
        made.settle(decision, END)
    assert memory.get(unknown.id).served == ""
    assert memory.get(known.id).served == known.address


# -- the log -----------------------------------------------------------------------------------


class Logged:
    """A director whose decisions are written to a log."""

    def __init__(self, path):
        self.problems = []
        self.log = DecisionLog(path, on_problem=self.problems.append)
        self.director = director()
        memory = DecisionMemory(
            self.director.table, wall_clock=lambda: 5.0, on_settled=[self.log.add]
        )
        self.director.watch(memory.decided, memory.settled)

    def decide(self, count):
        ids = []
        for _ in range(count):
            decision = self.director.decide(request(), 0.0)
            self.director.settle(decision, END)
            ids.append(decision.id)
        return ids


def lines(path):
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


@pytest.mark.long
async def test_workers_that_write_one_log_lose_no_line_when_it_rotates(tmp_path, monkeypatch):
    monkeypatch.setattr("laar.telemetry.log.MAX_BYTES", 2000)
    monkeypatch.setattr("laar.telemetry.log.KEEP", 400)
    path = tmp_path / "decisions.jsonl"
    workers = [Logged(path) for _ in range(4)]
    ids = []
    for _ in range(20):
        ids += [one for worker in workers for one in worker.decide(3)]
        await asyncio.gather(*(worker.log.flush() for worker in workers))
    written = [one for file in tmp_path.iterdir() for one in lines(file)]
    assert sorted(written) == sorted(ids)
    assert all(worker.problems == [None] * 20 for worker in workers)


async def test_every_settled_decision_becomes_a_line(tmp_path):
    logged = Logged(tmp_path / "decisions.jsonl")
    ids = logged.decide(45)
    await logged.log.flush()
    assert lines(tmp_path / "decisions.jsonl") == ids
    assert tuple(logged.log.lines.values()) == (45, 0)
    assert (tmp_path / "decisions.jsonl").stat().st_mode & 0o007 == 0


async def test_a_log_that_nobody_reads_does_not_keep_a_picker_from_stopping(tmp_path, monkeypatch):
    monkeypatch.setattr("laar.datalayer.visits._CANCEL_AGAIN_S", 0.1)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    logged = Logged(path)
    running = asyncio.create_task(logged.log.run())
    logged.decide(1)
    await eventually(lambda: not logged.log._queue, what="a line on its way")
    logged.decide(1)
    reading = threading.Timer(60.0, os.open, (path, os.O_RDONLY | os.O_NONBLOCK))
    reading.start()
    await cancel([running])
    assert reading.is_alive(), "it stopped only once somebody read"
    reading.cancel()
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    await asyncio.get_running_loop().shutdown_default_executor()
    os.close(reader)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_is_reported_and_counted_and_the_log_recovers(tmp_path):
    logged = Logged(Path("/dev/full"))
    logged.decide(4)
    await logged.log.flush()
    assert tuple(logged.log.lines.values()) == (0, 4)
    assert "No space left on device" in logged.problems[-1]
    logged.log._path = tmp_path / "log"
    ids = logged.decide(2)
    await logged.log.flush()
    assert logged.problems[-1] is None
    assert lines(tmp_path / "log") == ids

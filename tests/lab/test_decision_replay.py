"""laar's decision log, as the production code writes it, is replayed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from laar.accuracy.assessor import Assessment
from laar.core.decision import Completion
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.errors import SettingError
from laar.telemetry.decisions import DecisionMemory
from laar.telemetry.log import DecisionLog
from laar_lab.decisions import LoggedAssessor, is_decision_log, read_decisions
from laar_lab.sim.fleet import VirtualFleet, replay_open
from laar_lab.sim.fleet_file import read_fleet
from support.directors import director_of

FLEET = """
endpoints:
  - {name: "a:80", model: clever, profile: gorgo-main}
  - {name: "b:80", model: simple, profile: gorgo-main}
"""


class Known:
    """Assesses `clever` as right about Japanese texts, and `simple` about others."""

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        best = "clever" if request.question == "ja" else "simple"
        n = len(models)
        return Assessment(
            tokens=np.full(n, 1000.25),
            probability=np.array([0.9 if model == best else 0.1 for model in models]),
            evidence=np.zeros(n),
            seconds_per_token=np.full(n, 1e-5),
            base_s=np.zeros(n),
            cell=(request.question, 1024, "generic"),
        )


class Picker:
    """A director with the decision memory and the log of `laar serve`."""

    def __init__(self, path: Path) -> None:
        models = {"10.0.0.1:80": "clever", "10.0.0.2:80": "simple"}
        specs = (EndpointSpec(address=a, models=(m,)) for a, m in models.items())
        self.director = director_of(*specs, assessor=Known())
        self.now = 0.0
        self.log = DecisionLog(path, on_problem=lambda problem: None)
        memory = DecisionMemory(
            self.director.table,
            wall_clock=lambda: 1.7e9 + self.now,
            on_settled=[self.log.add],
        )
        self.director.watch(memory.decided, memory.settled)

    async def serve(self, count: int) -> None:
        """Send a request per second; of every three, the first ends last. Then flush the log."""
        for first in range(0, count, 3):
            taken = []
            for number in range(first, first + 3):
                self.now = float(number)
                request = Request(
                    id=f"r{number}",
                    api=Api.CHAT,
                    model="clever" if number == 5 else "auto",
                    spans=("text",),
                    question="ja" if number % 2 else "en",
                    chars=4000,
                    tried="simple" if number == 4 else "",
                )
                taken.append((number, self.director.decide(request, self.now)))
            for number, decision in reversed(taken):
                read = {"prompt_tokens": 900 + number, "completion_tokens": 70}
                end = Completion(
                    status=200, cause="complete", latency_s=3.0, **read if number % 3 == 2 else {}
                )
                self.director.settle(decision, end)
            await self.log.flush()


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET, "utf-8")
    return path


@pytest.fixture
async def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("laar.telemetry.log.MAX_BYTES", 1)
    path = tmp_path / "decisions.jsonl"
    await Picker(path).serve(9)
    assert (tmp_path / "decisions.jsonl.2").exists()
    return path


async def test_a_log_is_read_in_decision_order_with_its_estimates(log: Path) -> None:
    read = list(read_decisions(log, time_scale=2.0))
    assert [r.arrival.at_s for r in read] == pytest.approx([2.0 * n for n in range(9)])
    tokens = [r.arrival.prompt.prompt_tokens for r in read]
    assert tokens == [1000, 1000, 902, 1000, 1000, 905, 1000, 1000, 908], (
        "the engine's count, if known"
    )
    assert {r.arrival.prompt.output_tokens for r in read} == {70}
    assert [r.cell for r in read[:2]] == [("en", 1024, "generic"), ("ja", 1024, "generic")]
    assert read[0].probability == {"clever": 0.1, "simple": 0.9}
    assert read[4].arrival.tried == "simple"
    assert [r.arrival.model for r in read[4:7]] == ["auto", "clever", "auto"]
    assert read[5].probability == {"clever": 0.9}
    blocks = [block for r in read for block in r.arrival.prompt.blocks]
    assert len(set(blocks)) == len(blocks), "the prompts share no blocks"


async def test_policies_with_p_correct_use_the_logged_estimates(log: Path, fleet: Path) -> None:
    described = read_fleet(fleet)
    assessor = LoggedAssessor(described.sites())
    virtual = VirtualFleet(described.sites(), described.picker("laar"), seed=0, assessor=assessor)
    models: dict[float, str] = {}
    replay_open(
        virtual,
        assessor.arrivals(read_decisions(log)),
        lambda arrival, ex: models.update({round(arrival.at_s): ex.decision.model}),
    )
    best = {n: "clever" if n % 2 else "simple" for n in range(9)}
    assert models == best | {4: "clever"}, "number 4 had tried `simple`"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"time": None}, "`time`"),
        ({"asked_model": 3}, "`asked_model`"),
        ({"bucket_tokens": -1}, "`bucket_tokens`"),
        ({"tried_models": [1]}, "`tried_models`"),
        ({"candidates": {}}, "`candidates`"),
        ({"candidates": [{"model": "m", "probability": 2, "tokens": 1}]}, "`probability`"),
        ({"candidates": [{"model": "m", "probability": 1}]}, "`tokens`"),
        ({"picked": 2}, "`picked`"),
        ({"completion": None}, "`completion`"),
        ({"completion": {"completion_tokens": 1.5}}, "`completion_tokens`"),
    ],
)
async def test_a_bad_line_of_a_log_is_reported_with_its_field(
    tmp_path: Path, change: dict[str, object], told: str
) -> None:
    path = tmp_path / "decisions.jsonl"
    await Picker(path).serve(3)
    entry = json.loads(path.read_text().splitlines()[1]) | {"picked": 0} | change
    with path.open("a") as file:
        file.write("\n" + json.dumps(entry) + "\n")
    assert is_decision_log(path)
    with pytest.raises(SettingError, match=r"decisions.jsonl, line 5: .*" + told):
        list(read_decisions(path))

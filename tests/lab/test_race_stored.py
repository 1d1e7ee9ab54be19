"""The stored races on real engines: figures follow from the rows, and pages quote these figures."""

from __future__ import annotations

import gzip
import math
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
import pytest

from laar_lab.race.clients import Row
from laar_lab.race.result import Turn, numbers_of, ratios

ROOT = Path(__file__).parents[2]
STORED = sorted((ROOT / "docs/race").glob("*.json"))
ON_GPU = sorted((ROOT / "docs/race/gpu").glob("*.json"), key=lambda path: path.stem)
THIRD = sorted((ROOT / "docs/race/gpu/third").glob("*.json"))
WARM_UP_S, SECONDS, GPU_SECONDS, GPU_CHATS_SECONDS = 10.0, 75.0, 30.0, 45.0


def rows_of(stored: Path) -> list[dict[str, Any]]:
    with gzip.open(stored.with_suffix(".jsonl.gz")) as lines:
        return [orjson.loads(line) for line in lines]


def turns_of(stored: Path) -> list[Turn]:
    """Return the turns, computed again from the rows that clients wrote."""
    rows = rows_of(stored)
    until_s = GPU_SECONDS if stored in ON_GPU + THIRD else SECONDS
    if stored.stem == "chats" and stored in THIRD:
        until_s = GPU_CHATS_SECONDS
    turns = []
    for (router, repetition), of in groupby(
        rows, lambda row: (row.pop("router"), row.pop("repetition"))
    ):
        numbers = numbers_of(
            [Row(**row) for row in of], from_s=WARM_UP_S, until_s=until_s, cpu_s=None
        )
        turns.append(Turn(router=router, repetition=repetition, numbers=numbers))
    return turns


@pytest.mark.parametrize("stored", STORED + ON_GPU + THIRD, ids=lambda path: path.stem)
def test_stored_numbers_are_derived_from_the_rows(stored: Path) -> None:
    numbers, turns = orjson.loads(stored.read_bytes()), turns_of(stored)
    assert len(turns) == len(numbers["turns"])
    for seen, turn in zip(numbers["turns"], turns, strict=True):
        assert (seen["router"], seen["repetition"]) == (turn.router, turn.repetition)
        del seen["numbers"]["cpu_ms"]
        assert turn.numbers | seen["numbers"] == pytest.approx(turn.numbers, nan_ok=True)
    for router, seen in numbers["ratios"].items():
        for name, ratio in ratios(turns, "laar", router).items():
            assert math.isclose(ratio.value, seen[name]["value"], rel_tol=1e-6)
            high = math.nan if seen[name]["high"] is None else seen[name]["high"]
            assert ratio.high == pytest.approx(high, nan_ok=True)

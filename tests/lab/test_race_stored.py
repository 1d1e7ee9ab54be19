"""The stored races on real engines: figures follow from the rows, and pages quote these figures."""

from __future__ import annotations

import gzip
import math
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
import pytest

from laar_lab.race.clients import Row
from laar_lab.race.result import Turn, numbers_of, ratios

ROOT = Path(__file__).parents[2]
STORED = sorted((ROOT / "docs/race").glob("*.json"))
PERCENT = re.compile(r"[+-]\d+ % \([+-]\d+ to [+-]\d+\)")
FROM_TO = re.compile(r"([+-]\d+) %, from ([+-]\d+) to\s+([+-]\d+)\)")
WARM_UP_S, SECONDS = 10.0, 75.0


def rows_of(stored: Path) -> list[dict[str, Any]]:
    with gzip.open(stored.with_suffix(".jsonl.gz")) as lines:
        return [orjson.loads(line) for line in lines]


def turns_of(stored: Path) -> list[Turn]:
    """Return the turns, computed again from the rows that clients wrote."""
    rows = rows_of(stored)
    turns = []
    for (router, repetition), of in groupby(
        rows, lambda row: (row.pop("router"), row.pop("repetition"))
    ):
        numbers = numbers_of(
            [Row(**row) for row in of], from_s=WARM_UP_S, until_s=SECONDS, cpu_s=None
        )
        turns.append(Turn(router=router, repetition=repetition, numbers=numbers))
    return turns


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.stem)
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
            assert math.isclose(ratio.high, seen[name]["high"], rel_tol=1e-6)


def test_pages_quote_the_stored_ratios() -> None:
    races = [turns_of(stored) for stored in STORED]
    known = {
        ratio.percent
        for turns in races
        for router in {turn.router for turn in turns} - {"laar"}
        for ratio in ratios(turns, "laar", router).values()
    }
    page = (ROOT / "docs/race/README.md").read_text("utf-8")
    quoted = set(PERCENT.findall(page.partition("## Results")[2]))
    assert quoted == known
    readme = (ROOT / "README.md").read_text("utf-8")
    quoted = {f"{x} % ({low} to {high})" for x, low, high in FROM_TO.findall(readme)}
    assert len(quoted) == 2
    assert quoted <= known
    assert f"{sum(len(rows_of(stored)) for stored in STORED):,} requests" in page

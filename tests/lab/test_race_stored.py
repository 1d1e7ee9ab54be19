"""The stored races on real engines: figures follow from the rows, and pages quote these figures."""

from __future__ import annotations

import gzip
import math
import re
from dataclasses import replace
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
GPU_PAGE = ROOT / "docs/race/gpu.md"
PERCENT = re.compile(r"[+-]\d+ % \([+-]\d+ to [+-]\d+\)")
FROM_TO = re.compile(r"([+-]\d+) %, from ([+-]\d+) to\s+([+-]\d+)\)")
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


def test_pages_quote_the_stored_ratios() -> None:
    races = [turns_of(stored) for stored in STORED]
    known = {
        ratio.percent
        for turns in races
        for router in {turn.router for turn in turns} - {"laar"}
        for ratio in ratios(turns, "laar", router).values()
    }
    page = (ROOT / "docs/race/README.md").read_text("utf-8")
    quoted = PERCENT.findall(page)
    assert len(quoted) == 28
    readme = (ROOT / "README.md").read_text("utf-8")
    quoted += [f"{x} % ({low} to {high})" for x, low, high in FROM_TO.findall(readme)]
    assert known.issuperset(quoted)
    assert f"{sum(len(rows_of(stored)) for stored in STORED):,} requests" in page


def on_gpu(races: list[Path]) -> dict[str, list[Turn]]:
    """Return the turns on a GPU by traffic, with all repetitions numbered."""
    found: dict[str, list[Turn]] = {}
    for stored in races:
        traffic, *sessions = stored.stem.split("-")
        turns = found.setdefault(f"{sessions[0]} sessions" if sessions else traffic, [])
        before = len({turn.repetition for turn in turns})
        turns += [
            replace(
                turn,
                router=turn.router.replace(":--enable-program-scheduling", ", program scheduling"),
                repetition=before + turn.repetition,
            )
            for turn in turns_of(stored)
        ]
    return found


def table_of(section: str, columns: int) -> dict[tuple[str, str], list[str]]:
    """Return the rows of a section's table by traffic and router."""
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines()]
    rows = [row for row in table if len(row) == columns and any(map(str.isdigit, row[-1]))]
    return {(f"{row[0]} sessions" if row[0].isdigit() else row[0], row[1]): row[2:] for row in rows}


def section_of(title: str) -> str:
    return GPU_PAGE.read_text("utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "races", "shown"),
    [
        ("Results", ON_GPU, {"22 sessions", "45 sessions", "68 sessions"}),
        (
            "The third race",
            THIRD,
            {"15 sessions", "22 sessions", "45 sessions", "68 sessions", "chats"},
        ),
    ],
)
def test_the_page_of_the_races_on_a_gpu_quotes_ratios_over_all_repetitions(
    title: str, races: list[Path], shown: set[str]
) -> None:
    names = ("answers_per_s", "ttft_mean_s", "ttft_p50_s", "ttft_p95_s", "answer_mean_s")
    rows = table_of(section_of(title), columns=7)
    turns = on_gpu(races)
    assert {traffic for traffic, _ in rows} == shown
    for (traffic, router), cells in rows.items():
        of = ratios(turns[traffic], "laar", router)
        once = len({turn.repetition for turn in turns[traffic]}) == 1
        for cell, name in zip(cells, names, strict=True):
            quoted = [float(number) for number in re.findall(r"[\d.]+", cell)]
            numbers = [of[name].value, of[name].low, of[name].high]
            assert quoted == pytest.approx(numbers[:1] if once else numbers, abs=6e-3)

"""`python -m bench cold` leaves out parts that decisions have."""

from __future__ import annotations

import sys

import pytest
from bench.bench_cold import PARTS
from bench.bench_decision import messages, processor, time_answer

from laar.server.extproc import ExternalProcessor


async def _calls(picker: ExternalProcessor) -> int:
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        await time_answer(picker, messages(2_000, 1))
    finally:
        sys.setprofile(None)
    return calls


async def _fewest_calls(picker: ExternalProcessor) -> int:
    """Return the calls of a decision without the work that is only due at times."""
    return min([await _calls(picker) for _ in range(20)])


@pytest.mark.parametrize("part", PARTS)
async def test_a_decision_without_a_part_makes_fewer_calls(part: str) -> None:
    picker = processor(4)
    for _ in range(3):
        await time_answer(picker, messages(2_000, 1))
    whole = await _fewest_calls(picker)
    with PARTS[part]():
        assert await _fewest_calls(picker) < whole

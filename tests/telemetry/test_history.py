"""The history of the last hour."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.telemetry.history import BIN_S, BINS, History


def ended(ttft_s: float | None = None, *, ok: bool = True) -> Any:
    end = SimpleNamespace(ok=ok, ttft_s=ttft_s, latency_s=1.0, cached_tokens=30, prompt_tokens=120)
    return SimpleNamespace(end=end, decision=decision(4.0))


def decision(now: float) -> Any:
    return SimpleNamespace(now=now)


@pytest.mark.long
@given(st.lists(st.floats(0, 3 * BIN_S * BINS), max_size=200), st.floats(0, BIN_S * BINS))
def test_curves_agree_with_a_list_of_the_last_hour(times: list[float], later: float) -> None:
    history = History()
    for at in sorted(times):
        history.decided(decision(at))
    now = max(times, default=0.0) + later
    last = int(now // BIN_S)
    expected = [sum(int(at // BIN_S) == n for at in times) for n in range(last - BINS + 1, last)]
    rates = history.curves(now)["rate"]
    assert [round(rate * BIN_S) for rate in rates] == expected  # type: ignore[attr-defined]


def test_shares_and_medians_of_a_bin_are_computed() -> None:
    history = History()
    for number in range(10_000):
        history.settled(ended(0.001 * number, ok=number % 4 > 0))
    curves: Any = history.curves(BIN_S + 1)
    assert curves["failed"][-1] == 0.25
    assert curves["hits"][-1] == 0.25
    assert curves["ttft_s"][-1] == pytest.approx(5.0, rel=0.08)

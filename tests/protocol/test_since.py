"""A retry's wait counts from the first attempt, and only laar's own stamp gives its time."""

from __future__ import annotations

import pytest

from laar.core.request import Api, Request
from laar.protocol.since import MAX_WAITED_S, Since


def request(question: str = "What is it?", tried: str = "a", **fields: object) -> Request:
    made = {"id": "r", "api": Api.CHAT, "question": question, "chars": len(question)} | fields
    return Request(tried=tried, **made)  # type: ignore[arg-type]


def test_the_wait_adds_up_over_attempts() -> None:
    since = Since()
    first = since.stamp(request(tried=""), 100.0)
    second = request()
    second.waited_s = since.waited_s(first, second, 107.0)
    assert second.waited_s == pytest.approx(7.0)
    third = request(tried="a,b")
    assert since.waited_s(since.stamp(second, 107.0), third, 120.0) == pytest.approx(20.0)


def test_no_reporter_gains_by_lying() -> None:
    since = Since()
    stamp = since.stamp(request(), 100.0)
    at, _, signature = stamp.partition(".")
    assert since.waited_s(f"1.{signature}", request(), 200.0) == 0.0
    assert since.waited_s(f"{at}.{'0' * 24}", request(), 200.0) == 0.0
    assert since.waited_s(stamp, request("Another question"), 200.0) == 0.0
    assert since.waited_s(stamp, request(tenant="another"), 200.0) == 0.0
    assert since.waited_s(stamp, request(tried=""), 200.0) == 0.0
    assert Since().waited_s(stamp, request(), 200.0) == 0.0
    assert since.waited_s(stamp, request(), 1e9) == MAX_WAITED_S
    assert since.waited_s(stamp, request(), 50.0) == 0.0


@pytest.mark.parametrize(
    "text", ["", ".", "x.y", "1", "9" * 100, "-5.ab", "١.ab", "1e5.ab", "\udc80.a"]
)
def test_malformed_timestamps_mean_no_wait(text: str) -> None:
    assert Since().waited_s(text, request(), 1.0) == 0.0

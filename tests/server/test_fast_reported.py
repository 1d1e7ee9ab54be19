"""The operator is told which endpoint is faster than its siblings make plausible."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from laar.faults import Fault
from laar.fleet.membership import EndpointSpec
from laar.plugins.shares import FAST_LABEL, FairShares
from laar.server.collectors import Collectors
from laar.settings import Settings
from support.directors import director_of


@pytest.mark.parametrize("by", ["label", "answers", "removal"])
def test_a_fast_endpoint_is_named_until_its_pace_is_confirmed(by: str) -> None:
    d, told = director_of("a:1", "b:1", "c:1"), dict[tuple[Fault, str], str]()

    def problem(fault: Fault, message: str | None, name: str = "") -> None:
        told.pop((fault, name), None)
        if message:
            told[fault, name] = message

    fleet: Any = Mock(problem=problem, full=lambda _now: {})
    settings = Settings(endpoints_file=Path("unread.yaml"))
    ours = Collectors(settings, d, fleet, clock=lambda: 0.0, is_at_rest=lambda: False)
    shares, explained = d.plugins.get(FairShares), False

    def hold(quick: list[int], now: float) -> None:
        shares.held = set() if explained else {*quick}

    shares._explain = hold  # type: ignore[method-assign]

    def answered() -> None:
        for _ in range(4):  # which are looked at together
            for slot, seconds in enumerate((0.1, 0.7, 0.7)):
                d.engines.ends.append((slot, seconds, 20))
            shares.learn(0.0)
        ours._to_ask(0)

    for _ in range(12):
        answered()
    assert [*told] == [(Fault.FAST, "a:1")]
    assert " times as fast as its siblings" in told[Fault.FAST, "a:1"]
    assert d.engines.untaught == {0}
    explained = by == "answers"
    if by != "answers":
        labels = {FAST_LABEL: "true"}
        first = [EndpointSpec(address="a:1", models=("m",), labels=labels)] * (by == "label")
        rest = [EndpointSpec(address=each, models=("m",)) for each in ("b:1", "c:1")]
        d.table.replace("t", [*first, *rest])
    answered() if by != "removal" else ours._to_ask(0)
    assert told == {}

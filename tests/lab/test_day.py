"""In a day of operation, traffic follows the time of day."""

from __future__ import annotations

import random
from collections import Counter

from laar_lab.workloads.day import Day, visits


def test_the_rate_of_traffic_follows_the_time_of_day() -> None:
    day = Day(hour_s=30.0)
    seen: Counter[tuple[str, int]] = Counter()
    for visit in visits(day, random.Random(1)):
        assert 0.0 <= visit.at_s < day.ends_s
        seen[visit.kind, day.hour(visit.at_s)] += 1

    def sent(kind: str, hours: range) -> int:
        return sum(seen[kind, hour] for hour in hours)

    assert sent("batch", range(6)) > 100
    assert not sent("batch", range(7, 24))
    for kind in ("agent", "document"):
        assert sent(kind, range(9, 12)) > 2 * sent(kind, range(21, 24))
    assert sent("chat", range(10, 14)) > 2 * sent("chat", range(1, 5))

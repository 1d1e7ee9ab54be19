"""Measure the lab's speed: simulated requests per minute on one core, with the whole picker.

The load is GORGO's: three regions, conversations of about 8k tokens that share most of their
history. Director, prefix index, probes, scrapes and engines all run.
"""

from __future__ import annotations

import time
from pathlib import Path

from laar_lab.sim import fleet_file
from laar_lab.sim.fleet import VirtualFleet, generator, replay_open
from laar_lab.tally import Tally
from laar_lab.workloads.sessions import GORGO_CHATS, chats

DURATION_S = 900.0
TARGET_PER_MINUTE = 100_000


def rate(policy: str) -> None:
    described = fleet_file.read_fleet(Path(fleet_file.__file__).parent / "data/gorgo-fleet.yaml")
    arrivals = list(chats(GORGO_CHATS, generator(0, "workload"), DURATION_S))
    fleet = VirtualFleet(described.sites(), described.picker(policy), seed=0)
    tally = Tally()
    began = time.perf_counter()
    replay_open(fleet, arrivals, tally.add)
    spent = time.perf_counter() - began
    numbers = tally.numbers()
    print(
        f"{policy:<24} {len(arrivals) / spent * 60:>9,.0f} requests a minute "
        f"(target {TARGET_PER_MINUTE:,}), cached {numbers['hit_rate']:.0%}, TTFT p50 "
        f"{numbers['ttft_p50_s'] * 1e3:.0f} p95 {numbers['ttft_p95_s'] * 1e3:.0f} ms, "
        f"E2E p95 {numbers['e2e_p95_s']:.2f} s, busiest's share {numbers['concentration']:.2f}"
    )


def main() -> None:
    for policy in (
        "laar",
        "gorgo",
        "lmetric",
        "least-loaded",
        "least-request",
        "least-load",
        "session-affinity",
        "simple-session-affinity",
        "aibrix-prefix-cache",
        "sglang-cache-aware",
        "llm-router",
        "llm-d",
    ):
        rate(policy)


if __name__ == "__main__":
    main()

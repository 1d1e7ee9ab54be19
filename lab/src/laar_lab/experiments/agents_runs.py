"""Metrics of closed-loop agent runs with more sessions than fit in the caches."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from laar_lab.sim.fleet import Arrival, Exchange

KV_TOKENS = 250_000
"""Size of each engine's cache in tokens."""


class Turns:
    """Collects what the clients of a run saw.

    Args:
        until_s: end of the run.
        uncounted_s: length of the warm-up, which is not counted.
    """

    def __init__(self, until_s: float, uncounted_s: float) -> None:
        self._until_s = until_s
        self._uncounted_s = uncounted_s
        self._done = 0
        self._turns: list[tuple[float, ...]] = []
        self._by_session: dict[str, list[float]] = defaultdict(list)

    def ended(self, arrival: Arrival, exchange: Exchange) -> None:
        """Count a turn, by its end for throughput and by its start for all other metrics."""
        self._done += self._uncounted_s <= exchange.end_s < self._until_s
        if arrival.at_s < self._uncounted_s:
            return
        took_s, first_s, held_s = (
            at - arrival.at_s for at in (exchange.end_s, exchange.first_s, exchange.decision.now)
        )
        self._turns.append((took_s, first_s, held_s))
        self._by_session[arrival.session].append(took_s)

    def numbers(self) -> dict[str, float]:
        """Return the metrics of the run."""
        took_s, first_s, held_s = np.array(self._turns).T
        by_session = np.array([np.mean(each) for each in self._by_session.values()])
        return {
            "turns_per_s": self._done / (self._until_s - self._uncounted_s),
            "turn_s": float(took_s.mean()),
            "ttft_s": float(first_s.mean()),
            "ttft_p95_s": float(np.percentile(first_s, 95)),
            "ttft_max_s": float(first_s.max()),
            "fairness": float(np.percentile(by_session, 95) / by_session.mean()),
            "session_p95_s": float(np.percentile(by_session, 95)),
            "held_s": float(held_s.max()),
        }

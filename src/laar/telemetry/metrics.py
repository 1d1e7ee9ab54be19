"""Counters on the request path: plain numbers, dictionaries and fixed arrays.

A prometheus-client counter with labels costs a microsecond and a lock per update; a dictionary
entry costs a tenth of that. `laar.server.admin.metrics` reads them at each scrape. Labels are names
from the settings (models, endpoints, policies, reasons), never values sent by clients, except for
tasks, whose number is capped.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from laar.accuracy.reports import Answered
from laar.core.decision import Decision
from laar.explain.decision_record import DecisionRecord
from laar.plugins.apart import PrefillApart
from laar.telemetry.full import MAYBE_FULL, Full

MAX_LABELS = 64
"""Maximum number of tasks with their own series; the others share ``other``."""

_OVERHEAD_BOUNDS_S = (1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.25)
_LATENCY_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_QUEUE_BOUNDS_S = (0.001, 0.01, 0.05, *_LATENCY_BOUNDS_S[3:])
_ANSWER_BOUNDS_S = (0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_ATTEMPTS = (1, 2, 3, 4, 5, 6, 8, 10)
_RATIOS = (0.1, 0.25, 0.5, 0.7, 0.9, 1.1, 1.3, 2.0, 4.0, 10.0)
"""Bounds of predicted / measured; from 0.9 to 1.1, a prediction counts as accurate."""


class Histogram:
    """A histogram with fixed bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Return each upper bound with the number of values up to it; the last one is infinite."""
        bounds = map(float, (*self._bounds, float("inf")))
        return zip(bounds, accumulate(self._counts), strict=True)

    def median(self) -> float | None:
        """Return the upper bound of the bucket with the median; None if there are no values."""
        half = sum(self._counts) / 2
        bounds = (bound for bound, count in self.buckets() if count >= half)
        return min(next(bounds), self._bounds[-1]) if half else None


class Metrics:
    """The counters; other parts of the picker update some of them directly."""

    def __init__(self) -> None:
        self.streams_open = 0
        self.stream_faults = 0
        self.ignored_messages = 0
        self.moved = 0
        self.failed_attempts = 0
        self.certificate_expires_at_s: Callable[[], float] | None = None
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        self.prefills_apart: Counter[str] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.completions: Counter[tuple[str, str]] = Counter()
        self.full = Full()
        self.overhead_s = Histogram(_OVERHEAD_BOUNDS_S)
        self.ttft_s = Histogram(_LATENCY_BOUNDS_S)
        self.latency_s = Histogram(_LATENCY_BOUNDS_S)
        self.held_s = Histogram(_QUEUE_BOUNDS_S)
        self.shadow = Counter(yes=0, no=0, unknown=0)
        self.ttft_ratio = Histogram(_RATIOS)
        self.prompt_tokens = 0
        self.believed_tokens = 0.0
        self.found_tokens = 0
        self.answers: Counter[tuple[str, str, str]] = Counter()
        self.correct_s: dict[tuple[str, str], Histogram] = defaultdict(
            lambda: Histogram(_ANSWER_BOUNDS_S)
        )
        self.attempts: dict[tuple[str, str], Histogram] = defaultdict(lambda: Histogram(_ATTEMPTS))
        self._tasks: set[str] = set()

    def decided(self, decision: Decision) -> None:
        """Count a decision by policy, reason and model."""
        self.decisions[decision.policy, decision.reason, decision.model] += 1
        if decision.parts and PrefillApart.of(decision) is not None:
            self.prefills_apart[decision.model] += 1

    def decided_in(self, seconds: float) -> int:
        """Count the time of a decision, excluding waits; return it in microseconds."""
        self.overhead_s.observe(seconds := max(0.0, seconds))
        return round(seconds * 1e6)

    def refused(self, status: int, reason: str) -> None:
        """Count a request that laar answered itself."""
        self.refusals[str(status), reason] += 1

    def settled(self, record: DecisionRecord) -> None:
        """Count how a request ended, and compare the predicted with the measured values."""
        decision, end, served = record.decision, record.end, record.served
        if end is None:
            return
        status = "none" if end.status is None else f"{end.status // 100}xx"
        self.completions[end.cause, status] += 1
        if self.full.known or end.status in MAYBE_FULL:
            self.full.settled(decision, end, record.time_s + end.latency_s)
        self.latency_s.observe(end.latency_s)
        if end.ttft_s is not None and decision.request.stream:  # others have no first token
            self.ttft_s.observe(end.ttft_s)
        if decision.request.shadow:
            agreed = "yes" if served == decision.address else "no"
            self.shadow[agreed if served else "unknown"] += 1
        view, position = decision.view, decision.position
        if view is None or not end.ok or served != decision.address:
            return
        if end.ttft_s is not None and view.terms is not None:
            predicted_s = float(view.terms.all_ttft_s[position])
            self.ttft_ratio.observe(predicted_s / max(end.ttft_s, 1e-6))
        if end.cached_tokens is not None and end.prompt_tokens:
            self.believed_tokens += decision.believed_share * end.prompt_tokens
            self.found_tokens += end.cached_tokens
            self.prompt_tokens += end.prompt_tokens

    def answered(self, answered: Answered) -> None:
        """Count a judged answer."""
        if len(self._tasks) < MAX_LABELS:
            self._tasks.add(answered.task)
        task = answered.task if answered.task in self._tasks else "other"
        key = answered.policy, task
        self.answers[*key, str(answered.correct).lower()] += 1
        if answered.correct:
            self.attempts[key].observe(answered.attempts)
            if answered.seconds is not None:
                self.correct_s[key].observe(answered.seconds)

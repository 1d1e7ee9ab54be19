"""Outcomes of questions, for tests of figures derived from them."""

from __future__ import annotations

from laar.client import Attempt, Outcome


def outcome(*latencies_s: float, correct: bool, waited_s: float = 0.1) -> Outcome:
    """Return attempts with these latencies; `correct` is for the last; later attempts waited."""
    last = len(latencies_s) - 1
    attempts = tuple(
        Attempt(
            model="m",
            endpoint=None,
            decision_id=None,
            reason=None,
            status=200,
            latency_s=latency_s,
            ttft_s=None,
            waited_s=waited_s if at else 0.0,
            prompt_tokens=None,
            answer="",
            correct=correct and at == last,
            error=None,
        )
        for at, latency_s in enumerate(latencies_s)
    )
    total_s = sum(attempt.latency_s + attempt.waited_s for attempt in attempts)
    return Outcome(
        answer="",
        correct=correct,
        attempts=attempts,
        ttca_s=total_s,
        censored=not correct,
        exhausted=False,
    )

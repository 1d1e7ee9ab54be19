"""The live page's data, as plain JSON values: fleet, recent decisions, outcomes.

Everything is computed on demand from the table and the decision memory; the request path counts
nothing extra. Percentiles cover the last thousand decisions; Prometheus has a longer history.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from laar.core.director import Director
from laar.core.filters import MAX_FAILURES, MAX_KV_USAGE, STALE_S
from laar.explain.decision_record import DecisionRecord
from laar.explain.record import shown_cost_s
from laar.fleet.endpoints import Floats, Reading
from laar.latest import Latest
from laar.telemetry.decisions import DecisionMemory
from laar.telemetry.problems import Events, Problems

MAX_FLEET = 500
"""Maximum number of endpoints shown; in a larger fleet, the busiest and those with problems."""

SHOWN_DECISIONS = 12
_WINDOW = 1000
"""Number of decisions for percentiles and shares: enough for a p99, and only 3 ms per frame."""

_RECENT = 64  # decisions whose costs and P(correct) are averaged
_PROBLEMS = 50
_SHOWN_FAILURES = 5
_UNREAD = (math.nan, math.nan, math.nan)
_HIT_WEIGHT = 0.3  # weight of the latest scrape in an engine's hit rate
_MAX_HIT_RATES = 20_000  # as many endpoints as one selector may match
SLOW_PACE = 1.5  # smaller differences are normal variation of load
_READ = ("rtt_s", "queued_tokens", "waiting", "running", "kv_usage")
_TERMS = ("rtt_s", "base_s", "prefill_s", "queue_s", "latency_s")
_POINTS = 80  # points in the plot of predicted against measured values


@dataclass(eq=False, repr=False)
class PageModel:
    """Builds frames for the page; `about` returns the values that describe the picker."""

    director: Director
    memory: DecisionMemory
    problems: Problems
    about: Callable[[], dict[str, object]]

    def __post_init__(self) -> None:
        self._table = self.director.table
        self._hits: Latest[str, tuple[float, float, float]] = Latest(_MAX_HIT_RATES)
        """Queries and hits at the last scrape, in tokens, and the hit rate, by endpoint."""
        self.events = Events()
        self._last = (math.nan, 0)
        self.correct_s: deque[float] = deque(maxlen=_WINDOW)
        """Times to the last answers reported as correct."""

    def fleet(self, now: float) -> dict[str, object]:
        """Return the endpoints and the problems, without the decisions."""
        return self._state(now, list(self.memory.latest(_RECENT)))

    def read(self, key: str, reading: Reading) -> None:
        """Update the share of tokens that an engine finds in its cache; it takes two scrapes."""
        queries, hits = reading.prefix_queries_tokens, reading.prefix_hits_tokens
        known_queries, known_hits, rate = self._hits.get(key, _UNREAD)
        if queries > known_queries and not reading.restarted:
            share = (hits - known_hits) / (queries - known_queries)
            rate = share if math.isnan(rate) else rate + _HIT_WEIGHT * (share - rate)
        self._hits[key] = queries, hits, rate

    def health(self, now: float) -> Counter[str]:
        """Return the number of endpoints in each state."""
        paces = self.director.engines.paces.relative()
        states = (self._health(slot, paces, now) for slot in self._table.active.tolist())
        return Counter(states) + Counter(drained=len(self._table.drained))

    def frame(self, now: float) -> dict[str, object]:
        """Return everything the page shows; `now` is a time of the readings' clock."""
        memory = self.memory
        records = list(memory.latest(_WINDOW))
        before, total = self._last
        self._last = (now, memory.decided_total)
        rate = (memory.decided_total - total) / (now - before) if now > before else math.nan
        return self._state(now, records) | {
            "rate": rate,
            "decisions_total": memory.decided_total,
            "decisions": [memory.explained(a) for a in records[:SHOWN_DECISIONS]],
            "window": len(records),
            "ttft_s": _percentiles(a.end.ttft_s for a in records if a.end),
            "latency_s": _percentiles(a.end.latency_s for a in records if a.end and a.end.ok),
            "reasons": Counter(a.decision.reason for a in records),
            "choices": _choices(records[:_RECENT]),
            "failed": sum(1 for a in records if a.end and not a.end.ok),
            "failures": _failures(records),
            "predicted": _predicted(records),
            "ttca_s": _percentiles(self.correct_s),
            "shadow": _shadow(records),
            "events": list(self.events.latest),
        }

    def _state(self, now: float, records: Sequence[DecisionRecord]) -> dict[str, object]:
        return {
            "about": self.about(),
            "fleet": self._fleet(now, records),
            "fleet_total": len(self._table),
            "problems": self.problems.shown(_PROBLEMS),
        }

    def _fleet(self, now: float, records: Sequence[DecisionRecord]) -> list[dict[str, object]]:
        table = self._table
        probability = self._probability(records)
        slots: list[int] = table.active.tolist()
        paces = self.director.engines.paces.relative()
        health = {slot: self._health(slot, paces, now) for slot in slots}
        if len(slots) > MAX_FLEET:
            slots.sort(key=lambda slot: (health[slot] == "ok", -table.in_flight[slot]))
            slots = sorted(slots[:MAX_FLEET])
        learned = self.director.health
        return [
            {
                "endpoint": spec.key,
                "model": spec.models[0],
                "region": spec.region,
                "health": health[slot],
                "fault": learned.fault(slot),
                "in_flight": int(table.in_flight[slot]),
                **{name: float(getattr(table, name)[slot]) for name in _READ},
                "hit_rate": self._hits.get(spec.key, _UNREAD)[2],
                "probability": float(probability[slot]),
                "answers": learned.answers(slot, now),
                "read_age_s": now - float(table.read_at[slot]),
            }
            for slot, spec in zip(slots, map(table.spec, slots), strict=True)
        ]

    def _probability(self, records: Sequence[DecisionRecord]) -> Floats:
        """Return each endpoint's mean P(correct) over recent requests; NaN if there were none."""
        total, count = np.zeros(self._table.capacity), np.zeros(self._table.capacity)
        for record in records[:_RECENT]:
            if (view := record.decision.view) is not None and view.knows_outcomes:
                # An endpoint is as many candidates as its model has variants.
                np.add.at(total, view.slots, view.probability)
                np.add.at(count, view.slots, 1.0)
        mean: Floats = np.divide(total, count, out=np.full(len(total), math.nan), where=count > 0)
        return mean

    def _health(self, slot: int, paces: Floats, now: float) -> str:
        table = self._table
        if table.failures[slot] >= MAX_FAILURES:
            return "unreachable"
        if slot in table.draining:
            return "draining"
        if table.asleep[slot]:
            return "asleep"
        if said := self.director.health.state(slot, now):
            return said
        if paces[slot] >= SLOW_PACE:
            return "slow"
        if math.isnan(table.read_at[slot]):
            # Without a metrics page, only probes show whether the endpoint is up.
            probed = table.spec(slot).metrics_url == "" and not math.isnan(table.rtt_at[slot])
            return "ok" if probed else "not read"
        if now - table.read_at[slot] > STALE_S:
            return "stale"
        over = table.waiting[slot] > self.director.settings.max_waiting
        return "saturated" if over or table.kv_usage[slot] > MAX_KV_USAGE else "ok"


def _choices(records: Sequence[DecisionRecord]) -> dict[str, dict[str, float]]:
    """Return, by model, how many decisions there are, how many have a cost, and sums of terms."""
    found: dict[str, dict[str, float]] = {}
    for record in records:
        decision, view = record.decision, record.decision.view
        names = ("decisions", "priced", "cost_s", *_TERMS)
        sums = found.setdefault(record.answered or decision.model, dict.fromkeys(names, 0.0))
        sums["decisions"] += 1
        if view is not None and (terms := view.terms) is not None:
            sums["priced"] += 1
            sums["cost_s"] += float(shown_cost_s(view, terms)[decision.position])
            for term in _TERMS:
                sums[term] += float(getattr(terms, term)[decision.position])
    return found


def _failures(records: Sequence[DecisionRecord]) -> list[dict[str, object]]:
    """Return the failures by model, endpoint and status, the most frequent first."""
    counts = Counter(
        (a.answered or a.decision.model, a.served or a.decision.address, a.end.status)
        for a in records
        if a.end and not a.end.ok
    )
    return [
        {"model": model, "endpoint": endpoint, "status": status, "count": count}
        for (model, endpoint, status), count in counts.most_common(_SHOWN_FAILURES)
    ]


def _percentiles(values: Iterable[float | None]) -> dict[str, object]:
    known = [value for value in values if value is not None]
    if not known:
        return {"n": 0}
    p50, p90, p99 = np.percentile(known, [50, 90, 99]).tolist()
    return {"n": len(known), "p50": p50, "p90": p90, "p99": p99}


def _predicted(records: Sequence[DecisionRecord]) -> dict[str, object]:
    """Return predicted and measured values of requests that the picked endpoint served."""
    ttft, latency, cached = [], [], []
    for record in records:
        decision, end = record.decision, record.end
        view, at = decision.view, decision.position
        if end is None or not end.ok or view is None or record.served != decision.address:
            continue
        if view.terms is not None:
            latency.append((float(view.terms.latency_s[at]), end.latency_s))
            if end.ttft_s is not None:
                ttft.append((float(view.terms.all_ttft_s[at]), end.ttft_s))
        if end.cached_tokens is not None and end.prompt_tokens:
            cached.append((decision.believed_share, end.cached_tokens / end.prompt_tokens))
    pairs = {"ttft_s": ttft, "latency_s": latency, "cached_share": cached}
    return {
        name: {
            "n": len(found),
            "predicted_p50": float(np.median([p for p, _ in found])) if found else None,
            "measured_p50": float(np.median([m for _, m in found])) if found else None,
            "points": found[:_POINTS],
        }
        for name, found in pairs.items()
    }


def _shadow(records: Sequence[DecisionRecord]) -> dict[str, object]:
    """Return how often the serving picker agreed with laar, and what laar's choices would gain.

    `saved_s` and `more_correct` are laar's estimates of expected seconds to a correct answer and of
    P(correct): means over requests whose serving endpoint was a candidate.
    """
    seen = [a for a in records if a.decision.request.shadow and a.served]
    saved, more = [], []
    for record in seen:
        view, picked = record.decision.view, record.decision.position
        if view is None or view.terms is None:
            continue
        specs = [record.specs[int(slot)] for slot in view.slots]
        at = next((i for i, s in enumerate(specs) if s.address == record.served), None)
        if at is not None:
            cost, right = view.terms.cost_s, view.probability
            saved.append(float(cost[at] - cost[picked]))
            more.append(float(right[picked] - right[at]))
    return {
        "decisions": sum(1 for a in records if a.decision.request.shadow),
        "known": len(seen),
        "agreed": sum(1 for a in seen if a.served == a.decision.address),
        "saved_s": float(np.mean(saved)) if saved else None,
        "more_correct": float(np.mean(more)) if more else None,
    }

"""The cost that serves: own seconds, what they cost the others, and what they do to caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from laar.core.cost import CostWeights, MIN_PROBABILITY, Terms, scores_of_costs
from laar.core.endpoints import Floats
from laar.core.interfaces import View

__all__ = ["Outlook"]

_MAX_LOAD = 0.8

OPT = dict(fut=1.0, half=1.0, credit=1.0, mean=0.0, ext=1.0, krtt=1.0, evict=1.0, slots=1.0, que=4.0)


class Outlook:
    """Scores by expected seconds to a correct answer, and what they cost others."""

    def __init__(self, weights: CostWeights, **opt) -> None:
        self.weights = weights
        self.opt = {**OPT, **opt}

    def score(self, view: View) -> Floats:
        o = self.opt
        engines = view.engines
        table, slots, now = view.table, view.slots, view.now
        engines.look()
        there = view.in_flight
        room = engines.room(slots)
        n = np.minimum(there, room)
        b, c, s, w, d0, d1 = engines.constants(table.models, table.model_id[slots], view.base_s)
        fp, fd = engines._fp[slots], engines._fd[slots]
        uncached = view.tokens - view.cached_tokens
        x = view.seconds_per_token * uncached
        read = fp * c * x
        wait = fp * w * engines.wait_s(slots, now)
        over = np.maximum(there + 1.0 - room, 0.0) * (over_on := o["slots"])
        life = fd * (d0 + d1 * n) + fp * b + fp * c * (engines.load / max(engines.rate, 1e-9)) * (1.0 + s * n)
        queue = np.where(over > 0, over * life / room, 0.0)
        wait = wait + queue
        mean = engines.mean_in_flight(slots, now)
        first = o["krtt"] * view.rtt_s + fp * b + read * (1.0 + s * n) + wait
        each = fd * d1  # a whole answer beside one other
        h = 0.5 * each * o["half"]
        around = n + o["mean"] * mean
        decode = fd * d0 + h * around
        own = first + decode
        held = (s + w) * read  # each of the others
        count = len(slots)
        rate, load = engines.rate / count, np.minimum(_MAX_LOAD, w * c * (engines.load / count))
        later = o["fut"] * read * rate * (w * (wait + read) / (1.0 - load) + 0.5 * s * read)
        others = o["ext"] * (held * n + h * around + later + o["que"] * queue)
        if o["evict"]:
            others = others + o["evict"] * (view.again / (1.0 - view.again)) * read
        total = own + others
        if o["credit"] and view.shared is not None:
            total = total - self._credit(view, total, read + held * n + later, mean, 2 * each + (s * 2 + w) * read.min())
        probability = np.maximum(view.probability, MIN_PROBABILITY)
        cost = total / probability
        factor = self.weights.retry_penalty
        if view.times_tried.any():
            factor = max(factor, 1.1 * cost.max() / max(cost.min(), 1e-12))
        penalty = np.minimum(factor**view.times_tried, 1e100)
        view.terms = Terms(
            rtt_s=view.rtt_s, base_s=decode, prefill_s=read, queue_s=wait,
            probability=view.probability, penalty=penalty, latency_s=own, cost_s=cost * penalty, ttft_s=view.rtt_s + fp * b + read * (1.0 + s * n) + wait
        )
        return scores_of_costs(cost * penalty)

    def _credit(self, view: View, total: Floats, price: Floats, mean: Floats, slope: Floats) -> Floats:
        best = int(total.argmin())
        shares, counts = view.shared
        if not len(shares):
            return 0.0
        share = view.cached_tokens / np.maximum(view.tokens, 1.0)
        top = float(share[best])
        gain = slope * (mean[best] - mean)
        use = (share < top - 0.01) & (gain > 0.0)
        if not use.any():
            return 0.0
        edges = np.concatenate(([0.0], shares))
        sums = np.concatenate(([0.0], np.cumsum(np.diff(edges) * counts)))
        missing = np.maximum(top - share, 1e-9)
        users = (np.interp(top, edges, sums) - np.interp(share, edges, sums)) / missing
        holders = int(np.count_nonzero(share >= top - 0.01))
        part = np.minimum(1.0, missing / np.maximum(1.0 - share, 1e-9))
        credit = np.where(use, users / (holders + 1) * gain, 0.0)
        return np.minimum(credit, price * part)

"""Policies of SGLang's gateway and its descendants: the cache-aware switch, `lmetric`, `p2c`.

The gateway is now called SMG (smg 1.13; `docs/concepts/routing/cache-aware.md`, 2026), and vLLM's
router is a fork of it (vllm-router 0.1.17; `src/policies/cache_aware.rs` at 16917f4, 2026). All
three command lines have the same thresholds: 0.3, 64 and 1.5. SMG's documentation advises lower
balance thresholds for bursts and mixed workers, and its command line since 1.13 skips overloaded
workers (8 requests waiting, or .8 of the cache in use). `lmetric` is from SGLang's `src/policies`
(2026).

These routers count characters. Here tokens are counted, which ranks endpoints in the same order.
Their trees are never told what an engine evicts; laar's index, which replaces them here, is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from laar.core.interfaces import Scorer, View
from laar.fleet.endpoints import Floats
from laar.policies.pickers import least, ranks

_SESSION_S = 3600.0
"""Seconds for which an idle session is kept."""
_MAX_SESSIONS = 65_536
"""Maximum number of sessions kept, at about 100 bytes each."""


class CacheAware:
    """Prefers the best match if it is long enough, unless load is out of balance.

    Load is out of balance if requests in flight differ by more than `balance_abs_threshold` and
    the largest number exceeds `balance_rel_threshold` times the smallest. Then, or if the best
    match is at most `cache_threshold` of the prompt, the least loaded is chosen.

    Args:
        cache_threshold: share of the prompt.
        balance_abs_threshold: difference in requests.
        balance_rel_threshold: ratio of requests.
    """

    def __init__(
        self,
        *,
        cache_threshold: float = 0.3,
        balance_abs_threshold: float = 64.0,
        balance_rel_threshold: float = 1.5,
    ) -> None:
        self._cache_threshold = cache_threshold
        self._abs_threshold = balance_abs_threshold
        self._rel_threshold = balance_rel_threshold

    def score(self, view: View) -> Floats:
        """Rank by the rule above."""
        by_load = least(view.in_flight, view.rng)
        if self.out_of_balance(view):
            return ranks(by_load)
        matched = view.cached_tokens / np.maximum(view.tokens, 1.0)
        if matched.max() <= self._cache_threshold:
            return ranks(by_load)
        return ranks(sorted(by_load, key=lambda i: -matched[i]))

    def out_of_balance(self, view: View) -> bool:
        """Return whether load alone decides."""
        most, fewest = float(view.in_flight.max()), float(view.in_flight.min())
        return most - fewest > self._abs_threshold and most > self._rel_threshold * fewest


class Vetoed:
    """Applies a rule to the endpoints that are not overloaded, or to all if all are overloaded.

    Args:
        rule: the rule.
        veto_waiting: scraped number of waiting requests at which an endpoint is considered
            overloaded.
        veto_kv_usage: scraped share of the cache in use at which it is considered overloaded.
    """

    def __init__(
        self, rule: Scorer, *, veto_waiting: float = 8.0, veto_kv_usage: float = 0.8
    ) -> None:
        self._rule = rule
        self._waiting = veto_waiting
        self._kv_usage = veto_kv_usage

    def score(self, view: View) -> Floats:
        """Rank by the rule; overloaded endpoints score zero."""
        waiting, kv_usage = view.table.waiting[view.slots], view.table.kv_usage[view.slots]
        left = np.flatnonzero(~((waiting >= self._waiting) | (kv_usage >= self._kv_usage)))
        if not 0 < len(left) < len(view.slots):
            return self._rule.score(view)
        scores = np.zeros(len(view.slots))
        scores[left] = self._rule.score(view.at(left))
        return scores


class SessionsFirst:
    """Prefers a session's last endpoint, then applies another rule.

    A session seen within the last hour stays on its endpoint, unless load is out of balance.

    Args:
        rule: ranks endpoints for sessions not seen before.
        out_of_balance: returns whether load alone decides; by default, it never decides.
    """

    def __init__(
        self, rule: Scorer, out_of_balance: Callable[[View], bool] = lambda _view: False
    ) -> None:
        self._rule = rule
        self._out_of_balance = out_of_balance
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def score(self, view: View) -> Floats:
        """Rank the session's endpoint first, then the others by the rule."""
        scores = self._rule.score(view)
        session = view.request.session
        if not session:
            return scores
        slot, at = self._seen.pop(session, (-1, view.now))
        known = np.flatnonzero(view.slots == slot)
        recent = view.now - at <= _SESSION_S
        if len(known) and recent and not self._out_of_balance(view):
            scores[known[0]] = 2.0
        self._seen[session] = (int(view.slots[np.argmax(scores)]), view.now)
        if len(self._seen) > _MAX_SESSIONS:
            self._seen.popitem(last=False)
        normed: Floats = scores / scores.max()
        return normed


class Lmetric:
    """Prefers the least `uncached tokens * (requests in flight + 1)`. There is nothing to tune."""

    def score(self, view: View) -> Floats:
        """Rank by the product, breaking ties at random."""
        uncached = np.maximum(view.tokens - view.cached_tokens, 0.0)
        return ranks(least(uncached * (view.in_flight + 1.0), view.rng))


class PowerOfTwo:
    """Prefers, of two candidates sampled at random, the one with fewer requests in flight.

    It is the default of Ray Serve's router, and `power_of_two` of SMG and vLLM router (2026); see
    Mitzenmacher, "The power of two choices in randomized load balancing" (2001).
    """

    def score(self, view: View) -> Floats:
        """Rank the winner, the loser, and the others in random order."""
        order = list(range(len(view.slots)))
        view.rng.shuffle(order)
        order[:2] = sorted(order[:2], key=lambda i: view.in_flight[i])
        return ranks(order)

"""Policies of SGLang's gateway and of its children: the cache-aware switch, and `lmetric`.

The gateway is SMG today (smg 1.13; `docs/concepts/routing/cache-aware.md`, 2026), and vLLM's router
is a fork of it (vllm-router 0.1.17; `src/policies/cache_aware.rs` at 16917f4, 2026). The thresholds
are those of all three command lines, 0.3, 64 and 1.5; SMG's documentation advises lower balance
thresholds for bursts and for mixed workers, and its command line since 1.13 takes no overloaded
worker (8 requests waiting, or .8 of the cache in use). `lmetric` stands in SGLang's `src/policies`
(2026).

They count characters; tokens by the same estimate order endpoints in the same way. Their trees
never learn that an engine evicted something; here laar's index stands in for them, which does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from laar.core.endpoints import Floats
from laar.core.interfaces import Scorer, View
from laar.policies.ranking import least, ranks

_SESSION_S = 3600.0
"""Seconds for which it keeps an idle session."""
_MAX_SESSIONS = 65_536
"""Sessions it keeps; some 100 bytes each."""


class CacheAware:
    """The best match where it is long enough, unless load is out of balance.

    Out of balance is a difference of requests in flight above `balance_abs_threshold` together
    with a most above `balance_rel_threshold` times the fewest. Then, and when the best match is
    not above `cache_threshold` of the prompt, the least loaded is taken.

    Args:
        cache_threshold: share of the prompt.
        balance_abs_threshold: requests.
        balance_rel_threshold: ratio.
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
        """Ranks, by the rule above."""
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
    """A rule among the endpoints that are not overloaded; among all where every one is.

    Args:
        rule: the rule.
        veto_waiting: requests waiting, as scraped, from which an endpoint is overloaded.
        veto_kv_usage: share of the cache in use, as scraped, from which it is.
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
    """A session's own endpoint first, then another rule.

    A session that was seen in the last hour goes where it was, unless load is out of balance.

    Args:
        rule: where a session goes that was not seen.
        out_of_balance: whether load alone decides; never by default.
    """

    def __init__(
        self, rule: Scorer, out_of_balance: Callable[[View], bool] = lambda _view: False
    ) -> None:
        self._rule = rule
        self._out_of_balance = out_of_balance
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def score(self, view: View) -> Floats:
        """Rank the session's endpoint first, and the others by the rule."""
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
    """`uncached tokens * (requests in flight + 1)`, least first. Nothing to tune."""

    def score(self, view: View) -> Floats:
        """Ties go to chance."""
        uncached = np.maximum(view.tokens - view.cached_tokens, 0.0)
        return ranks(least(uncached * (view.in_flight + 1.0), view.rng))

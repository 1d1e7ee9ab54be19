"""Views for tests of policies, and the endpoint that a scorer would choose."""

from __future__ import annotations

from typing import Any

import numpy as np

from laar.core.interfaces import Filter, Scorer, View
from laar.core.picker import pick
from laar.core.policy import Policy
from laar.testing import make_view


def view_of(
    cached: list[float],
    in_flight: list[float],
    *,
    queued: list[float] | None = None,
    scraped: bool = True,
    start: str = "start",
    **given: Any,
) -> View:
    """Return a view of as many endpoints as there are numbers."""
    given.setdefault("waiting", 0.0 if scraped else None)
    return make_view(
        len(cached),
        prompt=start,
        cached_tokens=cached,
        queued_tokens=queued or 0.0,
        in_flight=in_flight,
        rtt_s=0.0,
        seconds_per_token=1.0,
        **given,
    )


def chosen(scorer: Scorer, view: View, *filters: Filter) -> int:
    """Return the picker's choice; near-ties must not overrule the policy."""
    policy = Policy(name="test", scorers=[(scorer, 1.0)], filters=filters)
    kept, scores = policy.keep(view), policy.score(view)
    assert np.isfinite(scores).all()
    masks = () if kept is None else (kept,)
    return pick(scores, -view.queued_tokens, view.rng, masks)[0]

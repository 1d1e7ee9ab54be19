"""A second policy, evaluated beside the one that serves, for a share of the requests.

It sees the same view before the request is counted at its endpoint: afterwards, the cost of the
chosen endpoint would include the request. It chooses nothing, and its failure changes nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from copy import copy
from dataclasses import dataclass

from laar.core.decision import Compared, Decision
from laar.core.eligible import Eligible, prefer
from laar.core.exploring import EXPLORE
from laar.core.interfaces import View
from laar.core.picker import NEAR_TIE
from laar.core.policy import Policy


@dataclass(kw_only=True)
class Comparison:
    """Compares decisions with those of another policy.

    Args:
        policy: the other policy.
        share: share of the decisions to compare.
        rng: draws them, and is the random source of the other policy.
    """

    policy: Policy
    share: float
    rng: random.Random

    def __post_init__(self) -> None:
        self.counts = Counter(same=0, other=0, failed=0)
        self.seconds = dict.fromkeys(("serving", "compared"), 0.0)
        """Sums of `Compared.more_s` and of `Compared.saved_s`."""

    def observe(self, decision: Decision) -> None:
        """Compare a new decision, before its request counts as load, if it is drawn."""
        if self.rng.random() >= self.share:
            return
        try:
            found = self.compare(decision)
        except Exception:  # noqa: BLE001 - the request must not notice
            self.counts["failed"] += 1
            return
        if found is not None:
            decision.flight.compared = found
            self.counts["other" if found.differs else "same"] += 1
            self.seconds["serving"] += max(found.more_s or 0.0, 0.0)
            self.seconds["compared"] += max(found.saved_s or 0.0, 0.0)

    def compare(self, decision: Decision) -> Compared | None:
        """Return what the other policy would choose; None if no policy had a choice.

        Raises:
            Exception: the other policy failed.
        """
        view, served = decision.view, decision.position
        forced = decision.trial or decision.reason == EXPLORE
        if view is None or forced or len(view.slots) < 2:
            return None
        other = self._view(view)
        masks: Eligible = {c: mask for c, mask in decision.eligible.items() if c != "policy"}
        if (kept := self.policy.keep(other)) is not None:
            prefer(masks, "policy", kept)
        scores = self.policy.score(other)
        at = self.policy.order(scores, other, tuple(masks.values()))[0]
        for fault in other.faults:
            raise fault.error
        differs = at != served
        if differs and self.policy.picker is None:  # equally good endpoints are drawn at random
            alike = all(mask[at] == mask[served] for mask in masks.values())
            differs = not alike or scores.item(served) < scores.item(at) * (1.0 - NEAR_TIE)
        at = at if differs else served
        return Compared(
            policy=self.policy.name,
            slot=view.slots.item(at),
            differs=differs,
            more_s=None if view.terms is None else _seconds(view, at, served),
            saved_s=None if other.terms is None else _seconds(other, served, at),
        )

    def _view(self, view: View) -> View:
        other = copy(view)
        other.apart, other.pulls = copy(view.apart), copy(view.pulls)  # a scorer writes to them
        other.rng, other.terms = self.rng, None
        other.reason, other.faults = "", ()
        return other


def _seconds(view: View, at: int, than: int) -> float:
    """Return how many more seconds to a correct answer one candidate costs than another."""
    assert view.terms is not None
    cost_s = view.terms.cost_s
    return float(cost_s.item(at) - cost_s.item(than))

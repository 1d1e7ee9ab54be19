"""A second policy, evaluated beside the one that serves, for a share of the requests.

It sees the same view before the request is counted at its endpoint: afterwards, the cost of the
chosen endpoint would include the request. It chooses nothing, and its failure changes nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, replace

from laar.core.candidates import Group
from laar.core.decision import Decision
from laar.core.eligible import Eligible, prefer
from laar.core.interfaces import View
from laar.core.picker import NEAR_TIE
from laar.core.plugin import Answering, Core, Meter, Part, Parts, Plugin, Sample
from laar.core.policy import Policy
from laar.fleet.endpoints import Slots

_CHOICES = Meter(
    "laar_compared_total",
    "counter",
    ("policy", "choice"),
    "Decisions compared with those of another policy (routing.compare): it would have made the "
    "same choice, another, or failed.",
)
_SECONDS = Meter(
    "laar_compared_seconds_total",
    "counter",
    ("policy", "cost"),
    "Expected seconds to a correct answer between the two choices: those that the other policy's "
    "would add by the cost of the serving policy, or save by its own.",
)


@dataclass(slots=True, kw_only=True)
class Compared(Part):
    """The choice of the policy that `routing.compare` names (`Comparison`).

    Args:
        policy: its name.
        endpoint: its choice, or the chosen endpoint if both are equally good to it.
        model: that endpoint's model.
        differs: it would have chosen another endpoint.
        more_s: expected seconds to a correct answer that its choice would add, by the cost of the
            serving policy; None if that computes none.
        saved_s: seconds that its choice would save, by its own cost; None if it computes none.
    """

    policy: str
    endpoint: str
    model: str
    differs: bool
    more_s: float | None
    saved_s: float | None


class Comparison(Plugin):
    """Compares decisions with those of another policy."""

    name = "compared"
    meters = (_CHOICES, _SECONDS)

    def __init__(self) -> None:
        self.policy: Policy | None = None
        """The other policy; None compares nothing."""
        self.share = 0.0
        """Share of the decisions to compare."""
        self.rng = random.Random(0)
        """Draws them, and is the random source of the other policy."""
        self.counts = Counter(same=0, other=0, failed=0)
        self.seconds = dict.fromkeys(("serving", "compared"), 0.0)
        """Sums of `Compared.more_s` and of `Compared.saved_s`."""

    def join(self, core: Core) -> None:
        """Keep the core, whose groups change with the policy."""
        self._core = core

    def use(self, policy: Policy | None, share: float, rng: random.Random) -> None:
        """Compare with another policy from now on."""
        self.policy, self.share, self.rng = policy, share, rng
        self._core.candidates.forget()

    @staticmethod
    def of(decision: Decision) -> Compared | None:
        """Return what another policy would have chosen; None if it was not asked."""
        return Compared.among(decision.parts)

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part while there is a policy to compare with."""
        return Part() if self.policy is not None else None

    def select(self, view: View, part: Part, at: int) -> Part | None:
        """Take part in the decision."""
        return part

    def decided(self, decision: Decision, now: float) -> None:
        """Compare a new decision if it is drawn, before its request counts as load."""
        del decision.parts[self]
        if self.rng.random() >= self.share:
            return
        try:
            found = self.compare(decision)
        except Exception:  # noqa: BLE001 - the other policy's failure changes nothing
            self.counts["failed"] += 1
            return
        if found is not None:
            decision.parts[self] = found
            self.counts["other" if found.differs else "same"] += 1
            self.seconds["serving"] += max(found.more_s or 0.0, 0.0)
            self.seconds["compared"] += max(found.saved_s or 0.0, 0.0)

    def record(self, decision: Decision) -> Mapping[str, object]:
        """Return what the other policy would have chosen."""
        found = self.of(decision)
        return {} if found is None else {"compared": asdict(found)}

    def samples(self) -> Iterable[Sample]:
        """Return the counts, and what the choices would have cost."""
        if (policy := self.policy) is not None:
            for choice, count in self.counts.items():
                yield _CHOICES, (policy.name, choice), float(count)
            for cost, total in self.seconds.items():
                yield _SECONDS, (policy.name, cost), total

    def preview(self, decision: Decision) -> Decision:
        """Return a decision with its comparison, which is not counted.

        Raises:
            Exception: the other policy failed.
        """
        parts = Parts((of, part) for of, part in decision.parts.items() if of is not self)
        if (found := self.compare(decision)) is not None:
            parts[self] = found
        return replace(decision, parts=parts)

    def compare(self, decision: Decision) -> Compared | None:
        """Return what the other policy would choose; None if no policy had a choice.

        Raises:
            Exception: the other policy failed.
        """
        policy, view, served = self.policy, decision.view, decision.position
        if policy is None or view is None or decision.trial or len(view.slots) < 2:
            return None
        other = self._view(view)
        masks: Eligible = {c: mask for c, mask in decision.eligible.items() if c != "policy"}
        if (kept := policy.keep(other)) is not None:
            prefer(masks, "policy", kept)
        scores = policy.score(other)
        at = policy.order(scores, other, tuple(masks.values()))[0]
        for fault in other.faults:
            raise fault.error
        differs = at != served
        if differs and policy.picker is None:  # equally good endpoints are drawn at random
            alike = all(mask[at] == mask[served] for mask in masks.values())
            differs = not alike or scores.item(served) < scores.item(at) * (1.0 - NEAR_TIE)
        at = at if differs else served
        spec = view.table.spec(view.slots.item(at))
        return Compared(
            policy=policy.name,
            endpoint=spec.key,
            model=spec.models[0],
            differs=differs,
            more_s=None if view.terms is None else _seconds(view, at, served),
            saved_s=None if other.terms is None else _seconds(other, served, at),
        )

    def _view(self, view: View) -> View:
        other = copy(view)
        other.apart = copy(view.apart)  # scorers write to it, and plug-ins to their parts
        other.parts = Parts((of, copy(part)) for of, part in view.parts.items() if of is not self)
        other.rng, other.terms = self.rng, None
        other.reason, other.faults = "", ()
        return other


def _seconds(view: View, at: int, than: int) -> float:
    """Return how many more seconds to a correct answer one candidate costs than another."""
    assert view.terms is not None
    cost_s = view.terms.cost_s
    return float(cost_s.item(at) - cost_s.item(than))

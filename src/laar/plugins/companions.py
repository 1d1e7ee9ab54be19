"""Two models at once: a second request for a question whose first is still in flight.

A client that checks its answers may ask a second model at the same time, take the first correct
answer, and cancel the other request. The second request names the first (`Request.companion_of`).
Let `t` be the time to the end of the first's answer and `q` its P(correct); `u` and `p` the same
for a candidate; `g` the candidate's P(correct) given that the first is wrong; and `next` the cost
of asking one model after another once the first is wrong, `u / g` of the best candidate.

    alone    = t + (1 - q) * next
    together = (u >= t)  t + (1 - q) * (u - t) + (1 - q) * (1 - g) * next
               (u < t)   u + (1 - p) * (t - u) + (1 - q) * (1 - g) * next

The companion goes to the candidate with the lowest `together + others`, where `others` is the time
that it costs other requests, or is refused if that is hardly below `alone`. So a model that is
likely to fail with the first adds little, and a busy fleet refuses. Where P(correct) is not known,
nothing says that a second model would add anything, and it is refused too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from laar.core.candidates import Group
from laar.core.cost import MIN_PROBABILITY, Terms
from laar.core.decision import Completion, Decision
from laar.core.interfaces import View
from laar.core.plugin import Admitted, Part, Plugin
from laar.errors import RequestError
from laar.fleet.endpoints import Floats
from laar.prefix.match import PrefixMatch
from laar.request import Request
from laar.units import duration

COMPANION = "companion"
"""Reason code of a request that is asked beside another."""

_WORTH = 0.95
"""Share of the time without a companion above which its cost is not worth a second engine."""

_NEVER_S = 1e100  # finite, so that scores are
_OTHERS = 2.0
"""Weight of the seconds that a companion costs other requests: in a full fleet, those that come
later are delayed as well."""


@dataclass(slots=True)
class _Asks(Part):
    """A request that may have a companion, or is one.

    Args:
        first: the decision on the request that this one accompanies; None if it is none.
    """

    first: Decision | None = None


@dataclass(slots=True, kw_only=True)
class Beside(Part):
    """What a companion's costs depend on: the first request.

    Args:
        model: model of the first request.
        left_s: expected seconds to the end of its answer.
        right: its P(correct).
        also_right: P(correct) of each candidate, if nothing is known of the first's answer.
        asks: what is remembered of the companion itself.
        alone_s: expected seconds to a correct answer without a companion; set with the costs.
        together_s: the same with a companion, for each candidate.
    """

    model: str
    left_s: float
    right: float
    also_right: Floats
    asks: _Asks
    alone_s: float = 0.0
    together_s: Floats | None = None

    def costs(self, view: View, terms: Terms) -> Floats:
        """Return the cost of each candidate as a companion; `_NEVER_S` if it can't be one."""
        given = np.maximum(view.probability, MIN_PROBABILITY)
        if view.answers is not None:
            given = given * view.answers
        known = view.evidence if view.reported is None else view.evidence + view.reported
        able = (view.times_repeated == 0.0) & (known > 0.0)
        if view.fits is not None:
            able &= view.fits
        took_s, wrong = terms.latency_s, 1.0 - self.right
        if not able.any():
            return np.full(len(took_s), _NEVER_S)
        next_s = float((took_s / given)[able].min())
        sooner_s = np.where(
            took_s >= self.left_s,
            self.left_s + wrong * (took_s - self.left_s),
            took_s + (1.0 - self.also_right) * (self.left_s - took_s),
        )
        self.alone_s = self.left_s + wrong * next_s
        self.together_s = sooner_s + wrong * (1.0 - given) * next_s
        return np.where(able, self.together_s + _OTHERS * terms.each(terms.others_s), _NEVER_S)


class Companions(Plugin):
    """Knows the requests in flight that may have a companion: those of clients that ask again."""

    name = "companions"

    def __init__(self) -> None:
        self._firsts: dict[tuple[str, str], Decision] = {}

    @staticmethod
    def of(view: View) -> Beside | None:
        """Return what the costs of a companion depended on; None if the request is none."""
        return Beside.among(view.parts)

    def admit(self, request: Request, now: float) -> Admitted | None:
        """Take part in the requests of clients that ask again."""
        if not request.companion_of:
            return Admitted(part=_Asks()) if request.retries else None
        first = self.first_of(request)
        return Admitted(
            part=_Asks(first), tried=(first.flight.model,), unless_priced=not_worth_it()
        )

    def first_of(self, request: Request) -> Decision:
        """Return the decision on the request that this one accompanies.

        Raises:
            RequestError: it is not in flight, or was not decided by cost.
        """
        first = self._firsts.get((request.tenant, request.companion_of))
        if first is None or request.shadow or first.view is None or first.view.terms is None:
            raise RequestError(
                409, "no-companion", "the request to accompany is not in flight at this picker"
            )
        return first

    def prescore(self, view: View, part: _Asks, group: Group, match: PrefixMatch | None) -> Part:
        """Return what the costs of a companion depend on."""
        return part if part.first is None else beside(part.first, view, part)

    def score(self, view: View, part: Part, terms: Terms) -> None:
        """Replace the costs by those of a companion."""
        if isinstance(part, Beside):
            view.reason = COMPANION
            terms.cost_s = part.costs(view, terms)

    def select(self, view: View, part: Part, at: int) -> Part | None:
        """Remember requests of clients that ask again; refuse a companion that is not worth it.

        Raises:
            RequestError: the expected time to a correct answer does not fall by as much as the
                companion costs others.
        """
        if isinstance(part, Beside):
            terms = view.terms
            if terms is None or terms.cost_s.item(at) >= _WORTH * part.alone_s:
                raise not_worth_it()
            part = part.asks
        return part if view.request.retries else None

    def why(self, decision: Decision) -> str:
        """Say what the companion is expected to save."""
        view = decision.view
        of = None if view is None else self.of(view)
        if of is None or of.together_s is None:
            return ""
        together_s = float(of.together_s[decision.position])
        return (
            f"was asked beside {of.model}: the first correct answer of the two is expected after "
            f"{duration(together_s)}, instead of {duration(of.alone_s)}"
        )

    def reserve(self, decision: Decision, now: float) -> None:
        """Remember a request that was sent."""
        if not decision.request.shadow:
            self._firsts[decision.request.tenant, decision.request.id] = decision

    def complete(self, decision: Decision, end: Completion) -> None:
        """Forget a request that has ended, unless another with its id has come since."""
        of = decision.request.tenant, decision.request.id
        if self._firsts.get(of) is decision:
            del self._firsts[of]


def beside(first: Decision, view: View, asks: Any = None) -> Beside:
    """Return what the costs of a companion depend on."""
    before = first.view
    assert before is not None
    assert before.terms is not None
    names, at = [before.judged[model] for model in before.model_id.tolist()], first.position
    there = np.flatnonzero(before.slots == first.flight.slot).tolist()
    if first.flight.slot != first.slot and there:  # Envoy retried
        at = max(there, key=lambda each: names[each] == first.flight.model)
    known = before.evidence if before.reported is None else before.evidence + before.reported
    right = before.probability.item(at) if known.item(at) > 0.0 else 1.0
    of = dict(zip(names, before.probability.tolist(), strict=True))
    return Beside(
        asks=asks or _Asks(first),
        model=first.flight.model,
        left_s=max(first.now + before.terms.latency_s.item(at) - view.now, 0.0),
        right=right,
        also_right=np.array([of.get(view.judged[at], 0.0) for at in view.model_id.tolist()]),
    )


def not_worth_it() -> RequestError:
    """Return the error for a companion that costs others more than it gains."""
    return RequestError(
        409, "not-worth-it", "a second answer would cost other requests more time than it saves"
    )

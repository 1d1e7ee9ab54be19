"""Disaggregated prefill: one endpoint prefills, another fetches the KV and decodes.

A label lists the roles an endpoint may take, as in llm-d. The cost of a pair is the cost of the
prefill at one endpoint plus the cost of the decode at the other. So within a model and region, the
same prefiller is the cheapest for every decoding endpoint; if a decoding endpoint is itself that
prefiller, the second cheapest is used for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from laar.fleet.endpoints import Floats, Mask, Slots
from laar.request import Api, Request
from laar.speeds.engines import Began

if TYPE_CHECKING:
    from laar.core.interfaces import View

ApartRule = Literal["by-cost", "never", "always", "threshold"]

_APIS = frozenset({Api.CHAT, Api.COMPLETIONS})
"""APIs whose requests llm-d's sidecar splits; it passes all others to its own engine."""


@dataclass(slots=True, kw_only=True)
class Prefillers:
    """The endpoints that may prefill for a group of candidates.

    Args:
        slots: their slots.
        kv_group: the KV group of each, by model and region: the KV of another model is useless,
            and a transfer between regions takes too long.
        kv_group_of: the KV group of each candidate; -1 if its group has no prefiller, or if
            the candidate can't fetch KV.
        answers: P(answers) of each prefiller.
    """

    slots: Slots
    kv_group: Slots
    kv_group_of: Slots
    answers: Floats

    def only(self, keep: Mask) -> Prefillers | None:
        """Return the prefillers that a mask keeps; None if it keeps none."""
        kept = self.slots[keep], self.kv_group[keep], self.answers[keep]
        slots, kv_group, answers = kept
        found = replace(self, slots=slots, kv_group=kv_group, answers=answers)
        return found if len(slots) else None


@dataclass(slots=True, kw_only=True)
class Apart:
    """Prefillers as scorers see them; arrays over the prefillers unless noted.

    Args:
        rule: when a prompt is prefilled elsewhere.
        least_tokens: fewest uncached tokens for the rule `threshold`.
        transfer_s_per_token: seconds to fetch the KV of one token.
        of: the prefillers.
        tokens: prompt tokens.
        cached_tokens: how many of them the endpoint probably has cached.
        seconds_per_token: seconds of prefill for one token.
        decoding: requests that the endpoint answers itself.
        again: as in `View`; None means 0.
        chosen: for each candidate, the position of the prefiller that its cost assumes; -1 if
            it prefills itself. Set by a scorer that computes costs.
        saved_s: for each candidate, the cost in seconds that `chosen` saves over the alternative;
            set with `chosen`.
    """

    rule: ApartRule
    least_tokens: float
    transfer_s_per_token: float
    of: Prefillers
    tokens: Floats
    cached_tokens: Floats
    seconds_per_token: Floats
    decoding: Floats
    again: Floats | None = None
    chosen: Slots | None = None
    saved_s: Floats | None = None

    def prefiller(self, view: View, at: int) -> Prefiller | None:
        """Return the endpoint that prefills for the candidate at `at`; None if it does so itself.

        Only a policy that computes costs chooses one.
        """
        place = -1 if self.chosen is None else int(self.chosen[at])
        if place < 0:
            return None
        slot, tokens = int(self.of.slots[place]), float(self.tokens[place])
        seconds_per_token = float(self.seconds_per_token[place])
        uncached = tokens - float(self.cached_tokens[place])
        return Prefiller(
            slot=slot,
            address=view.table.spec(slot).address,
            uncached_tokens=uncached,
            began=Began(
                slot=slot,
                plain_s=uncached * seconds_per_token,
                prompt_s=tokens * seconds_per_token,
                context_tokens=tokens - 0.5 * uncached,
                others=float(self.decoding[place]),
                rtt_s=0.0,
                shown=view.request.first_token_seen,
                visits=True,
            ),
            transfer_s=float(view.tokens[at] - view.cached_tokens[at]) * self.transfer_s_per_token,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefiller:
    """The endpoint that prefills a decision's prompt, if another endpoint answers.

    Args:
        slot: slot of that endpoint.
        address: address of that endpoint.
        uncached_tokens: prompt tokens that it probably has not cached.
        began: the engines' record of the prefill.
        transfer_s: seconds that the chosen endpoint takes to fetch the KV.
    """

    slot: int
    address: str
    uncached_tokens: float
    began: Began
    transfer_s: float


def may_be_apart(request: Request) -> bool:
    """Return whether one endpoint may prefill the request and another decode it.

    A request for an object that an engine stores is not split: only that engine has it.
    """
    stays = request.prefill_in_place or request.shadow
    return request.api in _APIS and not (stays or request.response_id or request.conversation_id)


def cheapest(cost: Floats, prefillers: Prefillers, slots: Slots) -> Slots:
    """Return the position of each candidate's cheapest other prefiller in its KV group, or -1.

    Args:
        cost: the cost of prefilling at each prefiller.
        prefillers: the prefillers of the candidates, at least one.
        slots: slots of the candidates.
    """
    kv_group, wanted = prefillers.kv_group, prefillers.kv_group_of
    size = 1 + max(int(kv_group.max(initial=0)), int(wanted.max(initial=0)))
    first, second = np.full(size, -1), np.full(size, -1)
    order = np.argsort(cost, kind="stable")[::-1]
    first[kv_group[order]] = order  # the last write wins: the cheapest
    others = order[first[kv_group[order]] != order]
    second[kv_group[others]] = others
    best = np.where(wanted < 0, -1, first[wanted])
    itself: Mask = (best >= 0) & (prefillers.slots[best] == slots)
    return np.where(itself, second[wanted], best)

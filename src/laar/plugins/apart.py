"""Disaggregated prefill: one endpoint prefills, another fetches the KV and decodes.

A label lists the roles an endpoint may take, as in llm-d. The cost of a pair is the cost of the
prefill at one endpoint plus the cost of the decode at the other: `own + others` of a one-token
answer at the prefiller, plus the same sum for an answer without a prompt at the candidate, with the
queue expected when the earliest prefiller of the KV group is done. As this time is the same for all
pairs, their cost is a plain sum, and within a model and region the same prefiller is the cheapest
for every decoding endpoint; if one is itself that prefiller, the second cheapest is used for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from annotated_types import Ge, Le

from laar.core.attempts import expected_s
from laar.core.cost import MIN_PROBABILITY, Price
from laar.core.decision import Completion, Decision
from laar.core.filters import unsaturated
from laar.core.interfaces import View
from laar.core.plugin import Answering, Core, Part, Plugin, Pricing
from laar.declaring import FIXED, Applies
from laar.fleet.endpoints import Floats, Mask, Slots
from laar.health import GOOD, Attempt, Reply
from laar.prefix.match import PrefixMatch
from laar.request import Api, Request
from laar.speeds.engines import Began
from laar.units import duration

if TYPE_CHECKING:
    from laar.core.candidates import Group
    from laar.prefix.index import Receipt

PREFILLER = "x-prefiller-host-port"
"""The prefill endpoint, for the decode endpoint's sidecar; the name is llm-d's."""

_APIS = frozenset({Api.CHAT, Api.COMPLETIONS})
"""APIs whose requests llm-d's sidecar splits; it passes all others to its own engine."""


ApartRule = Literal["by-cost", "never", "always", "threshold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartSettings:
    """Settings for KV that endpoints fetch from others."""

    applies: ClassVar = Applies.AT_ONCE

    apart: ApartRule = "by-cost"
    """When one endpoint prefills a prompt and another answers, given llm-d's roles (label
    llm-d.ai/role). by-cost: if a prefill next to the answers in progress costs more than a prefill
    elsewhere plus the transfer of its KV. never. always: if any endpoint can prefill for others.
    threshold: `apart_tokens` or more, as in llm-d. Only for policies that compute a cost, such as
    `laar`."""
    apart_tokens: Annotated[int, Ge(0), Le(10_000_000)] = 512
    """For `apart: threshold`: minimum prompt tokens not cached at the answering endpoint for
    another endpoint to prefill them."""
    transfer_tokens_per_s: Annotated[float, FIXED] = 100_000.0
    """Number of tokens whose KV an endpoint can fetch from another in a second. The default is for
    an 8B model (131 KB a token: 32 layers, 8 KV heads of 128, 16 bits) over 100 Gbit/s; for a 70B
    model it is about 40,000."""


@dataclass(slots=True, kw_only=True)
class Prefillers(Part):
    """The endpoints that may prefill for a group of candidates.

    Args:
        slots: their slots.
        kv_group: the KV group of each, by model and region: the KV of another model is useless,
            and a transfer between regions takes too long.
        answers: P(answers) of each.
    """

    slots: Slots
    kv_group: Slots
    answers: Floats

    def only(self, keep: Mask) -> Prefillers:
        """Return the prefillers that a mask keeps."""
        kept = self.slots[keep], self.kv_group[keep], self.answers[keep]
        slots, kv_group, answers = kept
        return Prefillers(slots=slots, kv_group=kv_group, answers=answers)


@dataclass(slots=True, kw_only=True)
class Apart(Part):
    """Prefillers of a request; arrays over the prefillers unless noted.

    Args:
        of: the prefillers.
        kv_group_of: the KV group of each candidate; -1 if its group has no prefiller, or if
            the candidate can't fetch KV.
        tokens: prompt tokens.
        cached_tokens: how many of them the endpoint probably has cached.
        seconds_per_token: seconds of prefill for one token.
        decoding: requests that the endpoint answers itself.
        again: as in `View`; None means 0.
        chosen: for each candidate, the position of the prefiller that its cost assumes; -1 if
            it prefills itself. Set once the candidates are priced.
        saved_s: for each candidate, the cost in seconds that `chosen` saves over the alternative;
            set with `chosen`.
    """

    of: Prefillers
    kv_group_of: Slots
    tokens: Floats
    cached_tokens: Floats
    seconds_per_token: Floats
    decoding: Floats
    again: Floats | None
    chosen: Slots | None = None
    saved_s: Floats | None = None

    def at(self, positions: Slots) -> Self:
        """Return the part for some of the candidates."""
        kv_group_of = self.kv_group_of[positions]
        return replace(self, kv_group_of=kv_group_of, chosen=None, saved_s=None)


@dataclass(slots=True, kw_only=True)
class Prefiller(Part):
    """The endpoint that prefills a decision's prompt, if another endpoint answers.

    Args:
        slot: slot of that endpoint.
        address: address of that endpoint.
        uncached_tokens: prompt tokens that it probably has not cached.
        elsewhere_tokens: those that the chosen endpoint has not cached.
        teaches: the end of the prefill is seen; else it can't be told from the answer.
        began: the engines' record of the prefill.
        transfer_s: seconds that the chosen endpoint takes to fetch the KV.
        receipt: the prompt's entry in the prefix index at the prefiller.
        attempt: health's record of the attempt there.
        counted: the prompt counts there.
    """

    alike = True
    reads = False

    slot: int
    address: str
    uncached_tokens: float
    elsewhere_tokens: float
    teaches: bool
    began: Began
    transfer_s: float
    receipt: Receipt | None = field(default=None, repr=False)
    attempt: Attempt | None = None
    counted: bool = False

    @property
    def helper(self) -> int:
        """The endpoint is no fallback."""
        return self.slot

    @property
    def shared(self) -> Mapping[str, str]:
        """The prefiller."""
        return {"prefiller": self.address}


class PrefillApart(Plugin):
    """Lets one endpoint prefill for another."""

    name = "apart"
    term = "transfer_s"
    sends = (PREFILLER,)

    def __init__(self) -> None:
        self._settings = ApartSettings()

    def join(self, core: Core) -> None:
        """Keep the core."""
        self._core, self._table = core, core.table

    def use(self, settings: Mapping[type, Any]) -> None:
        """Use new settings."""
        self._settings = settings.get(ApartSettings, self._settings)
        self._core.candidates.forget()

    @staticmethod
    def of(decision: Decision) -> Prefiller | None:
        """Return who prefills the prompt; None if the chosen endpoint does."""
        return Prefiller.among(decision.parts)

    # -- choosing ------------------------------------------------------------------------------

    def filter(
        self, group: Group, able: Slots, answering: Answering, now: float
    ) -> Prefillers | None:
        """Take part where endpoints prefill for others."""
        table = self._table
        slots = able[table.prefills[able]]
        if not len(slots) or self._settings.apart == "never":
            return None
        slots = slots[unsaturated(table, slots, self._core.settings.max_waiting, now)]
        slots, answers = answering("prefiller", slots)
        if not len(slots):
            return None
        return Prefillers(slots=slots, kv_group=table.kv_group[slots], answers=answers)

    def prescore(
        self, view: View, part: Prefillers, group: Group, match: PrefixMatch | None
    ) -> Apart | None:
        """Return the endpoints that may prefill the prompt for a candidate."""
        if not may_be_apart(view.request):
            return None
        table, own_id = self._table, self._table.model_id[view.slots]

        def of_model(known: Floats) -> Floats:  # a model without candidates prefills for none
            by_model = np.zeros(len(table.models))
            by_model[own_id] = known
            return by_model[table.model_id[part.slots]]

        if "fit_prefill" in group.parts.points:
            given = view.request, part.slots, of_model(view.tokens)
            fits = self._core.plugins.fit(group.parts, "fit_prefill", *given)
            part = part if fits is None else part.only(fits)
        if not len(slots := part.slots):
            return None
        kv_group_of = table.kv_group[view.slots]
        can = table.fetches[view.slots] & np.isin(kv_group_of, part.kv_group)
        if group.on_trial:  # an endpoint on trial handles the whole request
            can[-1] = False
        tokens, shares = of_model(view.tokens), np.zeros(len(slots))
        if match is not None:
            on_device = match.shares if match.fetched is None else match.shares - match.fetched
            shares = on_device[slots]
        again = None if match is None or match.again is None else match.again[slots]
        itself = np.maximum(table.in_flight[slots] - table.visiting[slots], 0.0)
        return Apart(
            of=part,
            kv_group_of=np.where(can, kv_group_of, -1),
            tokens=tokens,
            cached_tokens=shares * tokens,
            seconds_per_token=of_model(view.seconds_per_token),
            decoding=np.where(table.takes[slots], itself, 0.0),
            again=again,
        )

    def price(self, view: View, part: Apart, pricing: Pricing) -> tuple[Price, Floats]:
        """Return the pair's price where the rule prefers it, and the time to fetch the KV."""
        settings, helpers, alone = self._settings, part.of, pricing.price
        there = pricing.prefilled(
            helpers.slots,
            tokens=part.tokens,
            cached_tokens=part.cached_tokens,
            seconds_per_token=part.seconds_per_token,
            in_flight=part.decoding,
            again=part.again,
        )
        cost = there.total_s / np.maximum(helpers.answers, MIN_PROBABILITY)
        chosen = cheapest(cost, helpers, part.kv_group_of, view.slots)
        taken = can = chosen >= 0
        at = np.where(can, chosen, 0)
        # Price the candidate's queue as of when the earliest prefiller of its group is done.
        soonest = np.full(1 + int(helpers.kv_group.max(initial=0)), np.inf)
        np.minimum.at(soonest, helpers.kv_group, there.ttft_s)
        then_s = np.where(can, soonest[helpers.kv_group[at]], 0.0)
        reading = Price._make(column[at] for column in there)
        uncached = view.tokens - view.cached_tokens
        transfer_s = uncached / settings.transfer_tokens_per_s
        pair = pricing.pair(then_s, cost[at], reading, transfer_s)
        match settings.apart:
            case "threshold":
                taken = can & (uncached >= settings.apart_tokens)
            case "by-cost":
                taken = can & (pair.total_s < alone.total_s)
        saved_s = np.where(taken, alone.total_s - pair.total_s, pair.total_s - alone.total_s)
        part.chosen = np.where(taken, chosen, -1)
        part.saved_s = np.where(can, saved_s, 0.0)
        priced = (np.where(taken, a, b) for a, b in zip(pair, alone, strict=True))
        return Price._make(priced), np.where(taken, transfer_s, 0.0)

    def select(self, view: View, part: Apart, at: int) -> Prefiller | None:
        """Return the endpoint that prefills for a candidate; None if it does so itself."""
        place = -1 if part.chosen is None else int(part.chosen[at])
        if place < 0:
            return None
        slot, tokens = int(part.of.slots[place]), float(part.tokens[place])
        seconds_per_token = float(part.seconds_per_token[place])
        uncached, shown = tokens - float(part.cached_tokens[place]), view.request.first_token_seen
        elsewhere = float(view.tokens[at] - view.cached_tokens[at])
        return Prefiller(
            slot=slot,
            address=self._table.spec(slot).address,
            uncached_tokens=uncached,
            elsewhere_tokens=elsewhere,
            teaches=shown,
            began=Began(
                slot=slot,
                plain_s=uncached * seconds_per_token,
                prompt_s=tokens * seconds_per_token,
                context_tokens=tokens - 0.5 * uncached,
                others=float(part.decoding[place]),
                rtt_s=0.0,
                shown=shown,
                visits=True,
            ),
            transfer_s=elsewhere / self._settings.transfer_tokens_per_s,
        )

    # -- the prompt at its prefiller -------------------------------------------------------------

    def reserve(self, decision: Decision, now: float) -> None:
        """Count the prompt at its prefiller; if that is excluded, this is its trial."""
        core, view, part = self._core, decision.view, self.of(decision)
        if part is None or view is None:
            return
        core.engines.began(part.began, now)
        self._table.visit(part.slot, decision.tokens, part.uncached_tokens)
        part.counted = True
        if core.prefixes is not None and view.chain is not None:
            part.receipt = core.prefixes.insert(part.slot, view.chain, now)
        part.attempt = core.health.sent(
            part.slot,
            decision.flight.variant_of or decision.model,
            stream=decision.request.stream,
            predicted_s=expected_s(decision),
            tokens=decision.tokens,
            now=now,
            trial=core.health.is_due(part.slot, now),
            timed=False,
        )

    def answering(self, decision: Decision, now: float, ok: bool) -> None:
        """Take the prompt off its prefiller: it is done with it, or refused it."""
        if (part := self.of(decision)) is None:
            return
        self._end(decision, part, now, ok=ok)
        if ok and part.attempt is not None:
            self._core.health.answering(part.attempt, now)
            self._core.health.replied(part.attempt, Reply(status=200, found=GOOD), now)

    def replied(self, decision: Decision, reply: Reply, now: float, excused: bool) -> None:
        """Record the status of the answer, which does not show whose fault an error is.

        The faulty one will fail more often.
        """
        if (part := self.of(decision)) is not None and part.attempt is not None:
            self._core.health.replied(part.attempt, reply, now, excused=excused)

    def complete(self, decision: Decision, end: Completion) -> None:
        """End what awaits the prefiller."""
        if (part := self.of(decision)) is None:
            return
        now, prefixes = decision.now + end.latency_s, self._core.prefixes
        self._end(decision, part, now, ok=False)
        if part.attempt is not None:
            self._core.health.ended(part.attempt, end.status, end.cause, now)
        if prefixes is not None and part.receipt is not None:
            if end.ok:
                prefixes.settle(part.receipt, None)
            else:
                prefixes.retract(part.receipt)

    def _end(self, decision: Decision, part: Prefiller, now: float, *, ok: bool) -> None:
        """Remove the prompt from the prefiller's counts, once; `ok` if a good answer has begun."""
        view = decision.view
        if not part.counted or view is None:
            return
        part.counted = False
        try:
            self._core.engines.gone(part.began, now)
            took_s = now - decision.now
            is_true = part.began.shown and not self._table.lateness.spoils(took_s, now)
            if ok and is_true and decision.flight.slot == decision.slot:
                after_s = part.transfer_s + float(view.wire_s[decision.position])
                self._core.engines.prefilled(part.began, took_s - after_s)
        finally:
            self._table.leave(part.slot, decision.tokens, part.uncached_tokens)

    # -- what is sent and shown ------------------------------------------------------------------

    def headers(self, decision: Decision) -> Iterable[tuple[str, str]]:
        """Name the prefiller to the decode endpoint's sidecar."""
        part = self.of(decision)
        return () if part is None else ((PREFILLER, part.address),)

    def record(self, decision: Decision) -> Mapping[str, object]:
        """Return the prefiller."""
        part = self.of(decision)
        return {} if part is None else {"prefiller": part.address}

    def sentence(self, decision: Decision) -> str:
        """Say who prefills the prompt, and what that saves."""
        seen: Any = decision.view and decision.view.parts.get(self)
        if not isinstance(seen, Apart) or seen.saved_s is None:
            return ""
        saved_s = float(seen.saved_s[decision.position])
        if (part := self.of(decision)) is not None:
            way = f"costs {duration(saved_s)} less" if saved_s > 0.0 else "costs no less"
            return f"{part.address} prefills the prompt, which {way} than at the endpoint itself."
        if saved_s > 0.0:
            return f"It prefills the prompt itself, which costs {duration(saved_s)} less."
        return ""


def may_be_apart(request: Request) -> bool:
    """Return whether one endpoint may prefill the request and another decode it.

    A request for an object that an engine stores is not split: only that engine has it.
    """
    stays = request.prefill_in_place or request.shadow
    return request.api in _APIS and not (stays or request.response_id or request.conversation_id)


def cheapest(cost: Floats, prefillers: Prefillers, wanted: Slots, slots: Slots) -> Slots:
    """Return the position of each candidate's cheapest other prefiller in its KV group, or -1.

    Args:
        cost: the cost of prefilling at each prefiller.
        prefillers: the prefillers of the candidates, at least one.
        wanted: the KV group of each candidate; -1 for none.
        slots: slots of the candidates.
    """
    kv_group = prefillers.kv_group
    size = 1 + max(int(kv_group.max(initial=0)), int(wanted.max(initial=0)))
    first, second = np.full(size, -1), np.full(size, -1)
    order = np.argsort(cost, kind="stable")[::-1]
    first[kv_group[order]] = order  # the last write wins: the cheapest
    others = order[first[kv_group[order]] != order]
    second[kv_group[others]] = others
    best = np.where(wanted < 0, -1, first[wanted])
    itself: Mask = (best >= 0) & (prefillers.slots[best] == slots)
    return np.where(itself, second[wanted], best)

"""Learn from requests: about engines during a request, about everything else when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laar.core.decision import Completion, Decision
from laar.fleet.endpoints import EndpointTable
from laar.speeds.engines import Began, Engines

if TYPE_CHECKING:
    from laar.prefix.beliefs import PrefixBeliefs


class Feedback:
    """Passes outcomes to each learner; a failing learner does not affect the others.

    The director guards all calls.

    Args:
        table: the endpoints.
        engines: learn how fast they are.
        prefixes: learn what they have cached; None if nothing does.
    """

    def __init__(
        self, table: EndpointTable, engines: Engines, prefixes: PrefixBeliefs | None
    ) -> None:
        self._table, self._engines, self._prefixes = table, engines, prefixes

    def begin(self, decision: Decision, now: float) -> None:
        """Begin the engines' record of a request, before its endpoint counts it."""
        view, at, flight = decision.view, decision.position, decision.flight
        if view is None:
            return
        began = Began(
            slot=flight.slot,
            plain_s=decision.uncached_tokens * view.seconds_per_token.item(at),
            prompt_s=decision.tokens * view.seconds_per_token.item(at),
            context_tokens=decision.tokens - 0.5 * decision.uncached_tokens,
            others=self._table.in_flight.item(flight.slot),
            rtt_s=view.wire_s.item(at),
            shown=decision.request.first_token_seen,
            teaches=not flight.served  # else it has moved there from another endpoint
            and (view.fetched_tokens is None or not view.fetched_tokens[at])
            and (not decision.parts or all(part.teaches for part in decision.parts.values())),
            reads=not decision.parts or all(part.reads for part in decision.parts.values()),
            variant=flight.model if flight.variant_of else "",
        )
        flight.began = self._engines.began(began, now)

    def moves(self, decision: Decision, now: float) -> None:
        """End the engines' record of a request that moves, before its endpoint removes it."""
        began, decision.flight.began = decision.flight.began, None
        if began is not None:
            self._engines.gone(began, now)
            self._engines.traffic.uncount(began.slot, began.work_s, decision.now, now)

    def engine_ended(self, decision: Decision, end: Completion) -> None:
        """Tell the engines that a request ended, before the table removes it from its counts."""
        flight, now = decision.flight, decision.now + end.latency_s
        if (began := flight.began) is None:
            if decision.view is None and end.ok and end.cause == "complete":
                self._engines.ends.append((flight.slot, end.latency_s, None))
            return
        if not end.ok or end.cause != "complete" or (decision.request.shadow and not flight.served):
            self._engines.gone(began, now)
            return
        plain_s = None
        if began.reads and end.prompt_tokens and end.cached_tokens is not None:
            uncached = max(0, end.prompt_tokens - end.cached_tokens)
            known_s = began.plain_s or began.prompt_s  # all may have been believed cached
            plain_s = known_s * uncached / max(decision.uncached_tokens or decision.tokens, 1.0)
        self._engines.ended(
            began,
            now,
            # Without streaming, the first byte comes after the last token.
            ttft_s=end.ttft_s if began.shown else None,
            latency_s=end.latency_s,
            answer_tokens=end.completion_tokens,
            plain_s=plain_s,
        )

    def ended(self, decision: Decision, end: Completion) -> None:
        """Tell the prefix index that a request ended."""
        flight = decision.flight
        # In shadow mode the prompt may have gone to an endpoint that Envoy does not report.
        known = flight.served or not decision.request.shadow
        prefixes, receipt = self._prefixes, flight.receipt
        if prefixes is None:
            return
        if flight.traced_as:
            prefixes.blocks_held.answered(flight.traced_as, (end.ok and end.prompt_tokens) or 0)
        if receipt is None:
            return
        if not known or not (end.ok or end.cause == "hidden"):
            prefixes.retract(receipt)
            return
        share = None
        # Engines also report fetched KV as cached, so the count proves nothing.
        parts = decision.parts
        fetches = parts and any(part.elsewhere_tokens for part in parts.values())
        if not fetches and end.prompt_tokens and end.cached_tokens is not None:
            share = min(1.0, end.cached_tokens / end.prompt_tokens)
        shown = 0.0
        if prefixes.blocks_held.texts and flight.slot == decision.slot:
            shown = decision.believed_share
        model = flight.variant_of or flight.model
        prefixes.settle(receipt, share, end.prompt_tokens or 0, model, shown)

"""The director: the order of one request's life, synchronous and without a clock of its own.

`decide` filters, prices, picks and reserves in one call, with no await between reading the table
and counting the request: two requests of a burst never see the same idle endpoint. `settle` undoes
the reservation exactly once, however the request ended, and hands what was learned on.

A fault in what is known (assessor, prefixes) or in a scorer never fails a request: the decision
falls back to the next simpler thing and its reason says so (`degraded-*`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from laar.accuracy.retry import MAX_TRIED, parse_tried
from laar.core.candidates import Candidates, Group
from laar.core.decision import NEW_MODEL, Completion, Decision, DirectorSettings
from laar.core.endpoints import EndpointTable, Floats, Slots
from laar.core.engines import Engines
from laar.core.interfaces import (
    Assessor,
    Fits,
    NoPrefixes,
    NoRoomError,
    PlainAssessor,
    Prefixes,
    View,
    WeightSource,
)
from laar.core.picker import pick
from laar.core.policy import Policy
from laar.core.request import Api, Request
from laar.core.retrying import less_tried_first, next_cost_s
from laar.core.stored import StoredAnswers
from laar.errors import RequestError
from laar.health import Health, Reply, Standing
from laar.tuning import Sample, Weights

__all__ = ["Director"]


class Director:
    """Decides and settles.

    Args:
        table: the endpoints.
        policies: by name; must hold the settings' policy.
        settings: how to choose.
        rng: breaks ties and draws for random policies.
        new_id: makes the ids of decisions. With an id an outcome can be reported, so clients must
            not guess those of others; None draws from `rng`, which is good enough for a lab.
        assessor: what is known of models.
        prefixes: what is believed of caches.
        tuner: sets the weights of the settings' policy, decision by decision, and is told what came
            of them; None to leave the policy its own.
        health: learns which endpoints answer; None to believe that all do.
        on_decided: called with every decision, after the reservation.
        on_settled: called with every decision and its completion, once.
    """

    def __init__(
        self,
        table: EndpointTable,
        policies: Mapping[str, Policy],
        settings: DirectorSettings,
        *,
        rng: random.Random,
        new_id: Callable[[], str] | None = None,
        assessor: Assessor | None = None,
        prefixes: Prefixes | None = None,
        tuner: WeightSource | None = None,
        health: Health | None = None,
        on_decided: Callable[[Decision], None] = lambda _decision: None,
        on_settled: Callable[[Decision, Completion], None] = lambda _decision, _end: None,
    ) -> None:
        self.table = table
        self.policies = policies
        self.settings = settings
        self.degraded: Counter[str] = Counter()
        self.ignored_tried = 0
        self.stored = StoredAnswers()
        self.engines = Engines(table)
        self.assessor = assessor or PlainAssessor()
        self.prefixes = prefixes or NoPrefixes()
        self.tuner = tuner
        self.health = health
        self._next_weights: Weights | None = None
        self._rng = rng
        self._plain_assessor = PlainAssessor()
        self._on_decided = on_decided
        self._on_settled = on_settled
        self.candidates = Candidates(table, settings.aliases, settings.filters, health)
        ids = random.Random(rng.getrandbits(40))
        self._new_id = new_id or (lambda: f"{ids.getrandbits(128):032x}")
        table.on_free = self._freed

    def use(self, settings: DirectorSettings, policies: Mapping[str, Policy]) -> None:
        """Decides by other settings from now on; what is decided already is settled by its own."""
        self.settings = settings
        self.policies = policies
        self.candidates = Candidates(self.table, settings.aliases, settings.filters, self.health)

    def _freed(self, slot: int) -> None:
        self.prefixes.drop(slot)
        self.engines.drop(slot)
        if self.health is not None:
            self.health.drop(slot)

    # -- deciding ------------------------------------------------------------------------------

    def decide(self, request: Request, now: float, room: Fits | None = None) -> Decision:
        """Chooses an endpoint, among those with room if told which, and reserves it.

        Raises:
            RequestError: 404 when nobody serves the model, 400 when the prompt is longer than any
                candidate takes, 503 when no endpoint can be chosen.
            NoRoomError: no candidate has room.
        """
        decision = self.explain(request, now, room)
        decision.id = self._new_id()
        decision.receipt = self._note_prefix(decision.slot, decision.chain, now)
        self._follow(decision, now)
        self.table.reserve(decision.slot, _weight(decision), decision.uncached_tokens)
        if decision.view is not None and decision.view.weights is not None:
            self._next_weights = None  # used: the next decision gets weights of its own
        if self.health is not None and decision.view is not None and not request.shadow:
            self._watch(self.health, decision, now)
        try:
            self._on_decided(decision)
        except Exception:  # noqa: BLE001 - whoever watches must not fail what is reserved already
            self._degrade("watching")
        return decision

    def explain(self, request: Request, now: float, room: Fits | None = None) -> Decision:
        """The decision as it would fall now, without an id; nothing is reserved or noted.

        Raises:
            RequestError: as `decide`.
        """
        table = self.table
        subset = self.stored.subset(request) if request.response_id else request.subset
        group = self.candidates.group(request.model, subset, now, request.pool)
        slots = group.slots
        if request.response_id:
            self.stored.check(request, subset, len(group.able))
        if request.api is Api.OPAQUE:
            return self._decide_opaque(request, slots, now)
        if not request.model and len(group.models) > 1:
            raise RequestError(
                400, "no-model", "`model` must be given: the endpoints serve more than one"
            )
        trial = -1
        if group.standing is not None and group.standing.trials:
            trial = self._trial_due(request, group.standing, now)
        if trial >= 0:
            group = self.candidates.with_trial(group, trial, now)
            slots = group.slots
        policy = self._policy(request)
        earlier = parse_tried(request.tried, table.models)
        self.ignored_tried += earlier.ignored
        view, chain, reason = self._view(request, earlier.models, group, now)
        version = self._tune(policy, view)
        scores, reason = self._score(policy, view, reason)
        if self.settings.retries == NEW_MODEL and earlier.models:
            scores = less_tried_first(scores, view.times_tried)
        if table.windowed or room is not None:
            scores = _where_it_may_go(scores, view, room)
        standing = group.standing
        on_trial = trial >= 0 and scores[-1] >= 0.0
        if on_trial:
            scores = scores.copy()  # a policy may keep its own
            scores[-1] = 2.0 * max(1.0, float(scores.max()))
            reason = reason or "trial"
        elif standing is not None and standing.all_failing:
            reason = reason or "all-failing"
        load = view.queued_tokens
        order = pick(scores, load, self._rng)
        first = order[0]
        slot = int(slots[first])
        spec = self.table.spec(slot)
        served = request.model if request.model in spec.models else spec.models[0]
        tokens = float(view.tokens[first])
        uncached = tokens - float(view.cached_tokens[first])
        tried = (*earlier.models[-(MAX_TRIED - 1) :], spec.models[0])
        return Decision(
            id="",
            request=request,
            settings=self.settings,
            policy=policy.name,
            reason=reason or view.reason or policy.name,
            now=now,
            slot=slot,
            address=spec.address,
            fallbacks=self._fallbacks(slots, order, served),
            model=spec.models[0],
            rewrite=None if served == request.model or not request.model else served,
            tried=tried,
            exhausted=self._exhausted(policy, view, group, tried),
            tokens=tokens,
            uncached_tokens=uncached,
            view=view,
            scores=scores,
            position=first,
            chain=chain,
            receipt=None,
            weights_version=version,
            engine_priority=-request.priority if spec.priority_field else None,
            trial=on_trial,
            left_out=standing.left_out if standing is not None else None,
        )

    def _trial_due(self, request: Request, standing: Standing, now: float) -> int:
        """The slot that this request is to try, or -1."""
        assert self.health is not None
        return -1 if request.shadow else self.health.due(standing, now)

    def _exhausted(self, policy: Policy, view: View, group: Group, tried: Sequence[str]) -> bool:
        """Whether a failure of this attempt should be the last: all tried, or not worth it."""
        if not policy.knows_retries and self.settings.retries != NEW_MODEL:
            return False
        if group.models.issubset(tried):
            return True
        value_s = self.settings.answer_value_s
        if value_s is None or view.terms is None:
            return False
        try:
            known = self.assessor.assess(view.request, self.table.models, tried, view.now)
        except Exception:  # noqa: BLE001 - a learner's fault must not fail the request
            self._degrade("assessor")
            return False
        model_id = self.table.model_id[view.slots]
        left = self._times_tried(tried, model_id) == 0
        return next_cost_s(view.terms, known.probability[model_id], left) > value_s

    def _decide_opaque(self, request: Request, slots: Slots, now: float) -> Decision:
        """Chooses at random: there is nothing to price, and the request is not a model's work."""
        order = self._rng.sample(range(len(slots)), min(len(slots), _OPAQUE_DRAWS))
        slot = int(slots[order[0]])
        spec = self.table.spec(slot)
        rewrite = spec.models[0] if request.model and request.model not in spec.models else None
        return Decision(
            id="",
            request=request,
            settings=self.settings,
            policy="random",
            reason="opaque",
            now=now,
            slot=slot,
            address=spec.address,
            fallbacks=self._fallbacks(slots, order, rewrite or request.model),
            model=spec.models[0],
            rewrite=rewrite,
            tried=(),
            exhausted=False,
            tokens=0.0,
            uncached_tokens=0.0,
            view=None,
            scores=None,
            position=0,
            chain=None,
            receipt=None,
        )

    def _policy(self, request: Request) -> Policy:
        if request.policy and self.settings.allow_policy_header:
            policy = self.policies.get(request.policy)
            if policy is not None:
                return policy
        return self.policies[self.settings.policy]

    def _view(
        self, request: Request, tried: Sequence[str], group: Group, now: float
    ) -> tuple[View, Any, str]:
        """What scorers may want of the candidates; the prefix chain; a reason if degraded."""
        table = self.table
        reason = ""
        try:
            known = self.assessor.assess(request, table.models, tried, now)
        except Exception:  # noqa: BLE001 - a learner's fault must not fail the request
            reason = self._degrade("assessor")
            known = self._plain_assessor.assess(request, table.models, tried, now)
        slots, model_id = group.slots, group.model_id
        tokens = known.tokens[model_id]
        try:
            chain = self.prefixes.chain(request)
            cached = self.prefixes.match(chain, table.capacity)[slots] * tokens
            demand = self.prefixes.demand(chain, now) if len(slots) > 1 else None
        except Exception:  # noqa: BLE001 - as above
            reason = self._degrade("prefixes")
            chain = demand = None
            cached = np.zeros(len(slots))
        view = View(
            request=request,
            now=now,
            rng=self._rng,
            table=table,
            slots=slots,
            tokens=tokens,
            cached_tokens=cached,
            queued_tokens=table.queued_tokens[slots],
            in_flight=table.in_flight[slots],
            rtt_s=group.rtt_s,
            probability=known.probability[model_id],
            evidence=known.evidence[model_id],
            seconds_per_token=known.seconds_per_token[model_id],
            base_s=known.base_s[model_id],
            times_tried=self._times_tried(tried, model_id),
            cell=known.cell,
            engines=self.engines,
            demand=demand,
            unlike=known.unlike,
            published=None if known.published is None else known.published[model_id],
        )
        if group.answers is not None:  # somebody is in trouble
            view.answers = group.answers
            view.pace, view.typical_s = group.pace, group.typical_s
        return view, chain, reason

    def _times_tried(self, tried: Sequence[str], model_id: Slots) -> Floats:
        if not tried:
            return np.zeros(len(model_id))
        counts = Counter(tried)
        most = self.settings.max_times_tried
        by_model = np.array([min(counts[m], most) for m in self.table.models], np.float64)
        return by_model[model_id]

    def _tune(self, policy: Policy, view: View) -> int:
        """Asks the tuner for this decision's weights; returns the version to report on, 0 for none.

        Weights stay the same until a decision has used them: explanations, and requests that have
        to wait, leave no hole in a window.
        """
        if self.tuner is None or policy.name != self.settings.policy or view.request.shadow:
            return 0
        try:
            if self._next_weights is None:
                self._next_weights = self.tuner.weights(view.now)
        except Exception:  # noqa: BLE001 - a learner's fault must not fail the request
            self._degrade("tuner")
            return 0
        view.weights = self._next_weights.values
        return self._next_weights.version

    def _score(self, policy: Policy, view: View, reason: str) -> tuple[Floats, str]:
        try:
            scores = policy.score(view)
            if math.isfinite(scores.sum()):
                return scores, reason
        except Exception:  # noqa: BLE001 - a scorer's fault must not fail the request
            view.terms = None
        reason = self._degrade("scorer")
        return 1.0 / (1.0 + view.in_flight), reason

    def _degrade(self, what: str) -> str:
        self.degraded[what] += 1
        return f"degraded-{what}"

    def _note_prefix(self, slot: int, chain: Any, now: float) -> Any:
        if chain is None:
            return None
        try:
            return self.prefixes.insert(slot, chain, now)
        except Exception:  # noqa: BLE001 - as above
            self._degrade("prefixes")
            return None

    def prefill_weight(self, view: View) -> Floats:
        """What prefilling at each candidate weighs, in tokens of a short prompt."""
        quadratic = self.settings.quadratic
        done = view.cached_tokens
        weight: Floats = view.tokens * (1.0 + view.tokens / quadratic)
        weight -= done * (1.0 + done / quadratic)
        return weight

    def _fallbacks(self, slots: Slots, order: Sequence[int], served: str) -> tuple[str, ...]:
        """Ranked endpoints that answer to the name the body will carry; any, if it has none."""
        found: list[str] = []
        for position in order[1:]:
            if len(found) >= self.settings.fallbacks:
                break
            spec = self.table.spec(int(slots[position]))
            if not served or served in spec.models:
                found.append(spec.address)
        return tuple(found)

    # -- afterwards ----------------------------------------------------------------------------

    def _watch(self, health: Health, decision: Decision, now: float, *, timed: bool = True) -> None:
        """Begins health's record of a request at its endpoint."""
        decision.attempt = health.sent(
            decision.slot,
            decision.model,
            stream=decision.request.stream,
            predicted_s=_predicted_s(decision),
            tokens=decision.tokens,
            now=now,
            rtt_s=float(decision.view.rtt_s[decision.position]) if decision.view else 0.0,
            trial=decision.trial and timed,
            timed=timed,
        )
        decision.read = health.wants_read(decision.slot, now)

    def _watch_server(self, decision: Decision, now: float | None) -> None:
        """The same for the endpoint that Envoy says has served."""
        if self.health is not None and now is not None and decision.view is not None:
            self._watch(self.health, decision, now, timed=False)

    def replied(self, decision: Decision, reply: Reply, now: float, *, read: bool = False) -> None:
        """The endpoint's status came, or an error later; `read` if its body is seen."""
        if self.health is not None and decision.attempt is not None:
            self.health.replied(decision.attempt, reply, now, read=read)

    def attempted(self, decision: Decision, failed: tuple[str, ...], now: float | None) -> None:
        """Envoy has tried these endpoints in vain, in this order, before the one that answers."""
        if decision.settled or decision.request.shadow:
            return
        decision.failed = failed
        if self.health is None or now is None:
            return
        for address in failed:
            attempt = decision.attempt if address == decision.address else None
            self.health.passed_over(self.table.slot(address), now, attempt)
            if attempt is not None:
                decision.attempt = None  # should the same one answer after all, that counts anew

    def served_by(self, decision: Decision, address: str, now: float | None = None) -> None:
        """Moves the reservation to the endpoint that serves, if it isn't the one picked.

        Envoy may have retried, or, in shadow, chosen for itself: then the model is another too.
        Without word of the attempts (`attempted`), those named before it have failed. `now` is for
        health; None where it is not kept.
        """
        slot = self.table.slot(address)
        if decision.settled or slot < 0:
            return
        decision.served = True
        if slot == decision.slot:
            if decision.attempt is None:  # in shadow: it serves after all
                self._watch_server(decision, now)
            return
        named = (decision.address, *decision.fallbacks)
        if not decision.failed and not decision.request.shadow and address in named:
            self.attempted(decision, named[: named.index(address)], now)
        if self.health is not None and now is not None and decision.attempt is not None:
            self.health.gone(decision.attempt, now)
        self._release(decision)
        if decision.receipt is not None:
            self.prefixes.retract(decision.receipt)
        _answered_by(decision, self.table.spec(slot).models[0])
        decision.slot = slot
        decision.address = address
        decision.receipt = self._note_prefix(slot, decision.chain, decision.now)
        self._follow(decision, decision.now if now is None else now, moved=True)
        self.table.reserve(
            slot,
            _weight(decision),
            decision.uncached_tokens,
            answering=decision.answering,
        )
        self._watch_server(decision, now)

    def answering(self, decision: Decision, now: float | None = None, *, ok: bool = True) -> None:
        """The first byte of the answer was seen: its prefill is done.

        `ok` when it is no refusal; `now` is for health, None where it is not kept.
        """
        if ok and now is not None and self.health is not None and decision.attempt is not None:
            self.health.answering(decision.attempt, now)
        if not decision.settled and not decision.answering:
            decision.answering = True
            self.table.release_prefill(decision.slot, decision.uncached_tokens)
            if ok and now is not None and decision.began is not None:
                self.engines.answering(decision.began, now)

    def _follow(self, decision: Decision, now: float, *, moved: bool = False) -> None:
        """Begins the engines' record of a request at its endpoint, before it is counted there."""
        view, at, slot = decision.view, decision.position, decision.slot
        if view is None:
            return
        if decision.began is not None:
            self.engines.gone(decision.began, now)
            decision.began = None
        try:
            decision.began = self.engines.began(
                slot,
                now,
                work_s=decision.uncached_tokens * float(view.seconds_per_token[at]),
                others=float(self.table.in_flight[slot]),
                rtt_s=float(view.rtt_s[at]),
                base_s=float(view.base_s[at]),
                shown=decision.request.first_token_seen,
                teaches=not moved,
            )
        except Exception:  # noqa: BLE001 - learning must not fail what is reserved
            self._degrade("learning")

    def _learn_engine(self, decision: Decision, end: Completion) -> None:
        """What its end says of the engine, before it is taken out of the table's counts."""
        began = decision.began
        if began is None:
            return
        now = decision.now + end.latency_s
        try:
            if not end.ok or end.cause != "complete" or end.error:
                self.engines.gone(began, now)
                return
            work_s = None
            if end.prompt_tokens and end.cached_tokens is not None:
                uncached = max(0, end.prompt_tokens - end.cached_tokens)
                work_s = began.work_s * uncached / max(decision.uncached_tokens, 1.0)
            self.engines.ended(
                began,
                now,
                ttft_s=end.ttft_s,
                latency_s=end.latency_s,
                answer_tokens=end.completion_tokens,
                work_s=work_s,
            )
        except Exception:  # noqa: BLE001 - as above
            self._degrade("learning")

    def settle(self, decision: Decision, end: Completion) -> None:
        """Ends a request's life; only the first call does anything."""
        if decision.settled:
            return
        decision.settled = True
        self._learn_engine(decision, end)
        self._release(decision)
        if end.response_id and (decision.served or not decision.request.shadow):
            self.stored.note(end.response_id, decision.address, decision.request.session)
        try:
            self._learn(decision, end)
        except Exception:  # noqa: BLE001 - learning must not fail what was already served
            self._degrade("learning")
        try:
            self._on_settled(decision, end)
        except Exception:  # noqa: BLE001 - as above
            self._degrade("watching")

    def _release(self, decision: Decision) -> None:
        if not decision.answering:
            self.table.release_prefill(decision.slot, decision.uncached_tokens)
        self.table.release(decision.slot, _weight(decision), decision.uncached_tokens)

    def _learn(self, decision: Decision, end: Completion) -> None:
        if self.health is not None and decision.attempt is not None:
            now = decision.now + end.latency_s
            self.health.ended(decision.attempt, end.status, end.cause, now)
        if self.tuner is not None and decision.weights_version:
            sample = Sample(
                version=decision.weights_version,
                ttft_s=end.latency_s if end.ttft_s is None else end.ttft_s,
                e2e_s=end.latency_s,
                ok=end.ok and end.cause == "complete",
            )
            self.tuner.observe(sample, decision.now + end.latency_s)
        share = None
        # In shadow somebody else may have sent the prompt to an endpoint that nobody named.
        known = decision.served or not decision.request.shadow
        if known and end.ok and end.prompt_tokens:
            self.assessor.usage(decision.request, decision.model, end.prompt_tokens)
            if end.cached_tokens is not None:
                share = min(1.0, end.cached_tokens / end.prompt_tokens)
        if decision.receipt is None:
            return
        if end.ok and known:
            self.prefixes.settle(decision.receipt, share)
        else:
            self.prefixes.retract(decision.receipt)


_OPAQUE_DRAWS = 16
"""Endpoints looked at for a request that is not read: one to send it to, and fallbacks."""

_WINDOW_MARGIN = 2.0
"""Lengths are estimates, and token ids or dense scripts err most, by up to this factor: only beyond
it is a prompt refused here, and the engine judges the rest."""


def _where_it_may_go(scores: Floats, view: View, room: Fits | None) -> Floats:
    """Scores, below 0 where the prompt does not fit or no room is; those rank last.

    Raises:
        RequestError: it fits nowhere.
        NoRoomError: no candidate where it fits has room.
    """
    windows = view.table.window_tokens[view.slots]
    fits = view.tokens <= windows
    if not fits.any():
        if (view.tokens > _WINDOW_MARGIN * windows).all():
            raise RequestError(
                400,
                "context-too-long",
                f"the prompt has about {view.tokens.min():.0f} tokens; the longest context that "
                f"any endpoint for this model takes is {windows.max():.0f} tokens",
            )
        fits = windows == windows.max()
    if room is not None:
        fits = fits & room(view)
        if not fits.any():
            raise NoRoomError(view)
    if not fits[scores.argmax()]:
        view.reason = ""  # it was about a candidate that is out now
    return np.where(fits, scores, -1.0)


_CROWD_TOKENS = 100.0
"""What a request in flight delays another, in tokens: 80 decoded ones at 0.12 ms."""


def _predicted_s(decision: Decision) -> float:
    """The picker's own price of its seconds; of a policy that does not price, its prefill's."""
    view, at = decision.view, decision.position
    assert view is not None
    if view.terms is not None and view.terms.ttft_s is not None:
        # What is learned of endpoints must not excuse one that became slow: by c(m), all alike.
        work_tokens = decision.uncached_tokens + float(view.table.prefill_tokens[decision.slot])
        crowd_tokens = _CROWD_TOKENS * float(view.in_flight[at])
        work_s = float(view.seconds_per_token[at]) * (work_tokens + crowd_tokens)
        return float(view.rtt_s[at] + view.base_s[at]) + work_s
    if view.terms is not None:
        slow_s = 0.0 if view.terms.slow_s is None else float(view.terms.slow_s[at])
        return float(view.terms.latency_s[at]) - slow_s
    return decision.uncached_tokens * float(view.seconds_per_token[at])


def _weight(decision: Decision) -> float:
    """What its prompt counts for in the queue, in tokens of a short one."""
    return decision.tokens * (1.0 + decision.tokens / decision.settings.quadratic)


def _answered_by(decision: Decision, model: str) -> None:
    """Notes which model answers: retries and outcomes are about it, not about the chosen one."""
    if model == decision.model:
        return
    earlier = decision.tried[:-1]
    # All models have been tried only if the chosen one, which now has not been, was before.
    decision.exhausted = decision.exhausted and decision.model in earlier
    decision.model = model
    if decision.tried:
        decision.tried = (*earlier, model)

"""The chooser: filters, scores and picks, but reserves nothing.

Decisions and previews are both made here, so they cannot differ. The director keeps the records of
a decision (reservations, prefixes, health).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from laar.accuracy.assessment import PlainAssessor
from laar.accuracy.retry import parse_tried, with_model
from laar.core.attempts import marks_of
from laar.core.candidates import Candidates, Group
from laar.core.decision import NEW_MODEL, Decision, DirectorSettings, InFlight
from laar.core.eligible import Eligible, able_to_take, in_all, prefer
from laar.core.filters import fresh
from laar.core.guards import Faults
from laar.core.interfaces import Assessor, PartFailure, Room, View
from laar.core.plugin import NO_PARTS, Admitted, Parts, Plugin, Plugins, pick
from laar.core.policy import Policy
from laar.core.ranking import Fallbacks, Ranking, Selected
from laar.core.views import view_of
from laar.errors import RequestError
from laar.fleet.endpoints import EndpointTable, Floats, Mask, Slots
from laar.health import Health, HealthSettings
from laar.request import UPGRADE_REQUIRED, Api, Request
from laar.speeds.engines import Engines

if TYPE_CHECKING:
    from laar.prefix.beliefs import PrefixBeliefs

Priority = Callable[[View], int]
"""Set by flow control: returns the priority (lower first) to send to engines that accept one."""

NewId = Callable[[], str]


class Chooser:
    """Chooses endpoints, with all the parts that contribute to decisions.

    Args:
        table: the endpoints.
        policies: policies by name; must include the settings' policy.
        settings: how to choose.
        plugins: the plug-ins, in the order in which they are asked.
        rng: breaks ties and makes the choices of random policies.
        assessor: estimates models.
        prefixes: estimates caches; None means no estimates.
        health: tracks which endpoints answer; None to exclude none.
        on_fault: called with every part of a policy that failed on a request.
    """

    def __init__(
        self,
        table: EndpointTable,
        policies: Mapping[str, Policy],
        settings: DirectorSettings,
        *,
        rng: random.Random,
        plugins: Iterable[Plugin] = (),
        assessor: Assessor | None = None,
        prefixes: PrefixBeliefs | None = None,
        health: Health | None = None,
        on_fault: Callable[[PartFailure], None] = lambda _fault: None,
    ) -> None:
        self.ignored_tried = 0
        self.table = table
        self.rng = rng
        self.assessor = assessor or PlainAssessor()
        self.prefixes = prefixes
        self.health = health or Health(HealthSettings(enabled=False), rng=random.Random(0))
        self.engines = Engines(table)
        self.degraded = Faults()
        self._on_fault = on_fault
        self.plugins = Plugins(
            plugins,
            self.degraded,
            lambda plugin, error: on_fault(PartFailure("plugin", plugin, error)),
        )
        self.use(settings, policies)
        self.plugins.join(self)

    def use(self, settings: DirectorSettings, policies: Mapping[str, Policy]) -> None:
        """Replace the settings and policies."""
        self.settings = settings
        self.policies = policies
        self.candidates = Candidates(self.table, settings, self.health, self.plugins)
        self._fallbacks = Fallbacks(self.table, settings, self.health)
        self.table.use_aliases(settings.aliases)

    def choose(
        self,
        request: Request,
        now: float,
        room: Room | None = None,
        priority: Priority | None = None,
        *,
        new_id: NewId = str,
    ) -> Decision:
        """Return the decision for the current state; reserve and record nothing.

        Args:
            request: the request to place.
            now: the current time, from a monotonic clock.
            room: returns the candidates that may take the request; None allows all.
            priority: returns the priority for an engine that accepts one; None keeps the client's.
            new_id: makes the decision's id; called once a choice is made. By default it is empty.

        Raises:
            RequestError: 404 when no endpoint ever served the model, or stores what the request
                names, 400 when it names no model and several are served, 503 when none can be
                chosen, 409 when a second answer is not worth its cost.
            NoRoomError: no candidate has room.
        """
        policy = self.policies.get(request.policy) or self.policies[self.settings.policy]
        parts: Parts = NO_PARTS
        admitted: Sequence[Admitted] = ()
        ids = request.companion_of or request.response_id or request.conversation_id
        special = ids or request.tried or request.retries or request.given or self.plugins.wary
        if special or request.digest in self.plugins.bodies:
            parts, admitted = self.plugins.admit(request, now)
        group, earlier = self._group(request, policy, now, admitted)
        several = not request.model and len(group.models) > 1
        if request.api is Api.OPAQUE or (several and request.api is Api.OTHER):
            for known in admitted:
                if known.unless_priced is not None:
                    raise known.unless_priced
            drawn = self._draw(request, group, now)
            selected = Selected(request, now, group, group.alive, earlier, admitted)
            return self._decision(selected, drawn, new_id, None)
        group, view, tokens_of, degraded = view_of(self, request, earlier, group, parts, now)
        able, last = group.alive, group.standing.last
        if "fit" in group.parts.points:
            fits, able, last = self._fitting(view, group, tokens_of)
            if not fits.any():  # all that can take it are full: choose among them
                subset = frozenset(self.table.by_slot[slot].address for slot in able.tolist())
                group, earlier = self._group(request, policy, now, admitted, subset)
                group, view, tokens_of, degraded = view_of(
                    self, request, earlier, group, parts, now
                )
                fits, able, last = self._fitting(view, group, tokens_of)
            view.fits = fits
        ranking = self._rank(policy, view, group, room, degraded, last)
        selected = Selected(request, now, group, able, earlier, admitted)
        return self._decision(selected, ranking, new_id, priority)

    def _decision(
        self, of: Selected, ranking: Ranking, new_id: NewId, priority: Priority | None
    ) -> Decision:
        """Return the decision for the first of a ranking."""
        request, group, view, policy = of.request, of.group, ranking.view, ranking.policy
        at = ranking.order[0]
        slot = ranking.slots.item(at)
        spec, served = self.table.by_slot[slot], request.model
        if served not in spec.models:
            served = self.table.sent_name(spec, served)
        parts, engine_priority = ranking.picked, None
        tokens = uncached_tokens = 0.0
        if view is not None:
            tokens = view.tokens.item(at)
            parts, uncached_tokens = self._work(view, at, parts)
        model, variant_of, alike = spec.models[0], "", False
        for part in parts.values():
            alike = alike or part.alike
            if part.variant:
                model, variant_of = part.variant, spec.models[0]
        flight = InFlight(slot=slot, address=spec.address, model=model, variant_of=variant_of)
        if view is not None and policy is not None:
            flight.tried = with_model(of.earlier, model) if of.earlier else (model,)
            flight.exhausted = self._exhausted(policy, of, flight.tried)
            if spec.priority_field and (priority is not None or request.objective):
                engine_priority = -request.priority if priority is None else priority(view)
        named = served if request.model else ""
        fallbacks, once = self._fallbacks.of(of, ranking, named, parts, alike=alike)
        return Decision(
            id=new_id(),
            request=request,
            settings=self.settings,
            policy=policy.name if policy is not None else "least-loaded",
            reason=ranking.reason,
            now=of.now,
            slot=slot,
            address=spec.address,
            rank=spec.rank,
            way=spec.way,
            fallbacks=fallbacks,
            model=model,
            rewrite=None if served == request.model or not request.model else served,
            tried=flight.tried,
            exhausted=flight.exhausted,
            tokens=tokens,
            uncached_tokens=uncached_tokens,
            parts=parts,
            view=view,
            scores=ranking.scores,
            eligible=ranking.eligible,
            position=0 if view is None else at,
            engine_priority=engine_priority,
            trial=ranking.on_trial,
            once=once,
            alone=len(group.able) == 1,
            left_out=None if view is None else group.standing.left_out,
            flight=flight,
        )

    def _work(self, view: View, at: int, picked: Parts) -> tuple[Parts, float]:
        """Return the parts for a candidate, and the tokens that it prefills itself.

        Raises:
            RequestError: a plug-in refuses the request.
        """
        parts, uncached_tokens = picked, view.tokens.item(at) - view.cached_tokens.item(at)
        if "select" in view.parts.points:
            parts = Parts([*picked.items(), *self.plugins.select(view, at).items()])
            elsewhere_tokens = sum(part.elsewhere_tokens for part in parts.values())
            uncached_tokens = max(0.0, uncached_tokens - elsewhere_tokens)
        return parts, uncached_tokens

    def _group(
        self,
        request: Request,
        policy: Policy,
        now: float,
        admitted: Sequence[Admitted],
        fitting: frozenset[str] | None = None,
    ) -> tuple[Group, Sequence[str]]:
        """Return the candidates of a request, and the models that it tried earlier.

        `fitting` are addresses of earlier candidates, and the only ones to consider.
        """
        subset = fitting or request.subset
        if fitting is None:
            for known in admitted:
                subset = subset if known.subset is None else known.subset
        group = self.candidates.of(request, subset, now)
        for known in admitted:
            if known.unless_sole is not None and len(group.able) > 1:
                raise known.unless_sole
        if not request.model and len(group.models) > 1:
            if request.needs_model == UPGRADE_REQUIRED:
                message = "no header or query names the model: ask over plain HTTP"
                raise RequestError(UPGRADE_REQUIRED, "no-model", message)
            if request.needs_model or request.api not in (Api.OPAQUE, Api.OTHER):
                message = "`model` must be given: the endpoints serve more than one"
                raise RequestError(400, "no-model", message)
        if request.api is Api.OPAQUE:
            return group, ()
        if "variants" in group.parts.points and policy.knows_retries:
            group = self.plugins.variants(request, group)
        earlier: Sequence[str] = ()
        if request.tried:
            earlier, ignored = parse_tried(request.tried, self.table.judged)
            self.ignored_tried += ignored
        for known in admitted:
            if known.tried:
                earlier = (*earlier, *known.tried)
        if group.standing.trials and not request.shadow:
            group = self.candidates.with_trial(group, earlier, now)
        return group, earlier

    def _rank(
        self,
        policy: Policy,
        view: View,
        group: Group,
        room: Room | None,
        degraded: str,
        last: Sequence[int],
    ) -> Ranking:
        """Filter, score and pick."""
        kept = policy.keep(view) if policy.filters else None
        scores = policy.score(view)
        eligible: Eligible = {}
        if view.fits is not None or room is not None:
            eligible = able_to_take(view, room)
        health = self.health
        if health.refused:
            marks = marks_of(view.request)
            refusing = health.records.refusals.refusing(group.models, marks, view.now)
            prefer(eligible, "refuses", ~np.isin(view.slots, list(refusing)))
        on_trial = group.on_trial and all(mask[-1] for mask in eligible.values())
        if self.settings.retries == NEW_MODEL and view.request.tried:
            times, may = view.times_tried, in_all(eligible)
            least = (times if may is None else times[may]).min()
            prefer(eligible, "tried", times == least)
        if "keep" in view.parts.points and not on_trial:
            for name, mask in self.plugins.keep(view.request, view.parts, view.slots, view.now):
                prefer(eligible, name, mask)
        if kept is not None:
            prefer(eligible, "policy", kept)
        may = in_all(eligible) if eligible else None
        if may is not None and not may[scores.argmax()]:
            view.reason = ""  # it explained an ineligible candidate
        reason, first = degraded, None
        if on_trial:
            first = len(view.slots) - 1
            reason = reason or "trial"
        elif group.standing.all_failing:
            reason = reason or "all-failing"
        picked = NO_PARTS
        if "pick" in view.parts.points and not reason:
            first, reason, picked = pick(view, group.standing, may, scores)
        order = policy.order(scores, view, tuple(eligible.values()), first)
        for fault in view.faults:
            self.degraded.attempt("watching", self._on_fault, fault)
            reason = self.degraded.degraded(fault.code)
        return Ranking(
            slots=group.slots,
            order=order,
            reason=reason or view.reason or policy.name,
            policy=policy,
            view=view,
            scores=scores,
            eligible=eligible,
            on_trial=on_trial,
            picked=picked,
            last=last,
        )

    def _draw(self, request: Request, group: Group, now: float) -> Ranking:
        """Choose the least loaded of some random endpoints, as there is no prompt to price.

        Requests of all kinds count as load, since they share the engine.
        Requests that stay together go to the same endpoint, by rendezvous hashing, so that later
        ones find there what earlier ones left, through any picker.
        """
        table, stays_as, slots = self.table, request.stays_as, group.slots
        if stays_as is not None:
            slots = group.alive if len(group.alive) else slots  # those that are full, too
            keys = (f"{stays_as}\n{table.spec(slot).address}".encode() for slot in slots.tolist())
            hashes = list(map(xxhash.xxh3_64_intdigest, keys))
            order = sorted(range(len(slots)), key=hashes.__getitem__)[:_OPAQUE_DRAWS]
        else:
            order = self.rng.sample(range(len(slots)), min(len(slots), _OPAQUE_DRAWS))
            drawn = slots[order]
            reported = table.waiting[drawn] + table.running[drawn]
            reported = np.where(fresh(table, drawn, now), reported, 0.0)
            load = np.fmax(table.in_flight[drawn], reported)  # NaN means not reported
            for _, kept in self.plugins.keep(request, group.parts, drawn, now):
                load = np.where(kept, load, np.inf)
            order = [order[at] for at in np.argsort(load, kind="stable").tolist()]
        picked = [(of, part) for of, part in group.parts.items() if "keep" in of.points]
        return Ranking(
            slots=slots,
            order=order,
            reason="opaque",
            eligible={},
            picked=Parts(picked),
            last=group.standing.last,
        )

    def _fitting(
        self, view: View, group: Group, tokens_of: Floats
    ) -> tuple[Mask, Slots, Sequence[int]]:
        """Return which candidates the request fits, and such endpoints that are up or doubted."""
        last = np.array(group.standing.last, np.intp)
        slots = np.concatenate((view.slots, group.alive, last))
        tokens = tokens_of[self.table.model_id[slots]]
        fits = self.plugins.fit(
            group.parts, "fit", view.request, view.chain, slots, tokens, view.now
        )
        if fits is None:
            fits = np.ones(len(slots), np.bool_)
        of_view, of_alive, of_last = np.split(fits, (len(view.slots), len(slots) - len(last)))
        return of_view, group.alive[of_alive], last[of_last].tolist()

    def _exhausted(self, policy: Policy, of: Selected, tried: Sequence[str]) -> bool:
        """Return whether this attempt is the last: no endpoint in `able` has an untried model."""
        if not policy.knows_retries and self.settings.retries != NEW_MODEL:
            return False
        table, group, able = self.table, of.group, of.able
        untried = group.up.difference(tried)
        if untried and len(able) < len(group.alive):
            there = {table.models[at] for at in table.model_id[able].tolist()}
            untried = frozenset(m for m in untried if table.model_of.get(m, m) in there)
        return not untried


_OPAQUE_DRAWS = 16
"""Endpoints drawn for a request whose body is not read: one to serve it, and its fallbacks."""

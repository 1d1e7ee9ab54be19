"""Admission, between queue and director: which requests to send now (Medha paper, 4.1).

A request is sent immediately if none waits ahead of it and a candidate has room; otherwise it is
queued, and tried again each time a request ends. The decision itself, with its reservation,
remains one synchronous call.

A turn whose context is in an endpoint's cache goes there without waiting (`laar.flow.sessions`).
Any other turn also needs room for its context. A turn that waits for that room is sent once its
client is believed to bear no more (`laar.flow.bearing`), or immediately if the queue is full. By
default, requests never wait because of load, so those of no session are sent as if there were no
admission.

All of this is synchronous and reads no clock, so the lab runs the same code. Prefills that another
picker sends to the same endpoints show only in the endpoints' readings.

Import it as a module: `laar.flow` itself is loaded inside engines and must not import the core.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from laar.accuracy.assessment import PlainAssessor
from laar.core.decision import Decision
from laar.core.director import Director
from laar.core.interfaces import NoRoomError, View
from laar.errors import RequestError
from laar.fleet.away import may_come
from laar.fleet.endpoints import Mask, Slots
from laar.flow.bearing import Bearing, ClientKind, Hold
from laar.flow.load import LoadControl, priority_of
from laar.flow.naming import SessionNames
from laar.flow.queue import SATURATED, WORDS, Item, Queue
from laar.flow.sessions import Place, Sessions, tenant_of
from laar.flow.settings import FlowSettings
from laar.latest import Shared
from laar.plugins.companions import not_worth_it
from laar.prefix.blocks import Chain
from laar.prefix.index import PrefixIndex, Receipt
from laar.prefix.match import Context
from laar.request import Api, Request
from laar.speeds.engine_model import EndpointConstants

Verdict = Decision | Exception
"""The decision, or the error that prevented it. A `RequestError` is an answer for the client; any
other error is a bug in laar, and the request must continue without a decision."""

_OWN_READ = 2.0
"""Weight of prefilling a context again: the first token's weight in the default cost. The delay of
other requests is ignored, both here and for held turns."""

_CACHED_SHARE = 0.9
"""Cached share of a prompt above which its context is considered cached, and needs no room."""

_IN_TURN = 0.5
"""Share of the prompts ahead (w) above which an engine prefills mostly one prompt at a time."""

_HELD_SHARE = 0.5
"""Share of the time that a client waits for which it may be held; the rest is for its answer."""

_MAX_ASKED = 10_000
"""Maximum number of sessions for which waits are summed over attempts; the oldest is dropped."""

_SHOWN = 50
"""Maximum number of sessions in an explanation."""


@dataclass(slots=True, kw_only=True)
class Waited:
    """The outcome of a request that waited, and how long it waited."""

    ticket: Hashable
    verdict: Verdict
    waited_s: float


class Admission:
    """The queue in front of a director.

    Args:
        director: makes the decisions.
        settings: how requests are admitted.
        by_load: whether requests wait while all endpoints are full; otherwise only turns of
            sessions wait, for room for their contexts.

    Attributes:
        queue: the waiting requests.
        ready: whether any endpoint is known; until then, every request that may wait does.
        draining: whether the picker is stopping, so no request waits any more.
        load: keeps endpoints below their limits; None unless `by_load`.
        sessions: the sessions whose contexts have a place.
        epoch_s: when the clock was 0, in seconds since 1970: with it, engines can compare the
            priorities that several pickers give. 0 for a lone picker.
        bearing: how long clients bear to be held, and how their holds ended.
        on_turn: called with the slot, the prefix receipt and the context of each named turn that
            is sent; other pickers pass them to `heard`.
    """

    def __init__(self, director: Director, settings: FlowSettings, *, by_load: bool = True) -> None:
        self.by_load = by_load
        self.load = LoadControl(director) if by_load else None
        self.queue: Queue[Verdict] = Queue(settings)
        self.ready = True
        self.draining = False
        self.epoch_s = 0.0
        index = director.prefixes.index if director.prefixes else PrefixIndex(0)
        self.sessions = Sessions(director.table, index)
        self.on_turn: Callable[[int, Receipt | None, Context], None] | None = None
        director.watch(left=self.sessions.drop)
        self._director = director
        self._names = SessionNames()
        self._tickets = 0
        self._asked = Shared[str, tuple[float, float]](_MAX_ASKED, tenant_of)  # first and last try
        self._turns: dict[str, Place] = {}  # by id of the decision
        self.bearing = Bearing()
        self._held: dict[str, tuple[Hold, float]] = {}  # with its end, by id of the decision

    def use(self, settings: FlowSettings) -> None:
        """Use new settings, except for the order; waiting requests keep their objectives."""
        self.queue.settings = settings

    # -- going and waiting ---------------------------------------------------------------------

    def ask(self, request: Request, now: float) -> Decision | int:
        """Decide now, or enqueue the request and return a ticket for its outcome.

        If a ticket is returned, call `dispatch` soon, since it may be the request's turn already.

        Raises:
            RequestError: no endpoint can serve it, or the queue refuses it.
        """
        # Opaque and shadow requests never wait, nor, unless `by_load`, do others with room for all.
        queue, for_context, key = self.queue, False, ""
        if request.hints:
            self._names.name(request)
        passes = request.api is Api.OPAQUE or request.shadow or self.draining
        if passes or not (self.by_load or request.session or self.sessions.index.is_tight):
            decision = self._director.decide(request, now)
            self._count(decision, now, keeps=False)
            return decision
        if not self.ready:
            self._director.table.away.missed(request)
            return self._hold(self._item(request, now), now)

        def room(view: View) -> Mask:
            nonlocal for_context, key
            key = self._known(request, view)
            if not (key or self.by_load):  # a title, say, goes where its session is
                session = _session(request) if request.session else ""
                own = self._own(session, view) if session else None
                return np.ones(len(view.slots), np.bool_) if own is None else own
            own = self._own(key, view)
            # The load limits apply to parallel turns, since many clients may share a name.
            place = self.sessions.place(key) if self.by_load else None
            if own is not None and (place is None or not place.busy):
                return own | (not key or any(p <= 1.0 for p in self._prices(view, now)))
            item = self._item(request, now, view)
            if self.load is not None and not item.is_long:
                self.load.short_at = now
            free, places = self._room(view, item, now), self._places(key, view, now, own)
            fits, needs_place = bool((free & places).any()), bool(key) and own is None
            no_place = queue.contexts > 0 if fits else bool(free.any()) or not places.any()
            for_context = needs_place and no_place
            return free & (fits and queue.waiting == (0 if needs_place else queue.contexts))

        def priority(view: View) -> int:
            return priority_of(self._item(request, now, view), self.epoch_s)

        try:
            decision = self._director.decide(request, now, room, priority if self.by_load else None)
        except NoRoomError as full:
            return self._without_room(request, full.view, now, key if for_context else None)
        except RequestError as error:
            if not self.by_load or not may_come(error, request):
                raise
            return self._hold(self._item(request, now), now)
        self._count(decision, now)
        return decision

    def _without_room(
        self, request: Request, view: View, now: float, key: str | None
    ) -> Decision | int:
        """Enqueue a request; with a `key`, until a cache has room for that session's context."""
        item = self._item(request, now, view, waits=True)
        if key is not None:
            hold_s = self._begins(item, view, now)
            earlier_s = self._waited_s(key, now, hold_s)
            item = replace(item, for_context=True, earlier_s=earlier_s, hold_s=hold_s)
        return self._hold(item, now)

    def dispatch(self, now: float, is_late: Callable[[], bool] = lambda: False) -> list[Waited]:
        """Dispatch the requests that can be sent; return the outcomes since the last call.

        Once it `is_late`, the rest is left to the next call (`Queue.dispatch`).
        """

        def admit(item: Item, shorts_wait: bool) -> Verdict | None:
            try:
                return self._admit(item, shorts_wait, now)
            except Exception as fault:  # noqa: BLE001 - one bad request must not hold up others
                return fault

        def slot_of(verdict: Verdict) -> int | None:
            return verdict.slot if isinstance(verdict, Decision) else None

        outcomes, left = list[Waited](), list[tuple[Item, Verdict]]()
        for item, verdict in self.queue.dispatch(now, admit, slot_of=slot_of, is_late=is_late):
            has_room = not isinstance(verdict, RequestError)
            if item.for_context and not has_room:
                if outcomes and is_late():
                    left.append((item, verdict))
                    continue
                try:
                    verdict = self._let_in(item, now)
                except Exception as error:  # noqa: BLE001 - as in `admit`
                    verdict = error
            waited_s = max(0.0, now - item.arrival_s)
            if isinstance(verdict, Decision) and verdict.flight.admitted and self._teaches(item):
                hold = self._hold_of(item)
                self.bearing.ends(hold, now, has_room=has_room)
                self._held[verdict.id] = hold, now
            outcomes.append(Waited(ticket=item.id, verdict=verdict, waited_s=waited_s))
        self.queue.keep(left)
        return outcomes

    def left(self, ticket: Hashable, now: float) -> None:
        """Forget a waiting request whose client is gone, and learn how long that waited."""
        item = self.queue.cancel(ticket)
        if item is not None and self._teaches(item):
            self.bearing.left(self._hold_of(item), now)

    def _teaches(self, item: Item) -> bool:
        """Return whether a hold, which was not cut short, shows what its client bears."""
        return item.for_context and item.hold_s != self.queue.settings.min_hold_s

    def _hold_of(self, item: Item) -> Hold:
        request, limit_s = item.request, item.hold_s or 0.0
        session = _session(request) if request.session else str(item.id)
        return Hold(_kind(request), request.digest, item.arrival_s, limit_s, session, item.reach)

    def _begins(self, item: Item, view: View, now: float) -> float:
        """Return how long a turn is held for room: briefly if all contexts worth it have some."""
        slots, hold_s = view.slots, self.bearing.begins(self._hold_of(item))
        wanted = self.sessions.wanted_tokens(slots.tolist(), now) + item.tokens
        wanted += sum(each.tokens for each in self.waiting_contexts() if each.reach & item.reach)
        # On average half of a context is left over at each endpoint.
        room = float((self._director.table.capacity_tokens[slots] - 0.5 * item.tokens).sum())
        return min(hold_s, self.queue.settings.min_hold_s) if wanted <= room else hold_s

    def _waited_s(self, session: str, now: float, hold_s: float) -> float:
        """Return how long a session has waited for room, over all attempts of its client."""
        first, last = self._asked.get(session, (now, now))
        first = first if now - last <= 2.0 * max(hold_s, self.queue.settings.max_hold_s) else now
        self._asked[session] = first, now
        return max(0.0, now - first)

    def _hold(self, item: Item, now: float) -> Decision | int:
        if item.request.companion_of:
            raise not_worth_it()
        # Count the body as received and as parsed, with up to four bytes per character.
        body_bytes = item.body_bytes + sum(map(sys.getsizeof, item.request.spans))
        # In a lane of their own, turns that wait for a place hold up no other requests. A short one
        # holds up those that are as long, as there may be room for half of it.
        waits_for = item.for_context and (item.is_long or item.tokens.bit_length())
        item = replace(item, body_bytes=body_bytes, lane=f"{item.lane} {waits_for}")
        error = self.queue.enqueue(item, now)
        if error is None:
            return self._tickets  # the item's id is the latest ticket
        if item.for_context:
            return self._let_in(item, now)
        raise error

    def _admit(self, item: Item, shorts_wait: bool, now: float) -> Verdict | None:
        request, director = item.request, self._director
        if self.draining:
            return director.decide(request, now)
        if not self.ready:  # nothing can be sent yet, but requests may expire
            return None
        try:
            group = director.chooser.candidates.of(request, request.subset, now)
            # Check the counters first, so as not to price a request that has nowhere to go.
            is_long = np.full(len(group.slots), item.is_long)
            if not self._open(group.slots, item, now, is_long, shorts_wait=shorts_wait).any():
                return None
            decision = director.decide(
                request,
                now,
                lambda view: (
                    self._room(view, item, now, shorts_wait=shorts_wait)
                    & self._kept(request, view, now)
                ),
                (lambda _view: priority_of(item, self.epoch_s)) if self.by_load else None,
            )
        except NoRoomError:
            return None
        except RequestError as error:
            return None if self.by_load and may_come(error, request) else error
        self._count(decision, now)
        return decision

    def _let_in(self, item: Item, now: float) -> Decision:
        """Decide even though there is no room for the context, unless every endpoint is full.

        Raises:
            RequestError: every endpoint is full.
        """

        def room(view: View) -> Mask:
            return self._crowded(item.request, view, self._room(view, item, now))

        try:
            decision = self._director.decide(item.request, now, room)
        except NoRoomError:
            self.queue.sheds[SATURATED] += 1
            raise RequestError(429, SATURATED, WORDS[SATURATED], retry_after_s=1) from None
        self._count(decision, now)
        return decision

    def work_s(self) -> dict[tuple[str, str], float]:
        """Return the prefill seconds of the waiting requests, by pool and requested model."""
        found: dict[tuple[str, str], float] = {}
        for item in self.queue.items():
            asked = item.request.pool, item.request.model
            found[asked] = found.get(asked, 0.0) + item.work_s
        return found

    def waiting_contexts(self) -> list[Item]:
        """Return the waiting turns that need a place for their context."""
        return [item for item in self.queue.items() if item.for_context]

    def session_counts(self) -> dict[str, int]:
        """Return how many sessions are admitted, and how many turns wait for admission."""
        return {"placed": len(self.sessions), "waiting": len(self.waiting_contexts())}

    def hold_s(self, now: float) -> dict[str, float]:
        """Return the longest hold at present, the longest limit of one, and what was enough."""
        waiting = self.waiting_contexts()
        return {
            "now": max((now - item.arrival_s for item in waiting), default=0.0),
            "limit": max((item.hold_s or 0.0 for item in waiting), default=0.0),
            "enough": self.bearing.enough_s(now),
        }

    def missing_endpoints(self) -> float:
        """Return how many endpoints would hold the waiting contexts; 0 if sizes are unknown."""
        table, tokens = self._director.table, sum(item.tokens for item in self.waiting_contexts())
        each_tokens = table.cache_tokens() / max(1, len(table))
        return tokens / each_tokens if each_tokens > 0.0 else 0.0

    def explained(self, decision: Decision, now: float) -> dict[str, object]:
        """Return a previewed request's place and its price, and the sessions with a place.

        `price` is how many seconds a second of its wait saves others, which holds it if above 1;
        None if turns in flight take up the room.
        """
        view = decision.view
        if view is None:
            return {}
        self._names.name(decision.request)
        key = self._known(decision.request, view)
        own = self._own(key, view)
        price = min(self._prices(view, now)) if key and own is None else 0.0
        return {
            "session": decision.request.session,
            "named_by": decision.request.named_by or ("its prompts" if key else ""),
            "parent": decision.request.parent,
            "has_place": own is not None,
            "price": round(price, 3) if math.isfinite(price) else None,
            "longest_hold_s": self._hold_s(decision.request),
            **self.shown(now),
        }

    def shown(self, now: float) -> dict[str, object]:
        """Return the sessions that have a place, and the requests that wait, the longest first."""
        return {
            "counts": self.session_counts(),
            "hold_s": {of: round(each_s, 3) for of, each_s in self.hold_s(now).items()},
            "holds": self.bearing.ended,
            "inside": self.sessions.shown(now, _SHOWN),
            "waiting": [
                {
                    "session": item.request.session,
                    "tokens": item.tokens,
                    "waited_s": round(now - item.arrival_s, 3),
                    "longest_s": round(item.hold_s or 0.0, 3),
                    "for_context": item.for_context,
                }
                for item in islice(self.queue.items(), _SHOWN)
            ],
        }

    # -- a request as the queue sees it --------------------------------------------------------

    def _item(
        self, request: Request, now: float, view: View | None = None, *, waits: bool = False
    ) -> Item:
        """Describe a request by the candidate with the least prefill work for it, if any is known.

        If it `waits`, it shares a lane with requests that may go to the same endpoints, whichever
        model name they use.
        """
        tokens = uncached = request.chars / PlainAssessor.CHARS_PER_TOKEN
        work_s, reach = tokens * PlainAssessor.SECONDS_PER_TOKEN, 0
        if view is not None:
            engine, total, cached = self._engines(view), view.tokens, view.cached_tokens
            work = engine.c * view.seconds_per_token * (total - cached)
            work *= 1.0 + 0.5 * engine.q * (total + cached)
            best = int(work.argmin())
            work_s, tokens = float(work[best]), float(view.tokens[best])
            uncached = tokens - float(view.cached_tokens[best])
            if waits:
                slots = view.slots if view.fits is None else view.slots[view.fits]
                reach = sum(1 << slot for slot in set(slots.tolist()))
        self._tickets += 1
        objective_s = self.queue.settings.objective_of(request, work_s)
        subset = "" if request.subset is None else "\0" + ",".join(sorted(request.subset))
        return Item(
            id=self._tickets,
            arrival_s=now,
            objective_s=objective_s,
            # No client can claim more urgency than zero slack, whatever it says it has tried.
            earlier_s=min(_attempted_s(view), max(objective_s - work_s, 0.0)),
            longest_s=math.inf if request.ttft_objective_s is None else request.ttft_objective_s,
            hold_s=self._hold_s(request),
            work_s=work_s,
            tokens=int(tokens),
            body_bytes=request.body_bytes,
            is_ready=view is not None,
            is_long=uncached > self.queue.settings.long_tokens,
            tenant=request.tenant,
            band=request.priority,
            lane=f"{reach:x}" if reach else f"{request.pool}\0{request.model}{subset}",
            reach=reach,
            request=request,
        )

    def _hold_s(self, request: Request) -> float:
        """Return how long a turn may wait for room for its context, in seconds."""
        usual_s, envoys_s = self.queue.settings.max_hold_s, request.longest_hold_s
        if usual_s and request.patience_s is not None:
            first_s = most_s = min(max(usual_s, envoys_s), _HELD_SHARE * request.patience_s)
        else:
            most_s = envoys_s or usual_s if usual_s else 0.0
            first_s = min(usual_s, most_s)
        return self.bearing.limit_s(_kind(request), first_s, most_s)

    # -- room ----------------------------------------------------------------------------------

    def _own(self, key: str, view: View) -> Mask | None:
        """Return the candidates that hold the session's context; None if none does.

        Return all candidates while a turn of the session is in flight, since parallel turns (of
        clients that share a name, say) should not be tied to one endpoint. Unless `by_load`, it is
        enough that the prompt is cached, as another picker may have sent the last turn.
        """
        own = view.cached_tokens >= _CACHED_SHARE * view.tokens
        own &= bool(key) and not self.by_load
        place = self.sessions.place(key)
        if place is not None:
            own = own | (view.slots == place.slot) | (place.busy > 0)
        if view.fits is not None:
            own = own & view.fits
        return own if own.any() else None

    def _kept(self, request: Request, view: View, now: float) -> Mask:
        """Return the candidates to which a request may go as far as its context is concerned."""
        key = self._known(request, view)
        return self._places(key, view, now, self._own(key, view))

    def _known(self, request: Request, view: View) -> str:
        """Return the key of a request's context; empty if it is no session's."""
        session = _session(request)
        return self.sessions.recognize(session, view) if session else ""

    def _places(self, key: str, view: View, now: float, own: Mask | None = None) -> Mask:
        """Return candidates in `own` or with room for the context; all if there is no session."""
        if not key:
            return np.ones(len(view.slots), np.bool_)
        free = np.fromiter(self._prices(view, now), np.float64, len(view.slots)) <= 1.0
        return free if own is None else free | own

    def _prices(self, view: View, now: float) -> Iterator[float]:
        return self.sessions.prices(view, self._engines(view).w, now)

    def _engines(self, view: View) -> EndpointConstants:
        """Return the learned constants of the candidates' engines."""
        return self._director.engines.constants(view.slots, view.model_id)

    def _crowded(self, request: Request, view: View, free: Mask) -> Mask:
        """Return which `free` candidates may take a turn that is admitted without room in a cache.

        Such a turn evicts a context wherever it goes. Spread evenly, they would leave no context in
        any cache, so all go to the endpoint with the longest wait, up to `max_hold_s`. The choice
        is left to the cost if nothing is waiting, a candidate has the context, the chances of a
        correct answer differ, or the client has an objective; and also if engines prefill in
        parallel, since each additional turn would slow all others there for minutes.
        """
        own = self._own(self._known(request, view), view)
        wait_s = None if view.terms is None else view.terms.ahead_s
        if (
            own is not None
            or wait_s is None
            or request.ttft_objective_s is not None
            or np.ptp(view.probability * (1.0 if view.answers is None else view.answers)) > 0.0
        ):
            return free
        bearable = free & (wait_s > 0.0) & (wait_s <= self.queue.settings.max_hold_s)
        bearable &= self._engines(view).w > _IN_TURN
        return bearable & (wait_s >= wait_s[bearable].max()) if bearable.any() else free

    def _room(self, view: View, item: Item, now: float, *, shorts_wait: bool = False) -> Mask:
        """Return the candidates with room; an item is short where enough of it is cached."""
        is_long = view.tokens - view.cached_tokens > self.queue.settings.long_tokens
        return self._open(view.slots, item, now, is_long, shorts_wait=shorts_wait)

    def _open(
        self, slots: Slots, item: Item, now: float, is_long: Mask, *, shorts_wait: bool
    ) -> Mask:
        if self.load is None:
            return np.ones(len(slots), np.bool_)
        settings = self.queue.settings
        return self.load.room(slots, item, settings, now, is_long, shorts_wait=shorts_wait)

    # -- requests in flight --------------------------------------------------------------------

    def answering(self, decision: Decision, *, ok: bool = True, full: bool = False) -> None:
        """Handle the first byte of an answer.

        Args:
            decision: the request's decision.
            ok: whether the endpoint accepted the request.
            full: whether it may have refused the request for lack of room.
        """
        if self.load is not None:
            self.load.longs.pop(decision.id, None)
        if not ok and (place := self._turns.pop(decision.id, None)) is not None:
            self.sessions.refused(place)
        if full and decision.flight.admitted:
            self.sessions.full(decision.flight.slot)

    def ended(self, decision: Decision, now: float, *, begun: bool = True) -> None:
        """Handle the end of a request, however it ended; `begun` if its answer had begun.

        A turn cut off before keeps no place, unless most of its context was cached already.
        """
        if self.load is not None:
            self.load.longs.pop(decision.id, None)
        place, attempt = self._turns.pop(decision.id, None), decision.flight.attempt
        held = self._held.pop(decision.id, None)
        if held is not None and begun:
            self.bearing.borne(*held)
        begun = begun or 2.0 * decision.uncached_tokens < decision.tokens
        if place is not None and (not begun or (attempt is not None and attempt.useless)):
            self.sessions.refused(place)
        elif place is not None:
            self.sessions.end(place, now)

    def heard(
        self, slot: int, chain: Chain, context: Context, now: float
    ) -> Callable[[float], None] | None:
        """Handle a turn that another picker has sent; return what to call when it ends, if any."""
        session, tokens, shared, reread_s = context
        key = self.sessions.key(session, chain, tokens)
        place = self.sessions.begin(key, chain, slot, tokens, shared, reread_s, now)
        return None if place is None else partial(self.sessions.end, place)

    def moved(self, decision: Decision, now: float) -> None:
        """Handle a request that Envoy sent to an endpoint other than the one picked."""
        slot = decision.flight.slot
        if self.load is not None:
            self.load.moved(decision, self.queue.settings)
        place = self._turns.get(decision.id)
        if place is not None and decision.slot != slot:
            self.sessions.full(decision.slot)
            self._begin_turn(decision, place.key, slot, 0.0, place.reread_s, now)
            self.sessions.end(place, now)

    def _count(self, decision: Decision, now: float, *, keeps: bool = True) -> None:
        view = decision.view
        if self.load is not None:
            self.load.count(decision, self.queue.settings)
        if view is not None and view.chain is not None and decision.request.hints:
            self._names.learn(decision.request, view.chain)
        if view is None or not keeps:  # if None, it was not priced
            return
        at = decision.position
        token_s = self._engines(view).c.item(at) * view.seconds_per_token.item(at)
        found, reread_s = view.cached_tokens.item(at), _OWN_READ * token_s * view.tokens.item(at)
        decision.flight.admitted = True
        if view.chain is not None and (session := _session(decision.request)):
            key = self.sessions.key(session, view.chain, decision.tokens)
            self._asked.pop(key, None)
            key = self.sessions.count(session, key, view.chain)
            self._begin_turn(decision, key, decision.slot, found, reread_s, now)

    def _begin_turn(
        self, decision: Decision, key: str, slot: int, found: float, reread_s: float, now: float
    ) -> None:
        tokens, chain = decision.tokens, decision.view and decision.view.chain
        place = chain and self.sessions.begin(key, chain, slot, tokens, found, reread_s, now)
        if not place:
            self._turns.pop(decision.id, None)
            return
        self._turns[decision.id] = place
        if place.key == _session(decision.request) and self.on_turn is not None:
            context = Context(key, tokens, place.shared, place.reread_s)
            self.on_turn(slot, decision.flight.receipt, context)


def _attempted_s(view: View | None) -> float:
    """Return how long a retry's earlier attempts took, as estimated for an idle fleet."""
    if view is None or view.terms is None or not np.count_nonzero(view.times_tried):
        return 0.0
    tried, of = view.times_tried > 0.0, view.model_id
    alone_s = view.times_tried * (view.terms.base_s + view.terms.prefill_s)
    return sum(float(alone_s[of == model].mean()) for model in set(of[tried].tolist()))


def _kind(request: Request) -> ClientKind:
    return ClientKind(request.tenant, request.named_by, request.patience_s)


def _session(request: Request) -> str:
    """Return the tenant, the model and the session of a request, in a form that can't be forged.

    The session is empty if it has no name. Return an empty string if it keeps no context.
    """
    if not request.generates:
        return ""
    return f"{request.tenant}\0{request.model}\0{request.session}"

"""The queue of requests whose candidates are all full (after the Medha paper).

The highest priority band goes first; within it, the tenant that was served the fewest tokens, and
among its requests the one with the lowest relative slack. A long request with slack lets shorts go
first. Requests that compete for the same endpoints share a lane, so a full model does not block a
free one: a refusal closes the lane for the rest of the call, or only to longs if the refused
request is long. Lanes may share endpoints, so they take turns, one request each. A tenant that
waits in several of these is charged in each lane that the chosen endpoint belongs to, and a tenant
ahead of it in one lane goes ahead of it in the others: more lanes do not mean more turns.

The queue itself never blocks. `enqueue` returns immediately, `dispatch` is called when a request
ends or readings change, and `next_wakeup_s` says when to call it regardless: a single timer. Every
verdict except the one `enqueue` returns comes out of `dispatch`, exactly once per request.

A request waits at most `patience` times its objective, within [`min_hold_s`, `max_hold_s`]. When
the queue is full, a request of a lower band is evicted, or else one of the tenant with the most
requests (or bytes, if these are at their limit) waiting; otherwise the new request is refused. No
client can claim more urgency than zero slack: an objective shorter than the work itself is raised
to it.

Order and bands are exact at every call; `is_long` and the tokens are the caller's estimates, and
`retry_after_s` is based on recent speed. Equally urgent requests have no particular order.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from laar.errors import RequestError
from laar.flow.settings import FlowSettings
from laar.flow.slack import MIN_WORK_S, ORDERS, Line
from laar.flow.waiting import Bag, Lane

T = TypeVar("T")

CANCELLED = "rejected-context-cancelled"
SATURATED = "rejected-saturated"
EXPIRED = "rejected-ttl-expired"
NO_ENDPOINT = "rejected-no-endpoint"
EVICTED_BY_BAND = "evicted-priority"
EVICTED_BY_TENANT = "evicted-queue-pressure"
"""Reason codes are stable: they go into a response header and a metric label. Other endpoint
pickers use the same codes for the same outcomes."""

MAX_VERDICTS = 64
"""Maximum number of verdicts per `dispatch`, so that a fleet starting up never blocks the event
loop; while more are due, the next wake-up is immediate."""

MAX_REFUSALS = 32
"""Refusals in a band after which `dispatch` moves on to the next band. The next call starts with
the band's other lanes."""

WORDS = {
    SATURATED: "every endpoint is full, and so is the queue",
    EXPIRED: "no endpoint had room in time",
    NO_ENDPOINT: "no endpoint became ready in time, or the queue is full of requests that wait",
    EVICTED_BY_BAND: "a more urgent request took its place in the queue",
    EVICTED_BY_TENANT: "a more urgent request took its place in the queue",
}
"""The messages to clients, by reason code."""

NO_ROOM = frozenset(WORDS) - {NO_ENDPOINT}

MAX_RETRY_AFTER_S = 60
"""Maximum `retry-after` in seconds, since longer estimates mean little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A request as the queue sees it.

    Args:
        id: assigned by the picker, unique among waiting requests.
        tenant: the tenant charged with its tokens.
        band: strict priority, higher first; usually 0.
        lane: name of the set of endpoints it may go to, and of what it waits for there.
        reach: that set of endpoints, one bit each; 0 if unknown.
        arrival_s: arrival time, on the same clock as `now`.
        objective_s: TTFT objective, in seconds from arrival.
        earlier_s: seconds that its earlier attempts took, or that its session has waited for room;
            they reduce its slack.
        for_context: whether it waits only for room for its context; it is let in after `longest_s`
            or `max_hold_s`, or if the queue would refuse it.
        longest_s: the objective that its client set, in seconds; infinite if none.
        hold_s: how long it may be held, by what its client says and bears; None for `max_hold_s`.
            It may be longer than that only `for_context`.
        work_s: prefill seconds when run alone.
        tokens: tokens charged to its tenant.
        body_bytes: memory it takes while held.
        is_ready: whether an endpoint could serve it; if none could, it is held for `max_hold_s`
            whatever its objective.
        is_long: whether an endpoint should run at most one such request while short ones wait.
        request: the request itself, for the owner of the queue.
    """

    id: Hashable
    arrival_s: float
    objective_s: float
    work_s: float
    tokens: int
    body_bytes: int
    is_ready: bool = True
    is_long: bool = False
    tenant: str = ""
    band: int = 0
    lane: str = ""
    reach: int = 0
    earlier_s: float = 0.0
    for_context: bool = False
    longest_s: float = math.inf
    hold_s: float | None = None
    request: Any = None


@dataclass(slots=True, eq=False)
class _Band:
    """Requests of one priority: their lanes, and the requests of each tenant in order of arrival.

    `heads` are the tenants whose turn is next in their lanes, if that is known.
    """

    lanes: dict[str, Lane] = field(default_factory=dict)
    lanes_of: dict[str, dict[str, Lane]] = field(default_factory=dict)
    heads: dict[str, str | None] = field(default_factory=dict)
    tenants: dict[str, dict[Hashable, Item]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    held_bytes: Counter[str] = field(default_factory=Counter)


class Queue(Generic[T]):
    """The picker's queue; `T` is the type of admission's result, for example the chosen endpoint.

    Attributes:
        settings: its order and limits; may be changed, except for the order.
        sheds: number of requests refused or dropped so far, by reason code.
        dispatched: number of requests admitted so far.
        held_bytes: memory that waiting requests take now.
        contexts: number of requests that wait for room for their contexts.
    """

    def __init__(self, settings: FlowSettings) -> None:
        self.settings = settings
        self.sheds: Counter[str] = Counter()
        self.dispatched = 0
        self.held_bytes = 0
        self.contexts = 0
        self._order = ORDERS[self.settings.order]
        self._waiting: dict[Hashable, Item] = {}
        self._bands: dict[int, _Band] = {}
        self._expiries: Bag[Hashable] = Bag()
        self._shorts = 0
        self._verdicts: list[tuple[Item, T | RequestError]] = []  # known, but not yet returned
        self._more = False
        self._left_s: float | None = None  # the last departure since the queue was empty
        self._gap_s = 0.0  # mean seconds between departures, over about 10

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._waiting)

    def items(self) -> Iterator[Item]:
        """Return the waiting requests, in order of arrival."""
        return iter(self._waiting.values())

    def enqueue(self, item: Item, now: float) -> RequestError | None:
        """Enqueue a request; return None, or the answer if it is refused. Never reuse an id."""
        settings = self.settings
        work_s = max(MIN_WORK_S, item.work_s)
        objective_s = max(work_s, item.objective_s)
        hold_s = settings.max_hold_s if item.hold_s is None else item.hold_s
        if item.for_context:
            hold_s = min(hold_s - item.earlier_s, item.longest_s)
        else:
            hold_s = min(hold_s, settings.max_hold_s)
        if item.is_ready and not item.for_context:
            hold_s = min(hold_s, max(settings.min_hold_s, settings.patience * objective_s))
        if hold_s <= 0:
            return self._refused(item, 503, _expired(item))
        if not self._make_room(item, now):
            status, reason = (429, SATURATED) if item.is_ready else (503, NO_ENDPOINT)
            return self._refused(item, status, reason)
        if not self._waiting:
            self._left_s = None
        self._insert(item, self._order(now - item.earlier_s, objective_s, work_s, work_s))
        self._expiries.put(item.id, Line(now + hold_s, 1.0))
        return None

    def dispatch(
        self,
        now: float,
        admit: Callable[[Item, bool], T | None],
        *,
        slot_of: Callable[[T], int | None] = lambda _result: None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> list[tuple[Item, T | RequestError]]:
        """Release the requests that can be sent, in order; return the verdicts since the last call.

        Args:
            now: seconds, monotonic.
            admit: (item, shorts_wait) -> the reservation made for the item, or None if no endpoint
                has room. `shorts_wait` is true if short requests wait too: then an endpoint
                must not take a second long request. Must not call the queue.
            slot_of: returns the endpoint of a result, as its bit in `Item.reach`.
            is_late: whether to leave the rest to a next call. After a request that can be sent
                its wake-up is immediate, and after one that can't, it is as usual.
        """
        self._more = False
        self._expire(now)
        closed: set[str] = set()
        closed_to_longs: set[str] = set()
        for number in sorted(self._bands, reverse=True):
            band = self._bands[number]
            lanes, heads = band.lanes, band.heads
            heads.clear()
            turns = deque(lanes)
            refusals = 0
            while turns and refusals < MAX_REFUSALS:
                if len(self._verdicts) >= MAX_VERDICTS:
                    self._more = True
                    return self._hand_out()
                name = turns.popleft()
                if name not in lanes or name in closed:
                    continue
                if before := self._before(band, name, now, closed, closed_to_longs):
                    turns.remove(before)
                    turns.appendleft(name)
                    name = before
                turn = lanes[name].turn(now, long_may_go=name not in closed_to_longs)
                if turn is None:
                    continue
                turns.append(name)
                lanes[name] = lanes.pop(name)  # rotated, so the next call starts with other lanes
                item = self._waiting[turn[1]]
                verdict = admit(item, self._shorts > (not item.is_long))
                heads.pop(name, None)
                if verdict is not None:
                    self._leaves(band, item, slot_of(verdict), now)
                    self._verdicts.append((item, verdict))
                    if is_late():
                        self._more = True
                        return self._hand_out()
                    continue
                refusals += 1
                (closed_to_longs if item.is_long else closed).add(name)
                if is_late():
                    break
        return self._hand_out()

    def _leaves(self, band: _Band, item: Item, slot: int | None, now: float) -> None:
        """Take off a request that was sent to a slot, and count how often one is."""
        self._remove(item, charge=True)
        self._charge_elsewhere(band, item, slot)
        self.dispatched += 1
        if self._left_s is not None:
            self._gap_s += 0.1 * (now - self._left_s - self._gap_s)
        self._left_s = now

    def _before(
        self,
        band: _Band,
        name: str,
        now: float,
        closed: set[str],
        closed_to_longs: set[str],
    ) -> str | None:
        """Return an open lane that shares endpoints with this one and goes before it.

        In that lane, another tenant is ahead of the one whose turn it is here, or this tenant's
        last turn was longer ago.
        """
        lanes, heads = band.lanes, band.heads

        def next_tenant(lane: str) -> str | None:
            if lane not in heads:
                turn = lanes[lane].turn(now, long_may_go=lane not in closed_to_longs)
                heads[lane] = None if turn is None else turn[0]
            return heads[lane]

        found: str | None = None
        reach = lanes[name].reach
        if not reach or len(lanes) < 2 or (tenant := next_tenant(name)) is None:
            return None
        least = lanes[name].last_turn(tenant)
        for other, lane in band.lanes_of[tenant].items():
            if other == name or other in closed or not lane.reach & reach:
                continue
            first = next_tenant(other)
            if first not in (None, tenant):
                return other
            if first is not None and (last_turn := lane.last_turn(tenant)) < least:
                found, least = other, last_turn
        return found

    def _charge_elsewhere(self, band: _Band, item: Item, slot: int | None) -> None:
        """Charge a tenant in the other lanes that the endpoint belongs to."""
        if slot is None:
            return
        for name, lane in band.lanes_of.get(item.tenant, {}).items():
            if name != item.lane and lane.reach >> slot & 1:
                lane.charge(item.tenant, max(1, item.tokens))
                if len(lane) > 1:
                    band.heads.pop(name, None)

    def cancel(self, item_id: Hashable) -> Item | None:
        """Forget and return a request whose client is gone; None if its verdict is known."""
        item = self._waiting.get(item_id)
        if item is not None:
            self._remove(item)
            self.sheds[CANCELLED] += 1
        return item

    def keep(self, verdicts: list[tuple[Item, T | RequestError]]) -> None:
        """Keep verdicts of a call of `dispatch` for the next one."""
        self._verdicts[:0] = verdicts

    def next_wakeup_s(self, now: float) -> float | None:
        """Return the seconds until `dispatch` must be called; None if no call is due."""
        if self._verdicts or self._more:
            return 0.0
        first = self._expiries.first(0.0)
        return None if first is None else max(0.0, first[1] - now)

    def _insert(self, item: Item, line: Line) -> None:
        band = self._bands.setdefault(item.band, _Band())
        lane = band.lanes.get(item.lane)
        if lane is None:
            lane = band.lanes[item.lane] = Lane(
                reach=item.reach, by_slack=self.settings.order == "lars"
            )
        lane.add(item.id, item.tenant, line, is_long=item.is_long)
        band.lanes_of.setdefault(item.tenant, {})[item.lane] = lane
        band.tenants.setdefault(item.tenant, {})[item.id] = item
        band.counts[item.tenant] += 1
        band.held_bytes[item.tenant] += item.body_bytes
        self._waiting[item.id] = item
        self._shorts += not item.is_long
        self.contexts += item.for_context
        self.held_bytes += item.body_bytes

    def _make_room(self, item: Item, now: float) -> bool:
        """Drop items that should yield to this one, if needed; return whether it fits.

        If the number of requests is at its limit, one yields. If the bytes are, the tenant with the
        most bytes yields as many requests as necessary.
        """
        if self._fits(item):
            return True
        self._expire(now)
        if self._fits(item):
            return True
        if not self._bands or (lowest := min(self._bands)) > item.band:
            return False
        band = self._bands[lowest]
        missing = self.held_bytes + item.body_bytes - self.settings.max_held_bytes
        sizes, own = (band.held_bytes, item.body_bytes) if missing > 0 else (band.counts, 1)
        tenant = max(sizes, key=sizes.__getitem__)
        if lowest == item.band and sizes[tenant] <= sizes[item.tenant] + own:
            return False
        victims = []
        for victim in islice(reversed(band.tenants[tenant].values()), MAX_VERDICTS):
            victims.append(victim)
            missing -= victim.body_bytes
            if missing <= 0:
                break
        if missing > 0 or len(self._waiting) - len(victims) >= self.settings.max_waiting:
            return False
        for victim in victims:
            self._drop(victim, 429, EVICTED_BY_BAND if lowest < item.band else EVICTED_BY_TENANT)
        return True

    def _fits(self, item: Item) -> bool:
        settings = self.settings
        return (
            len(self._waiting) < settings.max_waiting
            and self.held_bytes + item.body_bytes <= settings.max_held_bytes
        )

    def _expire(self, now: float) -> None:
        """Drop expired requests, up to one call's worth of verdicts."""
        while len(self._verdicts) < MAX_VERDICTS and (first := self._expiries.first(0.0)):
            key, expires_s = first
            if expires_s > now:
                break
            item = self._waiting[key]
            self._drop(item, 503, _expired(item))

    def _drop(self, item: Item, status: int, reason: str) -> None:
        self._remove(item, charge=item.for_context)
        self._verdicts.append((item, self._refused(item, status, reason)))

    def _remove(self, item: Item, *, charge: bool = False) -> None:
        del self._waiting[item.id]
        self._expiries.remove(item.id)
        self._shorts -= not item.is_long
        self.contexts -= item.for_context
        self.held_bytes -= item.body_bytes
        band = self._bands[item.band]
        band.counts[item.tenant] -= 1
        band.held_bytes[item.tenant] -= item.body_bytes
        del band.tenants[item.tenant][item.id]
        if not band.tenants[item.tenant]:
            del band.tenants[item.tenant], band.counts[item.tenant], band.held_bytes[item.tenant]
        lane = band.lanes[item.lane]
        served = max(1, item.tokens) if charge else 0
        lane.remove(
            item.id,
            item.tenant,
            is_long=item.is_long,
            served_tokens=served,
            turn=self.dispatched + 1,
        )
        if item.tenant not in lane:
            del band.lanes_of[item.tenant][item.lane]
            if not band.lanes_of[item.tenant]:
                del band.lanes_of[item.tenant]
        if not lane:
            del band.lanes[item.lane]
            if not band.lanes:
                del self._bands[item.band]

    def _refused(self, item: Item, status: int, reason: str) -> RequestError:
        """Return the answer to a refused request; count it unless the request is sent anyway."""
        if not item.for_context:
            self.sheds[reason] += 1
        again_s = retry_after_s(len(self._waiting) * self._gap_s)
        return RequestError(status, reason, WORDS[reason], retry_after_s=again_s)

    def _hand_out(self) -> list[tuple[Item, T | RequestError]]:
        verdicts, self._verdicts = self._verdicts, []
        return verdicts


def retry_after_s(wait_s: float) -> int:
    """Return the value of the header for an expected wait."""
    return min(MAX_RETRY_AFTER_S, max(1, math.ceil(wait_s)))


def _expired(item: Item) -> str:
    return EXPIRED if item.is_ready else NO_ENDPOINT

"""In random histories, each choice of the queue is compared with its rules on a plain list."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from laar.errors import RequestError
from laar.flow.queue import Item, Queue
from laar.flow.settings import FlowSettings
from laar.flow.slack import MIN_WORK_S, RHO_MAX
from support.exploring import examples

LIMITS = FlowSettings(
    max_waiting=25, max_held_bytes=30_000, patience=2.0, min_hold_s=2.0, max_hold_s=40
)


@dataclass
class Rules:
    """The queue's rules on a list, slow but obvious."""

    # Requests and the times at which they expire.
    waiting: list[tuple[Item, float]] = field(default_factory=list)
    served: dict[tuple[int, str, str], float] = field(default_factory=dict)
    virtual: dict[tuple[int, str], float] = field(default_factory=dict)

    def rho(self, one: Item, now: float) -> float:
        work_s = max(MIN_WORK_S, one.work_s)
        objective_s = max(work_s, one.objective_s)
        return (one.arrival_s + objective_s - work_s - now) / work_s

    def group(self, band: int, lane: str) -> list[Item]:
        return [one for one, _ in self.waiting if (one.band, one.lane) == (band, lane)]

    def add(self, one: Item, expires_s: float) -> None:
        place = one.band, one.lane
        if not self.group(*place):  # at the beginning of a busy period, the past is forgotten
            self.virtual[place] = 0.0
            self.served = {k: v for k, v in self.served.items() if k[:2] != place}
        if not any(other.tenant == one.tenant for other in self.group(*place)):
            key = (*place, one.tenant)
            self.served[key] = max(self.virtual[place], self.served.get(key, 0.0))
        self.waiting.append((one, expires_s))

    def take(self, one: Item, *, admitted: bool = False) -> None:
        self.waiting = [pair for pair in self.waiting if pair[0].id != one.id]
        if admitted:
            place, key = (one.band, one.lane), (one.band, one.lane, one.tenant)
            self.virtual[place] = max(self.virtual[place], self.served[key])
            self.served[key] += max(1, one.tokens)
            for lane in "xy":
                if one.reach and lane != one.lane:
                    self.charge((one.band, lane), one)

    def charge(self, place: tuple[int, str], one: Item) -> None:
        """Charge a tenant here as well, since the endpoint also belongs to this lane."""
        tenants = {other.tenant for other in self.group(*place)}
        if one.tenant in tenants:
            least = min(self.served[*place, tenant] for tenant in tenants)
            self.virtual[place] = max(self.virtual[place], least)
            self.served[*place, one.tenant] += max(1, one.tokens)

    def may_be_next(self, band: int, lane: str, now: float, *, long_may_go: bool) -> set[str]:
        """Return the ids that may be next by the rules; several only in a tie."""
        ready = [one for one in self.group(band, lane) if long_may_go or not one.is_long]
        shorts = [one for one in ready if not one.is_long]
        allowed: set[str] = set()
        for tenant in self.least_served(ready):
            own = [one for one in ready if one.tenant == tenant]
            least = min(self.rho(one, now) for one in own)
            best = [one for one in own if self.rho(one, now) <= least + 1e-9]
            for one in best:
                if one.is_long and self.rho(one, now) > RHO_MAX - 1e-9 and shorts:
                    for other in self.least_served(shorts):
                        some = [s for s in shorts if s.tenant == other]
                        low = min(self.rho(s, now) for s in some)
                        allowed |= {str(s.id) for s in some if self.rho(s, now) <= low + 1e-9}
                if not one.is_long or not shorts or self.rho(one, now) <= RHO_MAX + 1e-9:
                    allowed.add(str(one.id))
        return allowed

    def least_served(self, items: list[Item]) -> set[str]:
        served = {one.tenant: self.served[one.band, one.lane, one.tenant] for one in items}
        return {t for t, s in served.items() if s <= min(served.values()) + 1e-9}


class Life:
    """Drives a queue and the rules together and compares them at every step."""

    def __init__(self, seed: int, *, overlap: bool = False) -> None:
        self.rng = random.Random(seed)
        self.reach = {"x": 0b011, "y": 0b110} if overlap else {}
        self.queue: Queue[str] = Queue(LIMITS)
        self.rules = Rules()
        self.now = 100.0
        self.count = 0
        self.open_ids: set[str] = set()

    def come(self) -> None:
        rng = self.rng
        self.count += 1
        is_long = rng.random() < 0.3
        lane = rng.choice("xy")
        one = Item(
            id=str(self.count),
            arrival_s=self.now,
            objective_s=rng.choice([0.1, 1.0, 5.0, 20.0]) * rng.uniform(0.9, 1.1),
            work_s=rng.uniform(3.0, 9.0) if is_long else rng.uniform(0.01, 1.0),
            tokens=rng.randint(1, 500),
            body_bytes=rng.randint(0, 3000),
            is_long=is_long,
            tenant=rng.choice("abc"),
            band=rng.choice([0, 0, 0, 1]),
            lane=lane,
            reach=self.reach.get(lane, 0),
        )
        if self.queue.enqueue(one, self.now) is None:
            limits = self.queue.settings
            patience_s = limits.patience * max(one.work_s, one.objective_s)
            hold_s = min(limits.max_hold_s, max(limits.min_hold_s, patience_s))
            self.rules.add(one, one.arrival_s + hold_s)
            self.open_ids.add(str(one.id))
        self.settle_evictions()

    def settle_evictions(self) -> None:
        """Remove requests from the list that were evicted outside of a dispatch."""
        for one, verdict in self.queue._verdicts:
            assert isinstance(verdict, RequestError)
            self.rules.take(one)

    def go(self) -> None:
        if self.rng.random() < 0.5 and self.rules.waiting:
            one, _ = self.rng.choice(self.rules.waiting)
            assert self.queue.cancel(one.id)
            self.rules.take(one)
            self.open_ids.remove(str(one.id))

    def dispatch(self) -> None:
        room = {(lane, kind): self.rng.randint(0, 3) for lane in "xy" for kind in (False, True)}
        closed: set[str] = set()
        closed_to_longs: set[str] = set()
        for one, expires_s in list(self.rules.waiting):
            if expires_s <= self.now:
                self.rules.take(one)

        def admit(one: Item, shorts_wait: bool) -> str | None:
            lane = one.lane
            assert lane not in closed
            assert not (one.is_long and lane in closed_to_longs)
            others = [o for o, _ in self.rules.waiting if not o.is_long and o.id != one.id]
            assert shorts_wait == bool(others)
            may = lane not in closed_to_longs
            for band in (1, 0):
                allowed = self.rules.may_be_next(band, lane, self.now, long_may_go=may)
                if allowed:
                    break
            assert one.band == band
            assert str(one.id) in allowed
            if not room[lane, one.is_long]:
                (closed_to_longs if one.is_long else closed).add(lane)
                return None
            room[lane, one.is_long] -= 1
            self.rules.take(one, admitted=True)
            return "endpoint"

        for one, _ in self.queue.dispatch(self.now, admit, slot_of=lambda _: 1):
            self.open_ids.remove(str(one.id))  # fails at a second verdict on one request
        for one, _ in self.rules.waiting:
            assert one.lane in closed or (one.is_long and one.lane in closed_to_longs)

    def check(self) -> None:
        waiting = [one for one, _ in self.rules.waiting]
        assert self.queue.waiting == len(waiting) <= LIMITS.max_waiting
        assert self.queue.held_bytes == sum(one.body_bytes for one in waiting)
        assert self.queue.held_bytes <= LIMITS.max_held_bytes
        wakeup_s = self.queue.next_wakeup_s(self.now)
        if self.queue._verdicts:
            assert wakeup_s == 0.0
        elif waiting:
            first = min(expires_s for _, expires_s in self.rules.waiting)
            assert wakeup_s is not None
            assert abs(wakeup_s - max(0.0, first - self.now)) < 1e-9


@settings(max_examples=examples(120))
@given(seed=st.integers(0, 2**32), overlap=st.booleans())
def test_every_choice_follows_the_rules(seed, overlap):
    life = Life(seed, overlap=overlap)
    for _ in range(80):
        step = life.rng.random()
        if step < 0.55:
            life.come()
        elif step < 0.65:
            life.go()
        elif step < 0.9:
            life.dispatch()
        else:
            life.now += life.rng.uniform(0.0, 3.0)
        life.check()
    life.queue.dispatch(life.now + 1e6, lambda *_: None)
    while life.queue.waiting:
        for one, _ in life.queue.dispatch(life.now + 1e6, lambda one, _shorts: one.id):
            life.open_ids.discard(str(one.id))
    assert life.queue.waiting == 0


class Afresh(Queue[str]):
    """A queue that looks up each time who is next in a lane."""

    def _before(self, band, *rest):
        band.heads.clear()
        return super()._before(band, *rest)


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 2**32))
def test_neither_what_the_queue_remembers_nor_slices_change_its_order(seed):
    rng, room = random.Random(seed), [0]
    kinds: tuple[type[Queue[str]], ...] = (Queue, Afresh)
    queues = [kind(FlowSettings(min_hold_s=600.0, max_hold_s=600.0)) for kind in kinds]
    reaches = [rng.randrange(1, 1 << 6) for _ in range(rng.randint(1, 12))]

    def admit(one: Item, _shorts_wait: bool) -> str | None:
        room[0] -= 1
        return "endpoint" if room[0] >= 0 and one.reach & 0b10101 else None

    for now in range(30):
        for number in range(rng.randint(0, 8)):
            lane = rng.randrange(len(reaches))
            one = Item(
                id=(now, number),
                arrival_s=now,
                objective_s=rng.uniform(1.0, 30.0),
                work_s=rng.uniform(0.1, 9.0),
                tokens=rng.randint(1, 500),
                body_bytes=1,
                is_long=rng.random() < 0.3,
                tenant=rng.choice("abcd"),
                lane=str(lane),
                reach=reaches[lane],
            )
            assert all(queue.enqueue(one, now) is None for queue in queues)
        most = rng.randint(0, 9)
        sent: list[list[object]] = [[], []]
        for queue, ids in zip(queues, sent, strict=True):
            room[0] = most
            ids += [one.id for one, _ in queue.dispatch(now, admit, slot_of=lambda _: 0)]
        assert sent[0] == sent[1]
    sent = [[], []]
    for late in (False, True):
        while queues[late].waiting:
            verdicts = queues[late].dispatch(31.0, lambda *_: "", is_late=lambda late=late: late)
            assert len(verdicts) == 1 or not late
            sent[late] += [one.id for one, _ in verdicts]
    assert sent[0] == sent[1]

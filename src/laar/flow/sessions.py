"""Sessions, and the room that their contexts take in the engines' caches.

Between two turns, a session's context stays in its endpoint's cache until others need the room:
engines evict the least recently used. Once the contexts of all sessions exceed the caches, each
turn evicts one that will soon be needed again, and all of them are prefilled over and over. It is
then better to hold back turns whose contexts have no place, that is, are not in any cache.

Room has a price. Keeping an idle session's place pays off if the session returns soon enough, but
others wait for the room meanwhile. For how many seconds a place has to be kept per return is
estimated from how long such sessions have paused before. In each of these seconds, the place saves
an equal part of the total cost of prefilling the context again; more if earlier returns show that
the session is sure to come back. A turn is held while any place that would be evicted for it saves
more, weighted by the share to be evicted, than a second of waiting costs. If few sessions return,
no place is worth keeping and no turn waits. Before anything is learned, the prior keeps a place
for about as long as prefilling it again takes: the rent-or-buy rule.

A session is known by its prompts, each of which continues the one before, and by its name, if it
has one. What a prompt continues counts more: agents give sub-agents and requests for a title the
name of the session, applications one name to all their conversations, and users go back to where
they were before an edit. A prompt that continues an earlier one, but not the latest with its name,
is a context of its own, known by its prompts alone. Other clients change the name, or leave it out:
a prompt that contains all of a context is its next turn, whatever its name. Where many new names
come with such prompts, names are ignored.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from laar.core.interfaces import View
from laar.fleet.endpoints import EndpointTable, Floats
from laar.latest import Latest, Shared
from laar.prefix.blocks import Chain
from laar.prefix.index import Cut, PrefixIndex

_AGES_S = tuple(2.0**power for power in range(9))
"""Upper bounds of the pause classes, in seconds; after four minutes, a session is assumed gone."""

_FADED = 0.998
"""Factor by which each new pause reduces the weight of earlier ones: about the last 500 matter."""

_PRIOR = 0.5
"""Prior count of pauses that ended in each class, and of those that lasted longer: it assumes that
each time a pause doubles, half of the sessions return meanwhile."""

_LIKELY = 1 / 3
"""Prompts known by their text alone that are continued, for each that leaves its cache before, from
which every such prompt is assumed to begin a session. At first, a single one is enough."""

_UNLIKELY, _LEAST_AGAIN = 8.0, 0.25
"""Prior count of a tenant's new names, and the share of them that came with a known context from
which names are ignored. Agents replace the end of their prompts in about half of their turns."""

_ACCEPTED = 0.995
"""Factor by which each turn that ends at the endpoint reduces the weight of a refusal: about the
last 200 matter. A full engine soon refuses again; a single refusal may have another cause."""

_MOST_DELAYED = 5.0
"""Maximum number of turns that an eviction is assumed to delay if the session is sure to come back:
as many as run or wait at a busy engine that prefills one prompt after another."""

_SURE_S = 32.0
"""Seconds for which a session that has returned twice is considered sure to come back. People pause
for longer. The second return must have continued the prompt, since the name may belong to an
application whose users send unrelated prompts."""

_SURE = _AGES_S.index(_SURE_S)
"""The last class of such pauses."""

_MAX_PLACES = 65_536
"""Maximum number of places (about 30 MB); beyond that, the tenant with most loses its oldest."""

_MAX_EVICTED = 65_536
"""Maximum number of evicted prompts remembered, 8 MB: for an hour at 18 a second."""

_MAX_GONE = 10_000
"""Maximum number of sessions remembered that have no place; the oldest are dropped first."""

_MAX_TENANTS = 1024
"""Maximum number of tenants whose prompts without a name are counted."""

_MAX_LEFT = 8
"""Maximum number of replaced prompts remembered for a name, the latest first."""

_LEAST_TOKENS = 16.0
"""Tokens by which a prompt has to be shorter than a context, as lengths are estimates."""

_START_BLOCKS = 16
"""Blocks by which two prompts begin alike, 1 KiB: shorter than most agents' system prompts, which a
session keeps when it is compacted, and longer than a line that all prompts of an agent share."""

_LEARNED_FOR_S = 1.0
"""Seconds between counts of the currently idle places."""

_COUNTED = 8192
"""Number of places from which a sample is counted, as counting takes a microsecond each."""


@dataclass(slots=True, eq=False)
class Place:
    """A context in an endpoint's cache.

    Args:
        key: the tenant, the model and the session's name, or else the last hash of its prompt.
        slot: the endpoint.
        tokens: its length.
        reread_s: cost of prefilling it again, in seconds.
        end: the last hash of its prompt, by which the prefix index knows it.
        blocks: number of blocks of that prompt.
        shared: tokens of it that were cached for others when it was first seen.
        busy: turns in flight.
        idle_at: when the last turn ended.
        middle: the number of blocks up to the middle of its own text, and the hash of the last one;
            0 blocks if unknown.
        start: the hash of the beginning of its prompt; 0 if unknown.
        has_returned: whether the session ever returned to a kept place.
        is_sure: whether the last return was not the first, and continued the prompt.
        left: last hashes of prompts that prompts with the same name replaced instead of continuing.
    """

    key: str
    slot: int
    tokens: float
    reread_s: float
    end: int = 0
    blocks: int = 0
    shared: float = 0.0
    busy: int = 0
    idle_at: float = 0.0
    middle: tuple[int, int] = (0, 0)
    start: int = 0
    has_returned: bool = False
    is_sure: bool = False
    left: tuple[int, ...] = ()

    def is_in(self, chain: Chain) -> bool:
        """Return whether a prompt begins with the whole context."""
        return len(chain) >= self.blocks > 0 and chain.hashes[self.blocks - 1] == self.end


class _Unnamed(NamedTuple):
    """A session that is known by its prompts alone."""

    tenant: str
    block: int  # hash of its first block that no other prompt had
    went_on: bool | None  # None if it may yet do so for the first time


class Sessions:
    """The sessions whose contexts are in an endpoint's cache, as far as the prefix index knows.

    Args:
        table: the endpoints. Those with a cache of unknown size are assumed to have room for
            everything, as are those with a slower tier behind it, from which contexts return.
        index: what each endpoint's cache holds, and what it would evict.
    """

    def __init__(self, table: EndpointTable, index: PrefixIndex) -> None:
        self._table = table
        self.index = index
        self._places: Shared[str, Place] = Shared(_MAX_PLACES + 1, tenant_of)
        self._ends: dict[tuple[int, int], Place] = {}
        """The places whose contexts the index has complete, by slot and last hash of the prompt."""
        self._named: dict[str, str] = {}
        """The keys of places with names, by the keys that they would have without one."""
        self._cut: list[tuple[Place, float | None]] = []  # evicted; the pause, if for room
        self._busy: defaultdict[int, set[Place]] = defaultdict(set)  # with turns in flight, by slot
        self._full: set[int] = set()  # endpoints that refused a turn, until another ends there
        self._refuses: dict[int, float] = {}  # 1 after a refusal; fades with each turn that ends
        self._returned = np.full(len(_AGES_S), _PRIOR)
        self._stayed = np.full(len(_AGES_S), _PRIOR)
        self._unnamed: Latest[str, tuple[float, float]] = Latest(_MAX_TENANTS)
        """By tenant, how many sessions known by their prompts alone ended, and how many went on."""
        self._last: Shared[int, _Unnamed] = Shared(_MAX_EVICTED, lambda _, last: last.tenant)
        """These sessions, by the last hash of their latest prompt; 23 MB at most."""
        self._renamed: Latest[str, tuple[float, float]] = Latest(_MAX_TENANTS)
        """By tenant, how many new names came, and how many with a known context."""
        self._keeping_s: list[float] = []
        self._learned_at = -math.inf
        self._wanted: defaultdict[int, float] = defaultdict(float)
        gone = (Shared[str, Place](_MAX_GONE, tenant_of) for _ in range(2))
        self._gone: tuple[Shared[str, Place], ...] = tuple(gone)
        """Sessions without a place: those that never returned to theirs, then the others."""
        self._several: Shared[str, bool] = Shared(_MAX_GONE, tenant_of)
        """The keys of names under which contexts that others replaced were continued."""
        self._evicted: Latest[int, int] = Latest(_MAX_EVICTED)
        """The last hashes of evicted prompts, by the hash at which another has repeated most."""
        index.on_cut = self._lost

    def __len__(self) -> int:
        self._leave()
        return len(self._places)

    def recognize(self, session: str, view: View) -> str:
        """Return the key of a prompt's context, for the calls below; empty if it is no session's.

        Args:
            session: the tenant, the model and the session's name, which may be empty.
            view: the prompt's candidates.
        """
        chain = view.chain
        if chain is None or not chain.hashes:
            return ""
        most = view.slots.item(view.cached_tokens.argmax())
        self.index.find_continued(most, chain)
        if not chain.continues:
            end = next(filter(None, map(self._evicted.get, reversed(chain.hashes))), 0)
            chain.continues, chain.own_from = 0 if end == chain.hashes[-1] else end, len(chain)
        of = self._last.get(chain.continues)
        if of is not None and (of.tenant != tenant_of(session) or of.block not in chain.hashes):
            chain.continues, chain.own_from = 0, len(chain)  # they share a system prompt, say
        return self.key(session, chain, view.tokens.item(0))

    def key(self, session: str, chain: Chain, tokens: float) -> str:
        """Return the key of the context that a prompt continues or begins; empty if unknown."""
        if not chain.hashes:
            return ""
        place, before, tenant = self._places.get(session), chain.continues, tenant_of(session)
        new, again = self._renamed.get(tenant, (_UNLIKELY, 0.0))
        mine = _by_prompt(session, before or chain.hashes[-1])
        is_first = not _name(session) or again >= _LEAST_AGAIN * new
        if before and (place is None or is_first or before != place.end):
            owner = self._places.get(self._named.get(mine, mine))
            if owner is not None and (is_first or owner.is_in(chain)):
                return owner.key
            known = any(mine in some for some in (self._places, *self._gone))
            if place is not None and (known or before in place.left):
                return mine
        if not is_first and (
            place is None
            or (before == place.end if before else not _is_shorter(tokens, place))
            or place.start in (0, _start(chain))
        ):
            return session
        ended, went_on = self._unnamed.get(tenant, (0.0, 0.0))
        return mine if before or went_on > _LIKELY * ended else ""

    def place(self, key: str) -> Place | None:
        """Return the place of a context; None if it has none."""
        return self._places.get(key)

    def prices(self, view: View, w: Floats, now: float) -> Iterator[float]:
        """Yield for each candidate the most that a second of waiting saves any session.

        Above 1, the prompt should be held; infinite if turns in flight occupy the room. `w` is the
        share of the prompts ahead that a prompt waits for, by candidate (`laar.speeds.engines`).
        """
        for leaving, waits in zip(self._leaving_at(view), w.tolist(), strict=True):
            yield self._price(leaving, waits, now)

    def wanted_tokens(self, slots: Iterable[int], now: float) -> float:
        """Return the tokens of the contexts at some endpoints that are in use or worth keeping."""
        self._keeping(now)
        return sum(self._wanted[slot] for slot in set(slots))

    def begin(
        self,
        key: str,
        chain: Chain,
        slot: int,
        tokens: float,
        found: float,
        reread_s: float,
        now: float,
    ) -> Place | None:
        """Record the context of a turn whose prompt the index has just entered; return its place.

        Pass the place to `end`. Return None if the turn could not be recognized again, if it
        exceeds the cache, or if the endpoint has room for everything. `found` are the tokens that
        it probably finds cached there.
        """
        if not key or not chain.hashes or not tokens <= self._room(slot):
            return None
        place = self._places.get(key)
        if place is not None and place.busy and _is_shorter(tokens, place):
            place.busy += 1  # in parallel with another turn
            return place
        if place is None:
            place = self._gone[False].pop(key, None) or self._gone[True].pop(key, None)
            if place is None:
                place = Place(key, slot, tokens, reread_s)
                place.has_returned = not _name(key) and chain.continues != 0
                own_from = chain.own_from if chain.continues else len(chain)
                place.shared = min(found, tokens * chain.fraction(own_from))
        else:
            self._remove(place)
            self._continue(place, chain, now)
        if place.end not in (0, chain.continues, chain.hashes[-1]):
            place.left = (place.end, *place.left)[:_MAX_LEFT]
        for end in (chain.continues, chain.hashes[-1]):
            other = self._ends.get((slot, end))
            if other is not None and other is not place and not other.busy and other.is_in(chain):
                self._forget(other)  # the index has only the later of a session and its branch
        place.end, place.blocks = chain.hashes[-1], len(chain)
        place.key = key if _name(key) else _by_prompt(key, place.end)
        place.slot, place.tokens, place.reread_s = slot, tokens, reread_s
        place.busy += 1
        place.middle, place.start = _middle(place, chain), _start(chain)
        self._enter(place)
        self._ends[slot, place.end] = place
        self._busy[slot].add(place)
        self._leave()
        if len(self._places) > _MAX_PLACES:
            self._forget(self._places[self._places.next_out])
        return place

    def count(self, session: str, key: str, chain: Chain) -> str:
        """Count a prompt that begins a session, or is its first to continue; return its new key.

        A context that is continued under a new name has that name from now on.
        """
        place, tenant, named = self._places.get(key), tenant_of(session), self._places.get(session)
        if named is not None and chain.continues != named.end:
            if key != session and chain.continues in named.left:
                self._several[session] = True
            elif key == session in self._several and not named.busy:
                self._rename(named, _by_prompt(session, named.end))
        if _name(session) and not any(session in some for some in (self._places, *self._gone)):
            new, again = self._renamed.get(tenant, (_UNLIKELY, 0.0))
            goes_on = place is not None and place.is_in(chain)
            if goes_on or not chain.continues:  # else it may have been evicted
                self._renamed[tenant] = new * _FADED + 1.0, again * _FADED + goes_on
            if goes_on and place is not None:
                self._rename(place, session)
                return session
        if not chain.hashes or _name(key):
            return key
        of, before = self._last.pop(chain.continues, None), chain.continues
        had = None if of is None else of.went_on
        # At first, to repeat most of a prompt may only be to begin alike.
        goes_on = before != 0 and (of is None or had is True or before in chain.hashes)
        if goes_on and not had:
            ended, went_on = self._unnamed.get(tenant, (0.0, 0.0))
            ended -= had is False  # it had only left its cache
            self._unnamed[tenant] = max(0.0, ended * _FADED), went_on * _FADED + 1.0
        at = min(chain.own_from if of is None and before else chain.held, len(chain) - 1)
        block = of.block if of is not None and goes_on else chain.hashes[at]
        self._last[chain.hashes[-1]] = _Unnamed(tenant, block, goes_on or None)
        return key

    def refused(self, place: Place) -> None:
        """Handle the end of a turn that its endpoint refused: it took no room."""
        self._released(place)
        if not place.busy and self._places.get(place.key) is place:
            self._forget(place)

    def full(self, slot: int) -> None:
        """Handle a refusal for lack of room; none is left until a turn in flight there ends.

        The engine's cache also contains text that is unknown here, such as answers.
        """
        self._refuses[slot] = 1.0
        if self._busy[slot]:
            self._full.add(slot)

    def end(self, place: Place, now: float) -> None:
        """Handle the end of a turn.

        Its place is forgotten if the index has dropped its context meanwhile, or has it as that of
        another session with the same prompt.
        """
        self._released(place)
        place.idle_at = now
        if self._places.get(place.key) is place:
            self._places.move_to_end(place.key)
            if not (place.busy or self._ends.get((place.slot, place.end)) is place):
                self._forget(place)
            self._full.discard(place.slot)
            if place.slot in self._refuses:
                self._refuses[place.slot] *= _ACCEPTED

    def shown(self, now: float, most: int) -> list[dict[str, object]]:
        """Return at most `most` places for display, next to be evicted first."""
        self._leave()
        return [
            {
                "session": _name(place.key),
                "endpoint": self._table.address(place.slot),
                "tokens": round(place.tokens),
                "busy": place.busy,
                "idle_s": 0.0 if place.busy else round(now - place.idle_at, 3),
                "reread_s": round(place.reread_s, 3),
            }
            for place in islice(self._places.values(), most)
        ]

    def drop(self, slot: int) -> None:
        """Forget an endpoint that was removed; the index reports the other contexts there."""
        for place in self._busy.pop(slot, ()):
            self._ends.pop((slot, place.end), None)
        self._full.discard(slot)
        self._refuses.pop(slot, None)

    def _room(self, slot: int) -> float:
        """Return an endpoint's cache size in tokens; NaN if unknown or backed by a slower tier."""
        return math.nan if self._table.has_tiers[slot] else self._table.capacity_tokens.item(slot)

    def _continue(self, place: Place, chain: Chain, now: float) -> None:
        """Record on a place that a turn returned to it."""
        if not place.busy:
            self._learn(now - place.idle_at, returned=True)
            place.is_sure = place.has_returned and _continues(place, chain)
            place.has_returned = True

    def _lost(self, cut: Cut) -> None:
        """Handle the index's report that the end of a prompt has left a cache."""
        if cut.for_room:
            self._evicted[cut.most] = cut.end
            if (of := self._last.get(cut.end)) is not None and of.went_on is None:
                self._last[cut.end] = of._replace(went_on=False)
                ended, went_on = self._unnamed.get(of.tenant, (0.0, 0.0))
                self._unnamed[of.tenant] = ended * _FADED + 1.0, went_on * _FADED
        place = self._ends.get((cut.slot, cut.end))
        if place is None or (place.busy and cut.for_room):  # its turn puts it back at the end
            return
        del self._ends[cut.slot, cut.end]
        if cut.rest and not cut.for_room:  # a turn failed; the one before did not
            self._named.pop(_by_prompt(place.key, place.end), None)
            place.end = cut.rest
            self._ends[cut.slot, cut.rest] = place
        else:  # only note it, as a turn that continues it may be about to begin
            pause_s = self.index.now - place.idle_at if cut.for_room else None
            self._cut.append((place, pause_s))

    def _leave(self) -> None:
        """Forget the idle places whose contexts have left their caches."""
        while self._cut:
            place, pause_s = self._cut.pop()
            is_there = place.busy or self._ends.get((place.slot, place.end)) is place
            if is_there or self._places.get(place.key) is not place:
                continue
            self._forget(place)
            if pause_s is not None:
                self._learn(pause_s, returned=False)
        # The index does not report the eviction of a prompt that was part of another.
        while (first := next(iter(self._places.values()), None)) is not None and (
            not first.busy and first.idle_at < self.index.oldest_at.item(first.slot)
        ):
            self._forget(first)

    def _released(self, place: Place) -> None:
        place.busy -= 1
        if not place.busy:
            self._rests(place)

    def _rests(self, place: Place) -> None:
        self._busy[place.slot].discard(place)
        if not self._busy[place.slot]:
            self._full.discard(place.slot)

    def _remove(self, place: Place) -> None:
        del self._places[place.key]
        self._named.pop(_by_prompt(place.key, place.end), None)
        if self._ends.get((place.slot, place.end)) is place:
            del self._ends[place.slot, place.end]
        self._rests(place)

    def _rename(self, place: Place, key: str) -> None:
        del self._places[place.key]
        self._named.pop(_by_prompt(key, place.end), None)
        place.key = key
        self._enter(place)

    def _enter(self, place: Place) -> None:
        """Keep a place under its key, instead of another with the same prompt."""
        if (same := self._places.get(place.key)) is not None:
            self._forget(same)
        self._places[place.key] = place
        if _name(place.key):
            self._named[_by_prompt(place.key, place.end)] = place.key

    def _forget(self, place: Place) -> None:
        """Remove a place, but remember its session, which may come back."""
        self._remove(place)
        self._gone[place.has_returned][place.key] = place

    def _leaving_at(self, view: View) -> Iterator[list[tuple[Place, float]] | None]:
        """Yield the places that each candidate would evict for the prompt, and the share of each.

        Yield None if turns in flight fill the cache.
        """
        self._leave()
        index, chain = self.index, view.chain
        of = view.slots.tolist(), view.tokens.tolist(), view.cached_tokens.tolist()
        for slot, tokens, cached in zip(*of, strict=True):
            # Turns in flight pin the tokens that only they use.
            pinned = sum(max(0.0, place.tokens - place.shared) for place in self._busy[slot])
            if chain is None or not tokens <= self._room(slot):
                yield []
            elif slot in self._full or pinned + tokens - cached > self._room(slot):
                yield None
            else:
                missing = index.missing_bytes(
                    slot, chain.total_bytes * (1.0 - cached / max(tokens, 1.0))
                )
                leaving = []
                for end, size in index.oldest(slot, chain) if missing > 0.0 else ():
                    place = self._ends.get((slot, end))
                    if place is None:
                        missing -= size
                    elif not place.busy:
                        leaving.append((place, min(1.0, missing / size)))
                        missing -= size
                    if missing <= 0.0:
                        break
                yield leaving if missing <= 0.0 else None

    def _price(self, leaving: list[tuple[Place, float]] | None, waits: float, now: float) -> float:
        if leaving is None:
            return math.inf
        if not leaving:
            return 0.0
        slot, keeping_s, price = leaving[0][0].slot, self._keeping(now), 0.0
        # In a full cache, a returning context displaces another one. That delays others
        # where prefills are sequential, and causes refusals where engines refuse.
        sequential = min(1.0, waits)
        usual = 1.0 + max(sequential, self._refuses.get(slot, 0.0))
        # The turns in flight there, and one that arrives during the prefill.
        delayed = min(_MOST_DELAYED, 1.0 + self._table.in_flight.item(slot))
        sure = usual * (1.0 + sequential * delayed)
        for place, share in leaving:
            at = bisect_left(_AGES_S, now - place.idle_at)
            factor = sure if place.is_sure and at <= _SURE else usual
            price = max(price, share * place.reread_s * factor / keeping_s[at])
        return price

    def _keeping(self, now: float) -> list[float]:
        """Return the seconds to keep a place per return, by the class of the pause so far."""
        if now < self._learned_at + _LEARNED_FOR_S:
            return self._keeping_s
        step = 1 + len(self._places) // _COUNTED
        some = islice(self._places.values(), 0, None, step)
        ages_s = np.sort([now - place.idle_at for place in some if not place.busy])
        # Number of places that have been idle for longer than each class.
        still = step * (len(ages_s) - np.searchsorted(ages_s, _AGES_S))
        chances = self._returned / (self._returned + self._stayed + still)
        keeping_s = []
        for at in range(len(_AGES_S)):
            stays, seconds, least_s = 1.0, 0.0, math.inf
            for chance, age_s in zip(chances[at:].tolist(), _AGES_S[at:], strict=True):
                seconds += stays * max(1.0, 0.5 * age_s) * (1 - 0.5 * chance)  # width of the class
                stays *= 1 - chance
                if stays < 1.0:
                    least_s = min(least_s, seconds / (1.0 - stays))
            keeping_s.append(least_s)
        self._learned_at, self._keeping_s = now, [*keeping_s, math.inf]  # the session is gone
        self._wanted.clear()
        for place in islice(self._places.values(), 0, None, step):
            at = 0 if place.busy else bisect_left(_AGES_S, now - place.idle_at)
            if place.busy or place.reread_s > self._keeping_s[at]:
                self._wanted[place.slot] += step * (place.tokens - place.shared)
        return self._keeping_s

    def _learn(self, pause_s: float, *, returned: bool) -> None:
        """Count a pause that has ended, or one that has lasted this long so far."""
        at = bisect_left(_AGES_S, pause_s)
        self._stayed[:at] = self._stayed[:at] * _FADED + 1.0
        self._returned[at : at + 1] = self._returned[at : at + 1] * _FADED + returned


_BY_PROMPT = "\1"
"""Begins the last part of a key that is no name: names are printable."""


def _name(key: str) -> str:
    """Return the name in a session's key; empty if it is known by its prompts only."""
    name = key.rpartition("\0")[2]
    return "" if name.startswith(_BY_PROMPT) else name


def tenant_of(key: str, _of: object = None) -> str:
    """Return the tenant in a session's key."""
    return key.partition("\0")[0]


def _by_prompt(key: str, end: int) -> str:
    """Return the key of a session of the same tenant and model that is known by its prompt."""
    return key.rpartition("\0")[0] + f"\0{_BY_PROMPT}{end:x}"


def _middle(place: Place, chain: Chain) -> tuple[int, int]:
    """Return the value of `Place.middle` after a turn with this prompt."""
    shared = min(1.0, place.shared / max(1.0, place.tokens))
    blocks = int(len(chain) * (1.0 + shared) / 2.0)
    return (blocks, chain.hashes[blocks - 1]) if blocks else (0, 0)


def _start(chain: Chain) -> int:
    """Return the value of `Place.start` after a turn with this prompt."""
    return chain.hashes[min(len(chain), _START_BLOCKS) - 1]


def _is_shorter(tokens: float, place: Place) -> bool:
    """Return whether a prompt is shorter than the context that has the place."""
    return tokens + _LEAST_TOKENS < place.tokens


def _continues(place: Place, chain: Chain) -> bool:
    """Return whether a prompt repeats half of a place's own text; true if the text is unknown."""
    blocks, block = place.middle
    if not blocks:
        return True
    return len(chain) >= blocks and chain.hashes[blocks - 1] == block

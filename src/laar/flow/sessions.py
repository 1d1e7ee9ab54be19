"""Sessions, and the room that their contexts take in the engines' caches.

Between two turns a session's context stays in the cache of its endpoint until others need the room:
engines evict what was used least recently. Once the contexts of all sessions are more than the
caches hold, each turn evicts one that is about to be asked for again, and all of them are read
again and again. Then a turn whose context has no place is better held, before it begins.

Room has a price: the seconds that it costs all to read an evicted context again, times the chance
that its session returns. An idle session keeps its place for as many seconds as that price and
no longer. That is the rule for renting or buying: as long as its room was kept for nothing, others
have waited for it, and whatever the pause turns out to be, it costs at most twice the least.
How long sessions pause is learned, and so is how many never return.

A session is known by its name, or else by its prompt, which begins with that of the turn before.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from laar.core.endpoints import EndpointTable, Mask
from laar.core.interfaces import View
from laar.prefix import Chain

_AGES_S = tuple(2.0**power for power in range(9))
"""Classes of pauses; who pauses for longer than four minutes has gone."""

_FADED = 0.998
"""Weight of the earlier pauses with each new one: some 500 count."""

_DOUBT = 0.1  # pauses that are taken to have been longer, in each class: few prove nothing


@dataclass(slots=True, eq=False)
class Place:
    """A context in an endpoint's cache.

    Args:
        key: the session's name, or the last hash of its prompt.
        slot: the endpoint.
        tokens: its length.
        reread_s: seconds that it costs all to read it again.
        busy: turns in flight.
        idle_at: when the last of them ended.
    """

    key: Hashable
    slot: int
    tokens: float
    reread_s: float
    busy: int = 0
    idle_at: float = 0.0


@dataclass(slots=True)
class _Cache:
    """The places of one endpoint, the least recent first, and their tokens."""

    places: OrderedDict[Hashable, Place] = field(default_factory=OrderedDict)
    tokens: float = 0.0


class Sessions:
    """The sessions whose contexts have a place.

    Args:
        table: the endpoints; those whose cache is of unknown size have room for all.
    """

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._places: dict[Hashable, Place] = {}
        self._caches: dict[int, _Cache] = {}
        self._returned = [1.0] * len(_AGES_S)
        self._stayed = [0.0] * len(_AGES_S)

    def __len__(self) -> int:
        return len(self._places)

    def place(self, session: str, chain: Chain | None) -> Place | None:
        """Return the place of a session's context; None if it has none."""
        if session or chain is None:
            return self._places.get(session)
        known = (self._places.get(block) for block in reversed(chain.hashes))
        return next((place for place in known if place is not None), None)

    def room(self, view: View, now: float) -> Mask:
        """Return where a context that has no place yet finds one for nothing."""
        return np.array([price_s <= 0.0 for price_s in self.prices_s(view, now)], np.bool_)

    def prices_s(self, view: View, now: float) -> list[float]:
        """Return what room for the prompt costs the others at each candidate, beyond their rent."""
        candidates = zip(view.slots.tolist(), view.tokens.tolist(), strict=True)
        return [self._price_s(slot, tokens, now) for slot, tokens in candidates]

    def begin(
        self,
        session: str,
        chain: Chain | None,
        slot: int,
        tokens: float,
        reread_s: float,
        now: float,
    ) -> Place | None:
        """Take a turn that is sent, and its context; return its place for `end`.

        Contexts that have no room beside it leave, the least recent first. None for a turn of
        which nothing is known that would find it again.
        """
        room = self._table.capacity_tokens.item(slot)
        key: Hashable = session
        if not session:
            if chain is None or not chain.hashes:
                return None
            key = chain.hashes[-1]
        if math.isnan(room):
            return None
        own = self.place(session, chain)
        if own is None:
            own = Place(key, slot, tokens, reread_s)
        else:
            self._remove(own)
            if not own.busy:
                self._learn(now - own.idle_at, returned=True)
            own.key, own.slot, own.tokens, own.reread_s = key, slot, tokens, reread_s
        own.busy += 1
        cache = self._caches.setdefault(slot, _Cache())
        for place in tuple(cache.places.values()):
            if cache.tokens + tokens <= room:
                break
            if not place.busy:
                self._remove(place)
                self._learn(now - place.idle_at, returned=False)
        self._places[key] = cache.places[key] = own
        cache.tokens += tokens
        return own

    def end(self, place: Place, now: float) -> None:
        """Take the end of a turn."""
        place.busy -= 1
        place.idle_at = now
        if self._places.get(place.key) is place:
            self._caches[place.slot].places.move_to_end(place.key)

    def shown(self, now: float, most: int) -> list[dict[str, object]]:
        """Return `most` of the places for a reader, those that leave first before the others."""
        return [
            {
                "session": place.key if isinstance(place.key, str) else "",
                "endpoint": self._table.address(place.slot),
                "tokens": round(place.tokens),
                "busy": place.busy,
                "idle_s": 0.0 if place.busy else round(now - place.idle_at, 3),
                "price_s": round(self._worth_s(place, now), 3),
            }
            for cache in self._caches.values()
            for place in islice(cache.places.values(), most)
        ][:most]

    def drop(self, slot: int) -> None:
        """Forget an endpoint: it left."""
        for place in self._caches.pop(slot, _Cache()).places.values():
            del self._places[place.key]

    def _remove(self, place: Place) -> None:
        del self._places[place.key]
        cache = self._caches[place.slot]
        del cache.places[place.key]
        cache.tokens = cache.tokens - place.tokens if cache.places else 0.0

    def _price_s(self, slot: int, tokens: float, now: float) -> float:
        """The price of room at an endpoint; infinite where turns in flight have it."""
        cache, room = self._caches.get(slot), self._table.capacity_tokens.item(slot)
        if cache is None or not cache.places or math.isnan(room):
            return 0.0
        missing = cache.tokens + tokens - max(room, tokens)
        price_s = 0.0
        for place in cache.places.values():
            if missing <= 0.0:
                break
            if not place.busy:
                price_s += max(0.0, self._worth_s(place, now) - (now - place.idle_at))
                missing -= place.tokens
        return price_s if missing <= 0.0 else math.inf

    def _worth_s(self, place: Place, now: float) -> float:
        """The seconds that it costs all if a context leaves now."""
        return self._returns(0.0 if place.busy else now - place.idle_at) * place.reread_s

    def _returns(self, idle_s: float) -> float:
        """The chance that a session returns that has been idle for so long."""
        stays = 1.0
        for age_s, returned, stayed in zip(_AGES_S, self._returned, self._stayed, strict=True):
            if age_s > idle_s:
                stays *= (stayed + _DOUBT) / (returned + stayed + _DOUBT)
        return 1.0 - stays

    def _learn(self, pause_s: float, *, returned: bool) -> None:
        """Count a pause that ended, or one that lasted so long and may go on."""
        for at, age_s in enumerate(_AGES_S):
            if pause_s <= age_s:
                self._returned[at] = self._returned[at] * _FADED + returned
                break
            self._stayed[at] = self._stayed[at] * _FADED + 1.0

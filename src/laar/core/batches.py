"""How many requests each engine runs at once, and how much of its cache they take.

Both as far as its readings show.
"""

from __future__ import annotations

import math

import numpy as np

from laar.core.endpoints import EndpointTable, Floats, Slots

_FULL_SEEN = 3  # readings in a row before an engine's batch is taken to be full
_FULL_FOR_S = 60.0  # and how long it counts as full after the last such reading
_LEAST_SLOTS = 4.0
_TELLING = 0.05  # of a cache: shorter prompts show nothing about the text that they share
_LEARNED = 0.05  # weight of a reading
_MOST_EACH = 1.5  # answers take room beside their prompts

_COUNTED = ("_read_at", "_most", "_full", "_full_at", "_done_s")


class Batches:
    """The size of each engine's batch, by slot: `most_at_once`, infinite where it was never full.

    An engine is full when requests wait while as many run as ever did, reading after reading,
    although prompts were read between them: each that ended made place for one. Where they wait for
    a long prompt, none is read, and the number that runs goes down. Too small a size corrects
    itself: an endpoint with less traffic is not seen to be full, and the size is forgotten.

    `each` is how many tokens of a cache one token of the prompts in flight takes: less than one
    where they share beginnings.

    Args:
        table: the endpoints.
    """

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self.each = 1.0
        self._readings = -1
        self.most_at_once: Floats = np.empty(0)
        self._read_at: Floats = np.empty(0)
        self._most: Floats = np.empty(0)
        self._full: Floats = np.empty(0)
        self._full_at: Floats = np.empty(0)
        self._done_s: Floats = np.empty(0)

    def grow(self, size: int) -> None:
        """Follow the table's size."""
        before = len(self.most_at_once)
        room = np.full(size, math.inf)
        room[:before] = self.most_at_once
        self.most_at_once = room
        for name in _COUNTED:
            grown = np.zeros(size)
            grown[:before] = getattr(self, name)
            setattr(self, name, grown)

    def look(self, done_s: Floats) -> bool:
        """Read the new readings; return whether a batch's size changed.

        `done_s` are the seconds of prompts that each endpoint has read so far.
        """
        table, changed = self._table, False
        if table.readings == self._readings:
            return False
        self._readings = table.readings
        fresh = np.flatnonzero(table.read_at > self._read_at)  # never read is NaN, not above
        self._read_at[fresh] = table.read_at[fresh]
        self._learn_each(fresh)
        for slot in fresh[table.running[fresh] >= _LEAST_SLOTS].tolist():
            running = float(table.running[slot])
            if running > self._most[slot]:
                self._most[slot], self._full[slot] = running, 0.0
                self.most_at_once[slot] = math.inf
                changed = True
            elif table.waiting[slot] > 0.0 and running < self._most[slot]:
                self._full[slot] = 0.0
            elif table.waiting[slot] > 0.0 and done_s[slot] > self._done_s[slot]:
                self._full[slot] += 1.0
                if self._full[slot] >= _FULL_SEEN:
                    self.most_at_once[slot] = running
                    self._full_at[slot] = table.read_at[slot]
                    changed = True
        self._done_s[fresh] = done_s[fresh]
        past = fresh[table.read_at[fresh] - self._full_at[fresh] > _FULL_FOR_S]
        past = past[np.isfinite(self.most_at_once[past])]
        self.most_at_once[past], self._full[past] = math.inf, 0.0
        return changed or len(past) > 0

    def _learn_each(self, fresh: Slots) -> None:
        """Learn from engines where nothing waits: all requests in flight are in the cache."""
        table = self._table
        sent, room = table.queued_tokens[fresh], table.capacity_tokens[fresh]
        telling = (table.waiting[fresh] == 0.0) & (sent > _TELLING * room)
        if telling.any():
            taken = table.kv_usage[fresh] * room / np.maximum(sent, 1.0)
            seen = np.minimum(taken[telling & np.isfinite(taken)], _MOST_EACH)
            for share in seen.tolist():
                self.each += _LEARNED * (share - self.each)

    def drop(self, slot: int) -> None:
        """Forget a slot: its endpoint left, or its engine restarted."""
        for name in _COUNTED:
            getattr(self, name)[slot] = 0.0
        self.most_at_once[slot] = math.inf

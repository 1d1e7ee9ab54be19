"""How many requests each engine runs concurrently, and how much of its KV cache they take.

Both are inferred from its readings.
"""

from __future__ import annotations

import math

import numpy as np

from laar.fleet.endpoints import EndpointTable, Floats, Slots

_FULL_SEEN = 3  # readings as described in `Batches` before a batch is considered full
_FULL_FOR_S = 60.0  # how long it is considered full after the last such reading
_LEAST_SLOTS = 4.0
_TELLING = 0.05  # minimum share of the cache: fewer tokens do not show how much is shared
_LEARNED = 0.05  # weight of a new reading in `cache_tokens_per_token`
_MAX_PER_TOKEN = 1.5  # cap on `cache_tokens_per_token`; above 1 because answers take space too


class Batches:
    """The batch size of each engine, `most_at_once` by slot; infinite if it was not full recently.

    An engine is full after three readings in which requests wait although it runs as many as it
    ever did, and more prompts have been prefilled each time: a request starts only when another
    ends. Behind a long prompt, none would be prefilled and fewer would run, which restarts the
    count. A size that is too small corrects itself: it is dropped once traffic falls.

    `cache_tokens_per_token` is the number of cache tokens that one prompt token in flight takes:
    less than one if prompts share prefixes.

    Args:
        table: the endpoints.
    """

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self.cache_tokens_per_token = 1.0
        self.readings = -1
        """The table's count of readings when `look` was last called."""
        self.most_at_once: Floats = np.empty(0)
        self._columns: Floats = np.empty((5, 0))

    def grow(self, size: int) -> None:
        """Grow to the table's size."""
        more = size - len(self.most_at_once)
        self.most_at_once = np.pad(self.most_at_once, (0, more), constant_values=math.inf)
        self._columns = np.pad(self._columns, ((0, 0), (0, more)))
        self._read_at, self._most, self._full, self._full_at, self._done_s = self._columns

    def look(self, done_s: Floats) -> bool:
        """Process the latest readings; return whether a batch size changed.

        `done_s` is the total prefill work that each endpoint has completed, in seconds.
        """
        table, changed = self._table, False
        self.readings = table.readings
        fresh = np.flatnonzero(table.read_at > self._read_at)  # NaN (never read) compares false
        self._read_at[fresh] = table.read_at[fresh]
        self._learn_per_token(fresh)
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

    def _learn_per_token(self, fresh: Slots) -> None:
        """Learn from engines where no request is waiting, so all in flight are in the cache."""
        table = self._table
        sent, room = table.queued_tokens[fresh], table.capacity_tokens[fresh]
        telling = (table.waiting[fresh] == 0.0) & (sent > _TELLING * room)
        if telling.any():
            taken = table.kv_usage[fresh] * room / np.maximum(sent, 1.0)
            seen = np.minimum(taken[telling & np.isfinite(taken)], _MAX_PER_TOKEN)
            for share in seen.tolist():
                self.cache_tokens_per_token += _LEARNED * (share - self.cache_tokens_per_token)

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed or whose engine restarted."""
        self._columns[:, slot] = 0.0
        self.most_at_once[slot] = math.inf

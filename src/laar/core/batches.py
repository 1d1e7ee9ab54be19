"""How many requests each engine runs at once, as far as its readings show."""

from __future__ import annotations

import math

import numpy as np

from laar.core.endpoints import EndpointTable, Floats

__all__ = ["Batches"]

_FULL_SEEN = 3  # readings in a row before an engine's batch is taken to be full
_LEAST_SLOTS = 4.0


class Batches:
    """The size of each engine's batch, by slot: `most_at_once`, infinite where it was never full.

    An engine is full when requests wait while as many run as ever did, reading after reading. Where
    they wait for prompts ahead of them, the number that runs goes up and down.

    Args:
        table: the endpoints.
    """

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._readings = -1
        self.most_at_once: Floats = np.empty(0)
        self._read_at: Floats = np.empty(0)
        self._most: Floats = np.empty(0)
        self._full: Floats = np.empty(0)

    def grow(self, size: int) -> None:
        """Follows the table's size."""
        before = len(self.most_at_once)
        room, read_at = np.full(size, math.inf), np.zeros(size)
        most, full = np.zeros(size), np.zeros(size)
        room[:before], read_at[:before] = self.most_at_once, self._read_at
        most[:before], full[:before] = self._most, self._full
        self.most_at_once, self._read_at, self._most, self._full = room, read_at, most, full

    def look(self) -> bool:
        """Takes in new readings; true when a batch's size changed."""
        table, changed = self._table, False
        if table.readings == self._readings:
            return False
        self._readings = table.readings
        fresh = np.flatnonzero(table.read_at > self._read_at)  # never read is NaN, not above
        self._read_at[fresh] = table.read_at[fresh]
        for slot in fresh[table.running[fresh] >= _LEAST_SLOTS].tolist():
            running = float(table.running[slot])
            if running > self._most[slot]:
                self._most[slot], self._full[slot] = running, 0.0
                self.most_at_once[slot] = math.inf
                changed = True
            elif table.waiting[slot] > 0.0:
                self._full[slot] = self._full[slot] + 1.0 if running == self._most[slot] else 0.0
                if self._full[slot] >= _FULL_SEEN:
                    self.most_at_once[slot] = running
                    changed = True
        return changed

    def drop(self, slot: int) -> None:
        """Forgets a slot: its endpoint left."""
        self._read_at[slot] = self._most[slot] = self._full[slot] = 0.0
        self.most_at_once[slot] = math.inf

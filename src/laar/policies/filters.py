"""A filter by label, for composed policies."""

from __future__ import annotations

import numpy as np

from laar.core.endpoints import EndpointTable, Mask
from laar.core.interfaces import View


class Label:
    """Keeps the endpoints with a label. llm-d's `label-selector-filter`, for one label.

    Args:
        label: its key.
        value: its value; empty for any.
    """

    def __init__(self, *, label: str, value: str = "") -> None:
        self._label, self._value = label, value
        self._has: Mask = np.zeros(0, np.bool_)
        self._known: tuple[EndpointTable, int] | None = None

    def keep(self, view: View) -> Mask:
        """Looked up again only when the membership changes."""
        table = view.table
        if self._known != (table, table.version):
            self._has = np.zeros(table.capacity, np.bool_)
            for slot in table.active.tolist():
                found = table.spec(slot).labels.get(self._label)
                self._has[slot] = found is not None and self._value in ("", found)
            self._known = (table, table.version)
        kept: Mask = self._has[view.slots]
        return kept

"""Comparison of an endpoint with its siblings: whether it behaves so alone, or all of its model.

A 401 may be a client's wrong key or the one endpoint that was started with a key; an answer that
ends in the middle may be a client that went away or an engine that died. The behaviour of siblings
distinguishes them.
"""

from __future__ import annotations

from collections.abc import Iterable

_LEAST = 2.7
"""Times it has to happen before it is a habit: three, a little while ago."""
_SUSPECT = 1.8
"""Times after which an endpoint had better wait until its siblings were heard."""
_HABIT = 0.7
"""Share from which an endpoint does it always; less, and it is some of the clients."""
_ROW = 4
"""So often in a row is a change of habit."""
_QUIET_S = 30.0
_RARE = 0.2
"""Share below which a sibling does not do it."""
_GRAIN_S = 0.5
_WINDOW = 12.0
_EVIDENCE = 3.5
"""Outcomes of a sibling that are evidence: four, a little while ago."""


class Share:
    """How often something happened recently, with exponential decay."""

    __slots__ = ("_at", "_half_life_s", "last_at", "no", "row", "row_at", "yes")

    def __init__(self, half_life_s: float) -> None:
        self.yes = 0.0
        self.no = 0.0
        self.row = 0
        """How often in a row, to this moment."""
        self.row_at = float("-inf")
        """Time at which that row began."""
        self.last_at = float("-inf")
        """Time of the last event."""
        self._at = 0.0
        self._half_life_s = half_life_s

    def add(self, now: float, *, happened: bool) -> None:
        """Counts one."""
        if now - self._at > _GRAIN_S:
            self.decay(now)
        total = self.yes + self.no
        if total >= _WINDOW:
            self.yes *= (_WINDOW - 1.0) / total
            self.no *= (_WINDOW - 1.0) / total
        if happened:
            self.yes += 1.0
            if not self.row:
                self.row_at = now
            self.row += 1
            self.last_at = now
        else:
            self.no += 1.0
            self.row = 0

    def is_evidence(self, now: float) -> bool:
        """Whether enough is known to compare with."""
        self.decay(now)
        return self.yes + self.no >= _EVIDENCE

    def is_quiet(self, now: float) -> bool:
        """Whether it hardly ever happens, as far as is known."""
        self.decay(now)
        return self.yes <= _RARE * (self.yes + self.no) and now - self.last_at > _QUIET_S

    def decay(self, now: float) -> None:
        """Lets time pass, in steps: it is called for every request."""
        elapsed = now - self._at
        if elapsed > _GRAIN_S:
            factor = 0.5 ** (elapsed / self._half_life_s)
            self.yes *= factor
            self.no *= factor
            self._at = now


def alone(own: Share, siblings: Iterable[Share], now: float) -> bool | None:
    """Whether an endpoint nearly always does a thing that some sibling hardly ever does.

    One is enough: they have the same clients.

    None where it does, and there is no evidence of its siblings yet.
    """
    own.decay(now)
    usual = own.yes >= _HABIT * (own.yes + own.no)
    habit = usual and own.yes >= _LEAST
    suspect = usual and own.yes >= _SUSPECT
    if not suspect and own.row < _ROW:
        return False
    heard = sound = others = 0
    for share in siblings:
        share.decay(now)
        others += 1
        total = share.yes + share.no
        if total >= _EVIDENCE:
            heard += 1
            # One client that is wrong again and again follows its prefix from endpoint to endpoint:
            # a row counts only while none of the others has seen the like.
            quiet = habit or now - share.last_at > _QUIET_S
            sound += quiet and share.yes < _RARE * total
    if suspect and others and not heard:
        return None
    return sound > 0 if habit else own.row >= _ROW and 2 * sound > heard

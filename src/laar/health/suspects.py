"""Find what failing requests have in common: a prefiller, a source of KV, an adapter, an API.

An attempt is a mapping of attributes to values, and either failed or not. A value is a culprit if
attempts with it fail and those without it don't, by a likelihood ratio over the recent attempts.
The value that explains most is taken first, and its attempts are put aside before the next is
sought: so a culprit does not incriminate what it happens to occur with. Where two values always
occur together, the attribute that the mappings name first is taken.

A culprit is left out of choices (`avoids`), but for a trial now and then, which clears it or
lengthens the time until the next. What an attribute means, nobody here knows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log

from laar.health.recent import likelihood

_MOST = 256
"""Attempts compared. With eight attributes, comparing them takes a millisecond."""
_RECENT_S = 60.0
_AGAIN = 16
"""Attempts compared for each failure until the next comparison, which so costs little for each."""
_LEAST = 3
"""Failures with a value, and attempts without it, that a comparison needs."""
_OFTEN, _RARELY = 0.7, 0.35
"""Least share of failures with a culprit, and most without it."""
_RAREST = 0.05
"""Least assumed share of failures without it."""
_SURE = 9.0
"""Least logarithm of the likelihood ratio, plus that of the number of values compared."""

FIRST_TRIAL_S, LONGEST_TRIAL_S = 5.0, 300.0
"""Seconds until the first trial, doubled by each that fails up to the second."""
_TRIAL_SHARE = 100
"""Attempts for each trial, unless that takes longer than `LONGEST_TRIAL_S`."""
_GONE_S = 3.0 * LONGEST_TRIAL_S
"""Seconds without an attempt after which a culprit is forgotten: nobody chooses it."""
_MOST_CULPRITS = 64

Trait = tuple[str, str]
"""An attribute and its value."""


@dataclass(slots=True)
class Culprit:
    """A value with which attempts fail.

    Args:
        failed: attempts with it that failed, other than trials.
        attempts: all attempts with it, other than trials.
        tried_at: when it was found, or last tried.
        wait_s: seconds until it may be tried again.
        passed: attempts without it since then.
        on_trial: an attempt with it was sent since then.
    """

    failed: int
    attempts: int
    tried_at: float
    wait_s: float = FIRST_TRIAL_S
    passed: int = 0
    on_trial: bool = False


class Suspects:
    """The recent attempts, and what they prove."""

    def __init__(self) -> None:
        self._attempts: deque[tuple[float, Mapping[str, str], bool]] = deque(maxlen=_MOST)
        self._waits = 0
        """Failures until the next comparison."""
        self.culprits: dict[Trait, Culprit] = {}
        self.version = 0
        """Changes with the culprits, and when one is tried."""
        self.until = float("-inf")
        """Until when attempts that don't fail matter, since others have."""

    def sent(self, shared: Mapping[str, str], now: float) -> None:
        """Record that an attempt begins: with a culprit, it is its trial."""
        for trait, culprit in self.culprits.items():
            if shared.get(trait[0]) == trait[1]:
                culprit.tried_at, culprit.passed, culprit.on_trial = now, 0, True
                self.version += 1

    def note(self, shared: Mapping[str, str], now: float, *, failed: bool) -> None:
        """Record how an attempt went, and compare it with others if it failed."""
        for trait in [*self.culprits]:
            culprit = self.culprits[trait]
            if shared.get(trait[0]) != trait[1]:
                culprit.passed += 1
                if now - culprit.tried_at > _GONE_S:
                    self._clear(trait)
            elif not culprit.on_trial:
                culprit.attempts += 1
                culprit.failed += failed
                if culprit.failed < _OFTEN * culprit.attempts:  # a find by chance
                    self._clear(trait)
            elif not failed:
                self._clear(trait)
            else:
                culprit.wait_s = min(2.0 * culprit.wait_s, LONGEST_TRIAL_S)
                culprit.on_trial = False
        self._attempts.append((now, shared, failed))
        if failed:
            self.until = now + _RECENT_S
            self._waits -= 1
            if self._waits < 0:
                self._compare(now)
                self._waits = len(self._attempts) // _AGAIN

    def avoids(self, attribute: str, value: str, now: float) -> bool:
        """Return whether an attempt should do without a value."""
        culprit = self.culprits.get((attribute, value))
        if culprit is None:
            return False
        waited_s = now - culprit.tried_at
        enough = culprit.passed >= _TRIAL_SHARE or waited_s >= LONGEST_TRIAL_S
        return not (enough and waited_s >= culprit.wait_s)

    def _clear(self, trait: Trait) -> None:
        name, value = trait
        del self.culprits[trait]
        self.version += 1
        kept = [each for each in self._attempts if each[1].get(name) != value]
        self._attempts = deque(kept, _MOST)

    def _compare(self, now: float) -> None:
        while self._attempts and self._attempts[0][0] < now - _RECENT_S:
            self._attempts.popleft()
        left = [
            (shared, failed)
            for _, shared, failed in self._attempts
            if not any(shared.get(name) == value for name, value in self.culprits)
        ]
        while (found := _worst(left)) is not None:
            trait, failed, attempts = found
            if len(self.culprits) >= _MOST_CULPRITS:
                del self.culprits[next(iter(self.culprits))]
            self.culprits[trait] = Culprit(failed, attempts, now)
            self.version += 1
            left = [each for each in left if each[0].get(trait[0]) != trait[1]]


def _worst(attempts: Iterable[tuple[Mapping[str, str], bool]]) -> tuple[Trait, int, int] | None:
    """Return the value that explains most failures, these, and its attempts; None if none does."""
    of: Counter[Trait] = Counter()
    bad: Counter[Trait] = Counter()
    total = failures = 0
    for shared, failed in attempts:
        total += 1
        failures += failed
        of.update(shared.items())
        if failed:
            bad.update(shared.items())
    values = Counter(name for name, _ in of)
    best, most = None, 0.0
    for trait, failed_with in bad.items():
        tried, others = of[trait], total - of[trait]
        share, usual = failed_with / tried, (failures - failed_with + 0.3) / (others + 1.0)
        if min(failed_with, others) < _LEAST or share < _OFTEN or usual > _RARELY:
            continue
        ratio = likelihood(failed_with, tried - failed_with, max(usual, _RAREST))
        if ratio >= _SURE + log(values[trait[0]]) and ratio > most:
            best, most = (trait, failed_with, tried), ratio
    return best

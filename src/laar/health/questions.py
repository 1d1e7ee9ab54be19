"""Questions of the picker's own: to endpoints that are out, and to those that give cause for doubt.

A client's request at an endpoint that fails may cost its client the answer, a question of the
picker costs one token. So after the first failure in a while the picker asks the endpoint at once,
and sends no requests there until it has answered. The answer settles the cases that one outcome
leaves open: whether an error was the prompt's or the engine's, whether an attempt that Envoy went
on from met a full queue, and, with the same question to a sibling, whether a 401 is about a
client's key or about this one endpoint.
"""

from __future__ import annotations

from laar.health.endpoint import Endpoint, Family
from laar.health.kinds import GOOD, USELESS, Kind, Reply
from laar.health.records import Records

RETRIED = 0.5
"""Weight of a failure that is only known by Envoy's having gone on: it may have been a 429."""
_LIGHT = 0.5
"""Least weight of an error for a question: a lighter one may be its prompt's alone, of which a tiny
question shows nothing."""
_DENIED_ROW = 2
_COMPARED = USELESS | {Kind.DENIED}
"""Kinds that count once a sibling was asked the same, and did better."""
_ASKED_FOR = _COMPARED | {Kind.STATUS, Kind.ERROR, Kind.EVENT, Kind.RETRIED, Kind.HANG}
_NO_ANSWER = frozenset((Kind.STATUS, Kind.RETRIED))
_FAILURES = frozenset((Kind.STATUS, Kind.ERROR, Kind.EVENT))


class Questions:
    """The questions that are due, and the effects of their answers.

    Attributes:
        are_asked: questions that are due get asked; without, no endpoint is suspected.
    """

    def __init__(self, records: Records) -> None:
        self.are_asked = False
        self._records = records
        self._controls: dict[int, bool] = {}
        """Siblings of an endpoint that denies, and whether their question is in flight."""

    def suspect(
        self, endpoint: Endpoint, kind: Kind, weight: float, now: float, *, excused: bool = False
    ) -> None:
        """Schedule a question to an endpoint that has just failed.

        One that is neither trusted nor `excused` gets no requests until it answers.
        """
        settings = self._records.rules.settings
        if (
            not (self.are_asked and settings.enabled and settings.probe)
            or kind not in _ASKED_FOR
            or weight < _LIGHT
            or (kind is Kind.DENIED and endpoint.denied.row < _DENIED_ROW)
            or all(other.breaker.is_out for other in endpoint.others())
        ):
            return
        is_due = endpoint.breaker.suspect(kind, now, excused=excused)
        if is_due and kind in _COMPARED and not _admitted_elsewhere(endpoint, now):
            sound = [e.slot for e in endpoint.others() if not e.breaker.is_out]
            if sound:
                self._controls.setdefault(min(sound), False)

    def drop(self, slot: int) -> None:
        """Forget a slot: its endpoint left."""
        self._controls.pop(slot, None)

    def due(self, now: float, most: int) -> list[int]:
        """Return slots to ask, a few at most; each once until `answered` gets its answer."""
        records = self._records
        found: list[int] = []
        if not records.rules.settings.enabled:
            return found
        for slot, is_asked in self._controls.items():
            if len(found) < most and not is_asked:
                self._controls[slot] = True
                found.append(slot)
        for slot in records.outliers:
            breaker = records.endpoints[slot].breaker
            if len(found) < most and breaker.probe_due(now):
                breaker.probing = True
                found.append(slot)
        return found

    def answered(
        self,
        slot: int,
        reply: Reply | None,
        now: float,
        failed: Kind | None,
        *,
        refused: bool = False,
    ) -> None:
        """Record a question's result: a reply, a failure without one, or neither if out of reach.

        `refused` if no process listens. That may be so for the picker alone, and counts only where
        a client's attempt has just failed too.
        """
        records = self._records
        was_control = self._controls.pop(slot, False)
        endpoint = records.endpoints.get(slot)
        if endpoint is None:
            return
        verdict = records.judge(endpoint, reply, now) if reply is not None else None
        is_good, breaker = verdict == GOOD, endpoint.breaker
        if is_good:
            endpoint.admitted_at = now
            endpoint.prove(now)
        if was_control:
            self._settle_denied(endpoint.family, now, admitted=is_good)
        if not breaker.probing:
            return
        records.version += 1
        if verdict in _COMPARED and breaker.kind in _COMPARED:
            self._denied_again(endpoint, now)
            return
        if verdict is Kind.FULL and reply is not None:
            if breaker.kind is Kind.RETRIED:
                breaker.forgive(RETRIED, now)
            breaker.record_full(None, reply.retry_after_s, now)
        if verdict in _FAILURES or (
            verdict in USELESS and all(e.useless.is_quiet(now) for e in endpoint.others())
        ):
            failed = Kind(verdict)
        elif refused and breaker.is_suspected and breaker.kind in _NO_ANSWER:
            failed = Kind.STATUS
        elif failed is Kind.HANG is breaker.kind and _has_got_on(endpoint):
            failed = None
        # As clients had it: for them Envoy repeats nothing once an event has come.
        weight = 0.0 if failed is breaker.kind is Kind.EVENT else 1.0
        breaker.record_probe(failed, weight, now)

    def _denied_again(self, endpoint: Endpoint, now: float) -> None:
        """Record that an endpoint which denies clients denies the picker as well.

        It is at fault where no sibling does.
        """
        breaker = endpoint.breaker
        admits = _admitted_elsewhere(endpoint, now)
        if breaker.is_suspected and not admits:
            breaker.probing = False
            breaker.refused = True
            if not self._controls:
                self._settle_denied(endpoint.family, now, admitted=False)
            return
        # A client's key may be better than none, but not where siblings ask for none.
        weight = 0.0 if admits else 2.0
        endpoint.failures[breaker.kind] += breaker.is_suspected
        breaker.record_probe(breaker.kind, weight, now)

    def _settle_denied(self, family: Family, now: float, *, admitted: bool) -> None:
        """Settle the suspicion of those that deny: they are at fault where a sibling admits."""
        for endpoint in family.members.values():
            breaker = endpoint.breaker
            if breaker.is_suspected and breaker.refused:
                endpoint.failures[breaker.kind] += admitted
                breaker.record_probe(breaker.kind if admitted else None, 0.0, now)
                self._records.version += 1


def _admitted_elsewhere(endpoint: Endpoint, now: float) -> bool:
    return any(other.admits(now) for other in endpoint.others())


def _has_got_on(endpoint: Endpoint) -> bool:
    """Return whether a suspect that does not answer is busy with something else."""
    breaker = endpoint.breaker
    return breaker.is_suspected and max(endpoint.progress_at) > breaker.suspected_at

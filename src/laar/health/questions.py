"""Probes: the picker's own requests to endpoints that are excluded or suspected.

A client's request to a failing endpoint may cost the client its answer; a probe costs a few tokens.
So after the first failure in a while the picker immediately probes the endpoint, and sends it no
requests until it has answered. The probe settles what one outcome leaves open: whether an error was
the prompt's or the engine's fault; whether an attempt that Envoy retried elsewhere met a full
queue; and, if a sibling gets the same probe, whether a 401 or a 400 is due to a client's request or
to this endpoint alone.

Probes are greedy, so an engine gives the same answer to one twice. What endpoints answered also
shows which of those that seem too fast make their answers up (`Questions.repeats`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence

from laar.health.endpoint import Family, Member
from laar.health.kinds import DULL, FAILURES, GOOD, USELESS, Kind, Reply
from laar.health.records import Records

RETRIED = 0.5
"""Weight of a failure known only because Envoy retried elsewhere: it may have been a 429."""
_DENIED_ROW = 2
_REJECTED_ROW = 4  # client errors before a probe decides, since clients may be at fault
_COMPARED = USELESS | {Kind.DENIED, Kind.REJECTED}
"""Kinds that count as failures only once a sibling has done better with the same probe."""
_NO_ANSWER = frozenset((Kind.STATUS, Kind.RETRIED))
_ASK_AGAIN_S, _TIMES = 20.0, 3
"""Seconds after which a quick endpoint is probed again, and number of answers compared."""
_BESIDE = 2  # siblings that get the same probes
_AGAIN_S = 1.0


class Questions:
    """The probes that are due, and the effects of their results.

    Attributes:
        are_asked: whether due probes are sent; if not, no endpoint is suspected.
        doubts: slots, each with a model that it may be unable to serve, until it is probed.
    """

    def __init__(self, records: Records) -> None:
        self.are_asked = False
        self.doubts: set[tuple[int, str]] = set()
        self._records = records
        self._controls: dict[int, bool] = {}
        """Endpoints probed though nothing is wrong, and whether their probe is in flight."""
        self._said: dict[int, deque[int]] = {}
        """Digests of the latest answers to the probe, by slot; 0 if it said nothing good."""
        self._said_at: dict[int, float] = {}

    @property
    def may_ask(self) -> bool:
        """Whether suspected endpoints are probed."""
        settings = self._records.rules.settings
        return self.are_asked and settings.enabled and settings.probe

    def suspect(self, endpoint: Member, kind: Kind, now: float, *, excused: bool = False) -> None:
        """Schedule a probe of an endpoint that just failed.

        Unless trusted or `excused`, the endpoint gets no requests until it answers. A probe's
        answer is too short to show whether answers are cut off.
        """
        if (
            not self.may_ask
            or kind is Kind.CUT
            or (kind is Kind.DENIED and endpoint.denied.row < _DENIED_ROW)
            or all(other.breaker.is_out for other in endpoint.others())
        ):
            return
        is_due = endpoint.breaker.suspect(kind, now, excused=excused)
        if is_due and kind in _COMPARED and not _admitted_elsewhere(endpoint, now):
            sound = [e.slot for e in endpoint.others() if not e.breaker.is_out]
            if sound:
                self._controls.setdefault(min(sound), False)

    def rejected(self, endpoint: Member, name: str, now: float) -> None:
        """Record a client error; probe the endpoint after several in a row for its main model."""
        self.failed_for(endpoint, name)
        if name == endpoint.model and endpoint.in_a_row[name] % _REJECTED_ROW == 0:
            # A client whose requests fail everywhere must not stop all requests meanwhile.
            excused = any(o.in_a_row.get(name, 0) >= _REJECTED_ROW for o in endpoint.others())
            self.suspect(endpoint, Kind.REJECTED, now, excused=excused)
            self._records.mark(endpoint)

    def failed_for(self, endpoint: Member, name: str) -> bool:
        """Record a model's failure; return whether the model, not the endpoint, may be at fault.

        The first in a row is counted against both, so occasional failures keep the price up.
        """
        endpoint.in_a_row[name] = row = endpoint.in_a_row.get(name, 0) + 1
        if name == endpoint.model or not self.may_ask:
            return False
        if row >= _REJECTED_ROW and row.bit_count() == 1:
            self.doubts.add((endpoint.slot, name))  # at 4, 8, 16 ...: clients cause streaks too
        return row > 1

    def repeats(self, endpoint: Member, siblings: Sequence[Member], now: float) -> bool:
        """Return whether an endpoint answers a probe twice alike, as far as some sibling does.

        All are probed for that, now and then. Return False until they have answered a few times.
        """
        if not self.may_ask:
            return True
        known = [self._ask(each, now) for each in (endpoint, *siblings[:_BESIDE])]
        own, theirs = known[0], known[1:]
        if len(own) < _TIMES:
            return False
        if _is_alike(own) or 0 in own:
            return True
        done = [said for said in theirs if len(said) >= _TIMES]
        return len(done) == len(theirs) and not any(_is_alike(said) for said in done)

    def _ask(self, endpoint: Member, now: float) -> Collection[int]:
        """Return what an endpoint said to the latest probes; ask it again if that is due."""
        slot = endpoint.slot
        said = self._said.setdefault(slot, deque(maxlen=_TIMES))
        if len(said) < _TIMES or now - self._said_at.get(slot, -math.inf) >= _ASK_AGAIN_S:
            self._controls.setdefault(slot, False)
        return said

    def look_after(self, slot: int, now: float) -> None:
        """Probe an endpoint that may have died, at most once a second."""
        endpoint = self._records.endpoints.get(slot)
        if endpoint is not None and self.may_ask and now - endpoint.looked_after_at >= _AGAIN_S:
            endpoint.looked_after_at = now
            self._controls.setdefault(slot, False)

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self._controls.pop(slot, None)
        self._said.pop(slot, None)
        self._said_at.pop(slot, None)

    def due(self, now: float, most: int) -> list[int]:
        """Return at most `most` slots to probe; each only once until `answered` is called."""
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
                records.version += 1  # no request may be its trial meanwhile
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
        """Record a probe's result: a reply, a failure without a reply, or neither if unreachable.

        `refused` means that no process listens, which counts only if a client's attempt has just
        failed too: perhaps only the picker cannot reach the endpoint.
        """
        records, was_control = self._records, self._controls.pop(slot, False)
        if slot in self._said:
            self._remember(slot, reply, now)
        endpoint = records.endpoints.get(slot)
        if endpoint is None:
            return
        if refused:
            records.gone(endpoint, now)
        elif reply is not None:
            endpoint.alive_at = now
        verdict, breaker = self._verdict(endpoint, reply, now), endpoint.breaker
        is_good = verdict == GOOD
        if is_good:
            endpoint.admitted_at = now
            endpoint.prove(now, endpoint.model)
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
        if verdict in FAILURES or (
            verdict in USELESS and all(e.useless.is_quiet(now) for e in endpoint.others())
        ):
            failed = Kind(verdict)
        elif refused and breaker.is_suspected and breaker.kind in _NO_ANSWER:
            failed = Kind.STATUS
        elif (
            failed is Kind.HANG is breaker.kind
            and breaker.is_suspected
            and max(endpoint.worked_at, *endpoint.progress_at) > breaker.suspected_at
        ):
            failed = None  # it is busy with other requests
        # An error event in a stream can't be retried, so it never leads to a trial with a client.
        weight = 0.0 if failed is breaker.kind is Kind.EVENT else 1.0
        breaker.record_probe(failed, weight, now)

    def _verdict(self, endpoint: Member, reply: Reply | None, now: float) -> Kind | str | None:
        """Judge a probe's answer, one that is as useless as those before included."""
        if reply is None:
            return None
        verdict, breaker = self._records.judge(endpoint, reply, now), endpoint.breaker
        if verdict is None and reply.status >= 400:
            return Kind.REJECTED
        if verdict == GOOD and breaker.kind in DULL:
            is_good = reply.seems is not Kind.REPEATED and reply.said not in endpoint.said
            return verdict if is_good else breaker.kind
        return verdict

    def _remember(self, slot: int, reply: Reply | None, now: float) -> None:
        """Remember what an endpoint said to a probe, and ask again if that was one of the first."""
        said = self._said[slot]
        said.append(reply.said if reply is not None and reply.found == GOOD else 0)
        self._said_at[slot] = now
        if len(said) < _TIMES:
            self._controls[slot] = False

    def _denied_again(self, endpoint: Member, now: float) -> None:
        """Record that an endpoint that denies clients also denies the probe.

        It is at fault if no sibling does so.
        """
        breaker = endpoint.breaker
        admits = _admitted_elsewhere(endpoint, now)
        if breaker.is_suspected and not admits:
            breaker.probing = False
            breaker.refused = True
            if not self._controls:
                self._settle_denied(endpoint.family, now, admitted=False)
            return
        # A client's key may work where the keyless probe failed, unless siblings require none.
        weight = 0.0 if admits else 2.0
        endpoint.failures[breaker.kind] += breaker.is_suspected
        breaker.record_probe(breaker.kind, weight, now)

    def _settle_denied(self, family: Family, now: float, *, admitted: bool) -> None:
        """Settle denials: endpoints that deny access are at fault if a sibling grants it."""
        for endpoint in family.members.values():
            breaker = endpoint.breaker
            if breaker.is_suspected and breaker.refused:
                endpoint.failures[breaker.kind] += admitted
                breaker.record_probe(breaker.kind if admitted else None, 0.0, now)
                self._records.version += 1


def _admitted_elsewhere(endpoint: Member, now: float) -> bool:
    return any(other.admits(now) for other in endpoint.others())


def _is_alike(said: Collection[int]) -> bool:
    return len(set(said)) < len(said)

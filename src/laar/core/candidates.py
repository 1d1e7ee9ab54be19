"""Candidates: the endpoints that the filters keep for a model name, computed once and cached.

Requests arrive far more often than readings, so a group stays valid until a reading arrives, the
endpoints or their health change, or a second has passed.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from laar.core.decision import DirectorSettings
from laar.core.filters import awake, reachable, unless_none, unsaturated
from laar.core.plugin import NO_PARTS, Parts, Plugins
from laar.errors import RequestError
from laar.fleet.away import is_away
from laar.fleet.catalog import no_such_model
from laar.fleet.endpoints import EndpointTable, Floats, Slots
from laar.fleet.roundtrip import KEPT_OPEN_S, TIE_S, distances
from laar.health import Health, Standing, standing_of
from laar.latest import Latest
from laar.request import GENERATES, Request

_MAX_GROUPS = 4096
"""Groups kept: three for each served name in each pool. Clients may choose names that an engine
loads when asked."""

MAX_AGE_S = 1.0
"""Seconds for which a group is valid without new readings, since readings go stale."""


class Variants(NamedTuple):
    """What differs in a group in which endpoints are also candidates with variants of their model.

    Args:
        plain: the group without them.
        repeating: indices, in the table's `judged`, of variants that always answer the same.
    """

    plain: Group
    repeating: Sequence[int]


@dataclass(slots=True, kw_only=True)
class Group:
    """The candidates for a model name.

    Args:
        able: endpoints that serve it.
        models: the models of `able`.
        alive: endpoints of `able` that are reachable and not down: ready now or soon.
        up: the models of `alive`.
        slots: the candidates: endpoints of `able` that the filters and health keep.
        model_id: index of each candidate's model, or its variant, in the table's `judged`.
        rtt_s: round trip to each candidate, ties taken as equal; the longest known where it is
            unknown.
        wire_s: the same for a short request, with the opening of a connection where none is open.
        at: when the group was computed.
        until: when it expires.
        readings: the table's count of readings when it was computed.
        health: health's version at that time.
        standing: the health of the candidates.
        parts: those of the plug-ins that take part in all its requests.
        generates: whether its requests are for texts; None if that is not known.
        weights: key under which the name's prefixes are cached (`EndpointTable.weights`).
        on_trial: the last candidate is excluded, and the request would be its trial.
        variants: what plug-ins have added to the candidates; None if nothing.
    """

    able: Slots
    models: frozenset[str]
    alive: Slots
    up: frozenset[str]
    slots: Slots
    model_id: Slots
    rtt_s: Floats
    wire_s: Floats
    at: float
    until: float
    readings: int
    health: int
    standing: Standing
    parts: Parts = field(default_factory=lambda: NO_PARTS)
    generates: bool | None = None
    weights: str = ""
    on_trial: bool = False
    variants: Variants | None = None

    def with_variants(
        self, at: Slots, model_id: Slots, up: Set[str], repeating: Sequence[int]
    ) -> Group:
        """Return the group with more candidates: some of its own, with variants of their models.

        Args:
            at: their positions.
            model_id: index of each one's variant in the table's `judged`.
            up: the variants of models in `up`.
            repeating: indices of those that always answer the same.
        """
        at = np.concatenate((np.arange(len(self.slots)), at))
        answers, new = self.standing.answers, self.standing.new
        return replace(
            self,
            up=self.up | up,
            slots=self.slots[at],
            model_id=np.concatenate((self.model_id, model_id)),
            rtt_s=self.rtt_s[at],
            wire_s=self.wire_s[at],
            standing=replace(
                self.standing,
                answers=None if answers is None else answers[at],
                new=None if new is None else new[at],
            ),
            variants=Variants(self, repeating),
        )


class Candidates:
    """The cached groups of candidates."""

    def __init__(
        self, table: EndpointTable, settings: DirectorSettings, health: Health, plugins: Plugins
    ) -> None:
        self._table = table
        self._health = health
        self._plugins = plugins
        self._aliases = settings.aliases
        self._max_waiting = settings.max_waiting
        self._groups: Latest[tuple[str, str, bool | None], Group] = Latest(_MAX_GROUPS)
        self._version = -1

    def of(self, request: Request, subset: frozenset[str] | None, now: float) -> Group:
        """Return the candidates for a request's model name, within its pool and a subset.

        An empty model or pool matches all. Behind a virtual name, endpoints of the kind that the
        request needs (generating or not) are preferred.

        Raises:
            RequestError: 404 when no endpoint ever served the model, 503 when none does now.
        """
        health = self._health
        if now >= health.look_at:
            health.look(now, self._table.lateness.now_s(now))
        if self._version != self._table.version:
            self._version = self._table.version
            self._table.away.look(now)
            self._groups.clear()
            for slot, spec in self._table.by_slot.items():
                health.records.of(slot, spec.models[0], now)  # those that joined start slowly
        key = request.pool, request.model, False if request.encodes else GENERATES[request.api]
        group = self._groups.get(key) if subset is None else None
        if (
            group is None
            or group.readings != self._table.readings
            or not group.at <= now < group.until
            or group.health != health.records.version + health.suspects.version
        ):
            group = self._work_out(key, subset, now)
            if subset is None:
                self._groups[key] = group
        return group

    def forget(self) -> None:
        """Compute all groups again: a plug-in now filters differently."""
        self._version = -1

    def _able(
        self, key: tuple[str, str, bool | None], subset: frozenset[str] | None, now: float
    ) -> Slots:
        """Return the endpoints that serve a name, those that take no requests included.

        Raises:
            RequestError: as `of`.
        """
        table, (pool, model, generates) = self._table, key
        if not len(table):
            raise RequestError(503, "no-endpoints", "no endpoint is known", retry_after_s=1)
        able = table.reach(model)
        if not len(able) and model not in self._aliases:
            table.away.look(now)
            known = table.away.get(model) or any(model in of for of in self._aliases.values())
            raise is_away(model) if known else no_such_model(model)
        if pool:
            able = able[np.isin(able, table.in_pool(pool))]
        if subset is not None:
            named = [slot for item in subset for slot in table.named(item)]
            able = able[np.isin(able, named)]
        if generates is not None and (not model or model in self._aliases):
            able = unless_none(able, table.generates[able] == generates)
        return able

    def _work_out(
        self, key: tuple[str, str, bool | None], subset: frozenset[str] | None, now: float
    ) -> Group:
        table, serving = self._table, self._able(key, subset, now)
        able = serving[table.takes[serving]]
        if not len(able):
            raise RequestError(
                503, "no-candidates", "no endpoint may serve this request", retry_after_s=1
            )
        reached = unless_none(able, reachable(table, able))
        reached = reached[awake(table, reached, now)]
        if not len(reached):
            raise RequestError(
                503,
                "asleep",
                "every engine that may serve this request is asleep and must be woken",
                retry_after_s=1,
            )
        slots = unless_none(reached, unsaturated(table, reached, self._max_waiting, now))
        records, (rtt_s, wire_s) = self._health.records, _round_trips(table, slots, now)
        standing = standing_of(records, slots, now)
        if standing.kept is not None:
            slots = slots[standing.kept]
            rtt_s, wire_s = rtt_s[standing.kept], wire_s[standing.kept]
        if standing.down:
            reached = reached[~np.isin(reached, list(standing.down))]
        models = self._models(able)
        group = Group(
            able=able,
            models=models,
            alive=reached,
            up=models if len(reached) == len(able) else self._models(reached),
            slots=slots,
            model_id=table.model_id[slots],
            rtt_s=rtt_s,
            wire_s=wire_s,
            at=now,
            until=min(now + MAX_AGE_S, standing.until),
            readings=table.readings,
            health=records.version + self._health.suspects.version,
            standing=standing,
            generates=key[2],
            weights=table.weights(key[1]),
        )

        def answering(kind: str, some: Slots) -> tuple[Slots, Floats]:
            return self._answering(group, self._unsuspected(kind, some, now), now)

        group.parts = self._plugins.filter(group, serving, answering, now)
        return group

    def _models(self, slots: Slots) -> frozenset[str]:
        models = self._table.models
        return frozenset(models[at] for at in np.unique(self._table.model_id[slots]).tolist())

    def _unsuspected(self, attribute: str, slots: Slots, now: float) -> Slots:
        """Return the endpoints with which, in this part, requests do not fail."""
        suspects, address = self._health.suspects, self._table.address
        if not suspects.culprits or not self._health.settings.enabled:
            return slots
        kept = [
            slot for slot in slots.tolist() if not suspects.avoids(attribute, address(slot), now)
        ]
        return np.array(kept, np.intp)

    def _answering(self, group: Group, slots: Slots, now: float) -> tuple[Slots, Floats]:
        """Return those of some endpoints that are up and healthy, and P(it answers) of each."""
        slots = slots[reachable(self._table, slots) & awake(self._table, slots, now)]
        standing = standing_of(self._health.records, slots, now, optional=True)
        group.until = min(group.until, standing.until)
        if standing.kept is not None:
            slots = slots[standing.kept]
        return slots, np.ones(len(slots)) if standing.answers is None else standing.answers

    def with_trial(self, group: Group, tried: Sequence[str], now: float) -> Group:
        """Append an excluded endpoint that is due for a trial to the candidates, if there is one.

        A retry does not serve as a trial of an endpoint whose model it has already tried.
        """
        slot = self._health.due(group.standing, now)
        if slot is None or self._table.spec(slot).models[0] in tried:
            return group
        table, own = self._table, np.array([slot], np.intp)
        standing = group.standing
        answers = np.ones(len(group.slots)) if standing.answers is None else standing.answers
        answers = np.append(answers, self._health.answers(slot, now))
        standing = replace(standing, answers=answers, new=None)
        slots = np.append(group.slots, own)
        rtt_s, wire_s = (of[-1:] for of in _round_trips(table, slots, now))
        return replace(
            group,
            slots=slots,
            model_id=np.append(group.model_id, table.model_id[own]),
            rtt_s=np.append(group.rtt_s, rtt_s),
            wire_s=np.append(group.wire_s, wire_s),
            standing=standing,
            on_trial=True,
        )


def _round_trips(table: EndpointTable, slots: Slots, now: float) -> tuple[Floats, Floats]:
    """Return `Group.rtt_s` and `Group.wire_s`."""
    rtt_s = distances(table.rtt_s[slots], table.rtt_jitter_s[slots], table.rtt_at[slots], now)
    unknown = np.isnan(rtt_s)
    rtt_s[unknown] = 0.0 if unknown.all() else float(np.nanmax(rtt_s))
    is_open = now - table.answered_at[slots] < KEPT_OPEN_S  # not if it never answered: NaN
    is_open |= rtt_s < TIE_S  # else the endpoint that was just chosen would be chosen again
    return rtt_s, rtt_s * np.where(is_open, 1.0, 1.0 + table.opening_rounds[slots])

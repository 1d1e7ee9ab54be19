"""Modes: other ways to ask a model, such as how hard it should think.

A mode is a set of members that a request's body gets. It is a candidate of its own at each endpoint
of its model, named MODEL:NAME. It has its own P(correct) and its own time and length of an answer;
everything else is the endpoint's. The model without a mode, as the client asks it, remains one.

A mode is used once the artifact has measured it, since nothing else says how often it is right and
how long it takes, and only for bodies that do not set one themselves (`kept_members`). It is used
less while engines refuse requests in it that they take otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import orjson

from laar.core.candidates import Group
from laar.core.decision import Completion, Decision
from laar.core.interfaces import View
from laar.core.plugin import Answering, Core, Part, Plugin
from laar.declaring import Applies
from laar.faults import Fault
from laar.fleet.endpoints import Slots
from laar.health.recent import Habit, stands_out
from laar.latest import Latest
from laar.prefix.blocks import Chain
from laar.prefix.match import PrefixMatch
from laar.request import LIMITS, Api, Request, is_reproducible

Members = Mapping[str, object]

_REFUSALS = frozenset((400, 422))
"""Statuses of an engine that may not know the members of a mode."""

_MAX_NAMES = 1024

_SAY_HOW_HARD = frozenset(("reasoning_effort", "reasoning", "thinking"))
"""The members by which clients of the three APIs say how hard a model should think."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSettings:
    """A mode: what bodies get, by API. Requests to an API for which it has nothing don't use it."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    chat: Members = field(default_factory=dict)
    """Members of chat completions, such as `{chat_template_kwargs: {enable_thinking: false}}`."""
    completions: Members = field(default_factory=dict)
    """Members of completions."""
    responses: Members = field(default_factory=dict)
    """Members of OpenAI's responses, such as `{reasoning: {effort: low}}`."""
    messages: Members = field(default_factory=dict)
    """Members of Anthropic's messages, such as `{thinking: {type: disabled}}`."""
    own_prefix: bool = False
    """Whether prompts in this mode begin differently, so that they share no cached prefixes with
    the model's other modes, as with an effort that the chat template puts at the beginning."""

    @property
    def members(self) -> dict[Api, Members]:
        """Return the members by API, for the APIs that have any."""
        apis = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
        return {api: members for api in apis if (members := getattr(self, api.value))}


ByModel = Mapping[str, Mapping[str, ModeSettings]]
"""Modes by model and name."""

NO_MODES: ByModel = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModesSettings:
    """Settings for modes."""

    applies: ClassVar = Applies.AT_ONCE

    modes: ByModel = field(default_factory=dict)
    """Modes of models, by model and name, such as `qwen: {fast: {chat: {reasoning_effort: low}}}`:
    members that laar may add to a body. Each counts as a model, MODEL:NAME, once the artifact has
    it. Bodies that are signed, or have a member of any mode, stay as they are."""


class Mode(NamedTuple):
    """A mode of a model.

    Args:
        name: MODEL:NAME.
        members: what bodies get after the opening brace, by API.
        reproducible: its members make answers reproducible.
    """

    name: str
    model: str
    members: Mapping[Api, bytes]
    own_prefix: bool
    reproducible: bool


class RefusedModes:
    """How often engines refuse requests in each mode: they may not know the members it adds."""

    def __init__(self) -> None:
        self._habits: Latest[str, Habit] = Latest(_MAX_NAMES)  # by mode; by model without one

    def note(self, name: str, mode: Mode | None, *, refused: bool, now: float) -> None:
        """Record the answer to a request that could have been asked in a mode."""
        if refused and name not in self._habits:  # nothing is counted before the first refusal
            for each in (name, mode.model if mode else name):
                self._habits[each] = self._habits.get(each) or Habit()
        if (habit := self._habits.get(name)) is not None:
            habit.note(now, happened=refused)

    def refuses(self, mode: Mode, now: float) -> bool:
        """Return whether requests are refused because of a mode, as far as is known."""
        own, without = (self._habits.get(name) for name in (mode.name, mode.model))
        return own is not None and stands_out(own, [without or Habit()], now) is not False


@dataclass(slots=True)
class Usable(Part):
    """The modes of a group's models.

    Args:
        modes: the modes, by their indices in the table's `judged`.
        by_api: the groups with the candidates in modes, as they are computed.
    """

    modes: Mapping[int, Mode]
    by_api: dict[Api, Group] = field(default_factory=dict)

    @classmethod
    def own_prefixes(cls, group: Group) -> list[int]:
        """Return the indices of modes in which a prompt begins differently."""
        part = cls.among(group.parts)
        return [] if part is None else [at for at, mode in part.modes.items() if mode.own_prefix]


@dataclass(slots=True)
class _Choices(Part):
    """A request that may be in a mode.

    Args:
        modes: as in `Usable`.
        chains: its prefixes in the modes in which it begins differently, by the same indices.
    """

    modes: Mapping[int, Mode]
    chains: Mapping[int, Chain]


@dataclass(slots=True)
class _InMode(Part):
    """The mode in which a request is."""

    alike = True

    mode: Mode
    variant: str


class Modes(Plugin):
    """Asks models in the mode whose accuracy and time are best for a request."""

    name = "modes"

    def __init__(self) -> None:
        self._settings, self._modes = NO_MODES, dict[str, Mode]()
        self._refused, self._now = RefusedModes(), -math.inf

    @staticmethod
    def of(decision: Decision) -> Mode | None:
        """Return the mode of a request; None if it is asked as its client does."""
        part = _InMode.among(decision.parts)
        return None if part is None else part.mode

    def join(self, core: Core) -> None:
        """Keep the core."""
        self._core, self._table = core, core.table

    def use(self, settings: Mapping[type, Any]) -> None:
        """Use the modes of new settings."""
        given: ModesSettings | None = settings.get(ModesSettings)
        if given is None:
            return
        self._settings, self._refused = given.modes, RefusedModes()
        self._modes = {mode.name: mode for mode in _modes(given.modes)}
        names = {model: [f"{model}:{name}" for name in of] for model, of in given.modes.items()}
        self._table.use_variants(names)
        self._core.candidates.forget()

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Usable | None:
        """Take part where a model has modes; its adapters have none."""
        table, self._now = self._table, now
        if group.weights or not table.model_of:
            return None
        named = ((at, self._modes.get(name)) for at, name in enumerate(table.judged))
        modes = {at: of for at, of in named if of is not None and of.model in group.models}
        return Usable(modes) if modes else None

    def variants(self, request: Request, part: Usable, group: Group) -> Group | None:
        """Return the group in which each endpoint is also a candidate in each of its modes.

        Modes without members for the request's API, or that the artifact doesn't know, are left
        out, and those in which engines refuse requests that they take otherwise.
        """
        if not request.any_mode:
            return None
        if (found := part.by_api.get(request.api)) is not None:
            return found
        measured = getattr(self._core.assessor, "measured", ())  # few assessors measure models
        positions, model_ids, up = [np.empty(0, np.intp)], [np.empty(0, np.intp)], set[str]()
        for model_id, mode in part.modes.items():
            known = mode.name in measured and mode.model in measured
            if known and request.api in mode.members and not self._refused.refuses(mode, group.at):
                at = np.flatnonzero(group.model_id == self._table.models.index(mode.model))
                positions.append(at)
                model_ids.append(np.full(len(at), model_id, np.intp))
                up |= {mode.name} if mode.model in group.up else set()
        if len(at := np.concatenate(positions)):
            repeating = [number for number, mode in part.modes.items() if mode.reproducible]
            group = group.with_variants(at, np.concatenate(model_ids), up, repeating)
        part.by_api[request.api] = group
        return group

    def prescore(
        self, view: View, part: Usable, group: Group, match: PrefixMatch | None
    ) -> _Choices | None:
        """Correct what is believed of caches for the modes in which prompts begin differently."""
        if not view.request.any_mode:
            return None
        chains, table, prefixes = dict[int, Chain](), self._table, self._core.prefixes
        if group.variants is None or match is None or prefixes is None:
            return _Choices(part.modes, chains)
        for model_id, mode in part.modes.items():
            at = np.flatnonzero(view.model_id == model_id)
            if mode.own_prefix and len(at):
                of = prefixes.look_up(view.request, mode.name, table.models, match.tokens, view.now)
                slots, fetched = view.slots[at], np.zeros(table.capacity)
                if of.fetched is not None:
                    fetched = of.fetched
                view.cached_tokens[at] = (of.shares - fetched)[slots] * view.tokens[at]
                if view.fetched_tokens is not None:
                    view.fetched_tokens[at] = fetched[slots] * view.tokens[at]
                if view.again is not None:
                    view.again[at] = 0.0 if of.again is None else of.again[slots]
                chains[model_id] = of.chain
        return _Choices(part.modes, chains)

    def select(self, view: View, part: _Choices, at: int) -> Part:
        """Return the candidate's mode; from here on, the prompt is as that changes it."""
        model_id = view.model_id.item(at)
        mode = part.modes.get(model_id)
        if mode is None:
            return Part()
        view.chain = part.chains.get(model_id, view.chain)
        return _InMode(mode, mode.name)

    def members(self, decision: Decision) -> bytes:
        """Return the mode's members."""
        part = decision.parts.get(self)
        return part.mode.members[decision.request.api] if isinstance(part, _InMode) else b""

    def complete(self, decision: Decision, end: Completion) -> None:
        """Learn whether engines refuse the mode."""
        if end.ok or end.status in _REFUSALS:
            self._now = decision.now + end.latency_s
            part = decision.parts.get(self)
            mode = part.mode if isinstance(part, _InMode) else None
            self._refused.note(decision.flight.model, mode, refused=not end.ok, now=self._now)

    def problems(self) -> Iterator[tuple[Fault, str, str]]:
        """Tell which modes are not used, and why."""
        table, settings = self._table, self._settings
        known = table.model_of.keys() & getattr(self._core.assessor, "measured", ())
        named = (f"{model}:{name}" for model in table.models for name in settings.get(model, ()))
        if unused := ", ".join(name for name in named if name not in known):
            unused += " is not used: the artifact lacks it or its times, or a model has this name"
            yield Fault.MODES, "artifact", unused
        modes = [mode for name, mode in self._modes.items() if name in table.model_of]
        if refused := ", ".join(of.name for of in modes if self._refused.refuses(of, self._now)):
            refused += ": not used, as engines refuse requests with the mode's members"
            yield Fault.MODES, "engines", refused


def _modes(modes: ByModel) -> Iterator[Mode]:
    for model, named in modes.items():
        for name, of in named.items():
            members = {api: orjson.dumps(members)[1:-1] for api, members in of.members.items()}
            same = any(map(is_reproducible, of.members.values()))
            yield Mode(f"{model}:{name}", model, members, of.own_prefix, same)


def kept_members(modes: ByModel) -> frozenset[str] | None:
    """Return the members with which a body sets a mode itself; None if there are no modes."""
    named = [m for of in modes.values() for mode in of.values() for m in mode.members.values()]
    kept = _SAY_HOW_HARD.union(*named)
    if not kept.isdisjoint(LIMITS):
        kept = kept.union(LIMITS)  # two limits contradict each other
    return kept if named else None

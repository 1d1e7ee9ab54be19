"""Modes: other ways to ask a model, such as how hard it should think.

A mode is a set of members that a request's body gets. It is a candidate of its own at each endpoint
of its model, named MODEL:NAME. It has its own P(correct) and its own time and length of an answer;
everything else is the endpoint's. The model without a mode, as the client asks it, remains one.

A mode is used once the artifact has measured it, since nothing else says how often it is right and
how long it takes, and only for bodies that do not set one themselves (`kept_members`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import orjson

from laar.health.recent import Habit, stands_out
from laar.latest import Latest
from laar.request import LIMITS, Api, is_reproducible

Members = Mapping[str, object]

REFUSALS = frozenset((400, 422))
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


class Mode(NamedTuple):
    """A mode of a model that is served.

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


def modes_of(models: Iterable[str], modes: ByModel, taken: Container[str]) -> list[Mode]:
    """Return the modes of some models, except those whose full names are taken."""
    return [
        Mode(
            name,
            model,
            {api: orjson.dumps(members)[1:-1] for api, members in of.members.items()},
            of.own_prefix,
            any(map(is_reproducible, of.members.values())),
        )
        for model in models
        for short, of in modes.get(model, {}).items()
        if (name := f"{model}:{short}") not in taken
    ]


def kept_members(modes: ByModel) -> frozenset[str] | None:
    """Return the members with which a body sets a mode itself; None if there are no modes."""
    named = [m for of in modes.values() for mode in of.values() for m in mode.members.values()]
    kept = _SAY_HOW_HARD.union(*named)
    if not kept.isdisjoint(LIMITS):
        kept = kept.union(LIMITS)  # two limits contradict each other
    return kept if named else None

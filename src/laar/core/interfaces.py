"""The extension points, in the usual terms of endpoint pickers: filter, scorer, picker, policy.

A policy is a profile: filters, weighted scorers, and a picker, which is max-score by default. A
filter returns a mask of the candidates, and a scorer returns a score for each of them. Both get the
same `View`, which is built once per decision.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Literal, Protocol

import numpy as np

from laar.accuracy.assessment import Assessment, Cell
from laar.core.cost import Terms
from laar.core.plugin import Parts
from laar.fleet.endpoints import EndpointTable, Floats, Mask, Slots
from laar.prefix.blocks import Chain
from laar.prefix.match import Demand
from laar.request import Request
from laar.speeds.engines import Engines


@dataclass(slots=True, kw_only=True)
class View:
    """The request and, for each candidate, the estimates that filters, scorers and pickers use.

    Arrays have the shape ``(n,)`` and are aligned with `slots`. A scorer may set `terms`, `reason`
    and, if it computes costs, the result fields of `parts`. The policy and the
    chooser add to `faults`, and reset `terms` and `reason` when they no longer apply; plug-ins may
    correct estimates in `prescore`. Nothing else changes after construction.

    Args:
        request: the request.
        now: monotonic seconds.
        rng: random source.
        table: the endpoints; its columns are indexed by slot.
        slots: slots of the candidates.
        judged: the models of the fleet and their variants.
        model_id: index of each candidate's model, or its variant, in `judged`.
        tokens: length of the prompt in the candidate's tokens.
        cached_tokens: how many of them the candidate is believed to have cached.
        queued_tokens: prompt tokens in flight there.
        in_flight: requests in flight there, as counted by the picker.
        rtt_s: round trip.
        wire_s: seconds on the network before the first token: the round trips in which the
            connection opens, the body arrives and the answer returns.
        probability: P(correct) of the candidate's model, given the attempts that failed.
        evidence: number of outcomes that this is based on.
        seconds_per_token: c(m): estimated seconds of prefill for each uncached token.
        base_s: the part of an answer's time that does not grow with the prompt, in seconds.
        times_tried: earlier attempts at the question with the candidate's model.
        sampled: whether another attempt with a tried model is another draw, so that `probability`
            says what it is worth; None if it would only repeat the wrong answer.
        cell: language, length bucket and task of the request.
        wrong_s: seconds that a wrong answer costs the client, divided by the requests that would
            wait with it: the mean number in flight, plus one. None if the client asks again, and so
            pays the next attempt.
        published: Q as published for LAAR, static and independent of failures; None if not known.
        reported: number of outcomes reported for the candidate's model in the request's class;
            None if no outcomes are reported.
        terms: the terms of the cost, set by a scorer that computes one, for the explanation.
        reason: code of one of laar's scorers for why its best candidate is the best.
        engines: learned speeds of the engines; None if nothing is learned.
        demand: recent requests that share this prompt's prefixes; None if nothing is known.
        again: text evicted for this prompt that will be requested again, as a share of the
            prompt's uncached part; None if every cache has room.
        answers: P(the endpoint answers); None while all are healthy.
        parts: what plug-ins add to it, by plug-in.
        chain: the prompt's prefixes; None if no prefixes are recorded.
        fetched_tokens: number of tokens whose prefill takes as long as fetching the text cached
            in slower memory, subtracted from `cached_tokens`; None if none is cached there.
        left_tokens: number of tokens after which each candidate would keep a recurrent state, as
            the prompt leaves there what is cached; None if no model has such states.
        knows_outcomes: something is known about which candidates are right more often.
        fits: whether the candidate can take the request (`Plugin.fit`); None if all can.
        faults: parts of the policy that failed on this request.
    """

    request: Request
    now: float
    rng: random.Random
    table: EndpointTable
    slots: Slots
    judged: Sequence[str]
    model_id: Slots
    tokens: Floats
    cached_tokens: Floats
    queued_tokens: Floats
    in_flight: Floats
    rtt_s: Floats
    wire_s: Floats
    probability: Floats
    evidence: Floats
    seconds_per_token: Floats
    base_s: Floats
    times_tried: Floats
    cell: Cell = ("", 0, "")
    wrong_s: float | None = None
    published: Floats | None = None
    reported: Floats | None = None
    terms: Terms | None = None
    reason: str = ""
    engines: Engines | None = None
    demand: Demand | None = None
    again: Floats | None = None
    answers: Floats | None = None
    parts: Parts = field(default_factory=Parts)
    chain: Chain | None = None
    fetched_tokens: Floats | None = None
    left_tokens: Floats | None = None
    knows_outcomes: bool = True
    fits: Mask | None = None
    sampled: Mask | None = None
    faults: tuple[PartFailure, ...] = ()

    @property
    def times_repeated(self) -> Floats:
        """Earlier attempts with the candidate's model whose wrong answer it would repeat."""
        return self.times_tried if self.sampled is None else self.times_tried * ~self.sampled

    @property
    def held_tokens(self) -> Floats:
        """Tokens of the prompt that each candidate probably has cached, in any memory."""
        held = self.cached_tokens
        return held if self.fetched_tokens is None else held + self.fetched_tokens

    def fault(self, part: PolicyPart, extension: object, error: Exception) -> None:
        """Record that a part of the policy failed and the decision went on without it."""
        self.faults = (*self.faults, PartFailure(part, extension, error))

    def at(self, positions: Slots) -> View:
        """Return the view of some of the candidates, in the order of `positions`."""
        some = copy(self)
        some.terms = None
        if self.parts:
            some.parts = Parts((of, part.at(positions)) for of, part in self.parts.items())
        for name in BY_CANDIDATE:
            array = getattr(self, name)
            if isinstance(array, np.ndarray):
                setattr(some, name, array[positions])
        return some


BY_CANDIDATE = tuple(
    f.name for f in fields(View) if str(f.type).startswith(("Slots", "Floats", "Mask"))
)
"""Fields of a view that, if known, are arrays over the candidates."""

PolicyPart = Literal["filter", "scorer", "picker", "plugin"]
"""Parts of a decision that may fail."""


@dataclass(frozen=True, slots=True)
class PartFailure:
    """A part of a policy that failed on a request.

    Args:
        part: kind of the part.
        extension: the part itself.
        error: the exception; its text may contain part of a prompt.
    """

    part: PolicyPart
    extension: object
    error: Exception

    @property
    def code(self) -> str:
        """What the reason of the decision says: ``degraded-`` and this."""
        return getattr(self.extension, "name", "") if self.part == "plugin" else self.part


class Assessor(Protocol):
    """Estimates the accuracy and speed of models."""

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Estimate each model's accuracy and speed on this request, given that `tried` failed."""


Room = Callable[[View], Mask]
"""Returns the candidates of a view that have room for the request now; for flow control."""


class NoRoomError(Exception):
    """No candidate that the request fits has room now; `view` has estimates."""

    def __init__(self, view: View) -> None:
        super().__init__("no candidate has room")
        self.view = view


class Filter(Protocol):
    """Prefers some of the candidates; scorers judge how good they are."""

    def keep(self, view: View) -> Mask:
        """Return a mask of the `view.slots` to keep; it is ignored if none would be left."""


class Scorer(Protocol):
    """Scores the candidates in [0, 1], higher is better."""

    def score(self, view: View) -> Floats:
        """Return one score for each of `view.slots`."""


class Picker(Protocol):
    """Orders the eligible candidates by their scores."""

    def order(self, scores: Floats, view: View) -> Sequence[int]:
        """Return each position of `view.slots` once: the one that serves, then the fallbacks."""

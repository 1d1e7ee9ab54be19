"""The extension points, in the words endpoint pickers use: filter, scorer, picker, policy.

A policy is a profile: filters, scorers with weights, then the max-score picker. A filter returns a
mask of the candidates, a scorer a score for each of them; neither stands in for the other. Both
see one `View`, made once for a decision.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from laar.accuracy.assessor import Assessment, Cell
from laar.core.apart import Apart
from laar.core.cost import Terms
from laar.core.endpoints import EndpointTable, Floats, Mask, Slots
from laar.core.engines import Engines
from laar.core.request import Request
from laar.prefix import Chain
from laar.prefix.beliefs import Demand

if TYPE_CHECKING:
    from laar.tuning.tuner import Weights
    from laar.tuning.windows import Observed


@dataclass(slots=True, kw_only=True)
class View:
    """The request and, for each candidate, the estimates that filters, scorers and pickers use.

    Arrays have the shape ``(n,)`` and are aligned with `slots`. A scorer may set `terms` and
    `reason`, and one that prices the answers in `apart`; the policy adds to `faults`, and takes
    `terms` and `reason` back where they are no longer true. Nothing else is set once the view is
    made, but that a record of the decision takes the request off; arrays are never written to.

    Args:
        request: the request, as read.
        now: monotonic seconds.
        rng: random source.
        table: the endpoints; its columns are by slot.
        slots: slots of the candidates.
        tokens: length of the prompt in the candidate's tokens.
        cached_tokens: the part of it that the candidate is believed to hold.
        queued_tokens: prompt tokens in flight there.
        in_flight: requests in flight there, by the picker's count.
        rtt_s: round trip.
        probability: P(correct) of the candidate's model, given the models that failed.
        evidence: number of outcomes behind that probability.
        seconds_per_token: seconds of prefill for each uncached token.
        base_s: seconds of an answer that do not grow with the prompt.
        times_tried: earlier attempts on the question with the candidate's model.
        cell: language, length bucket and task of the request.
        timed_answers: `base_s` counts to the end of a usual answer.
        unlike: the request is unlike anything measured: its probabilities are mostly base rates.
        published: Q as LAAR has it, static and independent of what failed; None where there is
            none.
        reported: number of outcomes reported for the candidate's model on such requests; None where
            no outcomes are reported.
        terms: the cost taken apart; a scorer that prices leaves it for the explanation.
        reason: a scorer's code for why its best candidate is the best; one of few, since metrics
            count by it.
        weights: the tuner's weights for this decision, by name; None for the scorer's own.
        engines: learned speeds of the engines; None where nothing is learned.
        demand: recent requests that share this prompt's prefixes; None where nothing is known.
        again: share of the text that the cache would evict for it and that is asked for again; None
            as above.
        answers: P(the endpoint answers); None while all are sound.
        pace: factor by which each is slower than its siblings; None while none is.
        typical_s: seconds of a whole answer, where `pace` is known.
        load_s: seconds until the requested adapter is loaded; None where all have it.
        apart: the endpoints that may read the prompt in a candidate's place; None where none may.
        chain: the prompt's prefixes; None where none are kept.
        fetched_tokens: tokens that take as long to compute as to fetch what lies in slower memory,
            which `cached_tokens` is without; None where none does.
        faults: parts of the policy that failed on this request.
    """

    request: Request
    now: float
    rng: random.Random
    table: EndpointTable
    slots: Slots
    tokens: Floats
    cached_tokens: Floats
    queued_tokens: Floats
    in_flight: Floats
    rtt_s: Floats
    probability: Floats
    evidence: Floats
    seconds_per_token: Floats
    base_s: Floats
    times_tried: Floats
    cell: Cell = ("", 0, "")
    timed_answers: bool = False
    unlike: bool = False
    published: Floats | None = None
    reported: Floats | None = None
    terms: Terms | None = None
    reason: str = ""
    weights: Mapping[str, float] | None = None
    engines: Engines | None = None
    demand: Demand | None = None
    again: Floats | None = None
    answers: Floats | None = None
    pace: Floats | None = None
    typical_s: Floats | float = 0.0
    load_s: Floats | None = None
    apart: Apart | None = None
    chain: Chain | None = None
    fetched_tokens: Floats | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def held_tokens(self) -> Floats:
        """Tokens of the prompt that each candidate probably has, in any memory."""
        held = self.cached_tokens
        return held if self.fetched_tokens is None else held + self.fetched_tokens

    def fault(self, part: PolicyPart, extension: object, error: Exception) -> None:
        """Note that a part of the policy failed, and the decision went on without it."""
        self.faults = (*self.faults, Fault(part, extension, error))

    def at(self, positions: Slots) -> View:
        """Return the view of some of the candidates, in the order of their positions."""
        some = copy(self)
        some.terms = None
        if self.apart is not None:
            kv_group_of = self.apart.of.kv_group_of[positions]
            some.apart = replace(self.apart, of=replace(self.apart.of, kv_group_of=kv_group_of))
        for name in BY_CANDIDATE:
            array = getattr(self, name)
            if isinstance(array, np.ndarray):
                setattr(some, name, array[positions])
        return some


BY_CANDIDATE = (
    *("slots", "tokens", "cached_tokens", "queued_tokens", "in_flight", "rtt_s", "probability"),
    *("evidence", "seconds_per_token", "base_s", "times_tried", "published", "reported"),
    *("again", "answers", "pace", "typical_s", "load_s", "fetched_tokens"),
)
"""Fields of a view that are arrays over the candidates, if they are known."""

PolicyPart = Literal["filter", "scorer", "picker"]
"""Parts of a policy that may fail."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A part of a policy that failed on a request.

    Args:
        part: kind of the part.
        extension: the part itself.
        error: the exception; its text may hold some of a prompt.
    """

    part: PolicyPart
    extension: object
    error: Exception


class Assessor(Protocol):
    """Estimates models: how often they are right, how fast they read."""

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Estimate each model's accuracy and speed on this request, given that `tried` failed."""
        ...

    def usage(self, request: Request, model: str, prompt_tokens: int) -> None:
        """Learn the length of a prompt from the engine's own count."""
        ...


Fits = Callable[[View], Mask]
"""A function that returns the candidates of a view that may take the request now; for flow
control."""


class NoRoomError(Exception):
    """No candidate has room now; `view` has their estimates, `fits` those where the prompt fits."""

    def __init__(self, view: View, fits: Mask) -> None:
        super().__init__("no candidate has room")
        self.view, self.fits = view, fits


class WeightSource(Protocol):
    """Sets a policy's weights while requests flow: `laar.tuning.Tuner` is the one that serves."""

    def weights(self, now: float) -> Weights:
        """Return the weights for one decision; asked once for each."""
        ...

    def observe(self, sample: Observed, now: float) -> None:
        """Record the outcome of a decision."""
        ...


class Filter(Protocol):
    """A preference for some of the candidates; scorers judge how good they are."""

    def keep(self, view: View) -> Mask:
        """Return true for each of `view.slots` that stays; ignored where it would leave none."""
        ...


class Scorer(Protocol):
    """Scores the candidates in [0, 1], higher is better."""

    def score(self, view: View) -> Floats:
        """Return one score for each of `view.slots`."""
        ...


class Picker(Protocol):
    """Orders the candidates that may take the request, by their scores."""

    def order(self, scores: Floats, view: View) -> Sequence[int]:
        """Return each position of `view.slots` once: the one that serves, then the fallbacks."""
        ...

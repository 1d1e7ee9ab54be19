"""The extension points, in the words endpoint pickers use: filter, scorer, picker, policy.

A policy is a profile: filters, scorers with weights, then the max-score picker. A filter returns a
mask of the candidates, a scorer a score for each of them; neither stands in for the other. Both
see one `View`, made once for a decision. Estimates of models and of prefixes come from an
`Assessor` and a `Prefixes`. Both have a plain stand-in here, used when nothing was measured and
whenever the real one fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from laar.core.apart import Apart
from laar.core.cost import Terms
from laar.core.endpoints import EndpointTable, Floats, Mask, Slots
from laar.core.engines import Engines
from laar.core.request import Request
from laar.prefix import Chain, Receipt
from laar.tuning import Observed, Weights

__all__ = [
    "BY_CANDIDATE",
    "Assessment",
    "Assessor",
    "Demand",
    "Fault",
    "Filter",
    "Fits",
    "Mask",
    "NoPrefixes",
    "NoRoomError",
    "Picker",
    "PlainAssessor",
    "PolicyPart",
    "Prefixes",
    "Scorer",
    "View",
    "WeightSource",
]

Demand = tuple[Floats, Floats]
"""Places in a prompt, as ascending shares of it, and the requests expected to share up to each."""

Cell = tuple[str, int, str]
"""Language, length bucket in tokens, task."""


@dataclass(slots=True, kw_only=True)
class Assessment:
    """The estimates of each model on one request; arrays over the models that were asked for.

    Args:
        tokens: length of the prompt in the model's tokens.
        probability: P(correct), given the models already tried.
        evidence: number of outcomes behind that probability.
        seconds_per_token: c(m), seconds of prefill for a token.
        base_s: seconds that do not grow with the prompt.
        cell: language, length bucket and task the numbers were looked up by.
        unknown: the probability of some model is a stand-in, since nothing was measured for it.
        timed_answers: `base_s` counts to the end of a usual answer, as an artifact's does. Without
            it `base_s` counts to the first token at most.
        unlike: the request is unlike anything measured: the probabilities are base rates.
        published: the artifact's P(correct) for the request's class, without regard to failed
            models and reported outcomes: Q as in LAAR. None where only `probability` is known.
        reported: reported outcomes that still weigh on the request's class; None where none are
            reported at all.
    """

    tokens: Floats
    probability: Floats
    evidence: Floats
    seconds_per_token: Floats
    base_s: Floats
    cell: Cell
    unknown: bool
    timed_answers: bool = False
    unlike: bool = False
    published: Floats | None = None
    reported: Floats | None = None


class Assessor(Protocol):
    """Estimates models: how often they are right, how fast they read."""

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Estimates each model's accuracy and speed on this request, given that `tried` failed."""
        ...

    def usage(self, request: Request, model: str, prompt_tokens: int) -> None:
        """Learns the length of a prompt from the engine's own count."""
        ...


class PlainAssessor:
    """Assumes that every model is right, reads at one speed, and has tokens of four characters."""

    CHARS_PER_TOKEN = 4.0
    SECONDS_PER_TOKEN = 1e-4  # an 8B model on an A100 prefills about 10,000 tokens a second

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Returns the same estimates for every model."""
        n = len(models)
        return Assessment(
            tokens=np.full(n, request.chars / self.CHARS_PER_TOKEN),
            probability=np.ones(n),
            evidence=np.zeros(n),
            seconds_per_token=np.full(n, self.SECONDS_PER_TOKEN),
            base_s=np.zeros(n),
            cell=("", 0, ""),
            unknown=True,
        )

    def usage(self, request: Request, model: str, prompt_tokens: int) -> None:
        """Learns nothing."""


class Prefixes(Protocol):
    """Estimates which endpoint holds which prefix."""

    def chain(self, request: Request, weights: str = "") -> Chain | None:
        """The prompt's prefixes, hashed; made once for a request. None when nothing is noted.

        `weights` names the adapter that serves it; empty for the endpoints' own models.
        """
        ...

    def match(self, chain: Chain, capacity: int) -> Floats:
        """The share of the prompt, in 0..1, that each slot below `capacity` holds."""
        ...

    def insert(self, slot: int, chain: Chain, now: float) -> Receipt | None:
        """Notes that the slot will hold the prompt; the receipt settles it or takes it back."""
        ...

    def demand(self, chain: Chain, now: float) -> Demand | None:
        """How many requests share how much of the prompt; None when nothing is known."""
        ...

    def again(self, chain: Chain, shares: Floats, now: float) -> Floats | None:
        """The share, by slot, of the text evicted by the prompt that is requested again.

        It is a share of the prompt's uncached part; `shares` is from `match`.
        """
        ...

    def retract(self, receipt: Receipt) -> None:
        """Takes an entry back: the request failed."""
        ...

    def settle(self, receipt: Receipt, share: float | None, prompt_tokens: int = 0) -> None:
        """The request ended well.

        `share` is the share of the prompt that the engine reported as cached, None without a
        report. `prompt_tokens` is the reported length, 0 without a report.
        """
        ...

    def drop(self, slot: int) -> None:
        """Forgets a slot: its endpoint left."""
        ...

    def clear(self, slot: int) -> None:
        """Forgets the slot's cached prompts, as its engine has; requests in flight still count."""
        ...

    def set_capacity(self, slot: int, tokens: float) -> None:
        """Takes the engine's report of how many tokens its cache holds; NaN for no report."""
        ...


class NoPrefixes:
    """Assumes that no endpoint has anything cached."""

    def chain(self, request: Request, weights: str = "") -> None:
        """Nothing."""
        return

    def match(self, chain: Chain, capacity: int) -> Floats:
        """Zero for every slot."""
        return np.zeros(capacity)

    def insert(self, slot: int, chain: Chain, now: float) -> None:
        """Notes nothing."""

    def demand(self, chain: Chain, now: float) -> None:
        """Nothing."""
        return

    def again(self, chain: Chain, shares: Floats, now: float) -> None:
        """Returns None: no text is evicted."""
        return

    def retract(self, receipt: Receipt) -> None:
        """Nothing to take back."""

    def settle(self, receipt: Receipt, share: float | None, prompt_tokens: int = 0) -> None:
        """Nothing to settle."""

    def drop(self, slot: int) -> None:
        """Nothing to forget."""

    def clear(self, slot: int) -> None:
        """Nothing to forget."""

    def set_capacity(self, slot: int, tokens: float) -> None:
        """Nothing to size."""


@dataclass(slots=True, kw_only=True)
class View:
    """The request and, for each candidate, the estimates that filters, scorers and pickers use.

    Arrays have the shape ``(n,)`` and are aligned with `slots`. A scorer may set `terms` and
    `reason`, and one that prices the answers in `apart`; the policy adds to `faults`, and takes
    `terms` and `reason` back where they are no longer true. Nothing else is set once the view is
    made, and arrays are never written to.

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
        unlike: the probabilities are base rates: the request is unlike anything measured.
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
    faults: tuple[Fault, ...] = ()

    def fault(self, part: PolicyPart, extension: object, error: Exception) -> None:
        """Notes that a part of the policy failed, and the decision went on without it."""
        self.faults = (*self.faults, Fault(part, extension, error))

    def at(self, positions: Slots) -> View:
        """The view of some of the candidates, in the order of their positions."""
        some = copy(self)
        some.terms = None
        if self.apart is not None:
            kin_of = self.apart.of.kin_of[positions]
            some.apart = replace(self.apart, of=replace(self.apart.of, kin_of=kin_of))
        for name in BY_CANDIDATE:
            array = getattr(self, name)
            if isinstance(array, np.ndarray):
                setattr(some, name, array[positions])
        return some


BY_CANDIDATE = (
    *("slots", "tokens", "cached_tokens", "queued_tokens", "in_flight", "rtt_s", "probability"),
    *("evidence", "seconds_per_token", "base_s", "times_tried", "published", "reported"),
    *("again", "answers", "pace", "typical_s", "load_s"),
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
        """The weights for one decision; asked once for each."""
        ...

    def observe(self, sample: Observed, now: float) -> None:
        """The outcome of a decision."""
        ...


class Filter(Protocol):
    """A preference for some of the candidates; scorers judge how good they are."""

    def keep(self, view: View) -> Mask:
        """True for each of `view.slots` that stays; ignored where it would leave none."""
        ...


class Scorer(Protocol):
    """Scores the candidates in [0, 1], higher is better."""

    def score(self, view: View) -> Floats:
        """One score for each of `view.slots`."""
        ...


class Picker(Protocol):
    """Orders the candidates that may take the request, by their scores."""

    def order(self, scores: Floats, view: View) -> Sequence[int]:
        """Each position of `view.slots` once: the one that serves, then the fallbacks."""
        ...

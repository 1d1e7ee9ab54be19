"""The extension points, in the words endpoint pickers use: filter, scorer, picker, policy.

A policy is a profile: scorers with weights over the candidates that the filters left, then the
max-score picker. Scorers see one `View`, made once for a decision. What is known of models and of
prefixes comes from an `Assessor` and a `Prefixes`; both have a plain stand-in here, used when
nothing was measured and whenever the real one fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from laar.core.cost import Terms
from laar.core.endpoints import EndpointTable, Floats, Slots
from laar.core.engines import Engines
from laar.core.request import Request
from laar.tuning import Sample, Weights

__all__ = [
    "Assessment",
    "Assessor",
    "Demand",
    "Fits",
    "NoPrefixes",
    "NoRoomError",
    "PlainAssessor",
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
    """What is believed of each model on one request; arrays over the models that were asked for.

    Args:
        tokens: length of the prompt in the model's tokens.
        probability: P(correct), given the models already tried.
        evidence: outcomes behind that probability.
        seconds_per_token: c(m), seconds of prefill for a token.
        base_s: seconds that do not grow with the prompt.
        cell: language, length bucket and task the numbers were looked up by.
        unknown: the probability of some model is a stand-in, since nothing was measured for it.
        unlike: the request is unlike anything measured: the probabilities are base rates.
        published: the artifact's P(correct) for the request's class, whatever failed before and
            was reported since: Q as LAAR has it. None where there is no other than `probability`.
    """

    tokens: Floats
    probability: Floats
    evidence: Floats
    seconds_per_token: Floats
    base_s: Floats
    cell: Cell
    unknown: bool
    unlike: bool = False
    published: Floats | None = None


class Assessor(Protocol):
    """Knows the models: how often they are right, how fast they read."""

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Believes something of each model on this request, which the models `tried` got wrong."""
        ...

    def usage(self, request: Request, model: str, prompt_tokens: int) -> None:
        """Learns the length of a prompt from the engine's own count."""
        ...


class PlainAssessor:
    """Knows nothing: every model is right, reads at one speed, and a token is four characters."""

    CHARS_PER_TOKEN = 4.0
    SECONDS_PER_TOKEN = 1e-4  # an 8B model on an A100 prefills about 10,000 tokens a second

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Says the same of every model."""
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
    """Believes which endpoint holds which prefix. Chains and receipts are its own objects."""

    def chain(self, request: Request) -> Any:
        """The prompt's prefixes, hashed; made once for a request. None when nothing is noted."""
        ...

    def match(self, chain: Any, capacity: int) -> Floats:
        """For each slot below `capacity`, the share of the prompt in 0..1 that it holds."""
        ...

    def insert(self, slot: int, chain: Any, now: float) -> Any:
        """Notes that the slot will hold the prompt; the receipt settles it or takes it back."""
        ...

    def demand(self, chain: Any, now: float) -> Demand | None:
        """How many requests share how much of the prompt; None when nothing is known."""
        ...

    def retract(self, receipt: Any) -> None:
        """Takes an entry back: the request failed."""
        ...

    def settle(self, receipt: Any, share: float | None) -> None:
        """The request ended well; `share` is what the engine said it had cached, if it did."""
        ...

    def drop(self, slot: int) -> None:
        """Forgets a slot: its endpoint left, restarted or cleared its cache."""
        ...

    def set_capacity(self, slot: int, tokens: float) -> None:
        """The engine said how many tokens its cache holds; NaN when it did not."""
        ...


class NoPrefixes:
    """Believes nothing to be cached anywhere."""

    def chain(self, request: Request) -> None:
        """Nothing."""
        return

    def match(self, chain: Any, capacity: int) -> Floats:
        """Zero for every slot."""
        return np.zeros(capacity)

    def insert(self, slot: int, chain: Any, now: float) -> None:
        """Notes nothing."""
        return

    def demand(self, chain: Any, now: float) -> None:
        """Nothing."""
        return

    def retract(self, receipt: Any) -> None:
        """Nothing to take back."""

    def settle(self, receipt: Any, share: float | None) -> None:
        """Nothing to settle."""

    def drop(self, slot: int) -> None:
        """Nothing to forget."""

    def set_capacity(self, slot: int, tokens: float) -> None:
        """Nothing to size."""


@dataclass(slots=True, kw_only=True)
class View:
    """What a scorer may look at: the request and, for each candidate, what is believed of it.

    Arrays are aligned with `slots`. `tokens` is the prompt's length in the candidate's tokens,
    `cached_tokens` the part it is believed to hold, `queued_tokens` what it has ahead. A scorer may
    leave `terms` behind for the explanation, and `reason`, a code of its own (one of few: metrics
    count by it) for why its best candidate is the best; it changes nothing else. `weights` are what
    the tuner wants this decision priced with, by name; None for the scorer's own. `answers`, `pace`
    and `typical_s` are as in `expected_time`. `engines` knows what engines are like (None: nothing
    is known yet), and `demand` who else asks for this prompt's prefixes. `unlike` says that the
    probabilities are base rates, since the request is unlike anything measured; `published` is Q as
    LAAR has it, static and independent of what failed.
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
    unlike: bool = False
    published: Floats | None = None
    terms: Terms | None = None
    reason: str = ""
    weights: Mapping[str, float] | None = None
    engines: Engines | None = None
    demand: Demand | None = None
    answers: Floats | None = None
    pace: Floats | None = None
    typical_s: Floats | float = 0.0


Fits = Callable[[View], NDArray[np.bool_]]
"""Which candidates of a view may take the request now; for flow control."""


class NoRoomError(Exception):
    """No candidate may take the request now; `view` is what is believed of them."""

    def __init__(self, view: View) -> None:
        super().__init__("no candidate has room")
        self.view = view


class WeightSource(Protocol):
    """Sets a policy's weights while requests flow: `laar.tuning.Tuner` is the one that serves."""

    def weights(self, now: float) -> Weights:
        """The weights for one decision; asked once for each."""
        ...

    def observe(self, sample: Sample, now: float) -> None:
        """What came of a decision."""
        ...


class Scorer(Protocol):
    """Scores the candidates in [0, 1], higher is better."""

    def score(self, view: View) -> Floats:
        """One score for each of `view.slots`."""
        ...

"""Estimate each model's P(correct), prompt length and speed for one request.

`CapabilityAssessor` uses an artifact and reported outcomes. `PlainAssessor` takes its place if
nothing was measured, or if it fails.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from laar.accuracy.artifact import parse_artifact
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.difficulty import Repeats
from laar.accuracy.features import Features, bucket_of, language_of, task_name, task_of
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.tokens import TokenEstimator
from laar.errors import SettingError

Floats = npt.NDArray[np.float64]

Cell = tuple[str, int, str]
"""Language, length bucket in tokens, task."""


@dataclass(slots=True, kw_only=True)
class Assessment:
    """Estimates for one request, as arrays over the requested models.

    Args:
        tokens: length of the prompt in the model's tokens.
        probability: P(correct), given the models already tried.
        evidence: the artifact's number of outcomes in the cell, at its measured length.
        seconds_per_token: c(m), seconds of prefill per token.
        base_s: seconds that do not grow with the prompt.
        cell: language, length bucket and task used for the look-up.
        published: the artifact's P(correct) for the request's class, ignoring failed models and
            reported outcomes: the Q of LAAR. None if only `probability` is known.
        reported: decayed number of outcomes reported for the request's class; None if no outcomes
            were reported at all.
        sure: the part of `probability` that is sure enough to be multiplied by a price
            (`laar.accuracy.text`); None if that is all of it.
        repeats: share of `probability` that repeats keep (`laar.accuracy.difficulty`); None if they
            are worth nothing, or nothing was tried.
    """

    tokens: Floats
    probability: Floats
    evidence: Floats
    seconds_per_token: Floats
    base_s: Floats
    cell: Cell
    published: Floats | None = None
    reported: Floats | None = None
    repeats: Floats | None = None
    sure: Floats | None = None


class RequestText(Protocol):
    """The parts of a request on which estimates are based.

    Attributes:
        question: the last user message.
        chars: characters of the complete prompt.
        task: the client's name for the task; empty to detect the task.
        reproducible: it gets the same answer from a model each time.
    """

    question: str
    chars: int
    task: str
    reproducible: bool


class PlainAssessor:
    """Assumes that all models are correct and equally fast, with four characters per token."""

    CHARS_PER_TOKEN = 4.0
    SECONDS_PER_TOKEN = 1e-4  # an 8B model on an A100 prefills about 10,000 tokens per second

    def assess(
        self, request: RequestText, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Return the same estimates for every model."""
        n = len(models)
        return Assessment(
            tokens=np.full(n, request.chars / self.CHARS_PER_TOKEN),
            probability=np.ones(n),
            evidence=np.zeros(n),
            seconds_per_token=np.full(n, self.SECONDS_PER_TOKEN),
            base_s=np.zeros(n),
            cell=("", 0, ""),
        )


def read_capability(path: Path) -> CapabilityModel:
    """Read an artifact of `laar fit`.

    Raises:
        SettingError: the file cannot be read, or is not a usable artifact; the message gives the
            reason.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingError(f"{path}: can't be read: {error.strerror}; run `laar fit`") from None
    digest = blake2b(data, digest_size=16).hexdigest()
    return CapabilityModel(parse_artifact(data, source=str(path)), digest)


class CapabilityAssessor:
    """Estimates accuracy, speed and prompt lengths from an artifact.

    Args:
        capability: the capability model of the artifact.
        online: reported outcomes; None to use only the artifact.
    """

    def __init__(self, capability: CapabilityModel, online: OnlineOutcomes | None = None) -> None:
        self.online = online
        self._repeats = Repeats() if online is None else online.repeats
        self.use(capability)

    @property
    def measured(self) -> Collection[str]:
        """The models and modes whose accuracy and time the artifact knows."""
        return self.capability.measured_s_per_token

    def use(self, capability: CapabilityModel) -> None:
        """Replace the artifact; keep the reported outcomes and apply them to the new prior."""
        self.capability = capability
        if self.online is not None:
            self.online.new_prior(capability)
        self._tokens = TokenEstimator(capability.chars_per_token)

    def assess(
        self, request: RequestText, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Return every model's estimates for the request."""
        key = tuple(models)
        language = language_of(request.question)
        per_char, mean_per_char = self._tokens.tokens_per_char(key, language)
        task = task_name(request.task) if request.task else ""
        asked = Features(
            language, bucket_of(request.chars * mean_per_char), task or task_of(request.question)
        )
        published = self.capability.probabilities(key, asked)
        guess = self.capability.guess(asked, request.question)
        features, prior, sure = asked, published, None
        if guess.shares is not None or guess.features is not asked:
            features, (prior, sure) = guess.features, self.capability.guessed(key, guess)
        reported = None
        if self.online is not None and self.online.cells:
            prior, reported = self.online.posterior(prior, key, features, now)
            if sure is not None:
                sure, _ = self.online.posterior(sure, key, features, now)
        repeats = None
        if tried:  # condition on their failures, after reports have corrected the prior
            if request.reproducible:
                tried = tuple(dict.fromkeys(tried))
            else:
                repeats = np.array([self._repeats.share(model) for model in key])
            prior = self.capability.given_failures(prior, key, tried)
        return Assessment(
            tokens=request.chars * per_char,
            probability=prior,
            sure=sure if not tried else None,
            evidence=self.capability.evidence(key, features),
            seconds_per_token=self.capability.seconds_per_token(key),
            base_s=self.capability.fixed_s(key),
            cell=features,
            published=published,
            reported=reported,
            repeats=repeats,
        )

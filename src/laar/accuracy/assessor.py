"""Estimate each model's P(correct), prompt length and speed for one request.

`CapabilityAssessor` uses an artifact and reported outcomes. `PlainAssessor` takes its place if
nothing was measured, or if it fails.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from laar.accuracy.artifact import parse_artifact
from laar.accuracy.assessment import Assessment, RequestText
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.difficulty import Repeats
from laar.accuracy.features import Features, bucket_of, language_of, task_name, task_of
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.tokens import TokenEstimator
from laar.errors import SettingError


def read_capability(path: Path) -> CapabilityModel:
    """Read an artifact of `laar fit`.

    Raise `SettingError` if the file cannot be read, or is not a usable artifact; the message gives
    the reason.
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

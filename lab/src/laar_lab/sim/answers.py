"""Reproducible answers of the simulated models, whose correctness follows an accuracy surface.

A fleet file gives each model its accuracy by language and length. Whether a model solves a query
never changes, as at temperature 0: latent = sqrt(r) z_query + sqrt(1-r) z_model,query, correct if
Phi(latent) < accuracy, where r is the share of difficulty common to all models and both z come from
hashes of names. Failures of different models on a query are therefore correlated, and no model
solves some of the long queries (LAAR, section 6.2).

The surface knows nothing about the picker, and the picker nothing about the surface.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from laar.datalayer.document import parse_yaml
from laar.errors import SettingError, unknown
from laar_lab.kv_lookup import Solution, solve

NO_QUESTION = "I can only look up keys in JSON data."
"""The answer to prompts other than look-ups."""

_NORMAL = NormalDist()
_Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ModelSurface(BaseModel):
    """One model: its speed, and its accuracy by language in the order of the fleet's lengths."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds_per_token: _Positive
    decode_s_per_token: _Positive
    accuracy: dict[str, list[_Share]]


class AccuracySurface(BaseModel):
    """A simulated fleet: P(correct) by model, language and length, and the correct answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lengths_tokens: Annotated[list[int], Field(min_length=1)]
    languages: Annotated[list[str], Field(min_length=1)]
    difficulty_correlation: _Share
    answer_tokens: Annotated[int, Field(ge=1)]
    models: Annotated[dict[str, ModelSurface], Field(min_length=1)]

    @model_validator(mode="after")
    def _is_whole(self) -> AccuracySurface:
        if self.lengths_tokens != sorted(set(self.lengths_tokens)):
            raise ValueError("lengths_tokens must be in ascending order")
        for name, model in self.models.items():
            for language in self.languages:
                if len(model.accuracy.get(language, ())) != len(self.lengths_tokens):
                    raise ValueError(
                        f"models.{name}.accuracy.{language} needs one number for each length"
                    )
        return self

    @classmethod
    def load(cls, path: Path | None = None) -> AccuracySurface:
        """Read a fleet file; without a path, the packaged one.

        Raises:
            SettingError: the file can't be read or is invalid; the message says why.
        """
        try:
            if path is None:
                text = (files("laar_lab.sim") / "data" / "laar-fleet.yaml").read_text("utf-8")
            else:
                text = path.read_text("utf-8")
            described = parse_yaml(text)
            if isinstance(described, dict) and "endpoints" in described:
                raise SettingError(
                    f"{path}: this is a fleet of endpoints, for `laar lab replay`; the fleet "
                    "needed here has `models`, each with its accuracy by language and length"
                )
            return cls.model_validate(described)
        except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as fault:
            raise SettingError(f"{path or 'laar-fleet.yaml'}: {fault}") from fault

    def accuracy(self, model: str, language: str, length_tokens: int) -> float:
        """Return P(correct) at the next longer tabulated length, or at the longest one.

        A language that the fleet file lacks is treated as its first language.
        """
        at = min(bisect_left(self.lengths_tokens, length_tokens), len(self.lengths_tokens) - 1)
        by_language = self.models[model].accuracy
        return by_language.get(language, by_language[self.languages[0]])[at]

    def is_correct(self, model: str, key: str, language: str, length_tokens: int) -> bool:
        """Return whether the model finds the value of this key; the result never changes."""
        r = self.difficulty_correlation
        latent = sqrt(r) * _standard_normal(key) + sqrt(1 - r) * _standard_normal(f"{model}\0{key}")
        return _NORMAL.cdf(latent) < self.accuracy(model, language, length_tokens)


class Answerer:
    """Answers prompts as one simulated model.

    Raises:
        SettingError: the surface has no such model.
    """

    def __init__(self, surface: AccuracySurface, model: str) -> None:
        if model not in surface.models:
            raise SettingError(f"fleet: {unknown('model', model, surface.models)}")
        self.surface = surface
        self.model = model
        self.seconds_per_token = surface.models[model].seconds_per_token
        self.decode_s_per_token = surface.models[model].decode_s_per_token
        self.answer_tokens = surface.answer_tokens

    def answer(self, prompt: str) -> str:
        """Return a sentence with the requested value, or with another value from the same data."""
        found = solve(prompt)
        if found is None:
            return NO_QUESTION
        right = self.surface.is_correct(self.model, found.key, found.language, found.length_tokens)
        return f"The value is {found.value if right else self._mistake(prompt, found)}."

    def _mistake(self, prompt: str, found: Solution) -> str:
        """Return another value from the data; the requested key if there is none."""
        start = int(_uniform(f"{self.model}\0{found.key}\0mistake") * len(prompt))
        for origin in (start, 0):
            at = prompt.find('": "', origin)
            while at >= 0:
                value = prompt[at + 4 : at + 4 + len(found.value)]
                if value != found.value:
                    return value
                at = prompt.find('": "', at + 4)
        return found.key


def _uniform(name: str) -> float:
    """Return a number in (0, 1) derived from the name; 52 bits exclude both ends."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52


@lru_cache(maxsize=65536)  # the same for each model and attempt
def _standard_normal(name: str) -> float:
    return _NORMAL.inv_cdf(_uniform(name))

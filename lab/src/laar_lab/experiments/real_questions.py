"""Real questions, with recorded verdicts on real models' answers, for the lab.

A record has a question, its task and each model's score; a score of at least 0.5 counts as correct.
Records have no speeds, so speeds are derived from the models' sizes, as if all ran on the same
hardware.
"""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from laar.accuracy.artifact import Capability, Speed
from laar.accuracy.fitting.fit import fit
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.fitting.records import is_kept_back, read_records
from laar.errors import SettingError
from laar.request import Api, Request
from laar_lab.sim.answers import AccuracySurface, ModelSurface
from laar_lab.sim.fleet import BLOCK_TOKENS, Prompt, Question, spread

_PREFILL_S_PER_BILLION = 1.25e-5  # seconds per token: 8B at 10,000 tokens/s, as on an A100
_DECODE_S_PER_BILLION = 1e-3  # seconds per token: 16 GB of weights at 2 TB/s take 8 ms
ANSWER_TOKENS = 120
_CHARS_PER_TOKEN = 4
_DRAWS = 10
_BILLIONS = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsWorld:
    """Questions to ask, verdicts on their answers, and an artifact fitted to other questions.

    Args:
        surface: the models' speeds; its accuracies are not used.
        capability: the artifact.
        asked: for each question, a sample of its text, its length in characters, and verdicts.
        tasks: the task of each; clients do not name it.
    """

    surface: AccuracySurface
    capability: Capability
    asked: Sequence[tuple[str, int, Mapping[str, bool]]]
    tasks: Sequence[str]

    def questions(self, seed: int, count: int) -> list[Question]:
        """Return `count` of the questions, in an order determined by the seed."""
        rng = random.Random(f"{seed}/records")
        drawn = rng.sample(range(len(self.asked)), min(count, len(self.asked)))
        return [self._question(at, rng) for at in drawn]

    def every(self) -> list[Question]:
        """Return all questions, in order."""
        rng = random.Random("records")
        return [self._question(at, rng) for at in range(len(self.asked))]

    def _question(self, at: int, rng: random.Random) -> Question:
        text, chars, right = self.asked[at]
        tokens = max(chars // _CHARS_PER_TOKEN, 1)
        blocks = array("Q", spread(at << 16, max(tokens // BLOCK_TOKENS, 1)))
        request = Request(
            id=f"q{at}", api=Api.CHAT, model="auto", question=text, chars=chars, session=f"q{at}"
        )
        request.reproducible = True  # there is one recorded answer of each model
        return Question(
            request=request,
            prompt=Prompt(prompt_tokens=tokens, output_tokens=ANSWER_TOKENS, blocks=blocks),
            is_correct=lambda model: right[model],
            normals=tuple(rng.gauss(0.0, 1.0) for _ in range(_DRAWS)),
        )


@lru_cache(maxsize=3)
def records_world(path: Path, *, unseen: int | None = None, groups: int = 2) -> RecordsWorld:
    """Fit an artifact to one half of the records, and keep the other half to ask.

    Args:
        path: the file of graded answers.
        unseen: None to halve the questions of every task; else the group of tasks whose questions
            are asked, while the fit sees only those of other groups.
        groups: number of groups into which the tasks are divided.

    Raises:
        SettingError: the records can't be used, or a model's name does not contain its size.
    """
    read = read_records([path])
    tasks = sorted({outcome.task for outcome in read.outcomes})
    if unseen is None:
        # Constants were chosen on those that a fit keeps back.
        kept = [o for o in read.outcomes if not is_kept_back(o.query_id, 0.5)]
    else:
        kept = [o for o in read.outcomes if o.task in tasks[unseen::groups]]
    asked = {o.query_id for o in kept}
    others = [o for o in read.outcomes if o.query_id not in asked]
    fitted = fit(others, created="lab", data_sha256=read.sha256, hold_out=0.0).artifact
    models = {name: _model(name) for name in fitted.models}
    known = {
        name: model.model_copy(update={"speed": _speed(models[name])})
        for name, model in fitted.models.items()
    }
    world = world_of(kept, models, fitted.model_copy(update={"models": known}))
    if not world.asked:
        raise SettingError(
            f"{path}: no question was answered by every model; the lab needs all verdicts"
        )
    return world


def world_of(
    outcomes: Sequence[MeasuredOutcome], models: dict[str, ModelSurface], capability: Capability
) -> RecordsWorld:
    """Return the questions that every one of the models answered, with their verdicts."""
    verdicts: dict[str, dict[str, bool]] = {}
    first: dict[str, MeasuredOutcome] = {}
    for outcome in outcomes:
        if outcome.text and outcome.model in models:
            verdicts.setdefault(outcome.query_id, {})[outcome.model] = bool(outcome.correct)
            first.setdefault(outcome.query_id, outcome)
    whole = [id_ for id_, right in verdicts.items() if right.keys() == models.keys()]
    return RecordsWorld(
        surface=AccuracySurface(
            lengths_tokens=[4096],
            languages=["en"],
            difficulty_correlation=0.5,
            answer_tokens=ANSWER_TOKENS,
            models=models,
        ),
        capability=capability,
        asked=[(first[id_].text or "", first[id_].prompt_chars, verdicts[id_]) for id_ in whole],
        tasks=[first[id_].task for id_ in whole],
    )


def _model(name: str) -> ModelSurface:
    size = _BILLIONS.search(name)
    if size is None:
        raise SettingError(f"the model name {name} does not contain its size, such as 8b")
    billions = float(size[1])
    return ModelSurface(
        seconds_per_token=_PREFILL_S_PER_BILLION * billions,
        decode_s_per_token=_DECODE_S_PER_BILLION * billions,
        accuracy={"en": [0.5]},
    )


def _speed(model: ModelSurface) -> Speed:
    return Speed(
        seconds_per_token=model.seconds_per_token,
        spread_s_per_token=0.0,
        fixed_s=model.decode_s_per_token * ANSWER_TOKENS,
        samples=1,
    )

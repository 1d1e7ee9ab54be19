"""What the picker knows of a fleet whose models are always correct: their measured speeds.

It replaces an artifact made by `laar measure` on idle engines: a line through the times of two
prompts of different lengths. Q is 1 for every model, so the cost orders endpoints by time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from laar.accuracy.assessment import Assessment, PlainAssessor, SpeedPrior
from laar.accuracy.assessor import CapabilityAssessor
from laar.core.interfaces import Assessor
from laar.request import Request
from laar_lab.sim.engine import EngineProfile, Job, build_engine, drive
from laar_lab.sim.fleet.site import Site

_SHORT_TOKENS, _LONG_TOKENS = 512, 4096


class MeasuredAssessor:
    """Assessor with the seconds per token of each model's engine.

    Args:
        sites: the fleet; if several endpoints serve a model, the first is measured.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self._speeds: dict[str, tuple[float, float]] = {}
        for site in sites:
            if site.model not in self._speeds:
                self._speeds[site.model] = _measure(site.engine)

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Return the same probability for all models, and each model's speed."""
        n = len(models)
        speeds = [self._speeds[model] for model in models]
        return Assessment(
            tokens=np.full(n, request.chars / PlainAssessor.CHARS_PER_TOKEN),
            probability=np.ones(n),
            evidence=np.zeros(n),
            seconds_per_token=np.array([slope for slope, _ in speeds]),
            base_s=np.array([fixed for _, fixed in speeds]),
            cell=("", 0, ""),
        )

    def speed(self, model: str) -> SpeedPrior:
        """Return the constant part of a model's time, which engines can't tell from the others."""
        return SpeedPrior(start_s=self._speeds[model][1])


def speeds_of(assessor: Assessor) -> Callable[[str], SpeedPrior]:
    """Return the speeds that the engines assume: those times that do not grow with the prompt."""
    assessor = getattr(assessor, "inner", assessor)
    if isinstance(assessor, MeasuredAssessor):
        return assessor.speed
    if not isinstance(assessor, CapabilityAssessor):
        return lambda _model: SpeedPrior()
    measured = assessor.capability.speed

    def speed(model: str) -> SpeedPrior:
        known = measured(model)
        return SpeedPrior(
            answer_s=None if known.answer_s is None else known.start_s + known.answer_s
        )

    return speed


def _measure(engine: EngineProfile) -> tuple[float, float]:
    """Return the seconds per token, and the constant part of a prompt's time."""
    times = []
    for tokens in (_SHORT_TOKENS, _LONG_TOKENS):
        job = Job(id="one", arrival_s=0.0, prompt_tokens=tokens, output_tokens=1)
        times.append(drive(build_engine(engine), [job])["one"].ttft_s)
    slope = (times[1] - times[0]) / (_LONG_TOKENS - _SHORT_TOKENS)
    return slope, max(0.0, times[0] - slope * _SHORT_TOKENS)

from laar.network.gorgo import PUBLISHED_WEIGHTS, gorgo_score
from laar.network.roundtrip import STALE_AFTER_S, UNKNOWN, fresh, update
from laar.network.tuner import Tuner, TunerSettings, Weights
from laar.network.windows import OBJECTIVES, Sample, WindowScore

__all__ = [
    "OBJECTIVES",
    "PUBLISHED_WEIGHTS",
    "STALE_AFTER_S",
    "UNKNOWN",
    "Sample",
    "Tuner",
    "TunerSettings",
    "Weights",
    "WindowScore",
    "fresh",
    "gorgo_score",
    "update",
]

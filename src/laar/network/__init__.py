from laar.network.gorgo import PUBLISHED_WEIGHTS, gorgo_score
from laar.network.roundtrip import STALE_AFTER_S, UNKNOWN, fresh_rtt, smooth_rtt
from laar.network.tuner import Tuner, TunerSettings, Weights
from laar.network.windows import OBJECTIVES, Sample, WindowScore, better

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
    "better",
    "fresh_rtt",
    "gorgo_score",
    "smooth_rtt",
]

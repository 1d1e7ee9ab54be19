"""The tuner: a hill-climb over the cost's weights, judged by windows of requests."""

from laar.tuning.settings import TunerSettings
from laar.tuning.tuner import Tuner, Weights
from laar.tuning.windows import OBJECTIVES, Observed, WindowScore, better

__all__ = ["OBJECTIVES", "Observed", "Tuner", "TunerSettings", "Weights", "WindowScore", "better"]

"""LAAR: each model's accuracy on a request, its cost, and learning from outcomes.

Serving uses the names below, and never imports `laar.accuracy.fitting`.
"""

from laar.accuracy.artifact import ARTIFACT_SCHEMA, Capability, parse_artifact
from laar.accuracy.capability import CapabilityModel, Evidence
from laar.accuracy.features import (
    FEATURES_SCHEMA,
    Features,
    bucket_of,
    features_of,
    language_of,
    task_of,
)
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.reports import OutcomeReports, Verdict
from laar.accuracy.retry import Tried, parse_tried, with_model
from laar.accuracy.success import SuccessModel
from laar.accuracy.tokens import TokenEstimator

__all__ = [
    "ARTIFACT_SCHEMA",
    "FEATURES_SCHEMA",
    "Capability",
    "CapabilityModel",
    "Evidence",
    "Features",
    "OnlineOutcomes",
    "OutcomeReports",
    "SuccessModel",
    "TokenEstimator",
    "Tried",
    "Verdict",
    "bucket_of",
    "features_of",
    "language_of",
    "parse_artifact",
    "parse_tried",
    "task_of",
    "with_model",
]

"""LAAR: what each model can do on a request, what that costs, and what outcomes teach.

Serving needs the names below; `laar.accuracy.fitting.fit` and `laar.accuracy.fitting.report` are imported by name,
because they bring scikit-learn with them.
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
from laar.accuracy.fitting.outcomes import MeasuredOutcome, OutcomeFile, parse_outcomes
from laar.accuracy.latency import Drift, LatencyCheck
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.reports import OutcomeReports, Verdict
from laar.accuracy.retry import Tried, format_tried, is_exhausted, parse_tried, retry_factors
from laar.accuracy.success import SuccessModel
from laar.accuracy.tokens import TokenEstimator

__all__ = [
    "ARTIFACT_SCHEMA",
    "FEATURES_SCHEMA",
    "Capability",
    "CapabilityModel",
    "Drift",
    "Evidence",
    "Features",
    "LatencyCheck",
    "MeasuredOutcome",
    "OnlineOutcomes",
    "OutcomeFile",
    "OutcomeReports",
    "SuccessModel",
    "TokenEstimator",
    "Tried",
    "Verdict",
    "bucket_of",
    "features_of",
    "format_tried",
    "is_exhausted",
    "language_of",
    "parse_artifact",
    "parse_outcomes",
    "parse_tried",
    "retry_factors",
    "task_of",
]

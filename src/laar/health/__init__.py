"""Endpoint health, learned from outcomes: P(answers) for the cost, and a circuit breaker."""

from laar.health.breaker import HealthSettings, Word
from laar.health.endpoint import Attempt, Stage
from laar.health.health import Health
from laar.health.kinds import DULL, FAILURES, GOOD, USELESS, Kind, Reply, judge
from laar.health.requests import Asked
from laar.health.standing import Standing, standing_of

__all__ = [
    "DULL",
    "FAILURES",
    "GOOD",
    "USELESS",
    "Asked",
    "Attempt",
    "Health",
    "HealthSettings",
    "Kind",
    "Reply",
    "Stage",
    "Standing",
    "Word",
    "judge",
    "standing_of",
]

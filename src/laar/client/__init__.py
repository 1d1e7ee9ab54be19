"""The client side of LAAR: ask until an answer is correct, and report the outcome."""

from laar.client.report import report_outcome, report_outcome_sync
from laar.client.until import Attempt, Outcome, until_correct, until_correct_sync

__all__ = [
    "Attempt",
    "Outcome",
    "report_outcome",
    "report_outcome_sync",
    "until_correct",
    "until_correct_sync",
]

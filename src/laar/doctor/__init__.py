"""Check a deployment: each finding names a place, its state and the remedy."""

from laar.doctor.doctor import Doctor
from laar.doctor.findings import Finding, Level, show_findings

__all__ = ["Doctor", "Finding", "Level", "show_findings"]

"""Check a deployment: each finding gives a place, its state and the fix."""

from laar.doctor.doctor import Doctor
from laar.doctor.findings import Finding, Level, show_findings

__all__ = ["Doctor", "Finding", "Level", "show_findings"]

"""What an operator asks from a shell: why a request goes where it goes, and what is wrong."""

from laar.cli.explaining import (
    explain_live,
    explain_offline,
    read_body,
    read_headers,
    show_explanation,
)
from laar.doctor.doctor import Doctor, Places, admin_url
from laar.doctor.findings import Finding, Level, show_findings

__all__ = [
    "Doctor",
    "Finding",
    "Level",
    "Places",
    "admin_url",
    "explain_live",
    "explain_offline",
    "read_body",
    "read_headers",
    "show_explanation",
    "show_findings",
]

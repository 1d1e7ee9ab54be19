"""Reading laar's own metrics page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laar.server.admin.metrics import metrics_page

if TYPE_CHECKING:
    from laar.server.runner import Runner


def metric(runner: Runner, name: str) -> float:
    """Return the value of one series, labels included in `name`; 0 if the page lacks it."""
    for line in metrics_page(runner.picker).decode().splitlines():
        if line.startswith(name) and line[len(name)] == " ":
            return float(line.rpartition(" ")[2])
    return 0.0

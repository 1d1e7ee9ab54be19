"""Draw the dashboard's panels for the documentation, without Grafana: see `screenshots.py`.

Prometheus is asked each panel's queries as Grafana would.
"""

from __future__ import annotations

import re
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import matplotlib as mpl
from matplotlib import pyplot as plt
from PIL import Image

from support import prometheus as metrics

ROWS = ("Answers", "Traffic", "Endpoints", "Estimates")
"""The rows that have data without flow control."""

COLUMNS, STEP_S = 3, 2
MOST_CHARS = 32


async def answers(url: str, since_s: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the panels of `ROWS`, each with its lines by their legends."""
    found, row = [], ""
    until_s = time.time()
    span = {"start": str(since_s), "end": str(until_s), "step": str(STEP_S)}
    async with aiohttp.ClientSession() as http:
        for panel in metrics.panels("30s"):
            row = panel["title"] if panel["type"] == "row" else row
            lines = {}
            for target in panel.get("targets", ()):
                asked = f"{url}/query_range"
                for line in await metrics.ask(http, asked, query=target["expr"], **span):
                    labels = line["metric"]
                    legend = re.sub(
                        r"{{(\w+)}}",
                        lambda name, of=labels: of.get(name[1], ""),
                        target["legendFormat"],
                    )
                    lines[legend] = [(at - until_s, float(value)) for at, value in line["values"]]
            if row in ROWS and panel["type"] != "row":
                found.append((panel, lines))
    return found


def draw(found: list[tuple[dict[str, Any], dict[str, Any]]], picture: Path) -> None:
    """Write the panels in the dashboard's grid."""
    mpl.rcParams |= {
        "font.size": 7,
        "axes.titlesize": 8,
        "legend.fontsize": 5.5,
        "lines.linewidth": 1,
    }
    tops = sorted({panel["gridPos"]["y"] for panel, _ in found})
    figure, axes = plt.subplots(
        len(tops), COLUMNS, figsize=(12, 1.9 * len(tops)), layout="constrained", squeeze=False
    )
    for axis in axes.flat:
        axis.axis("off")
    for panel, lines in found:
        place, unit = panel["gridPos"], panel["fieldConfig"]["defaults"]["unit"]
        axis = axes[tops.index(place["y"])][place["x"] // place["w"]]
        axis.axis("on")
        axis.set_title(f"{panel['title']} ({unit})", loc="left")
        for legend, values in sorted(lines.items()):
            axis.plot(*zip(*values, strict=True), label=legend[:MOST_CHARS])
        axis.set_ylim(bottom=0.0)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if lines:
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), frameon=False)
        else:
            axis.text(0.5, 0.5, "No data", ha="center", va="center", transform=axis.transAxes)
    figure.supxlabel("seconds ago")
    figure.savefig(drawn := BytesIO(), dpi=100)
    Image.open(drawn).convert("RGB").quantize(48).save(picture, optimize=True)

"""Draw a report's charts with matplotlib, one panel each."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

from laar.errors import SettingError
from laar_lab.report import Chart, Report

_PANEL_INCHES = (6.4, 4.2)


FEWEST_RUNS = 5
"""Minimum number of runs for error bars; with fewer, they mostly reflect the t distribution."""

_HEADROOM = 1.25


def draw(report: Report, path: Path, title: str, *, runs: int | None = None) -> None:
    """Write the figure to a file; the suffix sets the format.

    Args:
        report: the report with the charts to draw.
        path: output file.
        title: title above all panels.
        runs: runs per estimate. Error bars are drawn if this is None or at least `FEWEST_RUNS`.

    Raises:
        SettingError: there is nothing to draw, the format is unknown, or the file can't be written.
    """
    charts = [chart for chart in report.charts if chart.x and any(chart.series.values())]
    if not charts:
        raise SettingError(f"--plot {path}: {title} has no figure")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = _PANEL_INCHES
    count = len(charts)
    figure = Figure(figsize=(width * count, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, count, squeeze=False)[0]
    bars = runs is None or runs >= FEWEST_RUNS
    for axis, chart in zip(axes, charts, strict=True):
        _panel(axis, chart, bars=bars)
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise SettingError(f"--plot {path}: {error}") from None


def _panel(axis: Any, chart: Chart, *, bars: bool) -> None:
    places: list[float] = [float(i) for i in range(len(chart.x))]
    if chart.kind == "lines" and not any(isinstance(x, str) for x in chart.x):
        places = [float(x) for x in chart.x]
    else:
        axis.set_xticks(places, [str(x) for x in chart.x], rotation=60, fontsize=7)
    width = 0.8 / max(1, len(chart.series))
    for index, (name, values) in enumerate(chart.series.items()):
        means = [value.mean for value in values]
        errors = [value.high - value.mean for value in values] if bars else None
        if chart.kind == "bars":
            shifted = [place + (index - (len(chart.series) - 1) / 2) * width for place in places]
            axis.bar(shifted, means, width, yerr=errors, label=name)
        else:
            axis.errorbar(places, means, yerr=errors, label=name, capsize=2, marker=".")
    axis.set_ylim(*limits(chart))
    axis.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axis.legend(fontsize=7)


def limits(chart: Chart) -> tuple[float, float]:
    """Return y-axis limits that fit the means, so that a wide interval does not flatten a panel.

    The axis starts at 0 unless a mean is negative, even if an interval goes below 0.
    """
    means = [value.mean for values in chart.series.values() for value in values]
    known = [mean for mean in means if isfinite(mean)] or [0.0]
    low, high = min(0.0, *known) * _HEADROOM, max(0.0, *known) * _HEADROOM
    return (low, high) if high > low else (0.0, 1.0)

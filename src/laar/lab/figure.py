"""Draws a report's charts with matplotlib, one panel each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from laar.errors import SettingError
from laar.lab.report import Chart, Report

__all__ = ["draw"]

_PANEL_INCHES = (6.4, 4.2)


def draw(report: Report, path: Path, title: str) -> None:
    """Writes the figure; the file's ending says the format.

    Raises:
        SettingError: the format is unknown or the file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = _PANEL_INCHES
    count = max(1, len(report.charts))
    figure = Figure(figsize=(width * count, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis, chart in zip(axes, report.charts, strict=False):
        _panel(axis, chart)
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise SettingError(f"--plot {path}: {error}") from None


def _panel(axis: Any, chart: Chart) -> None:
    places: list[float] = [float(i) for i in range(len(chart.x))]
    if chart.kind == "lines" and not any(isinstance(x, str) for x in chart.x):
        places = [float(x) for x in chart.x]
    else:
        axis.set_xticks(places, [str(x) for x in chart.x], rotation=60, fontsize=7)
    width = 0.8 / max(1, len(chart.series))
    for index, (name, values) in enumerate(chart.series.items()):
        means = [value.mean for value in values]
        errors = [value.high - value.mean for value in values]
        if chart.kind == "bars":
            shifted = [place + (index - (len(chart.series) - 1) / 2) * width for place in places]
            axis.bar(shifted, means, width, yerr=errors, label=name)
        else:
            axis.errorbar(places, means, yerr=errors, label=name, capsize=2, marker=".")
    axis.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axis.legend(fontsize=7)

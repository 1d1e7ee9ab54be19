"""The figure of a race: a row per router, legible on light and dark pages.

Bars are means, points are repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from laar.errors import SettingError
from laar_lab.race.result import METRICS, Turn

SHOWN = ("ttft_mean_s", "ttft_p95_s", "answer_mean_s")
_OURS, _OTHERS, _TEXT = "#e8590c", "#868e96", "#868e96"
_INCHES = (3.0, 0.42)  # width of a panel, height of a row


def draw(turns: Sequence[Turn], path: Path, title: str) -> None:
    """Write the figure of a race, with a panel per metric; the suffix of `path` sets the format.

    Args:
        turns: turns of the race; the first router is highlighted.
        path: output file.
        title: title above all panels.

    Raises:
        SettingError: the format is unknown, or the file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    routers = list(dict.fromkeys(turn.router for turn in turns))
    width, height = _INCHES[0] * len(SHOWN) + 1.5, _INCHES[1] * len(routers) + 1.1
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(SHOWN), sharey=True, squeeze=False)[0]
    for axis, name in zip(axes, SHOWN, strict=True):
        _panel(axis, name, turns, routers)
        axis.set_title(METRICS[name], color=_TEXT, fontsize=9)
    figure.suptitle(title, color=_TEXT, fontsize=9)
    try:
        figure.savefig(path, dpi=150, transparent=True)
    except (OSError, ValueError) as error:
        raise SettingError(f"--plot {path}: {error}") from None


def _panel(axis: Any, name: str, turns: Sequence[Turn], routers: Sequence[str]) -> None:
    most = 0.0
    for place, router in enumerate(routers):
        values = [turn.numbers[name] for turn in turns if turn.router == router]
        known = [value for value in values if math.isfinite(value)]
        if not known:
            continue
        color = _OURS if place == 0 else _OTHERS
        axis.barh(place, fmean(known), height=0.6, color=color, alpha=0.55)
        axis.plot(known, [place] * len(known), "o", color=color, markersize=3)
        axis.annotate(
            f"{fmean(known):.2f}",
            (max(known), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=color,
            fontsize=8,
        )
        most = max(most, *known)
    axis.set_xlim(0.0, most * 1.25 or 1.0)
    axis.set_yticks(range(len(routers)), routers)
    axis.set_ylim(len(routers) - 0.5, -0.5)
    axis.tick_params(colors=_TEXT, labelsize=8, length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    axis.set_xticks([])

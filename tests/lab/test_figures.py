"""Figures have no empty panels, no intervals from too few runs, no axis stretched by an outlier."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from laar.errors import SettingError
from laar_lab.figure import FEWEST_RUNS, draw, limits
from laar_lab.report import Chart, Report, Table, show
from laar_lab.statistics import Estimate

WIDE = Chart(
    title="p99",
    x_label="load",
    y_label="s",
    x=(1.0, 2.0),
    series={
        "laar": (Estimate(5.0, 300.0), Estimate(8.0, 5e12)),
        "random": (Estimate(9.0, 1.0),) * 2,
    },
)


def test_a_wide_interval_is_clipped_at_zero_and_does_not_flatten_the_rest() -> None:
    low, high = limits(WIDE)
    assert low == 0.0
    assert 9.0 < high < 15.0


def test_a_loss_is_drawn_below_zero() -> None:
    chart = Chart(title="", x_label="", y_label="", x=(1.0,), series={"a": (Estimate(-4.0, 1.0),)})
    low, high = limits(chart)
    assert low < -4.0
    assert high >= 0.0


def test_too_few_runs_have_no_error_bars(tmp_path: Path) -> None:
    report = Report(tables=(), checks=(), charts=(WIDE,))
    draw(report, tmp_path / "few.svg", "x", runs=FEWEST_RUNS - 1)
    draw(report, tmp_path / "many.svg", "x", runs=FEWEST_RUNS)
    few, many = ((tmp_path / name).read_text() for name in ("few.svg", "many.svg"))
    assert "LineCollection" in many
    assert "LineCollection" not in few


@pytest.mark.parametrize(
    "charts",
    [(), (Chart(title="", x_label="", y_label="", x=(), series={}),)],
    ids=["no chart", "no point"],
)
def test_missing_data_is_reported_and_no_picture_is_written(
    tmp_path: Path, charts: tuple[Chart, ...]
) -> None:
    path = tmp_path / "empty.png"
    with pytest.raises(SettingError, match="has no figure"):
        draw(Report(tables=(), checks=(), charts=charts), path, "gorgo-rtt")
    assert not path.exists()


def test_names_are_not_truncated_in_a_narrow_terminal() -> None:
    names = ("granite-3.1-2b-instruct-long-name", "granite-3.1-8b-instruct-long-name")
    table = Table(title="t", columns=("policy", *names), rows=[("session-affinity", 1.0, 2.0)])
    out = io.StringIO()
    show(Report(tables=(table,), checks=()), Console(file=out, width=40))
    text = out.getvalue()
    assert "…" not in text
    assert "1.00" in text

"""The engine model against the figures that the Medha paper publishes."""

from __future__ import annotations

import pytest

from laar_lab.sim.engine.validation import Figure, published_figures

FIGURES = published_figures()


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_published_figure_is_met(figure: Figure) -> None:
    assert figure.holds, f"published {figure.published}, ours {figure.ours}"


def test_a_figure_off_by_more_than_the_tolerance_does_not_hold() -> None:
    assert not Figure(name="x", published=1.0, ours=1.11).holds
    assert not Figure(name="x", published=1.0, ours=0.99, kind="at least").holds

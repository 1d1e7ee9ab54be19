"""The engine model compared with the figures published in the Medha paper."""

from __future__ import annotations

import pytest

from laar_lab.sim.engine.validation import Figure, published_figures


@pytest.mark.long
def test_the_published_figures_are_reproduced() -> None:
    missed = [figure for figure in published_figures() if not figure.holds]
    assert missed == []


def test_a_figure_beyond_the_tolerance_fails() -> None:
    assert not Figure(name="x", published=1.0, ours=1.11).holds
    assert not Figure(name="x", published=1.0, ours=0.99, kind="at least").holds

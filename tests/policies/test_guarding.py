"""Views are guarded against changes by plug-ins."""

from dataclasses import fields, replace

import numpy as np
import pytest

import laar.testing
from laar.core.interfaces import BY_CANDIDATE, View
from laar.policies.guarding import Guarded

_KINDS = ("Floats", "Slots", "Mask")
_ARRAYS = [each.name for each in fields(View) if any(kind in each.type for kind in _KINDS)]


def full_view():
    view = laar.testing.make_view(3)
    unknown = [name for name in _ARRAYS if not isinstance(getattr(view, name), np.ndarray)]
    return replace(view, **{name: np.ones(3) for name in unknown})


class Writes:
    def __init__(self, name):
        self.name = name

    def keep(self, view):
        getattr(view, self.name)[0] = 7
        return np.ones(len(view.slots), bool)

    def score(self, view):
        return self.keep(view).astype(float)

    def order(self, scores, view):
        self.keep(view)
        return range(len(scores))


def test_every_array_of_a_view_is_listed():
    assert set(BY_CANDIDATE) == set(_ARRAYS)


@pytest.mark.parametrize("name", _ARRAYS)
def test_writing_to_an_array_of_the_view_raises_an_error(name):
    for part in (
        lambda view: Guarded(Writes(name), "p").keep(view),
        lambda view: Guarded(Writes(name), "p").score(view),
        lambda view: Guarded(Writes(name), "p").order(np.ones(3), view),
    ):
        view = full_view()
        before = getattr(view, name).copy()
        with pytest.raises(ValueError, match="read-only"):
            part(view)
        assert (getattr(view, name) == before).all()

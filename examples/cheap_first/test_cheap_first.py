import numpy as np
import pytest
from cheap_first import CheapFirst

import laar.testing


@pytest.mark.parametrize("check", laar.testing.checks(CheapFirst), ids=str)
def test_it_keeps_the_promises_of_a_scorer(check):
    check()


def test_half_the_price_is_twice_the_score():
    view = laar.testing.make_view(3, labels=[{"price": "4"}, {"price": "2"}])
    np.testing.assert_allclose(CheapFirst().score(view), [0.5, 1.0, 0.5])

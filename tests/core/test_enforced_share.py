"""The share of enforced decisions."""

from hypothesis import given
from hypothesis import strategies as st

from laar.core.decision import Enforcement

SHARES = st.floats(0.0, 1.0)


@given(st.text(), SHARES, SHARES)
def test_an_enforced_session_stays_enforced_as_the_share_grows(key, one, other):
    small, large = sorted((one, other))
    assert Enforcement(enforce_share=large).enforces(key) or not Enforcement(
        enforce_share=small
    ).enforces(key)


@given(st.text())
def test_shares_of_zero_and_one_enforce_nothing_and_everything(key):
    assert Enforcement(enforce_share=1.0).enforces(key)
    assert not Enforcement(enforce_share=0.0).enforces(key)


def test_the_enforced_share_is_a_share_of_the_sessions():
    draw = Enforcement(enforce_share=0.25).enforces
    assert 0.22 < sum(draw(f"session-{n}") for n in range(4000)) / 4000 < 0.28
    draw = Enforcement(enforce_share=0.75).enforces
    assert 0.72 < sum(draw(f"session-{n}") for n in range(4000)) / 4000 < 0.78

"""Money in the sum: the cheaper endpoint wins where its price outweighs its time."""

import pytest
from money import Money

import laar
from laar.testing import director_with


def choose(worth, options=None, dollars=("4", "1")):
    """Return the decision between two equal endpoints with these prices for a token."""
    labels = [{"dollars-per-mtok-in": price} if price else {} for price in dollars]
    director = director_with(Money(seconds_per_dollar=worth), labels=labels)
    request = laar.Request(
        id="r", api=laar.Api.CHAT, model="m", spans=("word " * 2000,), chars=10_000, given=options
    )
    return director.decide(request, 0.0)


@pytest.mark.parametrize("worth", [1e3, 1e6])
def test_the_cheaper_of_two_equal_endpoints_wins(worth):
    decision = choose(worth)
    money_s = decision.view.terms.added["money_s"]
    assert money_s[decision.position] == money_s.min() < money_s.max()


def test_a_client_may_say_what_a_dollar_is_worth():
    told = choose(0.0, {"seconds-per-dollar": "5000"})
    assert "money_s" in told.view.terms.added
    for nonsense in ("", "-1", "nan", "x"):
        assert "money_s" not in choose(0.0, {"seconds-per-dollar": nonsense}).view.terms.added


def test_without_prices_nothing_changes():
    free, plain = choose(600.0, dollars=("0", "")), choose(0.0)
    assert free.view.terms.added == {}
    assert not free.parts
    assert (free.view.terms.cost_s == plain.view.terms.cost_s).all()

"""Hedging: two models at once where that pays, the first right answer taken.

The picker's answer begins with the attempt's expected time, how likely it is right, and the same of
the best other model (`x-laar-hedge`, if the request asks for it). `Hedge.pays` weighs them:

    saved  = (1 - p) * min(s, next_s)                the second attempt need not wait for the first
    wasted = p * min(s, next_s) + others_s           its seconds in vain, and those of others

It pays where `saved >= price * wasted`, or where the second would miss the deadline after the first
and meet it beside it. So with an idle endpoint it pays where P(correct) is below 0.8 at a price of
1/4, and below a half at a price of 1. The budget bounds the seconds of all second requests.
`next_p` matters only as a floor: a wrong second answer saves its time as well, since the third
attempt begins sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import NamedTuple

from laar.errors import SettingError
from laar.protocol import headers as names

_MAX_S = 1e6


class Advice(NamedTuple):
    """The picker's estimates of an attempt and of the best one beside it; see the module's text."""

    p: float
    s: float
    next_p: float
    next_s: float
    others_s: float


def read_advice(header: str | None) -> Advice | None:
    """Read an answer's ``x-laar-hedge``; return None for no header, or one that makes no sense."""
    if not header or len(header) > names.MAX_VALUE_CHARS:
        return None
    parts = [part.partition("=") for part in header.split(";")]
    found = {name.strip(): value.strip() for name, _, value in parts}
    try:
        advice = Advice(*(float(found[name]) for name in names.HEDGE_FIELDS))
    except (KeyError, ValueError):
        return None
    chances = 0 <= advice.p <= 1 and 0 <= advice.next_p <= 1
    seconds = all(0 <= each <= _MAX_S for each in (advice.s, advice.next_s, advice.others_s))
    return advice if chances and seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedge:
    """Rule for when `until_correct` asks two models at once.

    Args:
        budget_s: engine seconds that second requests may run, for one question.
        deadline_s: seconds from the first request within which a correct answer is wanted; None for
            no deadline.
        price: seconds of waiting that a second of an engine in vain has to save; 0 hedges
            wherever the budget lasts.
        min_next_p: the second model is asked only if it is right with this probability at least.
    """

    budget_s: float = 10.0
    deadline_s: float | None = None
    price: float = 0.25
    min_next_p: float = 0.05

    def __post_init__(self) -> None:
        limits = (self.budget_s, self.price, self.min_next_p, self.deadline_s or 0.0)
        if not all(isfinite(each) and each >= 0 for each in limits):
            raise SettingError("a hedge's budget, deadline, price and probability are 0 or more")

    def pays(self, advice: Advice, *, spent_s: float = 0.0, elapsed_s: float = 0.0) -> bool:
        """Return whether to ask the second model now.

        Args:
            advice: the picker's advice on the attempt that has just begun.
            spent_s: engine seconds of earlier second requests.
            elapsed_s: seconds since the first request.
        """
        both_s = min(advice.s, advice.next_s)
        if advice.next_p < self.min_next_p or spent_s + both_s > self.budget_s:
            return False
        left_s = inf if self.deadline_s is None else self.deadline_s - elapsed_s
        if advice.next_s <= left_s < advice.s + advice.next_s:
            return True
        wasted_s = advice.p * both_s + advice.others_s
        return left_s >= advice.next_s and (1 - advice.p) * both_s >= self.price * wasted_s

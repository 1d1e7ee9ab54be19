"""A plug-in that prices tokens and engine time in dollars, by labels of the endpoints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

import laar

IN, OUT, HOUR = "dollars-per-mtok-in", "dollars-per-mtok-out", "dollars-per-hour"
"""Labels: dollars for a million tokens of prompt and of answer, and for an hour of the engine."""

_SPENT = laar.Meter(
    "laar_dollars_total", "counter", ("model",), "Dollars that answers cost, by the labels' prices."
)


@dataclass(slots=True)
class Prices(laar.Part):
    """Dollars at each candidate; arrays over them.

    Args:
        worth_s: seconds that a dollar is worth to this request's client.
        token_in: dollars for a token of the prompt.
        token_out: dollars for a token of the answer.
        second: dollars for a second of the engine.
        request: dollars that the request is expected to cost; set once it is priced.
    """

    worth_s: float
    token_in: laar.Floats
    token_out: laar.Floats
    second: laar.Floats
    request: laar.Floats | None = None

    def at(self, positions: laar.Slots) -> Prices:
        """Return the prices of some of the candidates."""
        some = (self.token_in, self.token_out, self.second)
        return Prices(self.worth_s, *(column[positions] for column in some))


@dataclass(slots=True)
class Worth(laar.Part):
    """What a dollar is worth to one client, in seconds."""

    seconds: float


@dataclass(slots=True)
class Bill(laar.Part):
    """The prices at the chosen endpoint, and the dollars expected."""

    token_in: float
    token_out: float
    second: float
    expected: float


class Money(laar.Plugin):
    """Adds dollars to the cost, in seconds.

    Args:
        seconds_per_dollar: what a dollar is worth; clients may say otherwise with
            ``x-laar-options: seconds-per-dollar=NUMBER``.
    """

    name = "money"
    term = "money_s"
    meters = (_SPENT,)

    def __init__(self, *, seconds_per_dollar: float = 600.0) -> None:
        self._worth_s = seconds_per_dollar
        self._spent: Counter[str] = Counter()

    def join(self, core: laar.Core) -> None:
        """Keep the table, for the labels."""
        self._table = core.table

    def admit(self, request: laar.Request, now: float) -> laar.Admitted | None:
        """Read what the client says."""
        try:
            seconds = float((request.given or {})["seconds-per-dollar"])
        except (KeyError, ValueError):
            return None
        return laar.Admitted(part=Worth(seconds)) if 0.0 <= seconds < 1e9 else None

    def prescore(self, view, part, group, match) -> Prices | None:
        """Return the prices at the candidates; take no part if there are none."""
        labels, slots = (IN, OUT, HOUR), view.slots
        columns = [np.array([self._label(slot, of) for slot in slots]) for of in labels]
        worth_s = part.seconds if isinstance(part, Worth) else self._worth_s
        if worth_s <= 0.0 or not any(map(np.any, columns)):
            return None
        return Prices(worth_s, columns[0] / 1e6, columns[1] / 1e6, columns[2] / 3600.0)

    def filter(self, group, able, answering, now) -> Worth | None:
        """Take part where some endpoint has a price."""
        priced = any(self._label(slot, of) for slot in group.slots for of in (IN, OUT, HOUR))
        return Worth(self._worth_s) if priced else None

    def price(self, view, part: Prices, pricing):
        """Add what each candidate's answer is expected to cost."""
        price = pricing.price
        answer_tokens = view.engines.constants(view.slots, view.model_id).tokens
        part.request = part.token_in * view.tokens + part.token_out * answer_tokens
        part.request = part.request + part.second * price.latency_s
        seconds = part.worth_s * part.request
        return price._replace(own_s=price.own_s + seconds, total_s=price.total_s + seconds), seconds

    def select(self, view, part: Prices, at: int) -> Bill | None:
        """Keep the prices for the bill."""
        if part.request is None:  # the policy computes no cost
            return None
        columns = (part.token_in, part.token_out, part.second, part.request)
        return Bill(*(float(column[at]) for column in columns))

    def complete(self, decision, end) -> None:
        """Count the dollars, by the engine's own counts if it gives them."""
        bill: Bill = decision.parts[self]
        tokens_in = end.prompt_tokens or decision.tokens
        dollars = bill.token_in * tokens_in + bill.token_out * (end.completion_tokens or 0)
        self._spent[decision.flight.model] += dollars + bill.second * end.latency_s

    def record(self, decision):
        """Show the dollars expected."""
        bill = decision.parts.get(self)
        return {"dollars": bill.expected} if isinstance(bill, Bill) else {}

    def sentence(self, decision) -> str:
        """Say what it costs."""
        bill = decision.parts.get(self)
        return f"It is expected to cost {bill.expected:.2g} dollars." if bill else ""

    def samples(self):
        """Return the dollars spent, by model."""
        return [(_SPENT, (model,), dollars) for model, dollars in self._spent.items()]

    def _label(self, slot: int, label: str) -> float:
        try:
            price = float(self._table.spec(int(slot)).labels[label])
        except (KeyError, ValueError):
            return 0.0
        return price if 0.0 < price < 1e9 else 0.0

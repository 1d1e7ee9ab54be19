"""The traffic to each endpoint: prefill work ahead, mean number of requests in flight, and rates.

A first token that the picker sees removes its prompt from the work ahead. Prompts whose first token
is not seen (answers whose body is not read) are removed as time passes, at the latest when their
answers end: otherwise, if c(m) is too large, the estimate would lag ever further behind. Work is in
seconds estimated by c(m): the time that the model takes for a prompt's uncached tokens alone.

Counts include the traffic that other pickers report; those in `_SHARED` are this picker's alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from laar.fleet.endpoints import EndpointTable, Floats, Slots

MEAN_S = 60.0
"""Time constant of the mean number in flight, in seconds."""

RATE_S = 30.0
"""Time constant of the rates of requests and of prefill work, in seconds."""

FEW_CAME = 10.0
"""Weight of the fleet's mean in an endpoint's load, in requests."""

MAX_AHEAD_S = 600.0

_MOST_FADED = 50.0  # time constants until a fading sum is rebased

ASKED = slice(0, 5)
"""Rows needed to compute a cost. The last two, `load` and `came`, are as of `load_from`."""

_SHARED = slice(5, 10)
"""Rows that other pickers need."""


class Elsewhere(NamedTuple):
    """Other pickers' traffic to an endpoint; work is in seconds estimated by c(m).

    Args:
        ahead_s: total work of their prompts that await prefill and whose first token will be seen.
        unseen_s: the same for requests in flight whose first token is not seen.
        sent: requests since the last report.
        sent_s: work of these requests' prompts.
        hidden_s: the part of `sent_s` for prompts whose first token is not seen.
        read_s: work of the prompts prefilled since the last report.
    """

    ahead_s: float
    unseen_s: float = 0.0
    sent: float = 0.0
    sent_s: float = 0.0
    hidden_s: float = 0.0
    read_s: float = 0.0


class Traffic:
    """The counts, as arrays by slot.

    `ahead_s` is prefill work not yet done, and `since` when its first prompt began; `free_at` is
    when the prompts with unseen first tokens will be done. `load` (recent work per second) and
    `came` (recent requests) fade; `mean` is the mean number in flight, as of `at`. `flight_s` (its
    integral), `done_s` (prompts prefilled), `sent`, `sent_s`, `hidden_s` and `own_read_s` only
    grow. `own_ahead_s` and `others_ahead_s` are the parts of `ahead_s`. `unseen_s` is the work of
    this picker's requests in flight with unseen first tokens, `others_unseen_s` that of others.

    Args:
        table: the endpoints.
    """

    # These are `rows`, in this order; `ASKED` and `_SHARED` are the first ten.
    ahead_s: Floats
    since: Floats
    free_at: Floats
    load: Floats
    came: Floats
    own_ahead_s: Floats
    sent: Floats
    sent_s: Floats
    hidden_s: Floats
    own_read_s: Floats
    at: Floats
    mean: Floats
    flight_s: Floats
    done_s: Floats
    others_ahead_s: Floats
    unseen_s: Floats
    others_unseen_s: Floats

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self.rows: Floats = np.zeros((len(Traffic.__annotations__), 0))
        self.rate_of_all = self.load_of_all = 0.0
        self.load_from = 0.0
        self.arrived_at = -math.inf
        """Time of the last arrival at any endpoint."""

    def arrivals(self, now: float) -> float:
        """Return requests per second."""
        return self.rate_of_all * math.exp(min(0.0, self.arrived_at - now) / RATE_S)

    def rates(self, slots: Slots, now: float) -> Floats:
        """Return the requests and prefills per second that endpoints get."""
        return self.came[slots] * (math.exp(min(0.0, self.load_from - now) / RATE_S) / RATE_S)

    def shared(self, slots: Slots) -> Floats:
        """Return the counters for other pickers: `own_ahead_s`, `sent` and the three after it."""
        return self.rows[_SHARED].take(slots, axis=1)

    def advance(self, slot: int, now: float) -> None:
        """Advance the counts to a time."""
        passed_s = now - self.at.item(slot)
        if passed_s > 0.0:
            in_flight = self._table.in_flight.item(slot)
            self.flight_s[slot] += in_flight * passed_s
            fade = math.exp(-passed_s / MEAN_S)
            self.mean[slot] = in_flight + (self.mean.item(slot) - in_flight) * fade
        self.at[slot] = now  # even if the clock was set back

    def ahead(self, slot: int, now: float, pace: float) -> float:
        """Return the prefill work ahead of a prompt arriving now; `pace` is the engine's."""
        ahead_s = self.ahead_s.item(slot)
        if not ahead_s:
            self.since[slot] = now
        begun_s = max(0.0, now - self.since.item(slot))
        ahead_s = max(0.0, ahead_s - begun_s / pace)
        return ahead_s + max(0.0, self.free_at.item(slot) - now) / pace

    def send(
        self, slot: int, now: float, work_s: float, pace: float, *, shown: bool, counted: bool
    ) -> None:
        """Count a prompt that is being sent.

        Args:
            slot: the endpoint.
            now: the current time.
            work_s: c(m)'s estimate for the prompt, in seconds.
            pace: the engine's actual prefill time / c(m)'s estimate.
            shown: whether its first token will be seen.
            counted: whether it is included in the rate of requests.
        """
        if shown:
            self.ahead_s[slot] += work_s
            self.own_ahead_s[slot] += work_s
        else:
            self._hide(slot, work_s, pace, now)
            self.hidden_s[slot] += work_s
            self.unseen_s[slot] += work_s
        self.sent[slot] += 1.0
        self.sent_s[slot] += work_s
        self._arrived(slot, 1.0, work_s, now, counted=counted)

    def uncount(self, slot: int, work_s: float, came_at: float, now: float) -> None:
        """Take back an arrival: the request is about to be counted at another endpoint."""
        left = math.exp(min(0.0, came_at - now) / RATE_S)
        self._arrived(slot, -left, -left * work_s, now)

    def read(self, slot: int, now: float, work_s: float, pace: float, *, shown: bool) -> None:
        """Remove a prompt from the work ahead; it has been prefilled, or never will be."""
        self.done_s[slot] += work_s
        self.own_read_s[slot] += work_s
        if shown:
            own = self.own_ahead_s.item(slot) - work_s
            self.own_ahead_s[slot] = own if own > 1e-9 else 0.0
            left = self.ahead_s.item(slot) - work_s
            self.ahead_s[slot] = left if left > 1e-9 else 0.0
            self.since[slot] = now  # the next prompt begins
        else:
            left = self.unseen_s.item(slot) - work_s
            self.unseen_s[slot] = left if left > 1e-9 else 0.0
            self._bound(slot, pace, now)

    def send_elsewhere(self, slot: int, now: float, theirs: Elsewhere, pace: float) -> None:
        """Count other pickers' traffic; `pace` is as in `send`."""
        before = self.ahead_s.item(slot)
        more = theirs.ahead_s - self.others_ahead_s.item(slot)
        self.others_ahead_s[slot] = theirs.ahead_s
        if more < 0.0 or not before:
            self.since[slot] = now
        self.ahead_s[slot] = before + more if before + more > 1e-9 else 0.0
        self.done_s[slot] += theirs.read_s
        if theirs.hidden_s > 0.0:
            self._hide(slot, theirs.hidden_s, pace, now)
        self.others_unseen_s[slot] = theirs.unseen_s
        self._bound(slot, pace, now)
        if theirs.sent > 0.0:
            self._arrived(slot, theirs.sent, theirs.sent_s, now)

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self.rows[:, slot] = 0.0

    def grow(self, size: int) -> None:
        """Grow to the table's size."""
        self.rows = np.pad(self.rows, ((0, 0), (0, size - self.rows.shape[1])))
        for name, row in zip(Traffic.__annotations__, self.rows, strict=True):
            setattr(self, name, row)

    def _hide(self, slot: int, work_s: float, pace: float, now: float) -> None:
        # `free_at` is in actual time, so elapsed time equals progress.
        free_at = max(self.free_at.item(slot), now) + work_s * pace
        self.free_at[slot] = min(free_at, now + MAX_AHEAD_S)

    def _bound(self, slot: int, pace: float, now: float) -> None:
        # The work left is at most the work of the prompts in flight.
        unseen_s = self.unseen_s.item(slot) + self.others_unseen_s.item(slot)
        self.free_at[slot] = min(self.free_at.item(slot), now + unseen_s * pace)

    def _arrived(
        self, slot: int, requests: float, work_s: float, now: float, *, counted: bool = True
    ) -> None:
        # All sums share one reference time, so one factor fades them all.
        if not 0.0 <= now - self.load_from < _MOST_FADED * RATE_S:
            faded = math.exp(min(0.0, self.load_from - now) / RATE_S)
            self.load *= faded
            self.came *= faded
            self.load_from = now
        scale = math.exp((now - self.load_from) / RATE_S)
        self.load[slot] += work_s / RATE_S * scale
        self.came[slot] += requests * scale
        fade = math.exp(min(0.0, self.arrived_at - now) / RATE_S)
        self.rate_of_all = self.rate_of_all * fade + counted * requests / RATE_S
        self.load_of_all = self.load_of_all * fade + work_s / RATE_S
        self.arrived_at = now

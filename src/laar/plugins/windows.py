"""Context windows: a request goes to an endpoint whose window holds its prompt and its answer.

A prompt's length is only an estimate, so nothing is refused here. The needs form a list, from the
strictest: prompt, margin and answer; then without the margin; then the prompt alone, since some
engines shorten answers. The first that any endpoint meets decides; if none is met, the longest
windows do.

An engine's refusal may prove an estimate wrong. It is remembered for the conversation: as a lower
bound of its length if a window is known, else as an endpoint to avoid. A window that only a refusal
states is forgotten after `KEPT_S`, since the text of a refusal may quote the client.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from laar.core.plugin import Answering, Core, Part, Plugin
from laar.fleet.endpoints import Floats, Mask, Slots
from laar.latest import Latest, Shared
from laar.prefix.blocks import Chain
from laar.request import Api, Request

if TYPE_CHECKING:
    from laar.core.candidates import Group
    from laar.core.decision import Decision
    from laar.core.interfaces import View

MARGIN = 1.2
"""Factor by which a prompt may be longer than estimated. After some reports nine of ten estimates
are within 15 % (`laar.prefix.lengths`); a larger margin would keep more prompts from small windows.
"""

KEPT_S = 300.0
"""Seconds for which a refusal is remembered: a few of a conversation's turns."""

_DEFAULT_ANSWER = {Api.COMPLETIONS: 16, Api.EMBEDDINGS: 0, Api.OPAQUE: 0}
"""Tokens of an answer without a limit: at least one, but completions end after 16."""

_MAX_REFUSALS = 1024
_MAX_LOOK = 256
"""Blocks looked up from a prompt's end, as in `laar.prefix.lengths`."""

_UNITS = re.compile(rb"context|token|prompt|input", re.IGNORECASE)
_EXCESS = re.compile(
    rb"maximum|exceed|longer than|too (?:long|large|many)|less than|<=", re.IGNORECASE
)
_STATED = re.compile(
    rb"(?:context|model|sequence|session|max_\w*len\w*|n_ctx|less than|<=|>)"
    rb"[^\d.]{0,40}?(\d{2,9})\b",
    re.IGNORECASE,
)


class _Refusal(NamedTuple):
    """What refusals show of a conversation's later requests that are no smaller.

    If one has at least as many `chars` and allows an answer of at least `answer_tokens`, its prompt
    has at least `least_tokens`, and does not fit the endpoints in `slots`.
    """

    chars: int
    answer_tokens: int
    least_tokens: float
    slots: frozenset[int]
    until: float
    tenant: str


class Windows(Plugin):
    """The windows of endpoints, as they are stated and as refusals show them."""

    name = "windows"

    def __init__(self) -> None:
        self.refusals: Shared[int, _Refusal] = Shared(_MAX_REFUSALS, lambda _, of: of.tenant)
        """The refusals by conversation; while there are none, only windows in the table matter."""
        self._stated: Latest[tuple[int, str], tuple[float, float]] = Latest(_MAX_REFUSALS)
        """Windows by slot and the name that was asked for, and until when."""

    def join(self, core: Core) -> None:
        """Keep the core, whose groups change with the first refusal."""
        self._core, self._table = core, core.table

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part while any window is known, or a refusal."""
        return Part() if self._table.windowed or self.refusals else None

    def fit(
        self, request: Request, chain: Chain | None, slots: Slots, tokens: Floats, now: float
    ) -> Mask:
        """Return which endpoints can take a request, by the strictest need that any of them meets.

        Arguments are those of `Plugin.fit`.
        """
        windows = self._table.windows(slots, request.model)
        longest, answer = tokens * request.longest_share, _answer_tokens(request)
        may: Mask | bool = True
        if self.refusals:
            unknown = (math.inf, math.inf)
            stated = (self._stated.get((s, request.model), unknown) for s in slots.tolist())
            windows = np.minimum(windows, [w if until > now else math.inf for w, until in stated])
            refusal = self._refusal_of(request, chain, answer, now)
            if refusal is not None:
                longest = np.maximum(longest, refusal.least_tokens)
                may = np.isin(slots, list(refusal.slots), invert=True)
        margin = 1.0 if request.tokens else MARGIN
        for need in (margin * longest + answer, longest + answer, longest):
            fits: Mask = (need <= windows) & may
            if fits.any():
                return fits
        longest_windows: Mask = windows == windows.max()
        return longest_windows

    def too_long(self, view: View) -> bool:
        """Return whether no candidate's window has room for the prompt and its answer."""
        need = view.tokens * view.request.longest_share + _answer_tokens(view.request)
        return bool((need > self._table.windows(view.slots, view.request.model)).all())

    def fit_prefill(self, request: Request, slots: Slots, tokens: Floats) -> Mask:
        """Return which endpoints can prefill a prompt for others, which takes one more token."""
        windows = self._table.windows(slots, request.model)
        able: Mask = tokens * request.longest_share < windows
        return able

    def refused(self, decision: Decision, text: bytes, now: float) -> None:
        """Learn from the text of a refusal, if it says that the request was too long."""
        view, request, slot = decision.view, decision.request, decision.flight.slot
        if view is None or not (_UNITS.search(text) and _EXCESS.search(text)):
            return
        answer = _answer_tokens(request)
        window = self._table.windows(np.array([slot]), request.model).item()
        # The window is certainly less: the prompt may be twice as long as estimated.
        most = 2.0 * decision.tokens * request.longest_share + answer
        found = (float(number) for number in _STATED.findall(text))
        if window == math.inf:
            window = next((number for number in found if number < most), math.inf)
            if window < math.inf:
                self._stated[slot, request.model] = window, now + KEPT_S
        least_tokens, slots = 0.0 if window == math.inf else window + 1 - answer, frozenset((slot,))
        if (known := self._refusal_of(request, view.chain, answer, now)) is not None:
            least_tokens, slots = max(least_tokens, known.least_tokens), slots | known.slots
        if not self.refusals:
            self._core.candidates.forget()
        until = now + KEPT_S
        refusal = _Refusal(request.chars, answer, least_tokens, slots, until, request.tenant)
        for key in _keys(request, view.chain, 1):
            self.refusals[key] = refusal

    def leave(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed, or whose engine restarted."""
        for of in [of for of in self._stated if of[0] == slot]:
            del self._stated[of]
        for key in [key for key, known in self.refusals.items() if slot in known.slots]:
            del self.refusals[key]

    restarted = leave

    def _refusal_of(
        self, request: Request, chain: Chain | None, answer: int, now: float
    ) -> _Refusal | None:
        """Return the refusal of the longest known part of a prompt."""
        for key in _keys(request, chain, _MAX_LOOK):
            known = self.refusals.get(key)
            if known is not None and known.until > now:
                is_longer = request.chars >= known.chars and answer >= known.answer_tokens
                return known if is_longer else None
        return None


def _answer_tokens(request: Request) -> int:
    """Return the tokens that the engine has to keep free for an answer."""
    return request.max_tokens or _DEFAULT_ANSWER.get(request.api, 1)


def _keys(request: Request, chain: Chain | None, most: int) -> Iterator[int]:
    """Yield keys of a conversation: its last blocks, then its session, or else its question."""
    if chain is not None:
        yield from chain.hashes[: -1 - most : -1]
    question = request.question
    if len(question) > 1000:  # the part that the stream keeps after the decision
        question = question[:500] + question[-500:]
    yield hash((request.tenant, request.session or question))

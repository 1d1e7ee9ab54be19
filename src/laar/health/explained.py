"""What explains that an endpoint is faster than its siblings: clients' answers as good as theirs.

Nobody can list the ways to be fast and useless, so speed earns nothing by itself. An endpoint whose
pace its siblings make implausible (`laar.plugins.shares`) is believed while the texts that its
clients get are as long, as various and of the same form as those of most siblings that do not stand
out themselves. It is held at a fair share before that, and in APIs whose answers are not texts.

A probe alone explains nothing. But greedy engines answer it twice alike; one that doesn't, while a
sibling does, makes its answers up. An engine of another kind, or quantization, may answer otherwise
than its siblings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from laar.latest import Latest

_MEMORY, _SIZES = 16.0, 48.0
"""Effective number of answers compared: few, as an engine's answers may change at any time; and of
their sizes, which scatter more."""
_FEW, _THEIRS = 3.0, 2.0
"""Minimum number of an endpoint's answers, and of each sibling's."""
_SHORTER = math.log(1.35)
"""How much shorter answers may be on average. Half a standard error counts against an endpoint
until it is believed, as a few long ones show nothing; then 1.5 count for it, as few short don't."""
_MORE = 0.3
"""Share of answers that may repeat a text, or have another form than siblings', beyond theirs."""
_RARE = 0.05
_MOST_KINDS, _MOST_FORMS, _SAID = 8, 8, 64
_FASTER = math.log(2.0)
"""How much faster than explained an endpoint may become before new answers must explain it."""
_YOUNG = 8
"""Answers of a new endpoint that were all given at its present pace."""
_AGAIN_S = 600.0


class Shown(NamedTuple):
    """What a whole answer to a client shows, without its text.

    Args:
        kind: its API, and whether it was streamed: only answers of one kind are compared.
        size: characters of text. An engine's own count of tokens may be wrong.
        form: names of the members that hold the text, or what was wrong with it.
        said: digest of its beginning, by a key of this process.
    """

    kind: str
    size: float
    form: str
    said: int


class SeenAnswers:
    """Fading means over an endpoint's latest answers that were read to their end."""

    def __init__(self) -> None:
        self.total = 0
        self.forget()

    def forget(self) -> None:
        """Forget the answers, as those to come may be others."""
        self.seen = self.alike = 0.0
        self.forms: dict[str, float] = {}
        self.sizes: Latest[str, tuple[float, float, float]] = Latest(_MOST_KINDS)
        """By kind: the number of answers, the mean log of their sizes, and its variance."""
        self._said: Latest[int, int] = Latest(_SAID)

    def add(self, shown: Shown, prompt: int) -> None:
        """Add an answer to a prompt, of which a hash is given."""
        self.total += 1
        self.seen = min(self.seen + 1.0, _MEMORY)
        new = 1.0 / self.seen
        is_alike = self._said.get(shown.said, prompt) != prompt
        self._said[shown.said] = prompt
        self.alike += new * (is_alike - self.alike)
        forms = {form: share * (1.0 - new) for form, share in self.forms.items()}
        forms[shown.form] = forms.get(shown.form, 0.0) + new
        if len(forms) > _MOST_FORMS:
            del forms[min(forms, key=forms.__getitem__)]
        self.forms = forms
        seen, mean, variance = self.sizes.get(shown.kind, (0.0, 0.0, 0.0))
        seen = min(seen + 1.0, _SIZES)
        far = math.log(max(shown.size, 1.0)) - mean
        variance = (1.0 - 1.0 / seen) * (variance + far * far / seen)
        self.sizes[shown.kind] = seen, mean + far / seen, variance


def as_good(own: SeenAnswers, siblings: Sequence[SeenAnswers], errors: float = -0.5) -> bool:
    """Return whether answers are as long, as various and of the same form as most siblings'.

    That many standard errors of the lengths count for the endpoint, or against it if negative.
    """
    known = [each for each in siblings if each.seen >= _THEIRS]
    if own.seen < _FEW or not known or 2 * len(known) < len(siblings):
        return False
    if own.alike > _median([each.alike for each in known]) + _MORE:
        return False
    odd = sum(
        share
        for form, share in own.forms.items()
        if _median([each.forms.get(form, 0.0) for each in known]) < _RARE
        and sum(each.forms.get(form, 0.0) for each in known) < _RARE * len(known)
    )
    shorter = _shorter(own, known, errors)
    return odd <= _MORE and shorter is not None and shorter <= _SHORTER


def _shorter(own: SeenAnswers, known: Sequence[SeenAnswers], errors: float) -> float | None:
    """Return by how much answers are shorter than siblings', less an error, in log units."""
    gap = weight = noise = 0.0
    for kind, (seen, mean, variance) in own.sizes.items():
        theirs = [each.sizes[kind] for each in known if kind in each.sizes]
        if not theirs:
            continue
        count = sum(number for number, _, _ in theirs)
        spread = max(variance, sum(n * v for n, _, v in theirs) / max(count - len(theirs), 1.0))
        gap += seen * (_median([level for _, level, _ in theirs]) - mean)
        noise += seen * seen * spread * (1.0 / seen + 1.0 / count)
        weight += seen
    return None if not weight else (gap - errors * math.sqrt(noise)) / weight


def _median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


class Explained:
    """Whether an endpoint's answers explain its pace.

    Attributes:
        answers: its latest answers.
        asked_at: when that was last asked.
    """

    def __init__(self) -> None:
        self.answers = SeenAnswers()
        self._pace = 0.0
        self._were_good = False
        self.asked_at = float("-inf")

    def by_answers(self, pace: float, siblings: Sequence[SeenAnswers], now: float) -> bool:
        """Return whether its latest answers explain a pace, given as a logarithm.

        Only answers given at that pace count, as the engine may have been another one before.
        """
        is_new = now - self.asked_at > _AGAIN_S
        self.asked_at = now
        if is_new or pace < self._pace - _FASTER:
            self._pace = pace
            if self.answers.total > _YOUNG:
                self.answers.forget()
                self._were_good = False
        self._were_good = as_good(self.answers, siblings, 1.5 if self._were_good else -0.5)
        return self._were_good

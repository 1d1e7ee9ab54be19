"""The text of an answer, split into as many pieces as the engine generates tokens."""

from __future__ import annotations

from dataclasses import dataclass

from laar_lab.sim.answers import NO_QUESTION, Answerer
from laar_lab.sim.endpoint.bodies import Ask
from laar_lab.sim.endpoint.echo import ECHO_TOKENS, echo_text
from laar_lab.tokens import ASCII_PER_TOKEN

FILLER = "This endpoint is simulated: it answers look-ups, and fills the rest with this sentence. "
"""The answer to prompts other than look-ups, repeated up to the request's limit."""

FILLER_TOKENS = 48
"""Length of this answer if the request sets no limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A text of `tokens` tokens, with the finish reason, "stop" or "length".

    `text` is split evenly into `spread_over` pieces, one per token; the answer has the first
    `tokens`.
    """

    text: str
    tokens: int
    finish: str
    spread_over: int

    def piece(self, start: int, end: int) -> str:
        """Return the text of the tokens from `start` up to `end`."""
        length = len(self.text)
        return self.text[start * length // self.spread_over : end * length // self.spread_over]


def answer_for(
    ask: Ask,
    answerer: Answerer | None,
    *,
    free_tokens: int,
    echo: tuple[str, str] | None = None,
) -> Answer:
    """Return the answer to a request.

    Args:
        ask: the request.
        answerer: answers look-ups; None for an endpoint without a fleet model.
        free_tokens: tokens that fit after the prompt, at least 1.
        echo: the model's name and the requested name; None for no echo.
    """
    if echo is not None:
        model, asked = echo
        tokens = min(ECHO_TOKENS if ask.max_tokens is None else ask.max_tokens, free_tokens)
        text = echo_text(model=model, asked=asked, question=ask.prompt.question, tokens=tokens)
        return Answer(text, tokens, "stop" if ask.max_tokens is None else "length", tokens)
    limit = free_tokens if ask.max_tokens is None else min(ask.max_tokens, free_tokens)
    text = NO_QUESTION if answerer is None else answerer.answer(ask.prompt.question)
    if text == NO_QUESTION:
        tokens = limit if ask.max_tokens is not None else min(FILLER_TOKENS, limit)
        chars = tokens * ASCII_PER_TOKEN
        text = (FILLER * (chars // len(FILLER) + 1))[:chars]
        return Answer(text, tokens, "stop" if ask.max_tokens is None else "length", tokens)
    natural = answerer.answer_tokens if answerer is not None else FILLER_TOKENS
    if ask.fixed_length:
        return Answer(text, limit, "length", max(limit, natural))
    return Answer(text, min(limit, natural), "length" if limit < natural else "stop", natural)

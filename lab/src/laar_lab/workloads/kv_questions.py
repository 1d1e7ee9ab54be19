"""KV look-ups for the virtual fleet: the same queries without half a megabyte of text each.

The picker gets what it would read from the text (the words around the data, the length), the engine
gets block ids, and the fleet's accuracy surface decides the answer, as in the simulated endpoint. A
test checks that this is equivalent to the text.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from laar.request import Request
from laar_lab.kv_lookup import Query
from laar_lab.sim.answers import AccuracySurface
from laar_lab.sim.fleet import BLOCK_TOKENS, Arrival, Prompt, Question, request_of, spread
from laar_lab.tokens import count_tokens

_DRAWS = 10  # jitter draws, one per attempt
_SKELETON_TOKENS = 200  # in the short text whose head and tail the picker reads


@lru_cache(maxsize=256)  # cells, in which all queries have the same length
def _size(language: str, length_tokens: int) -> tuple[int, int]:
    """Return the characters and tokens of a cell's prompts."""
    zero = "00000000-0000-4000-a000-000000000000"
    query = Query(id="", language=language, length_tokens=length_tokens, key=zero, answer=zero)
    text = query.prompt
    return len(text), count_tokens(text)


def as_questions(asked: Sequence[Query], surface: AccuracySurface, *, seed: int) -> list[Question]:
    """Return the queries as questions of the retry loop.

    Args:
        asked: queries of any cells.
        surface: the accuracies of the models.
        seed: seed of the prompts' blocks and of the jitter.
    """
    draws = random.Random(f"{seed}/questions")
    questions = []
    for index, query in enumerate(asked):
        tokens = _size(query.language, query.length_tokens)[1]
        # The last block holds the question, so it is never shared.
        blocks = spread((seed << 32) + index << 16, tokens // BLOCK_TOKENS - 1)
        blocks.extend(spread(-index - 1, 1))
        prompt = Prompt(
            prompt_tokens=tokens, output_tokens=surface.answer_tokens, blocks=array("Q", blocks)
        )
        questions.append(
            Question(
                request=request_for(query, prompt),
                prompt=prompt,
                is_correct=_judge(surface, query, tokens),
                normals=tuple(draws.gauss(0.0, 1.0) for _ in range(_DRAWS)),
            )
        )
    return questions


def request_for(query: Query, prompt: Prompt) -> Request:
    """Return the request of a query as the picker sees it, each in a separate session."""
    skeleton = replace(query, length_tokens=_SKELETON_TOKENS).prompt
    request = request_of(0, Arrival(at_s=0.0, prompt=prompt, session=query.id))
    chars = _size(query.language, query.length_tokens)[0]
    return replace(request, id=query.id, question=skeleton, chars=chars, reproducible=True)


def _judge(surface: AccuracySurface, query: Query, tokens: int) -> Callable[[str], bool]:
    return lambda model: surface.is_correct(model, query.key, query.language, tokens)

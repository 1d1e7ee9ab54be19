"""Pack a batch: which prefills run in a step, and how much of each (Medha paper, 4.1 to 4.3).

`pack` implements algorithms 1 and 2: decodes are already in the batch; prefills are added in slack
order, each with the largest chunk that fits. It differs from the paper in two ways: the first
prefill always gets at least a minimal chunk, since otherwise, with a context so deep that not even
this fits the target, it would wait forever; and a long prefill yields only while a short one
follows, since nothing else would use its share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

RHO_MAX = 0.4
"""Largest share of an iteration that a long prefill with slack leaves to others (algorithm 2); a
long request with more relative slack than this lets every short one go before it."""

MIN_CHUNK_TOKENS = 16
"""Tokens that the most urgent prefill gets even if they do not fit the target; a chunk that the
target limits is a multiple of this."""


def turn(rho: float, *, is_long: bool) -> tuple[bool, float]:
    """Return a sort key: relative slack, but long requests with slack to spare go last.

    Ordering by rho alone makes a short request wait until it is as urgent as the long one. Unless a
    turn is one small chunk, that is too late: in the example of section 4.1, the shorts would start
    at 5.2 s and the second would miss its objective by 0.2 s; they have to start on arrival.
    """
    return is_long and rho > RHO_MAX, rho


def largest_chunk(
    seconds: Callable[[int], float], limit_s: float, cap_tokens: int, step_tokens: int = 1
) -> int:
    """Return the largest chunk of at most `cap_tokens` with `seconds(chunk) <= limit_s`, else 0.

    `seconds` must not decrease as the chunk grows. The result is `cap_tokens` or a multiple of
    `step_tokens`.
    """
    if cap_tokens <= 0 or seconds(cap_tokens) <= limit_s:
        return max(0, cap_tokens)
    sizes = range(step_tokens, cap_tokens, step_tokens)
    return step_tokens * bisect_left(sizes, True, key=lambda tokens: not seconds(tokens) <= limit_s)


class BatchCost(Protocol):
    """The predicted time of a batch under construction, decodes included from the start.

    Predicting the whole batch rather than summing its parts lets a memory-bound long chunk carry a
    short one almost for free (multi-prefill batching, section 4.2).
    """

    def seconds_with(self, chunk_tokens: int, context_tokens: int) -> float:
        """Return the batch's time with this chunk added; must not decrease as the chunk grows."""

    def add(self, chunk_tokens: int, context_tokens: int) -> None:
        """Add a chunk to the batch."""


class Prefill(NamedTuple):
    """A prefill ready to run: tokens left, tokens cached, rho, and whether it is long."""

    remaining_tokens: int
    context_tokens: int
    rho: float
    is_long: bool


def pack(
    prefills: Sequence[Prefill],
    batch: BatchCost,
    *,
    target_s: float,
    budget_tokens: int,
    least_tokens: int = 0,
    rho_max: float = RHO_MAX,
    late_share: float = 0.0,
) -> list[int]:
    """Return the chunk of each prefill in this iteration, in tokens; 0 means that it waits.

    Args:
        prefills: most urgent first.
        batch: holds the decodes; the chunks chosen are added to it.
        target_s: longest time that the iteration should take.
        budget_tokens: tokens that the engine allows per iteration, not counting decodes.
        least_tokens: tokens that prefills get together, whatever the target; 0 in the paper.
        rho_max: largest share of `target_s` that a long prefill leaves free.
        late_share: the same for one that can no longer meet its objective; 0 in the paper.
    """
    chunks = [0] * len(prefills)
    last = len(prefills) - 1
    last_short = next((i for i in range(last, -1, -1) if not prefills[i].is_long), 0)
    seen_long = False
    for index, (remaining, context, rho, is_long) in enumerate(prefills):
        if budget_tokens <= 0:
            break
        if is_long and seen_long:
            continue
        yields = is_long and index < last_short
        share = 1.0
        if yields:
            share -= late_share if rho < 0.0 else min(rho_max, rho)
        cap = min(remaining, budget_tokens)
        chunk = largest_chunk(
            lambda tokens: batch.seconds_with(tokens, context),  # noqa: B023 (called immediately)
            target_s * share,
            cap,
            MIN_CHUNK_TOKENS,
        )
        if not chunk and index == 0:
            chunk = min(cap, MIN_CHUNK_TOKENS)
        chunk = max(chunk, min(cap, int(least_tokens * share)))
        if chunk:
            batch.add(chunk, context)
            chunks[index] = chunk
            budget_tokens -= chunk
            least_tokens -= chunk
            seen_long = seen_long or is_long
        if chunk < cap and share == 1.0:
            break  # the target is used up; one more token is not worth searching for
    return chunks

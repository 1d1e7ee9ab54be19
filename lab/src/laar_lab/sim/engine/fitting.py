"""Fit the engine model to a running engine, and check it at points outside the fit.

Both halves use the same `Point`s: `laar_lab.probing` measures them on an endpoint, and `predict`
computes them with the engine model. The constants of `LinearCost` come from the few points of
`fit_points`; `check_points` are others with longer prompts, which reveal a wrong shape.

The TTFT of a prompt of n tokens, c of them cached, in k iterations is:

    intake + a * n  +  k * overhead  +  b * (n - c)  +  d * (n^2 - c^2) / 2

(n^2 - c^2) / 2 is the number of attention pairs. A least-squares fit on relative errors, without
negative values, gives the four unknowns. The overhead of an iteration is not one of them, because
prompts of a few iterations can't distinguish it from the intake; it is taken from a lone decode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from scipy.optimize import nnls  # type: ignore[import-untyped]

from laar_lab.sim.engine.cost import LinearCost
from laar_lab.sim.engine.drive import drive
from laar_lab.sim.engine.interface import Job
from laar_lab.sim.engine.profile import EngineProfile, build_engine
from laar_lab.sim.engine.settings import EngineSettings

DECODED = 33
"""Tokens of an answer when its TPOT is measured."""

_LEAST_S = 1e-9  # a cost model's constants must be above 0
_LATER_S = 1e5  # when the prompts are sent, once the cache is warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about an endpoint, reported by it or given by its operator.

    Args:
        model: the name of its model.
        block_size: tokens per KV block.
        num_blocks: number of KV blocks.
        max_num_batched_tokens: maximum number of tokens per iteration.
        others: requests in progress before the measurement.
    """

    model: str
    block_size: int
    num_blocks: int
    max_num_batched_tokens: int
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement on an idle engine.

    Args:
        prompt_tokens: tokens of each prompt.
        cached_tokens: how many of these are sent to the engine beforehand.
        together: number of prompts, sharing nothing, that are sent in quick succession.
        output_tokens: tokens of each answer.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    together: int = 1
    output_tokens: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The measurement of a point.

    Args:
        ttft_s: TTFT of each prompt, shortest first.
        answer_s: seconds to the last token, averaged over the prompts.
        cached_tokens: cached tokens of the last prompt as reported by the engine; None if it does
            not report them.
        gap_s: seconds between sending the first of several prompts and the others.
    """

    ttft_s: tuple[float, ...]
    answer_s: float
    cached_tokens: int | None = None
    gap_s: float = 0.0


def fit_points(longest: int) -> dict[str, Point]:
    """Return the points to fit to, by name, for prompts up to `longest` tokens."""
    short, long = longest // 128, longest * 3 // 4
    points = [longest // part for part in (256, 32, 8)] + [longest * 3 // 8, long]
    return {
        **{f"{tokens} tokens": Point(prompt_tokens=tokens) for tokens in points},
        "half cached": Point(prompt_tokens=long, cached_tokens=long // 2),
        "all cached": Point(prompt_tokens=long, cached_tokens=long),
        "quarter, all cached": Point(prompt_tokens=long // 4, cached_tokens=long // 4),
        "decode": Point(prompt_tokens=short, output_tokens=DECODED),
        "decode, long": Point(prompt_tokens=long, cached_tokens=long, output_tokens=DECODED),
        "decode, four": Point(prompt_tokens=short, together=4, output_tokens=DECODED),
    }


def check_points(longest: int) -> dict[str, list[Point]]:
    """Return the points to check with, by the quantity that varies."""
    lengths = [max(16, longest // 500), *(longest // part for part in (64, 16, 4, 2, 1))]
    return {
        "prompt length": [Point(prompt_tokens=tokens) for tokens in lengths],
        "cached share": [
            Point(prompt_tokens=longest, cached_tokens=longest * part // 4) for part in range(1, 5)
        ],
        "batching": [
            Point(prompt_tokens=longest // part, together=together)
            for part, together in ((8, 2), (8, 4), (4, 3))
        ],
    }


def fit(seen: Mapping[str, Seen], longest: int, facts: Facts) -> EngineProfile:
    """Fit a profile to the measurements of `fit_points`."""
    points = fit_points(longest)
    per_context, per_sequence, step_s = _decode_constants(points, seen)
    prefills = [
        (point, seen[name].ttft_s[0]) for name, point in points.items() if point.output_tokens == 1
    ]
    overhead_s = min(step_s, 0.9 * min(ttft_s for _, ttft_s in prefills))
    rows, rest = [], []
    for point, ttft_s in prefills:
        n, c = point.prompt_tokens, _cached(point, facts.block_size)
        rows.append((1.0, n, n - c, (n**2 - c**2) / 2))
        rest.append(ttft_s - overhead_s * -(-(n - c) // facts.max_num_batched_tokens))
    weights = np.array([1.0 / ttft_s for _, ttft_s in prefills])
    solved, _ = nnls(np.array(rows) * weights[:, None], np.array(rest) * weights)
    intake, intake_token, token, pair = (float(value) for value in solved)
    return EngineProfile(
        name=facts.model,
        cost=LinearCost(
            seconds_per_token=max(_LEAST_S, token),
            decode_s_per_token=step_s,
            prefill_overhead_s=overhead_s,
            decode_s_per_sequence=per_sequence,
            decode_s_per_context_token=per_context,
            prefill_s_per_pair=pair,
        ),
        settings=EngineSettings(
            num_blocks=facts.num_blocks,
            block_size=facts.block_size,
            max_num_batched_tokens=facts.max_num_batched_tokens,
            intake_s=intake,
            intake_s_per_token=intake_token,
        ),
    )


def _decode_constants(
    points: Mapping[str, Point], seen: Mapping[str, Seen]
) -> tuple[float, float, float]:
    """Return the seconds of a decode per token of context, per sequence, and per iteration.

    The first two are limited, so that noise can't make them negative, or the third 0.
    """
    short, long = points["decode"].prompt_tokens, points["decode, long"].prompt_tokens
    context, alone = short + DECODED / 2, _pace(seen["decode"])
    per_context = max(0.0, (_pace(seen["decode, long"]) - alone) / (long - short))
    per_context = min(per_context, 0.5 * alone / context)
    alone -= per_context * context
    per_sequence = (_pace(seen["decode, four"]) - 4 * per_context * context - alone) / 3
    per_sequence = min(max(0.0, per_sequence), 0.9 * alone)
    return per_context, per_sequence, alone - per_sequence


def predict(profile: EngineProfile, point: Point, gap_s: float = 0.0) -> Seen:
    """Return the engine model's prediction of a point; `gap_s` as in `Seen`."""
    size = profile.settings.block_size
    shared = list(range(1, point.cached_tokens // size + 1))
    jobs = []
    if shared:
        prompt = len(shared) * size
        jobs = [Job(id="warm", arrival_s=0.0, prompt_tokens=prompt, output_tokens=1, blocks=shared)]
    intake_s, free_s = profile.settings.intake_of(point.prompt_tokens), 0.0
    sent = {str(number): _LATER_S + gap_s * (number > 0) for number in range(point.together)}
    for number, (name, sent_s) in enumerate(sent.items(), 1):
        free_s = max(free_s, sent_s) + intake_s
        own = _others(number, point.prompt_tokens // size - len(shared))
        jobs.append(
            Job(
                id=name,
                arrival_s=free_s,
                prompt_tokens=point.prompt_tokens,
                output_tokens=point.output_tokens,
                blocks=[*shared, *own],
            )
        )
    timings = drive(build_engine(profile), jobs)
    first = [timing.first_token_s - sent[name] for name, timing in timings.items() if name in sent]
    return Seen(
        ttft_s=tuple(sorted(first)),
        answer_s=mean(timings[name].end_s - sent_s for name, sent_s in sent.items()),
        cached_tokens=timings["0"].cached_tokens,
        gap_s=gap_s,
    )


def _pace(seen: Seen) -> float:
    """Return the TPOT of `DECODED` tokens, from the best TTFT and the best answer time.

    If the first token of a measurement was delayed, the TPOT from it alone would be too low.
    """
    return max(_LEAST_S, (seen.answer_s - mean(seen.ttft_s)) / (DECODED - 1))


def _others(number: int, count: int) -> Sequence[int]:
    """Return ids of blocks that no other prompt has."""
    return range(number << 32, (number << 32) + max(0, count))


def _cached(point: Point, block_size: int) -> int:
    """Return the tokens found in the cache: full blocks only, and not the last token."""
    return min(point.cached_tokens, point.prompt_tokens - 1) // block_size * block_size

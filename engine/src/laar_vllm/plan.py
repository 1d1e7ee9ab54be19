"""Plan one step of vLLM from plain numbers (Medha paper, section 4); does not need vLLM.

vLLM's scheduler gives the step's tokens to running requests first, in list order, so one long
prefill fills every step until it ends. This plan ranks running and waiting prefills together by
relative slack and sizes each one's chunk, so that a step with the requests that decode stays within
its target. Three things go beyond the paper; the first two were found with a real vLLM:

- A paused prefill holds its blocks. The blocks that it still needs are counted as taken; otherwise
  a second long prompt would be admitted into them, and the two would preempt each other forever.
- Equal long prompts would overtake each other at every step, and all would finish late. Among long
  prompts, the one that ran last keeps a head start of `LEADER_MARGIN`; the others go last.
- A long prompt that has missed its objective stays more urgent than short ones that have not, and
  would take whole steps. It leaves `LATE_SHARE` of each step to them (`laar lab run
  medha-policies` measures this).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, Self

from msgspec import Meta, Struct, ValidationError, convert

from laar_vllm.packing import RHO_MAX, Prefill, pack, turn

KNOWN_VERSIONS = ("0.32", "0.33")
"""Releases of vLLM that the scheduler was tested with. Others are rejected, since it overrides
private methods."""

LEADER_MARGIN = 1.05
"""Relative slack by which another long prefill must be more urgent than the one that ran last.
While a prefill runs from start to end, an equal prefill that waits gains 1 on it, whatever the time
per token. With a smaller margin, equal prefills would swap halfway, and all would end late."""

LEAST_STEP_TOKENS = 256
"""Minimum number of prompt tokens in a step, whatever its target. Below about this number, loading
the model's weights dominates on GPUs, so a smaller step takes as long and does less. Decodes do not
count: beside many of them a prompt would otherwise get a few tokens a step."""

LATE_SHARE = RHO_MAX
"""Share of a step that a long prefill leaves to short ones after it has missed its objective."""

MIN_WORK_S = 1e-3
"""Minimum work of a request: about one iteration of a fast engine; also keeps slack finite."""


class Line(NamedTuple):
    """A request's relative slack over time: `(offset_s - now) * rate`; lower is more urgent."""

    offset_s: float
    rate: float


def require_known_version(version: str) -> None:
    """Check the version of vLLM.

    Raises:
        ValueError: it is not one of `KNOWN_VERSIONS`.
    """
    if ".".join(version.split(".")[:2]) not in KNOWN_VERSIONS:
        known = ", ".join(f"{minor}.x" for minor in KNOWN_VERSIONS)
        raise ValueError(
            f"vLLM {version}: laar's SlackScheduler supports only {known}, because it overrides "
            f"private parts of vLLM. Install one of these, or start `vllm serve` without "
            f"--scheduler-cls"
        )


_Value = Annotated[float, Meta(ge=0, le=1e12)]  # the maximum keeps sums finite


class StepSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings under the `laar` key in vLLM's `--additional-config`.

    Args:
        seconds_per_token: prefill seconds per token, from `laar measure`; the defaults suit an 8B
            model on one H100.
        quadratic_s: prefill seconds per squared token, for attention.
        overhead_s: seconds per step besides tokens and contexts.
        context_token_s: seconds per step and token of context of the requests that decode, for
            loading their KV cache.
        target_s: target seconds per step, from the TPOT objective. Limits the prefill tokens of a
            step, but not below `LEAST_STEP_TOKENS`.
        objective_factor: a request's default TTFT objective, as a multiple of its prefill time.
        objective_floor_s: seconds added to that multiple.
        long_tokens: length above which a prompt is long; a step has at most one long prefill.
    """

    seconds_per_token: _Value = 3e-5
    quadratic_s: _Value = 5e-10
    overhead_s: _Value = 0.005
    context_token_s: _Value = 4e-8
    target_s: _Value = 0.020
    objective_factor: _Value = 5.0
    objective_floor_s: _Value = 1.0
    long_tokens: _Value = 4096

    @classmethod
    def from_config(cls, config: object) -> Self:
        """Read `additional_config["laar"]`, with defaults for missing keys.

        Raises:
            ValueError: a key is unknown, or a value is not a number in the allowed range.
        """
        given = config.get("laar", {}) if isinstance(config, Mapping) else {}
        try:
            return convert(given, cls)
        except ValidationError as error:
            raise ValueError(f"additional-config: laar: {error}") from None

    def decode_s(self, decodes: int, context_tokens: int) -> float:
        """Return the time of a step without prefills.

        Args:
            decodes: number of requests that decode, a token each.
            context_tokens: the sum of their contexts.
        """
        tokens_s, context_s = (
            decodes * self.seconds_per_token,
            context_tokens * self.context_token_s,
        )
        return self.overhead_s + tokens_s + context_s

    def prefill_s(self, tokens: int) -> float:
        """Return the time to prefill `tokens` alone, starting from an empty cache."""
        return tokens * (self.seconds_per_token + self.quadratic_s * tokens)

    def line(self, tokens: int, arrival_s: float, deadline_ms: object) -> Line:
        """Return a request's urgency before any of its prompt is computed.

        `deadline_ms` is the client's `ttft_deadline_ms`, ignored unless it is a positive number.
        """
        work_s = self.prefill_s(tokens)
        objective_s = self.objective_floor_s + self.objective_factor * work_s
        try:
            sent_s = float(deadline_ms) / 1e3  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            sent_s = 0.0
        if 0 < sent_s < math.inf:
            objective_s = max(work_s, sent_s)  # an impossible deadline means zero slack
        return Line(arrival_s + objective_s - work_s, 1.0 / max(work_s, MIN_WORK_S))


class Candidate(NamedTuple):
    """A prefill that could run in this step.

    Args:
        key: the request's id.
        remaining_tokens: prompt tokens left to compute, at least 1.
        context_tokens: tokens already computed.
        line: its urgency before any of its prompt was computed.
        blocks: KV blocks needed for the rest of its prompt.
        is_running: whether it already has a slot.
    """

    key: str
    remaining_tokens: int
    context_tokens: int
    line: Line
    blocks: int
    is_running: bool


class Plan(NamedTuple):
    """Tokens per candidate (0 to skip), most urgent first, and the `leader` for the next `plan`."""

    chunks: dict[str, int]
    leader: str | None


class _Step:
    """The predicted time of a step: decodes, plus T(context + chunk) - T(context) per chunk."""

    __slots__ = ("_linear_s", "_quadratic_s", "_seconds")

    def __init__(self, settings: StepSettings, decode_s: float) -> None:
        self._seconds = decode_s
        self._linear_s = settings.seconds_per_token
        self._quadratic_s = settings.quadratic_s

    def seconds_with(self, chunk_tokens: int, context_tokens: int) -> float:
        each_s = self._linear_s + self._quadratic_s * (2 * context_tokens + chunk_tokens)
        return self._seconds + chunk_tokens * each_s

    def add(self, chunk_tokens: int, context_tokens: int) -> None:
        self._seconds = self.seconds_with(chunk_tokens, context_tokens)


def plan(
    candidates: Sequence[Candidate],
    now: float,
    settings: StepSettings,
    *,
    leader: str | None,
    budget_tokens: int,
    free_slots: int,
    free_blocks: int,
    decodes: int = 0,
    decode_context_tokens: int = 0,
) -> Plan:
    """Rank the prefills of a step and assign each a chunk.

    Args:
        candidates: running and waiting prefills.
        now: seconds, on the clock of the lines.
        settings: target and times of a step.
        leader: the long prefill that ran last.
        budget_tokens: the engine's token limit per step, minus decodes.
        free_slots: number of requests that may start.
        free_blocks: KV blocks not held by any request.
        decodes: number of running requests that decode.
        decode_context_tokens: the sum of their contexts.
    """
    # This runs once per step, after the model has flushed the CPU caches: use plain loops.
    ranked = []
    any_running = False
    first_long, least = None, math.inf  # the one long prefill that may run, as in `pack`
    for key, remaining, context, (offset_s, rate), blocks, is_running in candidates:
        rho = (offset_s - now + settings.prefill_s(context)) * rate
        is_long = context + remaining > settings.long_tokens
        if is_long:
            late = rho - LEADER_MARGIN if key == leader else rho
            if late < least or first_long is None:
                first_long, least = key, late
        if is_running:
            any_running = True
            free_blocks -= blocks
        prefill = Prefill(remaining, context, rho, is_long)
        ranked.append((*turn(rho, is_long=is_long), not is_running, key, blocks, prefill))
    ranked.sort(key=lambda entry: (entry[5].is_long and entry[3] != first_long, entry[:4]))

    keys: list[str] = []
    prefills: list[Prefill] = []
    chunks: dict[str, int] = {}
    is_open = True
    for _, _, starts, key, blocks, prefill in ranked:
        chunks[key] = 0
        if starts:
            # Prefills behind the first that does not fit must wait too, or that one would never
            # fit. A lone prefill is left to the engine to check, since the plan's count may be too
            # high (not every layer keeps every token).
            fits = blocks <= free_blocks or not (any_running or keys)
            is_open = is_open and free_slots > 0 and fits
            if not is_open:
                continue
            free_slots -= 1
            free_blocks -= blocks
        keys.append(key)
        prefills.append(prefill)
    sizes = pack(
        prefills,
        _Step(settings, settings.decode_s(decodes, decode_context_tokens)),
        target_s=settings.target_s,
        budget_tokens=budget_tokens,
        least_tokens=LEAST_STEP_TOKENS,
        late_share=LATE_SHARE,
    )
    if leader not in chunks:
        leader = None
    for key, size, prefill in zip(keys, sizes, prefills, strict=True):
        if size:
            chunks[key] = size
            if prefill.is_long:
                leader = key
    return Plan(chunks, leader)

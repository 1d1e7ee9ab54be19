"""The cost of an iteration: the interface of cost models, and the linear model.

A cost model prices an iteration by a handful of sums (`Work`). Adding a chunk therefore takes
constant time, and a scheduler can search for the chunk that fits. The price of a decode-only
iteration is a linear function of the context, so a long stretch can be priced in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from laar.errors import SettingError


class Work:
    """Sums over one iteration's batch.

    Attributes:
        prefill_tokens: tokens of prefill chunks.
        decodes: sequences that decode one token each.
        decode_context: tokens in the caches of the decoding sequences, including the newest.
        pairs: (query, key) pairs that attention computes on the busiest KV group.
        kv_tokens: tokens whose KV the busiest KV group reads.
        kv_groups: largest number of KV groups that one sequence is spread over.
    """

    __slots__ = ("decode_context", "decodes", "kv_groups", "kv_tokens", "pairs", "prefill_tokens")

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.decodes = 0
        self.decode_context = 0
        self.pairs = 0.0
        self.kv_tokens = 0.0
        self.kv_groups = 1

    def copy(self) -> Work:
        """Return a copy with the same sums."""
        twin = Work()
        twin.prefill_tokens = self.prefill_tokens
        twin.decodes = self.decodes
        twin.decode_context = self.decode_context
        twin.pairs = self.pairs
        twin.kv_tokens = self.kv_tokens
        twin.kv_groups = self.kv_groups
        return twin

    def add_chunk(self, chunk: int, context: int, groups: int = 1) -> None:
        """Add a prefill chunk after `context` tokens, with its KV spread over `groups`."""
        self.prefill_tokens += chunk
        self.pairs += chunk * (context + 0.5 * chunk) / groups
        self.kv_tokens += (context + chunk) / groups
        if groups > self.kv_groups:
            self.kv_groups = groups

    def add_decodes(self, count: int, context: int, groups: int = 1) -> None:
        """Add `count` decoding sequences with `context` tokens in total before this iteration."""
        total = context + count
        self.decodes += count
        self.decode_context += total
        self.pairs += total / groups
        self.kv_tokens += total / groups
        if groups > self.kv_groups:
            self.kv_groups = groups


class CostModel(Protocol):
    """Seconds of an iteration on one kind of engine; immutable, so that tables can be cached."""

    def __hash__(self) -> int:
        """Return a hash, by which tables made from a model are cached."""
        ...

    @property
    def stages(self) -> int:
        """Number of pipeline stages; an iteration passes through all of them."""
        ...

    @property
    def kv_parallel(self) -> int:
        """Maximum number of groups that a long context's KV can be spread over."""
        ...

    def kv_groups(self, context: int) -> int:
        """Return the number of groups that a context of this many tokens uses."""
        ...

    def stage_s(self, work: Work) -> float:
        """Return the seconds that the batch spends in each stage; positive."""
        ...

    def decode_line(self, decodes: int) -> tuple[float, float]:
        """Return (a, b): `decodes` sequences alone take a + b * decode_context seconds per stage.

        This holds for sequences that use a single KV group.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """Seconds as a sum of constants, for engines known only from measurements.

    Args:
        seconds_per_token: seconds per uncached prompt token; LAAR's c(m).
        decode_s_per_token: seconds of an iteration that decodes, regardless of its batch; the TPOT
            of a lone sequence.
        prefill_overhead_s: fixed seconds of an iteration that prefills.
        decode_s_per_sequence: seconds per decoding sequence.
        decode_s_per_context_token: seconds per token in the caches of decoding sequences.
        prefill_s_per_pair: seconds per (query, key) pair of a prefill, which makes long prompts
            disproportionately expensive.
    """

    seconds_per_token: float
    decode_s_per_token: float
    prefill_overhead_s: float = 0.0
    decode_s_per_sequence: float = 0.0
    decode_s_per_context_token: float = 0.0
    prefill_s_per_pair: float = 0.0

    def __post_init__(self) -> None:
        for name in ("seconds_per_token", "decode_s_per_token"):
            if not getattr(self, name) > 0.0:
                raise SettingError(f"linear cost: `{name}` must be above 0 seconds")
        for name in (
            "prefill_overhead_s",
            "decode_s_per_sequence",
            "decode_s_per_context_token",
            "prefill_s_per_pair",
        ):
            if not getattr(self, name) >= 0.0:
                raise SettingError(f"linear cost: `{name}` must not be negative")

    @property
    def stages(self) -> int:
        """Always 1, as measured constants already include the effect of parallelism."""
        return 1

    @property
    def kv_parallel(self) -> int:
        """Always 1."""
        return 1

    def kv_groups(self, context: int) -> int:
        """Return 1."""
        return 1

    def stage_s(self, work: Work) -> float:
        """Return the sum of the prefill and decode parts."""
        seconds = 0.0
        if work.prefill_tokens:
            seconds = self.prefill_overhead_s + self.seconds_per_token * work.prefill_tokens
            seconds += self.prefill_s_per_pair * (work.pairs - work.decode_context)
        if work.decodes:
            base, slope = self.decode_line(work.decodes)
            seconds += base + slope * work.decode_context
        return seconds

    def decode_line(self, decodes: int) -> tuple[float, float]:
        """Return the constant part and the part per token of context."""
        return (
            self.decode_s_per_token + self.decode_s_per_sequence * decodes,
            self.decode_s_per_context_token,
        )

"""The scheduler plug, and the schedulers that are not Medha's.

A scheduler plans one iteration: whether those who decode get a token, and which prefills get how
many tokens. It admits waiting sequences through the desk, which is the engine: an admitted sequence
has a slot, blocks for its whole prompt and its part in the prefix cache, so that pausing
its prefill can't lead to a preemption (vLLM needs `--scheduler-reserve-full-isl` for that).

vLLM serves the running list first, in order of admission, and the waiting queue with the rest.
Here those that decode go before those that prefill; under FCFS that is the same order, since a
prefill that takes the rest of a step leaves nothing to admit others with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from laar_lab.sim.engine.cost import Work
from laar_lab.sim.engine.sequence import Seq
from laar_lab.sim.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Plan:
    """One iteration.

    Args:
        decode: whether every sequence that can decode gets a token.
        chunks: prefill tokens for admitted sequences, at most what each has left.
        steady: with no chunks, the next plan will be the same until a job comes or goes.
    """

    decode: bool
    chunks: list[tuple[Seq, int]]
    steady: bool = True


class Desk(Protocol):
    """A scheduler's view of the engine."""

    waiting: list[Seq]
    """Not admitted, in the order of the scheduler's key."""

    prefilling: list[Seq]
    """Admitted, with tokens left to prefill, in order of admission."""

    def decode_work(self) -> Work:
        """Return a fresh `Work` that holds the decodes of this iteration."""
        ...

    def admissible(self, seq: Seq) -> tuple[bool, int]:
        """Return whether `admit` would succeed now, and the prompt tokens that are cached."""
        ...

    def admit(self, seq: Seq) -> bool:
        """Move a waiting sequence to `prefilling`; False if a slot or blocks are missing."""
        ...


class Scheduler(Protocol):
    """The order of sequences, and the work of each iteration."""

    def key(self, seq: Seq) -> tuple[float, ...]:
        """Return the place in the waiting queue; smallest first, fixed for the sequence's life."""
        ...

    def plan(self, now: float, desk: Desk) -> Plan:
        """Return the iteration that starts at `now`."""
        ...

    def victim(self, running: list[Seq]) -> Seq:
        """Return the one to preempt when blocks run out; `running` is not empty."""
        ...


def _fill(desk: Desk, tokens: int) -> list[tuple[Seq, int]]:
    chunks: list[tuple[Seq, int]] = []
    for seq in desk.prefilling:
        if tokens <= 0:
            return chunks
        chunk = min(seq.remaining, tokens)
        chunks.append((seq, chunk))
        tokens -= chunk
    while tokens > 0 and desk.waiting:
        seq = desk.waiting[0]
        if not desk.admit(seq):
            break
        chunk = min(seq.remaining, tokens)
        chunks.append((seq, chunk))
        tokens -= chunk
    return chunks


class Fcfs:
    """vLLM's default: decodes, then running prefills, then the queue; prompts in chunks."""

    def __init__(self, settings: EngineSettings) -> None:
        self._budget_tokens = settings.max_num_batched_tokens

    def key(self, seq: Seq) -> tuple[float, ...]:
        """Return the order of submission; a preempted sequence goes back to its place."""
        return (seq.number,)

    def plan(self, now: float, desk: Desk) -> Plan:
        """Return decodes and as many prefill tokens as the budget leaves."""
        return Plan(True, _fill(desk, self._budget_tokens - desk.decode_work().decodes))

    def victim(self, running: list[Seq]) -> Seq:
        """Return the newest."""
        return max(running, key=lambda seq: seq.admitted)


class Priority(Fcfs):
    """vLLM's priority policy: reorders the queue; a running prefill keeps its place."""

    def key(self, seq: Seq) -> tuple[float, ...]:
        """Return priority, lower first, then arrival."""
        return (seq.job.priority, seq.job.arrival_s, seq.number)

    def victim(self, running: list[Seq]) -> Seq:
        """Return the least important, the latest of those."""
        return max(running, key=self.key)


class PrefillFirst(Fcfs):
    """SGLang's default: while anything can prefill, nothing decodes."""

    def plan(self, now: float, desk: Desk) -> Plan:
        """Return prefills up to the budget, or else the decodes."""
        chunks = _fill(desk, self._budget_tokens)
        return Plan(not chunks, chunks)


class NonPreemptive(Fcfs):
    """Whole prompts only: nothing runs beside or between the parts of a long one.

    Prompts share an iteration up to the token budget; a longer one has an iteration to itself.
    """

    def plan(self, now: float, desk: Desk) -> Plan:
        """Return whole prompts in order of arrival, or else the decodes."""
        chunks: list[tuple[Seq, int]] = []
        tokens = self._budget_tokens
        while desk.waiting and (not chunks or desk.waiting[0].target <= tokens):
            seq = desk.waiting[0]
            if not desk.admit(seq):
                break
            chunks.append((seq, seq.remaining))
            tokens -= seq.remaining
        return Plan(not chunks, chunks)

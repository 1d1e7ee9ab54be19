"""The scheduler interface, and all schedulers but Medha's.

A scheduler plans one iteration: whether decoding sequences get a token, and how many tokens each
prefill gets. It admits waiting sequences through the desk, which is the engine. An admitted
sequence has a slot, blocks for its whole prompt, and what it found in the prefix cache. Pausing its
prefill can't lead to a preemption (vLLM needs `--scheduler-reserve-full-isl` for that).

vLLM serves running sequences first, in order of admission, then the waiting queue. Here, decodes
come before prefills. With FCFS the order is the same, since a prefill that fills a step leaves no
tokens for admitting others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from laar_lab.sim.engine.cost import Work
from laar_lab.sim.engine.sequence import Seq
from laar_lab.sim.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one iteration.

    Args:
        decode: whether every sequence that can decode gets a token.
        chunks: prefill tokens of admitted sequences, at most what each has left to prefill.
        steady: whether a plan without chunks remains the same until a job comes or goes.
    """

    decode: bool
    chunks: list[tuple[Seq, int]]
    steady: bool = True


class Desk(Protocol):
    """The engine as seen by a scheduler."""

    waiting: list[Seq]
    """Sequences not yet admitted, in the order of the scheduler's key."""

    prefilling: list[Seq]
    """Admitted sequences with tokens left to prefill, in order of admission."""

    def decode_work(self) -> Work:
        """Return a fresh `Work` with the decodes of this iteration."""
        ...

    def admissible(self, seq: Seq) -> tuple[bool, int]:
        """Return whether `admit` would succeed now, and how many prompt tokens are cached."""
        ...

    def admit(self, seq: Seq) -> bool:
        """Move a waiting sequence to `prefilling`; return False if it lacks a slot or blocks."""
        ...


class Scheduler(Protocol):
    """Orders sequences and plans each iteration."""

    def key(self, seq: Seq) -> tuple[float, ...]:
        """Return the rank in the waiting queue, smallest first; it never changes for a sequence."""
        ...

    def plan(self, now: float, desk: Desk) -> Plan:
        """Plan the iteration that starts at `now`."""
        ...

    def victim(self, running: list[Seq]) -> Seq:
        """Return the sequence to preempt if blocks run out; `running` is not empty."""
        ...


def _fill(desk: Desk, tokens: int, grid: int = 0) -> list[tuple[Seq, int]]:
    chunks: list[tuple[Seq, int]] = []
    for seq in desk.prefilling:
        if tokens <= 0:
            return chunks
        chunk = seq.chunk(tokens, grid)
        if chunk:
            chunks.append((seq, chunk))
        tokens -= chunk
    while tokens > 0 and desk.waiting:
        seq = desk.waiting[0]
        if not desk.admit(seq):
            break
        chunk = seq.chunk(tokens, grid)
        if not chunk:
            break
        chunks.append((seq, chunk))
        tokens -= chunk
    return chunks


class Fcfs:
    """vLLM's default: decodes, then running prefills, then the queue, with chunked prompts."""

    def __init__(self, settings: EngineSettings) -> None:
        self._budget_tokens = settings.max_num_batched_tokens
        self._grid = settings.block_size if settings.state_groups else 0

    def key(self, seq: Seq) -> tuple[float, ...]:
        """Return the order of submission, so that a preempted sequence returns to its place."""
        return (seq.number,)

    def plan(self, now: float, desk: Desk) -> Plan:
        """Plan all decodes, and prefills with the rest of the budget."""
        tokens = self._budget_tokens - desk.decode_work().decodes
        return Plan(True, _fill(desk, tokens, self._grid))

    def victim(self, running: list[Seq]) -> Seq:
        """Return the most recently admitted sequence."""
        return max(running, key=lambda seq: seq.admitted)


class Priority(Fcfs):
    """vLLM's priority policy: orders the queue; a running prefill keeps its place."""

    def key(self, seq: Seq) -> tuple[float, ...]:
        """Return the priority, lower first, then the arrival."""
        return (seq.job.priority, seq.job.arrival_s, seq.number)

    def victim(self, running: list[Seq]) -> Seq:
        """Return the least important sequence; in case of a tie, the latest."""
        return max(running, key=self.key)


class PrefillFirst(Fcfs):
    """SGLang's default: while anything can prefill, nothing decodes."""

    def plan(self, now: float, desk: Desk) -> Plan:
        """Plan prefills up to the budget; without prefills, the decodes."""
        chunks = _fill(desk, self._budget_tokens)
        return Plan(not chunks, chunks)


class NonPreemptive(Fcfs):
    """Whole prompts only: nothing runs during a long prefill.

    Prompts share an iteration up to the token budget; a longer prompt gets a separate iteration.
    """

    def plan(self, now: float, desk: Desk) -> Plan:
        """Plan whole prompts in order of arrival; without prompts, the decodes."""
        chunks: list[tuple[Seq, int]] = []
        tokens = self._budget_tokens
        while desk.waiting and (not chunks or desk.waiting[0].target <= tokens):
            seq = desk.waiting[0]
            if not desk.admit(seq):
                break
            chunks.append((seq, seq.remaining))
            tokens -= seq.remaining
        return Plan(not chunks, chunks)

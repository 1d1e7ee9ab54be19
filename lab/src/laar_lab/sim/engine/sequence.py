"""A job inside the engine: how far it is, and which KV blocks it holds."""

from __future__ import annotations

from laar.flow.slack import Line
from laar_lab.sim.engine.interface import Job


class Seq:
    """The engine's own record of a job; schedulers read it, only the engine writes it.

    Attributes:
        number: order of submission.
        admitted: order of the last admission; the largest is the newest of those running.
        target: tokens to compute before the next output token can come.
        context: tokens whose KV exists or is being computed.
        generated: output tokens so far.
        cached: prompt tokens that the first admission found in the prefix cache.
        held: hashes of its findable blocks, first to last.
        blocks: all blocks it holds, findable or not.
        flights: iterations under way that it is part of (several with pipeline stages).
        gone: aborted or lost while an iteration was under way.
        line: urgency, kept by schedulers that order by slack until its context changes.
    """

    __slots__ = (
        "admitted",
        "blocks",
        "cached",
        "context",
        "flights",
        "generated",
        "gone",
        "held",
        "job",
        "line",
        "number",
        "target",
    )

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.number = number
        self.admitted = -1
        self.target = job.prompt_tokens
        self.context = 0
        self.generated = 0
        self.cached = 0
        self.held: list[int] = []
        self.blocks = 0
        self.flights = 0
        self.gone = False
        self.line: Line | None = None

    @property
    def remaining(self) -> int:
        """Tokens left to prefill."""
        return self.target - self.context

    @property
    def left(self) -> int:
        """Output tokens left to make."""
        return self.job.output_tokens - self.generated

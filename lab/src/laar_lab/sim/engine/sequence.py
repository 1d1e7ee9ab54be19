"""A job inside the engine: its progress, and the KV blocks it holds."""

from __future__ import annotations

from laar.flow.slack import Line
from laar_lab.sim.engine.interface import Job


class Seq:
    """The engine's record of a job; schedulers read it, only the engine writes it.

    Attributes:
        number: order of submission.
        admitted: order of the last admission; the largest is the newest running sequence.
        target: tokens to compute before the next output token.
        context: tokens whose KV exists or is being computed.
        generated: output tokens generated.
        cached: prompt tokens found in the prefix cache at the first admission.
        held: hashes of its blocks that can be found, first to last.
        blocks: number of all its blocks.
        stops: numbers of tokens at which a prefill must stop, because a state is kept there.
        flights: number of current iterations that it is part of; several with pipeline stages.
        gone: aborted or lost during an iteration.
        line: urgency, cached until the context changes by schedulers that order by slack.
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
        "stops",
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
        self.stops: list[int] = []
        self.flights = 0
        self.gone = False
        self.line: Line | None = None

    @property
    def remaining(self) -> int:
        """Tokens left to prefill."""
        return self.target - self.context

    def chunk(self, tokens: int, grid: int) -> int:
        """Return how many tokens to prefill next, at most `tokens`.

        With a grid, a chunk ends at a multiple of it, or where it must stop.
        """
        chunk = min(self.remaining, tokens)
        if grid and chunk:
            start, end = self.context, self.context + chunk
            if end < self.target:
                end = max(start, end // grid * grid)
            end = min((stop for stop in self.stops if start < stop < end), default=end)
            chunk = end - start
        return chunk

    @property
    def left(self) -> int:
        """Output tokens left to generate."""
        return self.job.output_tokens - self.generated

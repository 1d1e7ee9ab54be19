"""The settings of an engine, beside its cost.

Defaults are vLLM's where it has the knob.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import ConfigDict, Field

_Count = Annotated[int, Field(ge=1)]
_Positive = Annotated[float, Field(gt=0.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackSettings:
    """Medha's scheduler.

    Args:
        order: who goes first: `lars`, or `fcfs`, `edf`, `lrs`, `srpt` to compare with.
        target_s: what an iteration should take at most; the paper's 20 ms.
        rho_max: largest share of an iteration that a long prefill with slack leaves free (0.4).
        late_share: what a long prefill leaves free that can't meet its objective any more; the
            paper has it leave nothing.
        multi_prefill: several prefills in one iteration; off is the paper's plain LARS.
        long_tokens: prompts above this are long; the paper's short ones end at 8K.
        objective_base_s: TTFT objective of a job without one is this ...
        objective_factor: ... plus this many times its prefill time alone.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # read by pydantic

    order: str = "lars"
    target_s: _Positive = 0.020
    rho_max: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.4
    late_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    multi_prefill: bool = True
    long_tokens: _Count = 8192
    objective_base_s: Annotated[float, Field(ge=0.0)] = 1.0
    objective_factor: _Positive = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine.

    Args:
        num_blocks: KV blocks; the memory.
        block_size: tokens of a block.
        max_num_seqs: sequences running at once (vLLM's default on a large device).
        max_num_batched_tokens: tokens of an iteration; the static chunk size.
        max_num_queued: waiting jobs beyond which `submit` refuses; far above what an experiment
            can still call a queue.
        scheduler: a name in `SCHEDULERS`: `fcfs` (vLLM), `priority` (vLLM's priority policy),
            `prefill-first` (SGLang), `non-preemptive` (whole prompts), `slack` (Medha); or
            `parallel`, which is another engine altogether (`laar_lab.sim.engine.parallel`).
        stream_pipeline: with several stages, a prefill's next chunk enters the first stage when
            the one before leaves it; off, only when it has left the last one.
        step_jitter: standard deviation of the logarithm of an iteration's time; a merged stretch
            draws once.
        intake_s: what the server in front of the scheduler takes for a request (HTTP, checks),
            one request after the other. The fleet in virtual time waits for it; an HTTP endpoint
            has a server of its own.
        intake_s_per_token: the same for each token of the prompt (parsing, tokenising, hashing).
        kv_events: report prefix-cache changes in each `Step`.
        load_factor: for `parallel`: how much longer everything takes with `max_num_seqs` running
            than with one.
        refuses_full: for `parallel`: whether a prompt that finds no room in the KV cache gets a
            500, as llm-d-inference-sim has it, and does not wait.
        slack: for the scheduler `slack`.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # read by pydantic

    num_blocks: _Count
    block_size: _Count = 16
    max_num_seqs: _Count = 256
    max_num_batched_tokens: _Count = 2048
    max_num_queued: _Count = 65_536
    scheduler: str = "fcfs"
    stream_pipeline: bool = True
    step_jitter: Annotated[float, Field(ge=0.0)] = 0.0
    intake_s: Annotated[float, Field(ge=0.0)] = 0.0
    intake_s_per_token: Annotated[float, Field(ge=0.0)] = 0.0
    kv_events: bool = False
    load_factor: Annotated[float, Field(ge=1.0)] = 1.0
    refuses_full: bool = False
    slack: SlackSettings = field(default_factory=SlackSettings)

    def intake_of(self, prompt_tokens: int) -> float:
        """Return the seconds before the scheduler sees a prompt that long."""
        return self.intake_s + self.intake_s_per_token * prompt_tokens

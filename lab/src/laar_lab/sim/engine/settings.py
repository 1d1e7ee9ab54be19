"""The settings of an engine, apart from its cost.

Where vLLM has a setting, the default is vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import ConfigDict, Field

_Count = Annotated[int, Field(ge=1)]
_Positive = Annotated[float, Field(gt=0.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackSettings:
    """Settings of Medha's scheduler.

    Args:
        order: order of prefills: `lars`; for comparison `fcfs`, `edf`, `lrs`, `srpt`.
        target_s: target duration of an iteration; the paper's 20 ms.
        rho_max: largest share of an iteration that a long prefill with slack leaves free.
        late_share: share that a long prefill leaves free after missing its objective; 0 in the
            paper.
        multi_prefill: allow several prefills per iteration; if off, this is the paper's plain LARS.
        long_tokens: prompts with more tokens are long; in the paper, short prompts have up to 8K.
        objective_base_s: constant part of the TTFT objective of a job that sets none.
        objective_factor: part proportional to the job's prefill time on an idle engine.
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
    """Settings of one engine.

    Args:
        num_blocks: number of KV blocks in memory.
        block_size: tokens per block.
        state_groups: groups of layers with a recurrent state (`laar_lab.sim.engine.states`); 0 if
            the model has none. A kept state takes a block for each group.
        max_num_seqs: maximum number of concurrent sequences (vLLM's default on a large device).
        max_num_batched_tokens: maximum number of tokens per iteration; the size of static chunks.
        max_num_queued: number of waiting jobs above which `submit` rejects; no experiment has as
            many.
        scheduler: a name in `SCHEDULERS`: `fcfs` (vLLM), `priority` (vLLM's priority policy),
            `prefill-first` (SGLang), `non-preemptive` (whole prompts), `slack` (Medha); or
            `parallel`, which is a different engine (`laar_lab.sim.engine.parallel`).
        stream_pipeline: with several stages, whether a prefill's next chunk starts once the
            previous one has left the first stage instead of the last.
        intake_s: time that a request takes in the server before it reaches the scheduler (HTTP,
            checks); requests are handled one after another. The virtual-time fleet models it; an
            HTTP endpoint has a real server instead.
        intake_s_per_token: intake time per token of the prompt (parsing, tokenizing, hashing).
        kv_events: report prefix-cache changes in each `Step`.
        collapse_above: decoding sequences above which an iteration takes `collapse_factor`
            times as long, as where a graph was captured for no larger batch; 0 for none.
        collapse_factor: that factor.
        abort_late_s: time for which an engine goes on with a job whose client has left; infinite if
            it answers to the end. Only the virtual-time fleet models it.
        load_factor: for `parallel`: how many times slower `max_num_seqs` requests run than one
            alone.
        slack: settings of the scheduler `slack`.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # read by pydantic

    num_blocks: _Count
    block_size: _Count = 16
    state_groups: Annotated[int, Field(ge=0)] = 0
    max_num_seqs: _Count = 256
    max_num_batched_tokens: _Count = 2048
    max_num_queued: _Count = 65_536
    scheduler: str = "fcfs"
    stream_pipeline: bool = True
    intake_s: Annotated[float, Field(ge=0.0)] = 0.0
    intake_s_per_token: Annotated[float, Field(ge=0.0)] = 0.0
    kv_events: bool = False
    collapse_above: Annotated[int, Field(ge=0)] = 0
    collapse_factor: Annotated[float, Field(ge=1.0)] = 4.0
    abort_late_s: Annotated[float, Field(ge=0.0)] = 0.0
    load_factor: Annotated[float, Field(ge=1.0)] = 1.0
    slack: SlackSettings = field(default_factory=SlackSettings)

    def intake_of(self, prompt_tokens: int) -> float:
        """Return the seconds until the scheduler sees a prompt of this length."""
        return self.intake_s + self.intake_s_per_token * prompt_tokens

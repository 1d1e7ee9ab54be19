"""vLLM's asynchronous scheduler with prefills in slack order (vLLM 0.32 and 0.33).

vLLM's `schedule` is not duplicated. Before it runs, the lists it iterates over are sorted. While it
runs, it calls `_reserve_prefill_lookahead` for each request's number of tokens, which is where the
plan's chunks are applied. With a chunk of 0, a running prefill pauses in this step and keeps its
KV. Waiting requests with 0 are kept out of the queue meanwhile: 0.32 ends its loop at the first,
and 0.33 moves it to a queue that precedes all others.

Everything else is unchanged: decodes come first; requests that wait while holding KV (remote loads,
streaming input) precede all others. The cached prefix of a waiting prompt is unknown, so it ranks
by full length until it starts. Speculative decoding, pipeline and data parallelism are untested.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from laar_vllm.plan import Candidate, Line, StepSettings, plan

DEADLINE_ARG = "ttft_deadline_ms"
"""Argument in a body, in milliseconds from arrival: `"vllm_xargs": {"ttft_deadline_ms": 500}`."""

SPARE_LINES = 256
"""Maximum number of finished requests whose lines are kept before a sweep drops them."""


class SlackScheduler(AsyncScheduler):  # type: ignore[misc]  # vLLM ships no reliable types
    """Prefills in slack order: `vllm serve --scheduler-cls laar_vllm.SlackScheduler`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._check_seams()
        self._settings = StepSettings.from_config(self.vllm_config.additional_config)
        self._lines: dict[str, Line] = {}
        self._chunks: dict[str, int] = {}
        self._leader: str | None = None

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Sort vLLM's lists by slack and let it schedule."""
        held = self._plan_step()
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.waiting.extend(held)

    def _reserve_prefill_lookahead(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        chunk = self._chunks.get(request.request_id)
        if chunk is not None:
            num_new_tokens = min(num_new_tokens, chunk)
        tokens: int = super()._reserve_prefill_lookahead(
            request, num_computed_tokens, num_new_tokens
        )
        return tokens

    def _plan_step(self) -> list[Any]:
        """Plan a step and sort the lists; return the requests taken out of the queue for it."""
        prefills, decodes, context_tokens = [], 0, 0
        for request in self.running:
            if request.is_prefill_chunk:
                prefills.append(request)
            else:
                decodes += 1
                context_tokens += request.num_computed_tokens
        if not prefills and not self.waiting:
            self._chunks = {}
            return []
        waiting = list(self.waiting)
        candidates = [self._candidate(request, is_running=True) for request in prefills]
        candidates += [self._candidate(request, is_running=False) for request in waiting]
        step = plan(
            candidates,
            time.time(),  # arrival_time is wall-clock time
            self._settings,
            leader=self._leader,
            budget_tokens=self.max_num_scheduled_tokens - decodes,
            free_slots=self.max_num_active_reqs - len(self.running),
            free_blocks=self.kv_cache_manager.block_pool.get_num_free_blocks(),
            decodes=decodes,
            decode_context_tokens=context_tokens,
        )
        self._chunks, self._leader = step.chunks, step.leader
        rank = {key: place for place, key in enumerate(step.chunks)}
        # If blocks run out, vLLM preempts the last running request, so sort the one with the most
        # slack last.
        self.running.sort(key=lambda request: rank.get(request.request_id, -1))
        waiting.sort(key=lambda request: rank[request.request_id])
        self.waiting.clear()
        self.waiting.extend(one for one in waiting if step.chunks[one.request_id])
        return [one for one in waiting if not step.chunks[one.request_id]]

    def _candidate(self, request: Any, *, is_running: bool) -> Candidate:
        key, total, done = request.request_id, request.num_tokens, request.num_computed_tokens
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) > len(self.requests) + SPARE_LINES:
                self._lines = {k: v for k, v in self._lines.items() if k in self.requests}
            extra = getattr(request.sampling_params, "extra_args", None) or {}
            line = self._lines[key] = self._settings.line(
                total, request.arrival_time, extra.get(DEADLINE_ARG)
            )
        blocks = -(-total // self.block_size) - -(-done // self.block_size)
        return Candidate(key, max(1, total - done), done, line, blocks, is_running)

    def _check_seams(self) -> None:
        """Reject configurations that the overridden methods do not support."""
        config = self.scheduler_config
        if not isinstance(self.waiting, deque):
            raise ValueError(
                f"laar's SlackScheduler sorts the queue itself: start vLLM with "
                f"--scheduling-policy fcfs, not {config.policy}"
            )
        if not config.enable_chunked_prefill:
            raise ValueError(
                "laar's SlackScheduler needs chunks: start vLLM with --enable-chunked-prefill"
            )

"""The state that all requests of an endpoint share: engine, counters, answerer and cache events."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from laar_lab.sim.answers import Answerer
from laar_lab.sim.endpoint.answering import Answer
from laar_lab.sim.endpoint.bodies import Ask, Prompt
from laar_lab.sim.endpoint.driver import EngineDriver
from laar_lab.sim.endpoint.errors import ApiError
from laar_lab.sim.endpoint.faults import Fault, FaultBook
from laar_lab.sim.endpoint.metrics import ServingMetrics
from laar_lab.sim.endpoint.settings import EndpointSettings
from laar_lab.sim.endpoint.stored import StoredResponses
from laar_lab.sim.endpoint.tokenizer import block_hashes
from laar_lab.sim.engine.interface import Engine, Job

if TYPE_CHECKING:
    from laar_lab.sim.endpoint.kv_events import KvEventPublisher


class Serving:
    """An endpoint without its HTTP layer.

    Args:
        settings: settings of the endpoint.
        build_engine: makes a fresh engine.
        block_size: tokens per KV block of that engine.
        num_blocks: KV blocks of that engine.
        answerer: answers as the simulated model; None for a fixed text.
        publisher: publishes KV events; None to publish none.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        build_engine: Callable[[], Engine],
        block_size: int,
        num_blocks: int,
        answerer: Answerer | None,
        publisher: KvEventPublisher | None,
    ) -> None:
        self.settings = settings
        self.answerer = answerer
        self.publisher = publisher
        self.faults = FaultBook(settings.faults, random.Random(settings.seed))
        self.driver = EngineDriver(
            build_engine,
            time_scale=settings.time_scale * self.faults.slow_factor(),
            blocks=publisher,
        )
        self.active = 0
        self.draining = False
        self._block_size = block_size
        self._cache_config = _cache_config(
            block_size, num_blocks, prefix_caching=settings.prefix_caching
        )
        self._numbers = itertools.count()
        self._begin()

    def _begin(self) -> None:
        self.metrics = ServingMetrics(self.settings.names[0], self._cache_config)
        self.stored = StoredResponses()
        self.frozen_page = b""

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the faults, from the next request on."""
        self.frozen_page = self.metrics.page(self.driver.reported)
        self.faults.set(faults)
        self.driver.rescale(self.settings.time_scale * self.faults.slow_factor())

    def restart(self) -> None:
        """Restart with an empty engine, cache and counters; requests in flight are lost."""
        self.driver.restart()
        if self.publisher is not None:
            self.publisher.restart()
        self._begin()

    def check_model(self, name: str | None) -> None:
        """Check that a requested name, if any, is served.

        Raises:
            ApiError: 404 if it is not.
        """
        names = self.settings.names
        if name and name not in names:
            text = f"The model `{name}` does not exist. Valid aliases: {', '.join(names)}."
            raise ApiError(404, text, param="model")

    def free_tokens(self, ask: Ask) -> int:
        """Return the number of tokens that fit after the prompt.

        Raises:
            ApiError: 400 if the prompt, or prompt and limit together, are too long.
        """
        longest, prompt = self.settings.max_model_len, ask.prompt.tokens
        if not prompt:
            raise ApiError(400, "the prompt is empty", param="prompt")
        wanted = 1 if ask.max_tokens is None else ask.max_tokens
        if prompt + wanted > longest:
            field = ask.max_tokens_field if wanted > 1 and prompt < longest else None
            raise ApiError(
                400,
                f"This model's maximum context length is {longest} tokens. The prompt has {prompt} "
                f"and the answer at least {wanted}: shorten the prompt or the limit.",
                param=field,
            )
        return longest - prompt

    def transfer_s(self, job: Job) -> float:
        """Return the real seconds that it takes to transfer the KV that the engine lacks.

        Concurrent requests do not share the network's bandwidth.
        """
        missing = job.prompt_tokens - self.driver.engine.cached_tokens(job)
        scale = self.settings.time_scale * self.faults.slow_factor()
        return missing / self.settings.transfer_tokens_per_s * scale

    def job(self, prompt: Prompt, answer: Answer, ask: Ask | None = None, session: str = "") -> Job:
        """Return a request as an engine's job; hash the blocks of the prompt and of the answer.

        Without prefix caching, no block has a hash that another request could find.

        The deadline is converted from real to engine time. `session` is for KV events.
        """
        salt = ask.salt if ask is not None else ""
        ids, blocks = None, []
        if self.settings.prefix_caching:
            ids = prompt.ids(answer.piece(0, answer.tokens))
            blocks = block_hashes(ids, self._block_size, salt=salt)
        deadline_ms = ask.deadline_ms if ask is not None else None
        job = Job(
            id=str(next(self._numbers)),
            arrival_s=self.driver.now(),
            prompt_tokens=prompt.tokens,
            output_tokens=answer.tokens,
            blocks=blocks,
            priority=ask.priority if ask is not None else 0,
            ttft_objective_s=None
            if deadline_ms is None
            else deadline_ms / 1000 / self.settings.time_scale,
        )
        if self.publisher is not None and ids is not None:
            self.publisher.track(job.id, job.blocks, ids, salt, session)
        return job


def _cache_config(block_size: int, num_blocks: int, *, prefix_caching: bool) -> dict[str, str]:
    """Return the labels of `cache_config_info`: Python values as text, as in vLLM."""
    config: dict[str, object] = {
        "block_size": block_size,
        "cache_dtype": "auto",
        "calculate_kv_scales": False,
        "enable_prefix_caching": prefix_caching,
        "gpu_memory_utilization": 0.9,
        "hash_block_size": None,
        "kv_cache_memory_bytes": None,
        "kv_cache_size_tokens": block_size * num_blocks,
        "kv_offloading_backend": None,
        "kv_offloading_size": None,
        "kv_sharing_fast_prefill": False,
        "mamba_block_size": None,
        "num_cpu_blocks": None,
        "num_gpu_blocks": num_blocks,
        "num_gpu_blocks_override": None,
        "prefix_caching_hash_algo": "xxhash",
        "sliding_window": None,
        "user_specified_block_size": False,
    }
    return {name: str(value) for name, value in config.items()}

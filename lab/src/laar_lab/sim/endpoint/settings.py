"""Settings of a simulated endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from laar.errors import SettingError
from laar_lab.sim.endpoint.faults import Fault
from laar_lab.sim.endpoint.templates import TEMPLATES


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventSettings:
    """Settings of KV events, as in vLLM's ``--kv-events-config``.

    Args:
        endpoint: ZMQ address that the publisher binds, such as ``tcp://*:5557``;
            ``tcp://127.0.0.1:*`` uses a free port, which ``/kv_event_sources`` then names.
        replay_endpoint: ZMQ address for replays; None for no replays.
        topic: first frame of each message, such as ``kv@10.0.0.7:8000@phi3-mini``.
        buffer_steps: batches kept for replays; the oldest are dropped first. A tenth of vLLM's
            default, since several endpoints may share a small machine and batches take tens of KB.
        hwm: messages that ZMQ queues for a slow subscriber before it drops more; vLLM's default.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 1024
    hwm: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """Settings of a simulated endpoint.

    Args:
        model: name of the model, and its ``root`` in ``/v1/models``.
        served_names: names that clients may request; only `model` if empty. Answers name the
            first.
        host: address to listen on.
        port: port to listen on; 0 for a free one.
        profile: hardware and model to imitate, by name (`laar_lab.sim.engine.profile_names`) or by
            the path of a file. If there is a fleet model, only the profile's memory is used.
        fleet_model: model of the fleet, which sets the speed and the accuracy on key-value
            look-ups; None to answer with a fixed text.
        fleet: path of a fleet file; None for the packaged one.
        template: name of the chat template (`laar_lab.sim.endpoint.templates`).
        time_scale: real seconds per engine second; 0.05 runs twenty times faster than the imitated
            hardware. Durations on the metrics page are in real seconds.
        round_trip_s: real seconds by which every answer is delayed, including metrics and health,
            to simulate distance.
        max_model_len: limit on prompt plus answer, in tokens.
        scheduler: name of the engine's scheduler; None for the profile's. Only "priority" respects
            `X-Vllm-Priority` and the body's `priority`, as in vLLM.
        max_waiting: number of requests waiting in the engine above which new requests get 503; None
            for the engine's default, which is far beyond what a client would wait for.
        num_blocks: KV blocks; None for as many as fit in the profile's memory.
        prefix_caching: whether to cache the prompts of earlier requests, as vLLM does by default.
        transfer_tokens_per_s: tokens of KV transferred per engine second if another endpoint has
            prefilled the prompt; see `laar_lab.sim.endpoint.apart`.
        shutdown_timeout_s: how long running requests continue after SIGTERM; 0 as in vLLM.
        kv_events: how to publish changes to the prefix cache; None to publish nothing.
        echo: answer with a text that the client can verify; see `laar_lab.sim.endpoint.echo`.
        faults: initial faults; see `laar_lab.sim.endpoint.faults`.
        allow_fault_header: accept ``x-sim-fault`` and requests to ``/sim/faults`` and
            ``/sim/outage``. Never enable this where others can reach the endpoint.
        seed: seed for drawing the requests to hit if a fault has a share.
    """

    model: str
    served_names: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 0
    profile: str = "qwen2.5-7b-a100"
    fleet_model: str | None = None
    fleet: Path | None = None
    template: str = "plain"
    time_scale: float = 1.0
    round_trip_s: float = 0.0
    max_model_len: int = 131_072
    scheduler: str | None = None
    max_waiting: int | None = None
    num_blocks: int | None = None
    prefix_caching: bool = True
    transfer_tokens_per_s: float = 100_000.0
    shutdown_timeout_s: float = 0.0
    kv_events: KvEventSettings | None = None
    echo: bool = False
    faults: tuple[Fault, ...] = ()
    allow_fault_header: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate the settings.

        Raises:
            SettingError: a setting is invalid; the message names it.
        """
        if not all(self.names):
            raise SettingError("model, served_names: a name is empty")
        if self.template not in TEMPLATES:
            raise SettingError(f"template: {self.template!r} is not one of {', '.join(TEMPLATES)}")
        if not 0 < self.time_scale < float("inf"):
            raise SettingError(f"time_scale: {self.time_scale} must be above 0")
        if not 0 <= self.round_trip_s < 60:
            raise SettingError(f"round_trip_s: {self.round_trip_s} must be in 0..60, below 60")
        if not self.transfer_tokens_per_s > 0:
            raise SettingError(f"transfer_tokens_per_s: {self.transfer_tokens_per_s} is too low")
        if self.max_model_len < 2:
            raise SettingError(f"max_model_len: {self.max_model_len} leaves no room for an answer")

    @property
    def names(self) -> tuple[str, ...]:
        """Model names that clients may request; answers name the first."""
        return self.served_names or (self.model,)

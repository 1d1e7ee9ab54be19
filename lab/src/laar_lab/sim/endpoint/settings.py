"""Settings of a simulated endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from laar.errors import SettingError
from laar_lab.sim.endpoint.faults import Fault
from laar_lab.sim.endpoint.templates import TEMPLATES


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventSettings:
    """Address of KV events, as in vLLM's ``--kv-events-config``.

    Args:
        endpoint: ZMQ address the publisher binds, such as ``tcp://*:5557``; ``tcp://127.0.0.1:*``
            takes a free port, which ``/kv_event_sources`` then names.
        replay_endpoint: ZMQ address for replays; None for no replays.
        topic: first frame of each message, such as ``kv@10.0.0.7:8000@phi3-mini``.
        buffer_steps: batches kept for replays; the oldest go first. A tenth of vLLM's default: five
            endpoints share a small machine, and a batch of long prompts takes tens of kilobytes.
        hwm: messages ZMQ queues for one slow subscriber before it drops; vLLM's default.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 1024
    hwm: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """One simulated endpoint.

    Args:
        model: the model's name, and its ``root`` in ``/v1/models``.
        served_names: names clients may ask for; answers always carry the first. Empty: the model's.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        profile: hardware and model the engine imitates, by name
            (`laar_lab.sim.engine.profile_names`) or by the path of a file. For a fleet model only
            its memory counts.
        fleet_model: a model of the fleet: its speed, and its accuracy on key-value look-ups. None:
            answers are a fixed text.
        fleet: path of a fleet file; None for the one that comes with the package.
        template: how chats are rendered, by name (`laar_lab.sim.endpoint.templates`).
        time_scale: real seconds for each of the engine's; 0.05 runs twenty times faster than the
            hardware it imitates. Durations on the metrics page are real ones.
        round_trip_s: real seconds that every answer comes later, metrics and health included, as if
            the endpoint were that far away.
        max_model_len: longest prompt and answer together, tokens.
        scheduler: the engine's, by name; None for the profile's. Only "priority" heeds
            `X-Vllm-Priority` and the body's `priority`, as in vLLM.
        max_waiting: requests that may wait in the engine before more get 503; None for the
            engine's own, far above what a client would wait for.
        num_blocks: KV blocks; None for what the profile's memory holds.
        prefix_caching: keep the prompts of earlier requests, as vLLM does by default.
        transfer_tokens_per_s: tokens whose KV comes over in a second, on the engine's clock, where
            another endpoint has read the prompt; `laar_lab.sim.endpoint.apart`.
        shutdown_timeout_s: how long SIGTERM lets running requests go on; 0 cuts them, as in vLLM.
        kv_events: publish what the prefix cache stores and drops; None for not.
        echo: answer with a text that the client can check; see `laar_lab.sim.endpoint.echo`.
        faults: start options; see `laar_lab.sim.endpoint.faults`.
        allow_fault_header: honour ``x-sim-fault``, and faults by ``PUT /sim/faults``. Never where
            others can reach the endpoint.
        seed: of the draws that decide which requests a fault's share hits.
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
        """Refuse what cannot work.

        Raises:
            SettingError: the text names the setting.
        """
        if not all(self.names):
            raise SettingError("model, served_names: a name is empty")
        if self.template not in TEMPLATES:
            raise SettingError(f"template: {self.template!r} is none of {', '.join(TEMPLATES)}")
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
        """Model names that clients may request; answers carry the first."""
        return self.served_names or (self.model,)

"""Roofline cost of an iteration, from a hardware and a model profile.

    time = linear + attention + collectives + overhead
    linear    = max(2 * active parameters * tokens / FLOP/s,  weights / bandwidth)
    attention = max(4 * layers * heads * head_dim * pairs / FLOP/s,  KV bytes / bandwidth)
    pairs     = sum(chunk * (context + chunk / 2))

The two operator groups run one after the other on the device, so each has a separate roof. A single
roof over both (comparing their sums) would hide what the paper gains from batching several
prefills: an iteration with an attention-bound chunk at a large depth reads the weights anyway, so
the linear part of another, short chunk is almost free (section 4.2).

Parallelism. Tensor: everything is divided by p_tp, with two all-reduces per layer. Pipeline: a
stage has 1/p of the layers, and an iteration pays a hop between stages; the engine decides how
chunks overlap. KV: with g groups each has 1/g of a context's pairs and KV reads, plus a merge per
layer; groups join as the context grows, one per `KV_GROUP_TOKENS`. Mixture of experts: an iteration
reads the dense weights, and those of the experts to which at least one token of the batch is
routed; routing is even.

It does not model tile and wave quantization, network contention, several micro-batches of decodes
in a pipeline, or layers without attention beyond excluding them from the attention part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from laar.errors import SettingError
from laar_lab.sim.engine.cost import Work

KV_GROUP_TOKENS = 524_288
"""Context per KV group; in the paper's Figure 6, 4 groups join one by one up to 2M tokens."""

MEMORY_SHARE = 0.9
"""Share of device memory for weights and KV: vLLM's default `gpu_memory_utilization`."""

_Positive = Annotated[float, Field(gt=0.0)]
_Count = Annotated[int, Field(ge=1)]
_Efficiency = Annotated[float, Field(gt=0.0, le=1.0)]
_ACTIVATION_BYTES = 2  # bf16
_PARTIAL_BYTES = 4  # partial attention outputs are merged in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """An accelerator and its links.

    Args:
        name: name in the data file.
        bf16_flops: peak dense FLOP/s of 16-bit matrix work.
        fp8_flops: the same for 8-bit work; None if the chip does not support it.
        bandwidth_bytes_s: peak memory bandwidth.
        memory_bytes: device memory.
        linear_efficiency: share of the peak FLOP/s that linear layers reach.
        attention_efficiency: share of the peak FLOP/s that attention reaches.
        memory_efficiency: share of the peak bandwidth that reads reach.
        step_overhead_s: host and launch time of an iteration that is not overlapped.
        link_latency_s: latency of one all-reduce between the devices of a tensor group.
        link_bytes_s: bandwidth of these links, in each direction.
        network_latency_s: latency of one hop between pipeline stages.
        network_bytes_s: bandwidth between servers, per device.
        kv_merge_s: time to merge partial attention outputs of KV groups, per layer.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # read by pydantic

    name: str
    bf16_flops: _Positive
    bandwidth_bytes_s: _Positive
    memory_bytes: _Positive
    linear_efficiency: _Efficiency
    attention_efficiency: _Efficiency
    memory_efficiency: _Efficiency
    step_overhead_s: _Positive
    link_latency_s: _Positive
    link_bytes_s: _Positive
    network_latency_s: _Positive
    network_bytes_s: _Positive
    kv_merge_s: _Positive
    fp8_flops: _Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """The shape of a model.

    Args:
        name: name in the data file.
        layers: transformer layers.
        attention_layers: layers with softmax attention over the whole context.
        heads: query heads of such a layer.
        kv_heads: key and value heads.
        head_dim: elements per head.
        hidden: elements of the residual stream.
        parameters: total number of parameters.
        active_parameters: parameters that a token uses.
        experts: routed experts per layer; 1 for a dense model.
        experts_per_token: experts that a token uses.
        weight_bytes: bytes per parameter; with 1, the computation is in 8 bits.
        kv_bytes: bytes per element of the KV cache.
        linear_efficiency: factor for the hardware's; below 1 for small expert matrices.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # read by pydantic

    name: str
    layers: _Count
    attention_layers: _Count
    heads: _Count
    kv_heads: _Count
    head_dim: _Count
    hidden: _Count
    parameters: _Positive
    active_parameters: _Positive
    weight_bytes: Literal[1, 2]
    kv_bytes: Literal[1, 2]
    experts: _Count = 1
    experts_per_token: _Count = 1
    linear_efficiency: _Efficiency = 1.0

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of KV cache per token, over all layers."""
        return 2.0 * self.attention_layers * self.kv_heads * self.head_dim * self.kv_bytes

    @property
    def expert_parameters(self) -> float:
        """Parameters in routed experts: all - active = experts' * (1 - used / experts)."""
        unused = 1.0 - self.experts_per_token / self.experts
        return (self.parameters - self.active_parameters) / unused if unused else 0.0


class RooflineCost:
    """Seconds of an iteration of `model` on `hardware`.

    Args:
        hardware: the accelerator.
        model: the model.
        tensor: devices that share each layer, p_tp.
        stages: pipeline stages, p_spp.
        kv_parallel: KV groups, p_kvp, each of which has its own tensor x stages devices.

    Raises:
        SettingError: a degree is below 1, or the chip can't compute in the model's precision.
    """

    def __init__(
        self,
        hardware: HardwareProfile,
        model: ModelProfile,
        *,
        tensor: int = 1,
        stages: int = 1,
        kv_parallel: int = 1,
    ) -> None:
        for name, degree in (("tensor", tensor), ("stages", stages), ("kv_parallel", kv_parallel)):
            if degree < 1:
                raise SettingError(f"parallelism: `{name}` is {degree}, must be 1 or more")
        peak = hardware.bf16_flops if model.weight_bytes > 1 else hardware.fp8_flops
        if peak is None:
            raise SettingError(
                f"{hardware.name} has no `fp8_flops`, which {model.name} (weight_bytes 1) needs: "
                "choose other hardware, or add the constant with its source"
            )
        self.hardware, self.model = hardware, model
        self.tensor, self.stages, self.kv_parallel = tensor, stages, kv_parallel
        bandwidth = hardware.bandwidth_bytes_s * hardware.memory_efficiency
        linear_flops = peak * hardware.linear_efficiency * model.linear_efficiency * tensor
        attention_flops = hardware.bf16_flops * hardware.attention_efficiency * tensor
        self._linear_s = 2.0 * model.active_parameters / linear_flops
        experts = model.expert_parameters * model.weight_bytes
        self._expert_read_s = experts / (bandwidth * tensor)
        self._dense_read_s = model.parameters * model.weight_bytes / (bandwidth * tensor)
        self._dense_read_s -= self._expert_read_s
        self._miss = 1.0 - model.experts_per_token / model.experts  # P(token skips an expert)
        self._pair_s = 4.0 * model.attention_layers * model.heads * model.head_dim / attention_flops
        # KV heads can't be split; beyond one device per head they are copied.
        self._kv_read_s = model.kv_bytes_per_token / (bandwidth * min(tensor, model.kv_heads))
        self._fixed_s, self._token_s = hardware.step_overhead_s, 0.0
        if tensor > 1:  # ring all-reduce: each device sends 2 (p-1)/p of the activations
            reduces = 2 * model.layers
            traffic = model.hidden * _ACTIVATION_BYTES * 2.0 * (tensor - 1) / tensor
            self._fixed_s += reduces * hardware.link_latency_s
            self._token_s += reduces * traffic / hardware.link_bytes_s
        self._hop_s = hardware.network_latency_s if stages > 1 else 0.0
        activation = model.hidden * _ACTIVATION_BYTES
        self._hop_token_s = activation / hardware.network_bytes_s if stages > 1 else 0.0
        self._merge_s = model.attention_layers * hardware.kv_merge_s
        partial = model.heads / tensor * model.head_dim * _PARTIAL_BYTES
        self._merge_token_s = model.attention_layers * partial / hardware.network_bytes_s

    def kv_groups(self, context: int) -> int:
        """Return the KV groups of a context: 1, plus 1 per full `KV_GROUP_TOKENS`, up to p_kvp."""
        return min(self.kv_parallel, 1 + context // KV_GROUP_TOKENS)

    def attention_s(self, work: Work) -> float:
        """Return the attention part over all stages: the longer of compute and KV reads."""
        return max(self._pair_s * work.pairs, self._kv_read_s * work.kv_tokens)

    def linear_s(self, tokens: int) -> float:
        """Return the linear part over all stages for a batch of `tokens`."""
        read = self._dense_read_s
        if self._expert_read_s:
            read += self._expert_read_s * (1.0 - self._miss**tokens)
        return max(self._linear_s * tokens, read)

    def stage_s(self, work: Work) -> float:
        """Return the seconds that the batch spends in each stage."""
        tokens = work.prefill_tokens + work.decodes
        seconds = self.linear_s(tokens) + self.attention_s(work) + self._fixed_s
        seconds += self._token_s * tokens
        if work.kv_groups > 1:
            seconds += self._merge_s + self._merge_token_s * tokens
        return seconds / self.stages + self._hop_s + self._hop_token_s * tokens

    def decode_line(self, decodes: int) -> tuple[float, float]:
        """Return (a, b): `decodes` decodes take a + b * decode_context seconds per stage."""
        base = self.linear_s(decodes) + self._fixed_s + self._token_s * decodes
        slope = max(self._pair_s, self._kv_read_s)
        return (
            base / self.stages + self._hop_s + self._hop_token_s * decodes,
            slope / self.stages,
        )

    def kv_tokens(self) -> int:
        """Return how many tokens of KV cache fit in memory besides the weights.

        Raises:
            SettingError: the weights alone do not fit.
        """
        devices = self.tensor * self.stages
        room = self.hardware.memory_bytes * MEMORY_SHARE * devices
        room -= self.model.parameters * self.model.weight_bytes
        copies = self.tensor / min(self.tensor, self.model.kv_heads)
        tokens = int(room / (self.model.kv_bytes_per_token * copies)) * self.kv_parallel
        if tokens < 1:
            raise SettingError(
                f"{self.model.name} does not fit {devices} x {self.hardware.name}: raise `tensor` "
                "or `stages`"
            )
        return tokens

"""An EndpointPickerConfig of llm-d, as settings of laar and a list of what has no equal.

Only what both pickers mean alike is taken over; a plugin that is not known is said to be unknown,
never guessed at. Read from llm-d-router v0.10's documents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from laar.errors import SettingError

__all__ = ["Moved", "PickerConfig", "move"]

_API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_MAX_HOLD_S = 3580.0

_WEIGHTS = {
    "queue-scorer": "queue_weight",
    "kv-cache-utilization-scorer": "kv_weight",
    "prefix-cache-scorer": "prefix_weight",
}
_BUILT_IN = {
    "approx-prefix-cache-producer": "prefixes are believed by laar itself, without a cap",
    "inflight-load-producer": "requests and tokens in flight are counted at the decision",
    "max-score-picker": "the cheapest endpoint is picked, ties by chance",
    "no-hit-lru-scorer": "a cold prompt goes where its seconds are fewest",
    "openai-parser": "the body's form goes by the path",
    "passthrough-parser": "bodies on other paths are not read; see bodies.opaque_paths",
    "running-requests-size-scorer": "requests in flight are part of the cost",
    "single-profile-handler": "there is one cost, and no profiles",
    "token-load-scorer": "queued tokens are part of the cost",
    "active-request-scorer": "requests in flight are part of the cost",
    "load-aware-scorer": "the queue is part of the cost; the policy `load-aware` is that scorer",
    "anthropic-parser": "the body's form goes by the path",
    "session-affinity-scorer": "a session stays where its prefix is; the policy "
    "`session-affinity` pins it",
}
_ABSENT = {
    "by-label": "give each group of pods a pool or a picker of its own",
    "disagg-profile-handler": "prefill and decode apart: stay with llm-d for it",
    "label-selector-filter": "give each group of pods a pool or a picker of its own",
    "lora-affinity-scorer": "adapters are followed; loading one is not priced",
    "pd-profile-handler": "prefill and decode apart: stay with llm-d for it",
    "precise-prefix-cache-producer": "KV events only say here that a cache was cleared",
    "precise-prefix-cache-scorer": "KV events only say here that a cache was cleared",
    "predicted-latency-producer": "laar's cost is in seconds already, and learned without sidecars",
}


class _Lenient(BaseModel):
    """llm-d may have fields that this does not know."""

    model_config = ConfigDict(extra="ignore")


class _Plugin(_Lenient):
    type: str = Field(max_length=256)
    name: str = Field("", max_length=256)
    parameters: dict[str, Any] | None = None


class _Use(_Lenient):
    pluginRef: str = Field(max_length=256)  # noqa: N815
    weight: float | None = None


class _Profile(_Lenient):
    name: str = ""
    plugins: list[_Use] = Field(default=[], max_length=1000)


class _FlowControl(_Lenient):
    maxBytes: str | int | None = None  # noqa: N815
    maxRequests: str | int | None = None  # noqa: N815
    defaultRequestTTL: str | None = None  # noqa: N815
    priorityBands: list[Any] = []  # noqa: N815
    defaultPriorityBand: Any = None  # noqa: N815
    usageLimitPolicyPluginRef: str | None = None  # noqa: N815


class PickerConfig(_Lenient):
    """The parts of an EndpointPickerConfig that are looked at."""

    apiVersion: str  # noqa: N815
    kind: str
    featureGates: list[str] = []  # noqa: N815
    plugins: list[_Plugin] = Field(default=[], max_length=1000)
    schedulingProfiles: list[_Profile] = Field(default=[], max_length=1000)  # noqa: N815
    flowControl: _FlowControl | None = None  # noqa: N815


@dataclass(slots=True)
class Moved:
    """Settings of laar, as a document, and remarks: each a sentence.

    Args:
        settings: to be written as YAML.
        taken: what laar does by itself.
        absent: what has no equal.
    """

    settings: dict[str, Any]
    taken: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def move(config: PickerConfig, pool: str) -> Moved:
    """Settings that mean what the configuration meant.

    Args:
        config: of llm-d's picker.
        pool: name of the InferencePool to follow.

    Raises:
        SettingError: it is no EndpointPickerConfig of a known version, or a value cannot be read.
    """
    if config.kind != "EndpointPickerConfig" or config.apiVersion not in _API_VERSIONS:
        raise SettingError(
            f"{config.apiVersion} {config.kind}: not an EndpointPickerConfig of "
            f"{' or '.join(_API_VERSIONS)}"
        )
    moved = Moved({"kubernetes": [{"pool": pool}]})
    types = {plugin.name or plugin.type: plugin.type for plugin in config.plugins}
    weights: dict[str, float] = {}
    if len(config.schedulingProfiles) > 1:
        moved.absent.append("several scheduling profiles: the first alone was looked at")
    for use in config.schedulingProfiles[0].plugins if config.schedulingProfiles else ():
        parameter = _WEIGHTS.get(types.get(use.pluginRef, use.pluginRef))
        if parameter:
            weights[parameter] = 1.0 if use.weight is None else use.weight
    if weights:
        # What a profile does not name, it does not score by.
        every = dict.fromkeys(_WEIGHTS.values(), 0.0)
        moved.settings["routing"] = {"baselines": {"llm-d": {**every, **weights}}}
        moved.taken.append(
            "the weights of its scorers are those of the policy `llm-d`, which requests choose by "
            "x-laar-policy; laar's own policy has one cost in seconds instead"
        )
    for plugin in config.plugins:
        _plugin(plugin, moved)
    _flow(config, moved)
    return moved


def _plugin(plugin: _Plugin, moved: Moved) -> None:
    kind, given = plugin.type, plugin.parameters or {}
    if kind == "utilization-detector":
        routing = moved.settings.setdefault("routing", {})
        for theirs, ours in (
            ("queueDepthThreshold", "max_waiting"),
            ("kvCacheUtilThreshold", "max_kv_usage"),
        ):
            if theirs in given:
                routing[ours] = _number(f"{kind}.{theirs}", given[theirs])
        if not routing:
            del moved.settings["routing"]
    elif kind == "concurrency-detector":
        if "maxConcurrency" in given:
            most = int(_number(f"{kind}.maxConcurrency", given["maxConcurrency"]))
            moved.settings.setdefault("flow", {})["max_requests"] = most
    elif kind in _BUILT_IN:
        moved.taken.append(f"{kind}: {_BUILT_IN[kind]}")
    elif kind not in _WEIGHTS:
        moved.absent.append(f"{kind}: {_ABSENT.get(kind, 'not known to laar')}")


def _flow(config: PickerConfig, moved: Moved) -> None:
    if "flowControl" in config.featureGates:
        moved.settings.setdefault("flow", {})["enabled"] = True
    for gate in config.featureGates:
        if gate != "flowControl":
            moved.absent.append(f"feature gate {gate}")
    given = config.flowControl
    if given is None:
        return
    flow = moved.settings.setdefault("flow", {})
    if given.maxRequests is not None:
        flow["max_waiting"] = _quantity("flowControl.maxRequests", given.maxRequests)
    if given.maxBytes is not None:
        flow["max_held_bytes"] = _quantity("flowControl.maxBytes", given.maxBytes)
    if given.defaultRequestTTL is not None:
        seconds = _seconds("flowControl.defaultRequestTTL", given.defaultRequestTTL)
        flow["max_hold_s"] = min(seconds, _MAX_HOLD_S)
        flow["min_hold_s"] = min(seconds, 5.0)
    if given.priorityBands or given.defaultPriorityBand:
        moved.absent.append(
            "limits, fairness and order of single priority bands: priorities come from "
            "InferenceObjectives, all bands share flow's limits, tenants take turns by tokens"
        )
    if given.usageLimitPolicyPluginRef:
        moved.absent.append(f"usage limit policy {given.usageLimitPolicyPluginRef}")
    if not flow:
        del moved.settings["flow"]


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingError(f"{name}: {value!r} is no number")
    return value


def _quantity(name: str, value: str | int) -> int:
    """A quantity as Kubernetes writes it, such as 1Gi or 500M."""
    match = re.fullmatch(r"(\d{1,15})(\.\d{1,9})?([A-Za-z]{0,2})", str(value))
    unit: Mapping[str, int] = _BINARY | _DECIMAL
    if match is None or match[3] not in unit:
        raise SettingError(f"{name}: {str(value)[:40]!r} is no quantity such as 5000 or 1Gi")
    return int(float(match[1] + (match[2] or "")) * unit[match[3]])


def _seconds(name: str, value: str) -> float:
    """A duration as Go writes it, such as 1m30s."""
    parts = re.findall(r"(\d{1,12}(?:\.\d{1,9})?)(ms|us|ns|h|m|s)", value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise SettingError(f"{name}: {value[:40]!r} is no duration such as 30s")
    return float(sum(float(number) * _UNIT_S[unit] for number, unit in parts))

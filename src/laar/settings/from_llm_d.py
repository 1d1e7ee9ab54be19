"""Translate llm-d's EndpointPickerConfig into laar's settings, and list parts without equivalents.

Only parts with the same meaning in both pickers are translated; an unknown plugin is reported as
unknown, never guessed. Based on the documentation of llm-d-router v0.10.

The configuration is usually text inside another document, such as Helm values or a ConfigMap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from math import isfinite
from types import SimpleNamespace
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from laar.core.filters import MAX_KV_USAGE
from laar.datalayer.document import parse_yaml
from laar.errors import SettingError
from laar.fleet.membership import ROLE_LABEL

_KIND = "EndpointPickerConfig"
_API_VERSIONS = ("llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SCALE |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_MAX_HOLD_S = 3580.0

_LLM_D = SimpleNamespace(
    **yaml.safe_load((files("laar.settings") / "llm_d.yaml").read_text("utf-8"))
)
"""Tables of llm-d's plugins, by how each is translated."""
_PARTS = {**_LLM_D.scorers, **_LLM_D.filters, **_LLM_D.pickers}


class _Plugin(BaseModel):
    type: str = Field(max_length=256)
    name: str = Field("", max_length=256)
    parameters: dict[str, Any] | None = None


class _Use(BaseModel):
    pluginRef: str = Field(max_length=256)  # noqa: N815
    weight: float | None = None


class _Profile(BaseModel):
    name: str = ""
    plugins: list[_Use] = Field(default=[], max_length=1000)


class _FlowControl(BaseModel):
    model_config = ConfigDict(extra="allow")

    maxBytes: str | int | None = None  # noqa: N815
    maxRequests: str | int | None = None  # noqa: N815
    defaultRequestTTL: str | None = None  # noqa: N815
    priorityBands: list[Any] = []  # noqa: N815
    defaultPriorityBand: Any = None  # noqa: N815
    usageLimitPolicyPluginRef: str | None = None  # noqa: N815
    saturationDetector: Any = None  # noqa: N815


class PickerConfig(BaseModel):
    """The known parts of an EndpointPickerConfig; others are reported."""

    model_config = ConfigDict(extra="allow")

    apiVersion: str  # noqa: N815
    kind: str
    featureGates: list[str] = []  # noqa: N815
    plugins: list[_Plugin] = Field(default=[], max_length=1000)
    schedulingProfiles: list[_Profile] = Field(default=[], max_length=1000)  # noqa: N815
    flowControl: _FlowControl | None = None  # noqa: N815
    saturationDetector: dict[str, Any] = {}  # noqa: N815
    metadata: Any = None
    parser: Any = None  # names a plugin; remarks come from the plugins
    requestHandler: Any = None  # noqa: N815

    @model_validator(mode="before")
    @classmethod
    def _unpacked(cls, document: Any) -> Any:
        found: dict[str, Any] = {}
        for place, config in _configs(document):
            if config not in found.values():  # kubectl adds a copy of the applied document
                found[place] = config
        if len(found) > 1:
            raise ValueError(f"has several configurations: {', '.join(found)}; pass one as a file")
        if not found and isinstance(document, dict) and "kind" not in document:
            raise ValueError(f"has no {_KIND}; Helm values without it mean llm-d's defaults")
        return next(iter(found.values()), document)


def _configs(document: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each EndpointPickerConfig in a document, with its path."""
    if isinstance(document, str) and _KIND in document:
        try:
            inner = parse_yaml(document)
        except yaml.YAMLError as error:
            raise ValueError(f"{place}: not valid YAML: {error}") from None
        if not isinstance(inner, str):
            yield from _configs(inner, place)
    elif isinstance(document, dict):
        if document.get("kind") == _KIND:
            yield place, document
            return
        for key, value in document.items():
            yield from _configs(value, f"{place}.{key}" if place else str(key))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from _configs(value, f"{place}[{number}]")


@dataclass(slots=True)
class Translation:
    """laar's settings as a document, and remarks of one sentence each.

    Args:
        settings: the settings, to be written as YAML.
        taken: remarks on parts that laar covers without settings.
        absent: remarks on parts without an equivalent.
    """

    settings: dict[str, Any]
    taken: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def move(config: PickerConfig, pool: str) -> Translation:
    """Translate a configuration into settings.

    Args:
        config: configuration of llm-d's picker.
        pool: name of the InferencePool to watch.

    Raises:
        SettingError: it is not an EndpointPickerConfig of a known version, or a value is invalid.
    """
    if config.kind != _KIND or config.apiVersion not in _API_VERSIONS:
        raise SettingError(
            f"{config.apiVersion} {config.kind}: not an {_KIND} of {' or '.join(_API_VERSIONS)}"
        )
    moved = Translation({"kubernetes": [{"pool": pool}]})
    moved.taken.append(
        "the pods' models: each pod is asked for /v1/models; set `models` if that requires a key"
    )
    plugins = {plugin.name or plugin.type: plugin for plugin in config.plugins}
    composed = {}
    for number, profile in enumerate(config.schedulingProfiles, 1):
        policy = _policy(profile, plugins, moved)
        if policy is not None:
            name = re.sub("[^a-z0-9._-]+", "-", profile.name.lower()[:40]).strip("-")
            composed[f"profile-{name or number}"] = policy
    if composed:
        moved.settings["routing"] = {"policies": composed}
        names = ", ".join(f"`{name}`" for name in composed)
        if any("filters" in policy for policy in composed.values()):
            moved.taken.append("a filter that would leave no candidate is skipped")
        moved.taken.append(
            f"policy {names}: the scheduling profile, built from laar's parts. Select it with "
            "x-laar-policy or `routing.policy`; laar's own policy has one cost in seconds "
            "instead"
        )
    for plugin in config.plugins:
        _plugin(plugin, moved)
    limits = {k: v for k, v in config.saturationDetector.items() if k != "pluginRef"}
    if limits:  # as in versions before the detector plugins
        _detector(_Plugin(type="utilization-detector", parameters=limits), moved)
    _flow(config, moved)
    moved.absent.extend(config.model_extra or ())
    return moved


def _policy(
    profile: _Profile, plugins: Mapping[str, _Plugin], moved: Translation
) -> dict[str, Any] | None:
    """Return a composed policy for a scheduling profile; None if laar has none of its scorers."""
    filters: list[dict[str, Any]] = []
    scorers: list[dict[str, Any]] = []
    picker = "shuffled-max-score"
    for use in profile.plugins:
        plugin = plugins.get(use.pluginRef) or _Plugin(type=use.pluginRef)
        kind = plugin.type
        if kind in _LLM_D.pickers:
            picker = _LLM_D.pickers[kind]
            continue
        if kind not in _PARTS:
            if use.pluginRef not in plugins:
                _plugin(plugin, moved)
            continue
        part: dict[str, Any] = {"name": _PARTS[kind]}
        parameters = _label(plugin, moved) if _PARTS[kind] == "label" else _given(plugin, moved)
        if parameters is None:
            continue
        if kind in _LLM_D.scorers:
            weight = 1.0 if use.weight is None else use.weight
            if weight == 0.0:
                continue
            part["weight"] = weight
        if parameters:
            part["parameters"] = parameters
        (scorers if kind in _LLM_D.scorers else filters).append(part)
    policy = {"filters": filters, "scorers": scorers, "picker": {"name": picker}}
    return {name: part for name, part in policy.items() if part} if scorers else None


def _given(plugin: _Plugin, moved: Translation) -> dict[str, Any]:
    """Return a filter's or scorer's parameters under laar's names; report unknown ones."""
    known = {}
    for name, value in (plugin.parameters or {}).items():
        if name in _LLM_D.parameters:
            known[_LLM_D.parameters[name]] = _number(f"{plugin.type}.{name}", value)
        else:
            moved.absent.append(f"{plugin.type}.{name}")
    return known


def _label(plugin: _Plugin, moved: Translation) -> dict[str, Any] | None:
    """Return the single label of a selector; None if laar's filter can't express it."""
    given = plugin.parameters or {}
    labels, expressions = given.get("matchLabels"), given.get("matchExpressions")
    wanted: list[tuple[Any, Any]] = []  # labels, with their values if listed
    if plugin.type == "by-label":
        values = None if given.get("allowsNoLabel") else given.get("validValues")
        wanted.append((given.get("label"), values))
    if isinstance(labels, dict):
        wanted += [(label, [value]) for label, value in labels.items()]
    for each in expressions if isinstance(expressions, list) else ():
        rule = each if isinstance(each, dict) else {}
        wanted.append(
            (rule.get("key"), rule.get("values") if rule.get("operator") == "In" else None)
        )
    if wanted and all(label == ROLE_LABEL for label, _ in wanted):
        moved.taken.append(f"{plugin.name or plugin.type}: {_LLM_D.built_in['decode-filter']}")
        return None
    if len(wanted) != 1 or not isinstance(wanted[0][1], list) or len(wanted[0][1]) != 1:
        moved.absent.append(f"{plugin.type}: laar's filter `label` takes one label with one value")
        return None
    ((label, (value,)),) = wanted
    return {"label": str(label), "value": str(value)}


def _plugin(plugin: _Plugin, moved: Translation) -> None:
    kind = plugin.type
    if kind in _LLM_D.detectors:
        _detector(plugin, moved)
    elif kind in _LLM_D.built_in:
        moved.taken.append(f"{kind}: {_LLM_D.built_in[kind]}")
    elif kind not in _PARTS:
        moved.absent.append(f"{kind}: {_LLM_D.absent.get(kind, 'not known to laar')}")


def _detector(plugin: _Plugin, moved: Translation) -> None:
    """Translate the limits of a saturation detector."""
    kind, given = plugin.type, plugin.parameters or {}
    taken = _LLM_D.detectors[kind]
    if kind == "utilization-detector":
        if "queueDepthThreshold" in given:
            value = _number(f"{kind}.queueDepthThreshold", given["queueDepthThreshold"])
            moved.settings.setdefault("routing", {})["max_waiting"] = value
        if "kvCacheUtilThreshold" in given:
            moved.taken.append(
                f"{kind}.kvCacheUtilThreshold: fixed in laar, which skips an endpoint at "
                f"{MAX_KV_USAGE:.0%} of its KV cache"
            )
    elif given.get("concurrencyMode", "requests") != "requests":
        taken = []
    elif "maxConcurrency" in given:
        most = int(_number(f"{kind}.maxConcurrency", given["maxConcurrency"]))
        moved.settings.setdefault("flow", {})["max_requests"] = most
    moved.absent.extend(
        f"{kind}.{name}"
        for name, value in given.items()
        if name not in taken and not (name == "headroom" and value == 0)
    )


def _flow(config: PickerConfig, moved: Translation) -> None:
    if "flowControl" in config.featureGates:
        moved.settings.setdefault("flow", {})["enabled"] = True
    for gate in config.featureGates:
        if gate != "flowControl":
            moved.absent.append(f"feature gate {gate}")
    given = config.flowControl
    if given is None:
        return
    flow = moved.settings.setdefault("flow", {})
    if most := _quantity("flowControl.maxRequests", given.maxRequests or 0):  # 0: unlimited
        flow["max_waiting"] = most
    if held := _quantity("flowControl.maxBytes", given.maxBytes or 0):
        flow["max_held_bytes"] = held
        moved.taken.append(
            f"flowControl.maxBytes: waiting prompts may take {held / (1 << 20):,.0f} MiB, which "
            "the pod's memory limit has to allow (deploy/base has 1 GiB)"
        )
    if given.defaultRequestTTL is not None:
        seconds = _seconds("flowControl.defaultRequestTTL", given.defaultRequestTTL) or _MAX_HOLD_S
        flow["max_hold_s"] = min(seconds, _MAX_HOLD_S)
        flow["min_hold_s"] = min(seconds, 5.0)
        moved.taken.append(
            "flowControl.defaultRequestTTL: Envoy must wait as long for the picker; set `laar "
            f"envoy --longest-hold {flow['max_hold_s']:g}` or the gateway's message timeout"
        )
    if given.priorityBands or given.defaultPriorityBand:
        moved.absent.append(
            "limits, fairness and order of individual priority bands: priorities come from "
            "InferenceObjectives, all bands share flow's limits, tenants take turns by tokens"
        )
    moved.absent.extend(f"flowControl.{name}" for name in given.model_extra or ())
    if given.usageLimitPolicyPluginRef:
        moved.absent.append(f"usage limit policy {given.usageLimitPolicyPluginRef}")
    if not flow:
        del moved.settings["flow"]


def _number(name: str, value: object) -> float:
    if type(value) is int or (type(value) is float and isfinite(value)):
        return value
    raise SettingError(f"{name}: {value!r} is not a number")


def _quantity(name: str, value: str | int) -> int:
    """Parse a Kubernetes quantity, such as 1Gi or 500M."""
    match = re.fullmatch(r"(\d{1,15})(\.\d{1,9})?([A-Za-z]{0,2})", str(value))
    if match is None or match[3] not in _SCALE:
        raise SettingError(f"{name}: {str(value)[:40]!r} is not a quantity such as 5000 or 1Gi")
    return int(float(match[1] + (match[2] or "")) * _SCALE[match[3]])


def _seconds(name: str, value: str) -> float:
    """Parse a Go duration, such as 1m30s, into seconds."""
    parts = re.findall(r"(\d{1,12}(?:\.\d{1,9})?)(ms|us|ns|h|m|s)", value)
    if value != "0" and (not parts or "".join(map("".join, parts)) != value):
        raise SettingError(f"{name}: {value[:40]!r} is not a duration such as 30s")
    return float(sum(float(number) * _UNIT_S[unit] for number, unit in parts))

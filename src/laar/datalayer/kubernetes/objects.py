"""Read pods, pools, objectives and rewrites: pure functions on API objects.

A pod is used if it is Ready, has an address, and is neither finished nor being deleted, since
evicted pods and pods of a node that shut down may stay Ready. There is no grace period: a pod gets
no more requests once its deletion starts. Each target port of a pod is a separate endpoint (the
ranks of a data-parallel engine listen on adjacent ports), except those that the pod's active-ports
annotation omits (Gateway API Inference Extension, llm-d).

Objects are untrusted: if a field is invalid, the object is ignored, and the reason is reported.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AliasPath, BaseModel, Field, ValidationError, model_validator

from laar.datalayer.endpoints_file import check_model_name, join_address
from laar.datalayer.kubernetes.resources import LLM_D_GROUP, POOLS
from laar.datalayer.kubernetes.settings import KubernetesSource
from laar.datalayer.metrics_page import ENGINES
from laar.errors import SettingError, first_fault
from laar.fleet.membership import (
    EVENTS_LABEL,
    ON_DEMAND_LABEL,
    POOL_LABEL,
    REPLAY_LABEL,
    EndpointSpec,
)
from laar.protocol.rules import Rewrite

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
ENGINE_KEYS = ("laar.dev/engine", "llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
REGION_KEYS = ("laar.dev/region", "topology.kubernetes.io/region")
ENGINE_NAMES = {name: engine for engine, of in ENGINES.items() for name in (engine, *of.aliases)}
MAX_MODELS = 64
"""Maximum number of model names that a pod may claim."""

MODEL_KEY = "laar.dev/model"
"""Annotation or label with a pod's models, separated by commas. Labels can't contain a slash, so
names with a slash need the annotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEndpoints:
    """The parts of a pod that laar keeps.

    Args:
        specs: its endpoints; empty if the pod is invalid.
        fault: what is wrong with the pod; empty if nothing is.
    """

    specs: tuple[EndpointSpec, ...] = ()
    fault: str = ""


Object = TypeVar("Object", bound=BaseModel)


class _Meta(BaseModel):
    name: str
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creationTimestamp: str = ""  # noqa: N815 - the API's spelling
    deletionTimestamp: str | None = None  # noqa: N815


class _Condition(BaseModel):
    type: str
    status: str


def _address(value: str) -> str:
    if value:
        ipaddress.ip_address(value)
    return value


class _PodStatus(BaseModel):
    phase: str = ""
    podIP: Annotated[str, AfterValidator(_address)] = ""  # noqa: N815
    conditions: list[_Condition] | None = None


class _Pod(BaseModel):
    metadata: _Meta
    status: _PodStatus = _PodStatus()


def parse(model: type[Object], item: Any) -> Object | str:
    """Validate an API object as `model`; return the reason, for users, if it does not fit."""
    try:
        return model.model_validate(item)
    except ValidationError as error:
        return f"{item['metadata']['name']} is ignored: {first_fault(error)}"


def pod_endpoints(item: Any, ports: Sequence[int], rules: KubernetesSource) -> PodEndpoints | None:
    """Return a pod's endpoints; None if it is not to be used now."""
    pod = parse(_Pod, item)
    if isinstance(pod, str):
        return PodEndpoints(fault=pod)
    ready = pod.status.phase not in ("Failed", "Succeeded") and any(
        condition.type == "Ready" and condition.status == "True"
        for condition in pod.status.conditions or ()
    )
    if not ready or pod.metadata.deletionTimestamp or not pod.status.podIP:
        return None
    said = (pod.metadata.labels or {}) | (pod.metadata.annotations or {})
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    models = _listed(said.get(MODEL_KEY, ""))[:MAX_MODELS] or rules.models
    active, fault = _active(said, ports, name)
    try:
        for model in models:
            check_model_name(model)
        way = rules.way()
    except (SettingError, OSError) as error:
        return PodEndpoints(fault=f"{name}: {error}")
    except ValueError as error:
        return PodEndpoints(fault=f"{name}: {MODEL_KEY}: {error}")
    labels = pod.metadata.labels or {}
    if names := said.get(ON_DEMAND_LABEL):  # an annotation: labels can't contain a `*`
        labels = {**labels, ON_DEMAND_LABEL: names}
    if rules.pool:
        labels = {**labels, POOL_LABEL: rules.pool}
    path = rules.metrics_path
    specs = tuple(
        EndpointSpec(
            address=address,
            metrics_url=way.url(address, path) if path else path,
            way=way,
            models=tuple(models),
            region=_first(said, REGION_KEYS),
            engine=ENGINE_NAMES.get(_first(said, ENGINE_KEYS).lower(), rules.engine),
            labels=labels | _ports_of_rank(labels, rank) | {"laar.dev/pod": f"{name}-rank-{rank}"},
            priority_field=rules.priority_field,
        )
        for rank, port in enumerate(ports)
        if port in active and (address := join_address(pod.status.podIP, port))
    )
    return PodEndpoints(specs=specs, fault=fault)


def _ports_of_rank(labels: Mapping[str, str], rank: int) -> dict[str, str]:
    """Return a rank's event ports: those in the labels, which are the first rank's, plus `rank`."""
    ports = {key: labels.get(key, "") for key in (EVENTS_LABEL, REPLAY_LABEL)}
    return {
        key: str(int(port) + rank)
        for key, port in ports.items()
        if port.isascii() and port.isdigit()
    }


def _active(said: Mapping[str, str], ports: Sequence[int], name: str) -> tuple[set[int], str]:
    text = next((said[key] for key in ACTIVE_PORTS if key in said), None)
    if text is None:
        return set(ports), ""
    by_text = {str(port): port for port in ports}
    entries = _listed(text)
    unknown = next((entry for entry in entries if entry not in by_text), "")
    fault = f"{name}: active-ports has {unknown[:40]!r}, which is not a target port"
    return {by_text[entry] for entry in entries if entry in by_text}, fault if unknown else ""


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _first(said: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((said[key] for key in keys if key in said), "")


class _Port(BaseModel):
    number: int = Field(ge=1, le=65535)


class _PoolSpec(BaseModel):
    labels: dict[str, str] = Field(
        min_length=1, validation_alias=AliasPath("selector", "matchLabels")
    )
    targetPorts: list[_Port] = Field(min_length=1, max_length=8)  # noqa: N815


class Pool(BaseModel):
    """An InferencePool, v1."""

    metadata: _Meta
    spec: _PoolSpec


class _PoolRef(BaseModel):
    name: str
    group: str = ""

    def names(self, pool: str) -> bool:
        """Return whether this refers to the pool; some llm-d versions default to llm-d's group."""
        return self.name == pool and self.group in ("", POOLS.group, LLM_D_GROUP)


class _Expression(BaseModel):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.operator in ("In", "NotIn"):
            return (labels.get(self.key) in (self.values or ())) == (self.operator == "In")
        return (self.key in labels) == (self.operator == "Exists")


class _PoolSelector(BaseModel):
    matchLabels: dict[str, str] = {}  # noqa: N815
    matchExpressions: list[_Expression] = []  # noqa: N815

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether a pool's labels match; an empty selector matches no pool, as in llm-d."""
        return (
            bool(self.matchLabels or self.matchExpressions)
            and self.matchLabels.items() <= labels.items()
            and all(expression.matches(labels) for expression in self.matchExpressions)
        )


class _OfPools(BaseModel):
    """The pools that an object applies to: one pool or, in llm-d's v1, several or a selector."""

    poolRef: _PoolRef | None = None  # noqa: N815
    poolRefs: list[_PoolRef] = Field([], max_length=256)  # noqa: N815
    poolSelector: _PoolSelector | None = None  # noqa: N815

    @model_validator(mode="after")
    def _of_some_pool(self) -> _OfPools:
        if not (self.poolRef or self.poolRefs or self.poolSelector):
            raise ValueError("names no pool by poolRef, poolRefs or poolSelector")
        return self

    def of(self, pool: str, labels: Mapping[str, str]) -> bool:
        """Return whether the object belongs to the pool, by the pool's name and labels."""
        refs = [*self.poolRefs, *([self.poolRef] if self.poolRef else [])]
        return any(ref.names(pool) for ref in refs) or (
            self.poolSelector is not None and self.poolSelector.matches(labels)
        )


class _ObjectiveSpec(_OfPools):
    priority: int = 0


class Objective(BaseModel):
    """An InferenceObjective, whose priority applies to requests that name it."""

    metadata: _Meta
    spec: _ObjectiveSpec


class _Match(BaseModel):
    model: str = Field(min_length=1, validation_alias=AliasPath("model", "value"))


class _Target(BaseModel):
    modelRewrite: str = Field(min_length=1)  # noqa: N815
    weight: int | None = Field(default=None, ge=0, le=1_000_000)


class _Rule(BaseModel):
    matches: list[_Match] = []
    targets: list[_Target] = []


class _RewriteSpec(_OfPools):
    rules: list[_Rule] = Field(max_length=1024)


class ModelRewrite(BaseModel):
    """An InferenceModelRewrite, which maps clients' model names to engines' names."""

    metadata: _Meta
    spec: _RewriteSpec


def rewrites_of(objects: Iterable[ModelRewrite]) -> tuple[Rewrite, ...]:
    """Return the rules of several objects in order of precedence: the oldest object's first."""
    ordered = sorted(
        objects, key=lambda rewrite: (rewrite.metadata.creationTimestamp, rewrite.metadata.name)
    )
    return tuple(
        Rewrite(
            models=frozenset(match.model for match in rule.matches),
            targets=tuple(target.modelRewrite for target in rule.targets),
            weights=tuple(target.weight or 0 for target in rule.targets),
        )
        for rewrite in ordered
        for rule in rewrite.spec.rules
    )

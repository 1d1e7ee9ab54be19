"""The settings of one Kubernetes endpoint source."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from laar.datalayer.endpoints_file import Endpoint, HttpUrl, ModelName, dns_name, endpoint_address
from laar.datalayer.metrics_page import Engine
from laar.declaring import describe
from laar.fleet.membership import PLAIN, Way

if TYPE_CHECKING:
    from laar.datalayer.kubernetes.api import ApiAccess

Port = Annotated[int, Field(ge=1, le=65535)]


def _path(path: str) -> str:
    if path and not (path.startswith("/") and path.isprintable() and " " not in path):
        raise ValueError(f"{path[:40]!r} is not a path like /metrics; leave it empty for no page")
    return path


_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"


def _name(name: str) -> str:
    if name and not re.fullmatch(_NAME, name):
        raise ValueError(f"{name[:40]!r} is not a valid name of a pool or namespace")
    return name


def _selector(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        if not re.fullmatch(f"({_NAME}/)?{_LABEL}", key) or not re.fullmatch(f"({_LABEL})?", value):
            raise ValueError(f"{key[:40]!r}: {value[:40]!r} is not a label; write `label: value`")
    return labels


Name = Annotated[str, AfterValidator(_name)]


class KubernetesSource(BaseModel):
    """The pods of one InferencePool or one selector."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=describe)

    pool: Name = ""
    """Name of the InferencePool (v1) that defines the pods and ports."""
    selector: Annotated[dict[str, str], AfterValidator(_selector)] = {}
    """Labels; a pod must have all of them."""
    ports: Annotated[tuple[Port, ...], Field(max_length=8)] = ()
    """With `selector`: ports that a pod serves on, one for each data-parallel rank."""
    namespace: Name = ""
    """Namespace of the pods. Empty: laar's own namespace."""
    models: tuple[ModelName, ...] = ()
    """Models of pods without the annotation or label `laar.dev/model` (names separated by commas).
    The first is the main one. Empty: the models that each pod lists at `/v1/models`."""
    engine: Engine = "vllm"
    """Engine of pods without a label for it; it determines the metric names."""
    metrics_path: Annotated[str, AfterValidator(_path)] | None = None
    """Path of the pods' metrics page. Default: the engine's, `/prometheus/metrics` for tensorrt-llm
    and `/metrics` for the others. Empty: no page is read."""
    base_url: Annotated[str, AfterValidator(lambda url: url and endpoint_address(url))] = ""
    """For pods with https or a base path: the URL that a client would use for a pod, such as
    https://engine.internal/openai/v1. Each pod is reached at its own address; the host name must be
    the name in its certificate."""
    ca_file: Path | None = None
    """PEM file with the CAs that verify https pods. None: the system's CAs."""
    key_file: Path | None = None
    """File with the pods' API key. Requests carry it in place of the client's. It is reloaded
    whenever a pod changes."""
    priority_field: bool = False
    """Whether laar sends a priority with requests that name an objective, or with all if flow
    control is on. The engines must order by priority, as for `endpoints[].priority_field`."""
    api_server: HttpUrl = ""
    """URL of a `kubectl proxy`, such as http://127.0.0.1:8001, if laar runs outside the cluster."""

    @model_validator(mode="after")
    def _one_way_to_find_pods(self) -> KubernetesSource:
        if bool(self.pool) == bool(self.selector):
            raise ValueError("needs `pool: name`, or `selector: {label: value}`, and not both")
        if self.selector and not self.ports:
            raise ValueError("`selector` needs `ports: [number]` of the engines in those pods")
        if self.pool and self.ports:
            raise ValueError("`ports` belong to `selector`; a pool defines its own ports")
        if len(set(self.ports)) < len(self.ports):
            raise ValueError("`ports` lists a port twice; keep one")
        if self.ca_file is not None and not self.base_url.startswith("https://"):
            raise ValueError("`ca_file` belongs to a `base_url` with https://")
        return self

    def way(self) -> Way:
        """Return how to reach the pods.

        Raise `SettingError` if `ca_file` or `key_file` can't be read.
        """
        if not self.base_url and self.key_file is None:
            return PLAIN
        one = Endpoint(
            address=self.base_url or "pods:80",
            model="any",
            ca_file=self.ca_file,
            key_file=self.key_file,
        )
        way = one.way()
        return replace(way, name=dns_name(one.host_port).removesuffix(".")) if way.tls else way

    def access(self) -> ApiAccess:
        """Return the API server's address and credentials, with the namespace.

        Raise `SettingError` if no API server is set, and laar is not in a pod.
        """
        from laar.datalayer.kubernetes.api import ApiAccess, in_cluster

        url = self.api_server.rstrip("/")
        access = ApiAccess(url=url) if url else in_cluster()
        return replace(access, namespace=self.namespace or access.namespace)

"""Pods as endpoints: by label selector and ports, or by those of an InferencePool."""

from laar.datalayer.kubernetes.api import Api, ApiAccess, ApiError, in_cluster
from laar.datalayer.kubernetes.collector import (
    KubernetesEndpoints,
    KubernetesSink,
    PodSelector,
    PoolName,
)
from laar.datalayer.kubernetes.objects import PodRules, Rewrite, rewrite_target
from laar.datalayer.kubernetes.resources import PERMISSIONS, Resource
from laar.datalayer.kubernetes.settings import KubernetesSource

__all__ = [
    "PERMISSIONS",
    "Api",
    "ApiAccess",
    "ApiError",
    "KubernetesEndpoints",
    "KubernetesSink",
    "KubernetesSource",
    "PodRules",
    "PodSelector",
    "PoolName",
    "Resource",
    "Rewrite",
    "in_cluster",
    "rewrite_target",
]

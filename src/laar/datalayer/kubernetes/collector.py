"""Mirror and report a selector's pods, or a pool with its pods, objectives and rewrites.

Changes are reported in batches, at most ten per second: a rollout of a large pool causes thousands
of events, and each report is applied to the whole table. The first change of a batch is not
delayed, so a change to a single pod takes effect immediately.

There is no leader election: pickers only read, and none decides for the others.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from pydantic import BaseModel

from laar.datalayer.interface import EndpointSink
from laar.datalayer.kubernetes.api import ApiAccess, ApiServer
from laar.datalayer.kubernetes.mirror import MAX_OBJECTS, Mirror
from laar.datalayer.kubernetes.objects import (
    ModelRewrite,
    Objective,
    PodEndpoints,
    Pool,
    parse,
    pod_endpoints,
    rewrites_of,
)
from laar.datalayer.kubernetes.resources import OBJECTIVES, PODS, POOLS, REWRITES, Resource
from laar.datalayer.kubernetes.settings import KubernetesSource
from laar.errors import some
from laar.faults import Fault
from laar.fleet.membership import EndpointSpec
from laar.protocol.rules import Rewrite

REPORT_EVERY_S = 0.1
SETTLE_S = 2.0
"""Seconds until the first pods of a pool that had none are used. The gateway learns of them on its
own, and until then refuses the requests that flow control has held for them."""

Object = TypeVar("Object", bound=BaseModel)
Ref = TypeVar("Ref", Objective, ModelRewrite)


class KubernetesSink(EndpointSink, Protocol):
    """Receives the collector's endpoints, objectives and rewrites."""

    def objectives(self, source: str, pool: str, priorities: Mapping[str, int]) -> None:
        """Set the priorities of a pool's objectives, by name."""

    def rewrites(self, source: str, pool: str, rewrites: Sequence[Rewrite]) -> None:
        """Set the model rewrites of a pool, in order of precedence."""


class KubernetesEndpoints:
    """The collector for one pool, or for one selector.

    Args:
        sink: receives endpoints, objectives, rewrites and problems.
        source: the settings, which name the pool or the selector.
    """

    def __init__(self, access: ApiAccess, sink: KubernetesSink, source: KubernetesSource) -> None:
        self.source = f"kubernetes {access.namespace}/{source.pool or _query(source.selector)}"
        self._access = access
        self._sink = sink
        self._rules = source
        self._pods: Mirror[PodEndpoints] | None = None
        self._following: KubernetesSource | None = None
        self._pods_task: asyncio.Task[None] | None = None
        self._labels: Mapping[str, str] = {}
        """Labels of the pool object."""
        self._is_at_zero = False
        """Whether the last report of a pool had no endpoints."""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Watch the cluster until cancelled."""
        self._pods = self._pods_task = self._following = None
        self._changed.clear()
        async with ApiServer(self._access) as api, asyncio.TaskGroup() as tasks:
            report = _gather(self._changed, self._report, self._settle_s)
            tasks.create_task(report, name=f"{self.source} report")
            if self._rules.pool:
                self._follow_pool(self._rules.pool, api, tasks)
            else:
                self._follow(self._rules, api, tasks)

    def _follow_pool(self, name: str, api: ApiServer, tasks: asyncio.TaskGroup) -> None:
        objectives_changed, rewrites_changed = asyncio.Event(), asyncio.Event()

        def report_objectives() -> None:
            mine = self._mine(objectives, "objectives read")
            priorities = {objective.metadata.name: objective.spec.priority for objective in mine}
            self._sink.objectives(self.source, name, priorities)

        def report_rewrites() -> None:
            self._sink.rewrites(
                self.source, name, rewrites_of(self._mine(rewrites, "rewrites read"))
            )

        def pool_changed() -> None:
            pool = pools.objects.get(name)
            self._pool_changed(pool, api, tasks)
            labels = self._labels
            if not isinstance(pool, str):
                labels = (pool.metadata.labels or {}) if pool else {}
            if labels != self._labels:
                self._labels = labels
                objectives_changed.set()
                rewrites_changed.set()

        def mirror(
            resource: Resource,
            model: type[Object],
            changed: Callable[[], None],
            select: Mapping[str, str] = {},
        ) -> Mirror[Object | str]:
            part = resource.plural if resource is POOLS else resource.name
            made: Mirror[Object | str] = Mirror(
                api,
                resource,
                select=select,
                keep=functools.partial(parse, model),
                changed=changed,
                problem=self._problem(part),
                optional=resource is not POOLS,
            )
            tasks.create_task(made.run(), name=f"{self.source} {part}")  # begins after this call
            return made

        pools = mirror(POOLS, Pool, pool_changed, {"fieldSelector": f"metadata.name={name}"})
        objectives = [mirror(of, Objective, objectives_changed.set) for of in OBJECTIVES]
        rewrites = [mirror(of, ModelRewrite, rewrites_changed.set) for of in REWRITES]
        tasks.create_task(_gather(objectives_changed, report_objectives))
        tasks.create_task(_gather(rewrites_changed, report_rewrites))

    def _mine(self, mirrors: Sequence[Mirror[Ref | str]], part: str) -> list[Ref]:
        """Return the valid objects that belong to this pool.

        The first valid version of an object is used, since a version may lack fields of another.
        """
        known: dict[str, Ref | str] = {}
        for mirror in reversed(mirrors):
            for name, resource in mirror.objects.items():
                if name not in known or not isinstance(resource, str):
                    known[name] = resource
        faults = [resource for resource in known.values() if isinstance(resource, str)]
        faults += [
            f"the cluster no longer serves {mirror.resource.name}; gone with it: "
            + some(sorted(lost))
            for mirror in mirrors
            if (lost := mirror.lost - known.keys())
        ]
        self._faults(part, faults)
        return [
            resource
            for resource in known.values()
            if not isinstance(resource, str) and resource.spec.of(self._rules.pool, self._labels)
        ]

    def _pool_changed(
        self, pool: Pool | str | None, api: ApiServer, tasks: asyncio.TaskGroup
    ) -> None:
        problem = self._problem("pool")
        if isinstance(pool, str):
            problem(f"{pool}; the endpoints stay as they were")
            return
        if pool is None or pool.metadata.deletionTimestamp:
            problem("no such InferencePool; it has no endpoints until it exists")
            self._stop_pods()
            self._changed.set()
            return
        problem(None)
        ports = tuple(port.number for port in pool.spec.targetPorts)
        rules = self._rules.model_copy(update={"selector": pool.spec.labels, "ports": ports})
        if rules != self._following:
            self._stop_pods()
            self._follow(rules, api, tasks)

    def _follow(self, rules: KubernetesSource, api: ApiServer, tasks: asyncio.TaskGroup) -> None:
        """Mirror a selector's pods; endpoints reported earlier stay until the pods are listed."""
        self._following = rules
        self._pods = Mirror(
            api,
            PODS,
            select={"labelSelector": _query(rules.selector)},
            keep=lambda item: pod_endpoints(item, rules.ports, rules),
            changed=self._changed.set,
            problem=self._problem(PODS.plural),
        )
        self._pods_task = tasks.create_task(self._pods.run(), name=f"{self.source} pods")

    def _stop_pods(self) -> None:
        if self._pods_task:
            self._pods_task.cancel()
            self._problem(PODS.plural)(None)
        self._pods = self._pods_task = self._following = None

    def _settle_s(self) -> float:
        return SETTLE_S if self._is_at_zero and self._pods and self._pods.objects else 0.0

    def _report(self) -> None:
        if self._pods is not None and not self._pods.synced:
            return
        pods = self._pods.objects if self._pods else {}
        faults = [pod.fault for pod in pods.values() if pod.fault]
        if len(pods) >= MAX_OBJECTS:
            faults.append(f"only the first {MAX_OBJECTS} pods are used; narrow the selector")
        specs: dict[str, EndpointSpec] = {}
        for name, pod in pods.items():
            for spec in pod.specs:
                if (other := specs.get(spec.address)) is not None:
                    pair = f"{other.labels['laar.dev/pod']} and {name}"
                    faults.append(f"{pair} both have {spec.address}")
                specs[spec.address] = spec
        self._is_at_zero = bool(self._rules.pool) and not specs
        self._sink.replace(self.source, tuple(specs.values()))
        self._faults("pods read", faults)

    def _faults(self, part: str, faults: Sequence[str]) -> None:
        self._problem(part)(some(faults, "; ") or None)

    def _problem(self, part: str) -> Callable[[str | None], None]:
        name = f"{self.source} {part}".removeprefix("kubernetes ")
        return lambda message: self._sink.problem(Fault.KUBERNETES, message, name)


async def _gather(
    changed: asyncio.Event, report: Callable[[], None], wait_s: Callable[[], float] = lambda: 0.0
) -> None:
    """Report changes at most every `REPORT_EVERY_S`, since each report covers all objects."""
    while True:
        await changed.wait()
        await asyncio.sleep(wait_s())
        changed.clear()
        report()
        await asyncio.sleep(REPORT_EVERY_S)


def _query(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))

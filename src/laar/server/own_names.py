"""Models reported by pods whose models neither annotations nor settings name.

Such a pod is not an endpoint until it has reported a model. The first pods of a source are used
together, once all have answered: otherwise requests for models of slower pods would be refused. A
pod that does not answer delays the others by at most `WAIT_S`, and may report its models later.

Names are kept while a pod is away, so that it serves immediately when it returns, even before it
is queried again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from laar.core.membership import EndpointSpec, Served
from laar.latest import Latest

WAIT_S = 10.0
"""Seconds to wait for a source's first pods: twice the timeout of a request for names."""
MAX_KEPT = 20_000
"""Maximum number of pods whose names are kept: as many as one selector may match."""

_Pod = tuple[str, str]


@dataclass(slots=True)
class _Source:
    """The endpoints of one source.

    Args:
        specs: all endpoints.
        nameless: endpoints whose models the source does not name, by address.
        pending: addresses of nameless endpoints that have not answered yet.
        in_use: whether some already serve, so that others serve as soon as they have answered.
    """

    specs: Sequence[EndpointSpec]
    nameless: dict[str, EndpointSpec]
    pending: set[str]
    in_use: bool


class OwnNames:
    """The endpoints from all sources, supplemented with the models that pods report."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._served: Latest[_Pod, Served] = Latest(MAX_KEPT)

    def replace(self, source: str, specs: Sequence[EndpointSpec]) -> None:
        """Replace the endpoints of a source."""
        before = self._sources.get(source)
        nameless = {spec.address: spec for spec in specs if not spec.models}
        in_use = before is not None and before.in_use and bool(nameless)
        own = self._sources[source] = _Source(specs, nameless, set(), in_use)
        own.pending = {a for a, spec in nameless.items() if _pod(spec) not in self._served}

    def nameless(self) -> list[EndpointSpec]:
        """Return all endpoints whose models no source names."""
        return [spec for own in self._sources.values() for spec in own.nameless.values()]

    def is_nameless(self, address: str) -> bool:
        """Return whether a source lists an endpoint without its models."""
        return any(address in own.nameless for own in self._sources.values())

    def waits(self, source: str) -> bool:
        """Return whether the first pods of a source are held back until all have answered."""
        own = self._sources[source]
        return not own.in_use and bool(own.pending)

    def is_held(self, address: str) -> bool:
        """Return whether an endpoint is held back and has not answered yet."""
        return any(address in own.pending and not own.in_use for own in self._sources.values())

    def wait_no_longer(self, source: str) -> None:
        """Use the pods of a source that have answered."""
        self._sources[source].in_use = True

    def named(self, source: str, reserved: Collection[str]) -> list[EndpointSpec]:
        """Return a source's endpoints that may be used: those whose models are known.

        The `reserved` aliases of several models must not be a pod's main name.
        """
        own, waits = self._sources[source], self.waits(source)
        named = []
        for spec in own.specs:
            if spec.models:
                named.append(spec)
            elif not waits and (known := self._served.get(_pod(spec), Served()).weights):
                models = tuple(sorted(known, key=lambda name: name in reserved))
                named.append(replace(spec, models=models))
                own.in_use = True
        return named

    def reports(self, source: str) -> dict[str, Served]:
        """Return the last report of each pod of a source, by address."""
        own = self._sources[source].nameless.items()
        return {a: self._served[_pod(spec)] for a, spec in own if _pod(spec) in self._served}

    def take(self, reports: Mapping[str, Served]) -> set[str]:
        """Record the names that endpoints report, if any; return the affected sources."""
        changed: set[str] = set()
        for address, served in reports.items():
            holders = {
                source: _pod(own.nameless[address])
                for source, own in self._sources.items()
                if address in own.nameless
            }
            for source in holders:
                self._sources[source].pending.discard(address)
            news = {pod for pod in set(holders.values()) if self._keep(pod, served)}
            changed.update(source for source, pod in holders.items() if pod in news)
        return changed

    def _keep(self, pod: _Pod, served: Served) -> bool:
        """Store a pod's report; return whether it changes what is known about the pod's names.

        An empty report replaces no names, so it can matter only as a pod's first report.
        """
        before = self._served.get(pod)
        if before is not None and not served.weights:
            return False
        if before is not None and before.weights.keys() == served.weights.keys():
            # The first name is the main one: keep it even if the order changes.
            served = replace(
                served, weights={name: served.weights[name] for name in before.weights}
            )
        self._served[pod] = served
        return before is None or before.weights.keys() != served.weights.keys()


def _pod(spec: EndpointSpec) -> _Pod:
    """Return a pod's identity; the address alone may be reused by another pod."""
    return spec.address, spec.labels.get("laar.dev/pod", "")

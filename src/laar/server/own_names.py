"""Models reported by pods whose models neither annotations nor settings name.

Such a pod is not an endpoint until it has reported a model. The first pods of a source are used
together, once all have answered: otherwise requests for models of slower pods would be refused. A
pod that does not answer delays the others by at most `WAIT_S`, and may report its models later.

Names are kept while a pod is away, so that it serves immediately when it returns, even before it
is queried again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from laar.core.membership import EndpointSpec, Served
from laar.latest import Latest

WAIT_S = 10.0
"""Seconds to wait for a source's first pods: twice the timeout of a request for names."""
MAX_KEPT = 20_000
"""Maximum number of pods whose names are kept: as many as one selector may match."""

_Pod = tuple[str, str]


class OwnNames:
    """The endpoints from all sources, supplemented with the models that pods report."""

    def __init__(self) -> None:
        self._specs: dict[str, Sequence[EndpointSpec]] = {}
        self._awaited: dict[str, set[_Pod]] = {}
        """Of each source, the first pods that have not answered yet; the others wait for them."""
        self._served: Latest[_Pod, Served] = Latest(MAX_KEPT)

    def replace(self, source: str, specs: Sequence[EndpointSpec]) -> None:
        """Replace the endpoints of a source."""
        is_first = self.waits(source) or all(spec.models for spec in self._specs.get(source, ()))
        nameless = {_pod(spec) for spec in specs if not spec.models}
        self._awaited[source] = nameless.difference(self._served) if is_first else set()
        self._specs[source] = specs

    def nameless(self) -> list[EndpointSpec]:
        """Return all endpoints whose models no source names."""
        return [spec for specs in self._specs.values() for spec in specs if not spec.models]

    def waits(self, source: str) -> bool:
        """Return whether the first pods of a source are held back until all have answered."""
        return bool(self._awaited.get(source))

    def wait_no_longer(self, source: str) -> None:
        """Use the pods of a source that have answered."""
        self._awaited[source].clear()

    def named(self, source: str, reserved: Collection[str]) -> list[EndpointSpec]:
        """Return a source's endpoints that may be used: those whose models are known.

        The `reserved` aliases of several models must not be a pod's main name.
        """
        named, waits = [], self.waits(source)
        for spec in self._specs[source]:
            if spec.models:
                named.append(spec)
            elif not waits and (known := self._served.get(_pod(spec), Served()).weights):
                models = tuple(sorted(known, key=lambda name: name in reserved))
                named.append(replace(spec, models=models))
        return named

    def reports(self, source: str) -> dict[str, Served]:
        """Return the last report of each pod of a source, by address."""
        pods = {spec.address: _pod(spec) for spec in self._specs[source] if not spec.models}
        return {a: self._served[pod] for a, pod in pods.items() if pod in self._served}

    def take(self, reports: Mapping[str, Served]) -> set[str]:
        """Record the names that endpoints report, if any; return the affected sources."""
        answers = {
            _pod(spec): reports[spec.address] for spec in self.nameless() if spec.address in reports
        }
        for awaited in self._awaited.values():
            awaited.difference_update(answers)
        news = {pod for pod, served in answers.items() if self._keep(pod, served)}
        return {
            source
            for source, specs in self._specs.items()
            if any(not spec.models and _pod(spec) in news for spec in specs)
        }

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

"""The models of pods that no annotation and no setting names: each pod's own list of them.

Such a pod is no endpoint until it has named a model. The first pods of a source come into use
together, once each of them was asked: a fleet that is known by half would refuse the models of the
other half. A pod that answers nothing holds the others up for `WAIT_S` at most, and may name its
models later.

Names are kept while a pod is away, so one that is ready again serves at once. It is asked then too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from laar.core.endpoints import EndpointSpec, Served

__all__ = ["WAIT_S", "OwnNames"]

WAIT_S = 10.0
"""Twice the time-out of one question."""
MAX_KEPT = 20_000
"""Pods whose names are kept: as many as one selector may match."""

_Pod = tuple[str, str]


class OwnNames:
    """The reports of sources, completed by the names that pods themselves report."""

    def __init__(self) -> None:
        self._specs: dict[str, Sequence[EndpointSpec]] = {}
        self._nameless: dict[str, dict[str, EndpointSpec]] = {}  # by source and address
        self._served: dict[_Pod, Served] = {}
        self._silent: set[_Pod] = set()
        self._unasked: dict[str, set[str]] = {}  # addresses by source
        self._in_use: set[str] = set()

    def replace(self, source: str, specs: Sequence[EndpointSpec]) -> None:
        """Takes all that a source knows."""
        self._specs[source] = specs
        self._nameless[source] = {spec.address: spec for spec in specs if not spec.models}
        if not self._nameless[source]:
            self._in_use.discard(source)
        self._silent &= {_pod(spec) for spec in self.nameless()}
        self._unasked[source] = {
            address
            for address, spec in self._nameless[source].items()
            if _pod(spec) not in self._served and _pod(spec) not in self._silent
        }

    def nameless(self) -> list[EndpointSpec]:
        """All endpoints whose models no source names."""
        return [spec for own in self._nameless.values() for spec in own.values()]

    def is_nameless(self, address: str) -> bool:
        """Whether some source does not name the models of an endpoint."""
        return any(address in own for own in self._nameless.values())

    def waits(self, source: str) -> bool:
        """Whether pods of a source that are the first are held until each of them was asked."""
        return source not in self._in_use and bool(self._unasked[source])

    def is_held(self, address: str) -> bool:
        """Whether an endpoint is one of those pods, and was not asked yet."""
        return any(
            address in self._unasked[source] for source in self._unasked if self.waits(source)
        )

    def wait_no_longer(self, source: str) -> None:
        """Uses those that have answered."""
        self._in_use.add(source)

    def named(self, source: str, reserved: Collection[str]) -> list[EndpointSpec]:
        """The endpoints of a source whose models are known, as far as they may be used.

        Args:
            source: the source.
            reserved: names that stand for several models; none of them is a pod's main one.
        """
        waits = self.waits(source)
        named = []
        for spec in self._specs[source]:
            if spec.models:
                named.append(spec)
            elif not waits and (served := self._served.get(_pod(spec))):
                models = tuple(sorted(served.weights, key=lambda name: name in reserved))
                named.append(replace(spec, models=models))
                self._in_use.add(source)
        return named

    def reports(self, source: str) -> dict[str, Served]:
        """The last report of each of a source's pods, by address."""
        own = self._nameless[source].items()
        return {a: self._served[_pod(spec)] for a, spec in own if _pod(spec) in self._served}

    def take(self, reports: Mapping[str, Served]) -> set[str]:
        """Takes the names that endpoints list, none included; returns the sources that changed."""
        changed: set[str] = set()
        for address, served in reports.items():
            of = [
                (source, own[address]) for source, own in self._nameless.items() if address in own
            ]
            for source, _ in of:
                self._unasked[source].discard(address)
            news = {pod for pod in {_pod(spec) for _, spec in of} if self._is_news(pod, served)}
            changed.update(source for source, spec in of if _pod(spec) in news)
        while len(self._served) > MAX_KEPT:
            del self._served[next(iter(self._served))]
        return changed

    def _is_news(self, pod: _Pod, served: Served) -> bool:
        before = self._served.get(pod)
        if not served.weights:
            news = before is None and pod not in self._silent
            self._silent.add(pod)
            return news
        if before is not None and before.weights.keys() == served.weights.keys():
            # The first name is the main one: it stays, in whatever order a list comes.
            served = replace(
                served, weights={name: served.weights[name] for name in before.weights}
            )
        self._served.pop(pod, None)  # the newest is the last to be forgotten
        self._served[pod] = served
        return before is None or before.weights.keys() != served.weights.keys()


def _pod(spec: EndpointSpec) -> _Pod:
    """A pod's identity: an address alone may be another's tomorrow."""
    return spec.address, spec.labels.get("laar.dev/pod", "")

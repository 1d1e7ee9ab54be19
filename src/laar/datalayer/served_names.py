"""Poll the model names that endpoints list at ``GET /v1/models``.

LoRA adapters come and go while an engine runs; each is listed with its base model as ``parent``. In
SGLang, that answers for the name alone. Models of the same ``root`` are one under several names.

A window is that of its own name: other models in the list may have others. Where the list states
none, or only what a model could have, the engine's other pages are read (`laar.datalayer.windows`).

The list does not show what an engine is for: vLLM's engines for embeddings, reranking or speech
list their model like any other. The routes do. A GET checks for one without side effects, since
they accept only POST: the response is 405 if the route exists, and 404 if not.

An endpoint need not answer. If it requires a key, it lists nothing, and is used as configured.
Responses are untrusted; the table decides which names an endpoint may have. An endpoint with no
configured model is polled every second until it lists one. When a name proves wrong or is unknown,
the lists are checked immediately (`ServedNames.doubt`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import aiohttp
import orjson

from laar.datalayer.endpoints_file import check_model_name
from laar.datalayer.fetching import get, read_capped
from laar.datalayer.visits import Visits
from laar.datalayer.windows import PAGES, Stated, stated, windows
from laar.faults import Fault
from laar.fleet.membership import EndpointSpec, Served
from laar.latest import Latest
from laar.protocol.paths import ROUTES

INTERVAL_S = 30.0
"""Seconds between checks of an endpoint's names: loading an adapter takes seconds and is rare."""
NAMELESS_INTERVAL_S = 1.0
TIMEOUT_S = 5.0
DOUBT_S = 1.0
"""Minimum seconds between checks of an endpoint that rejects names with 404."""
DOUBT_ALL_S = 5.0
"""Minimum seconds between checks after clients name unknown models, which they may do often."""
MAX_LIST_BYTES = 1 << 20
MAX_NAMES = 256
"""Maximum number of names read, about 100 KB; engines load at most a few dozen adapters."""

FIRST_PODS_S = 10.0
"""Seconds to wait for a source's first pods: twice the timeout of a request for names."""
MAX_PODS = 20_000
"""Maximum number of pods whose names are kept: as many as one selector may match."""

_NO_ROUTE, _NO_GET = 404, 405
_WRITES_TEXTS = ("/v1/chat/completions", "/v1/completions")
_ROUTES = frozenset((*_WRITES_TEXTS, *ROUTES))


class ServedNames(Visits):
    """Gets a `Served` from each endpoint about every `interval_s` seconds.

    An endpoint that has no configured model and lists none has an empty `Served`.
    """

    kind = Fault.MODELS
    usual_s = INTERVAL_S
    headers: ClassVar = {"accept": "application/json", "user-agent": "laar-names"}

    def interval_s(self, spec: EndpointSpec) -> float:
        """Return the seconds until the next check; sooner while the endpoint has no model."""
        usual_s = super().interval_s(spec)
        return usual_s if spec.models else min(usual_s, NAMELESS_INTERVAL_S)

    def doubt(self, address: str) -> None:
        """Schedule a check of an endpoint that rejected a name, or of all if `address` is empty."""
        if address:
            self.soon(address, DOUBT_S)
        else:
            for spec in self.targets():
                self.soon(spec.address, DOUBT_ALL_S)

    def with_route(self, route: str, models: Collection[str] = ()) -> frozenset[str] | None:
        """Return the endpoints of some models that may serve a route; None if all may, or none."""
        wanted = frozenset(models)
        every = {s.address for s in self.targets() if not wanted or not wanted.isdisjoint(s.models)}
        able = {at for at in every if route in self.kept.get(at, (None, _ROUTES, ()))[1]}
        return frozenset(able) if 0 < len(able) < len(every) else None

    async def visit(self, spec: EndpointSpec) -> None:
        """Check one endpoint's names."""
        address = spec.address
        weights, routes, pages = self.kept.get(address, (None, _ROUTES, PAGES))
        self.kept[address] = None, routes, pages  # checked again after a failure: it may be new
        try:
            status, body = await self._get(spec, "/v1/models")
            if status != 200:
                self._sink.problem(self.kind, None, address)
                self._names_none(spec, f"answers {status}")
                return
            served = read_served(body)
            if not spec.models and not served.weights:
                self._names_none(spec, "lists no model")
                return
            if weights != served.weights:
                routes = await self._routes(spec)
                pages = PAGES
            own = map(served.says, spec.models or served.weights)
            if not all(said is not None and said[0] == 0 for said in own):
                pages, served = await self._windows(spec, pages, served)
            self.kept[address] = served.weights, routes, pages
        except ValueError as error:
            self._sink.problem(self.kind, f"{spec.url('/v1/models')}: {error}", address)
            self._names_none(spec, "is not a list of models")
            return
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            # Scrapes and probes also report it, if the endpoint is in use.
            self._names_none(spec, f"does not answer: {type(error).__name__}")
            return
        self._sink.served(
            address, dataclasses.replace(served, generates=not routes.isdisjoint(_WRITES_TEXTS))
        )
        # A service may list models that are not this endpoint's; only missing adapters matter.
        full = served.adapters and len(served.weights) + len(served.adapters) >= MAX_NAMES
        remark = f"{spec.url('/v1/models')}: only the first {MAX_NAMES} names are used"
        self._sink.problem(self.kind, remark if full else None, address)

    def _names_none(self, spec: EndpointSpec, reason: str) -> None:
        if spec.models:
            return
        pod = spec.labels.get("laar.dev/pod", spec.address)
        self._sink.problem(
            self.kind,
            f"{pod} names no model (laar.dev/model), and {spec.url('/v1/models')} {reason}. It "
            "gets no requests",
            spec.address,
        )
        self._sink.served(spec.address, Served())

    async def _routes(self, spec: EndpointSpec) -> frozenset[str]:
        """Return which of `_ROUTES` an engine has; all if its responses leave any doubt."""
        found = {route: (await self._get(spec, route))[0] for route in _ROUTES}
        have = frozenset(route for route, status in found.items() if status != _NO_ROUTE)
        return have if _NO_GET in found.values() else _ROUTES

    async def _windows(
        self, spec: EndpointSpec, pages: Sequence[str], served: Served
    ) -> tuple[Sequence[str], Served]:
        """Return which of an engine's other pages exist, and `served` with what they state."""
        found, have = dict(served.stated), []
        for page in pages:
            status, body = await self._get(spec, page)
            if status == 200:
                have.append(page)
                with contextlib.suppress(orjson.JSONDecodeError):
                    _note(found, orjson.loads(body))
        return have, dataclasses.replace(served, stated=found)

    async def _get(self, spec: EndpointSpec, path: str) -> tuple[int, bytes]:
        found = get(self.session, spec.url(path), spec)
        async with asyncio.timeout(TIMEOUT_S), found as answer:
            return answer.status, await read_capped(answer.content, MAX_LIST_BYTES)


class Listed(NamedTuple):
    """A model in the list, with its root, its parent (for adapters) and its window in tokens."""

    name: str
    root: str
    parent: str
    window_tokens: int | None


def read_list(body: bytes, most: int | None = None) -> list[Listed]:
    """Return the valid models among the first `most` in the body of ``GET /v1/models``.

    Raise `ValueError` if the body is not a list of models.
    """
    try:
        entries: Any = orjson.loads(body)["data"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        entries = None
    if not isinstance(entries, list):
        raise ValueError("the answer is not a list of models")
    listed = []
    for entry in entries[:most]:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            continue
        name, parent, root = entry["id"], entry.get("parent") or "", entry.get("root")
        if parent and entry.get("owned_by") == "sglang":
            name = f"{parent}:{name}"
        window, root = stated(entry), root if isinstance(root, str) else ""
        with contextlib.suppress(ValueError):
            if isinstance(parent, str):
                listed.append(Listed(check_model_name(name), root, parent, window and window[1]))
    return listed


def read_served(body: bytes, most: int | None = MAX_NAMES) -> Served:
    """Return the names in a list, as `read_list` reads it, and the windows that it states."""
    listed, found = read_list(body, most), dict[str, Stated]()
    _note(found, orjson.loads(body))
    return Served(
        weights={model.name: model.root for model in listed if not model.parent},
        adapters={model.name: model.parent for model in listed if model.parent},
        stated=found,
    )


def _note(found: dict[str, Stated], document: Any) -> None:
    """Add the windows that a document states; of two for one name, the better one is kept."""
    for name, window in windows(document):
        if name in found or len(found) < MAX_NAMES:
            found[name] = min(window, found.get(name, window))


_Pod = tuple[str, str]


class OwnNames:
    """The endpoints from all sources, supplemented with the models that pods report.

    A pod whose models neither annotations nor settings name is not an endpoint until it has
    reported one. The first pods of a source are used together, once all have answered: otherwise
    requests for models of slower pods would be refused. A pod that does not answer delays the
    others by at most `FIRST_PODS_S`, and may report its models later. Names are kept while a pod is
    away, so that it serves immediately when it returns, even before it is queried again.
    """

    def __init__(self) -> None:
        self._specs: dict[str, Sequence[EndpointSpec]] = {}
        self._awaited: dict[str, set[_Pod]] = {}
        """The first pods of each source that have not answered yet; the others wait for them."""
        self._served: Latest[_Pod, Served] = Latest(MAX_PODS)

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
                named.append(dataclasses.replace(spec, models=models))
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
            served = dataclasses.replace(
                served, weights={name: served.weights[name] for name in before.weights}
            )
        self._served[pod] = served
        return before is None or before.weights.keys() != served.weights.keys()


def _pod(spec: EndpointSpec) -> _Pod:
    """Return a pod's identity; the address alone may be reused by another pod."""
    return spec.address, spec.labels.get("laar.dev/pod", "")

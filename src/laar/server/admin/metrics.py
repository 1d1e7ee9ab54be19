"""The `/metrics` page: the table `metrics.txt`, read from the parts of a picker at each scrape.

A row gives the source of its value: a dotted path from `_Scrape` or, if that has no such attribute,
from the picker. Parts disabled by the settings have no series. The text is not produced by
prometheus-client, which takes 6 us per sample: the endpoints of a large fleet would block the loop
for 50 ms at each scrape. Its own collectors (`process_*`, `python_*`) are added by the port.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from laar.core.plugin import Plugin
from laar.plugins import own
from laar.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from laar.server.picker import Picker

_Value: TypeAlias = float | Histogram
_Series: TypeAlias = Iterable[tuple[str | tuple[str, ...], _Value]]
"""Pairs of label values and value; a bare string is a single label value."""

_BREAKER_STATES = {"closed": 0, "starting": 1, "suspect": 2, "half-open": 2, "open": 3}


class Metric(NamedTuple):
    """A row of `metrics.txt`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    path: str
    help: str


@cache
def metrics() -> tuple[Metric, ...]:
    """Return the table, in the order of the page."""
    found = []
    for line in (files("laar.server.admin") / "metrics.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, kind, labels, path, text = line.split(" | ", 4)
            found.append(Metric(name, kind, tuple(labels.strip("-").split()), path, text))
    return (*found, *_of_plugins(own()))


def _of_plugins(plugins: Iterable[Plugin]) -> Iterator[Metric]:
    for plugin in plugins:
        for of in plugin.meters:
            yield Metric(of.name, of.kind, of.labels, "", of.help)


def metrics_page(picker: Picker, *, open_metrics: bool = False) -> bytes:
    """Return the page in Prometheus' text format, or in that of OpenMetrics without its end."""
    scrape, lines = _Scrape(picker), []
    table = metrics()
    known = {metric.name for metric in table}
    others = (of for of in _of_plugins(picker.director.plugins.all) if of.name not in known)
    for metric in (*table, *others):
        name = metric.name.removesuffix("_total") if open_metrics else metric.name
        lines.append(f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n")
        read = _read(scrape, metric.path) if metric.path else scrape.of_plugins.get(metric.name, ())
        for key, value in read:
            if value != value:  # unknown; NaN would spoil the sum over all endpoints
                continue
            lines += _lines(metric, (key,) if isinstance(key, str) else key, value)
    return "".join(lines).encode()


def _read(scrape: _Scrape, path: str) -> _Series:
    found: Any = scrape
    for name in path.split("."):
        found = getattr(found, name)
        if found is None:
            return ()
    if callable(found):
        found = found()
    if isinstance(found, Mapping):
        found = found.items()
    return found if isinstance(found, Iterable) else [((), found)]


def _lines(metric: Metric, values: tuple[str, ...], value: _Value) -> Iterator[str]:
    labels = _labels(metric.labels, values)
    if not isinstance(value, Histogram):
        yield f"{metric.name}{labels} {_number(value)}\n"
        return
    for bound, count in value.buckets():
        upper = _labels((*metric.labels, "le"), (*values, _number(bound)))
        yield f"{metric.name}_bucket{upper} {_number(count)}\n"
    yield f"{metric.name}_count{labels} {_number(count)}\n"
    yield f"{metric.name}_sum{labels} {_number(value.sum)}\n"


@lru_cache(maxsize=1 << 16)  # consecutive pages have nearly the same series
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = sorted(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}" if names else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else "+Inf" if value > 0 else "-Inf"


class _Scrape:
    """The parts of a picker, and values computed from several attributes."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker
        self.of_plugins: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        for meter, values, value in chain.from_iterable(picker.director.plugins.each("samples")):
            self.of_plugins.setdefault(meter.name, []).append((values, value))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._picker, name)

    # -- sharing -------------------------------------------------------------------------------

    def shared_records(self) -> _Series:
        if sharer := self._picker.sharer:
            counts = {"sent": sharer.sharing.outbox.sent, "taken": sharer.sharing.taken}
            for way, kinds in counts.items():
                yield from (((kind, way), count) for kind, count in kinds.items())

    # -- endpoints -----------------------------------------------------------------------------

    @cached_property
    def endpoints(self) -> _Columns:
        return _Columns(self._picker)

    def hold_s(self) -> _Series:
        gate = self._picker.admission
        return gate.hold_s(self._picker.clock()).items() if gate else ()

    def endpoints_by_health(self) -> _Series:
        picker = self._picker
        return sorted(picker.observability.page.health(picker.clock()).items())

    @cached_property
    def failing(self) -> _Rows:
        """Endpoints that fail or have failed; for others the series would only show 1 and 0."""
        picker = self._picker
        return _Rows(
            (picker.table.address(slot), known)
            for slot, known in picker.health.records.endpoints.items()
            if known.failures or known.breaker.openings
        )

    def paces(self) -> _Series:
        paces, table = self._picker.director.engines.paces.relative().tolist(), self._picker.table
        unlike = (slot for slot in table.active.tolist() if paces[slot] != 1.0)
        return ((table.spec(slot).key, paces[slot]) for slot in unlike)

    @cached_property
    def breakers(self) -> _Rows:
        return _Rows((address, known.breaker) for address, known in self.failing.rows)

    def breaker_states(self) -> _Series:
        return ((address, _BREAKER_STATES[known.state]) for address, known in self.breakers.rows)

    def answers(self) -> _Series:
        now = self._picker.clock()
        return ((address, known.answers(now)) for address, known in self.breakers.rows)

    def seconds_per_token(self) -> _Series:
        for model, (measured, seen) in self._picker.learning.speeds(
            self._picker.director.engines
        ).items():
            if measured is not None:
                yield (model, "measured"), measured
            if seen is not None:
                yield (model, "seen"), seen.seconds_per_token

    # -- observability -------------------------------------------------------------------------

    def version(self) -> _Series:
        return [(self._picker.observability.version, 1)]

    # -- the context hook ----------------------------------------------------------------------

    @property
    def hooks(self) -> _Rows:
        return _Rows((route.rule.name, route) for route in self._picker.context.orderings)

    def hook_entries(self) -> _Series:
        for route in self._picker.context.orderings:
            yield from (((route.rule.name, key), n) for key, n in route.hook.stats().items())


class _Columns:
    """The columns of the endpoint table, by endpoint and model."""

    def __init__(self, picker: Picker) -> None:
        self._table = table = picker.table
        specs = (table.spec(slot) for slot in table.active.tolist())
        self._keys = [(spec.key, spec.models[0]) for spec in specs]

    def __getattr__(self, column: str) -> _Series:
        values: list[float] = getattr(self._table, column)[self._table.active].tolist()
        return zip(self._keys, values, strict=True)


class _Rows:
    """The figures of several objects, by label; some are also split by the keys of a counter."""

    def __init__(self, rows: Iterable[tuple[Any, Any]]) -> None:
        self.rows = list(rows)

    def __getattr__(self, figure: str) -> _Series:
        for label, of in self.rows:
            found = getattr(of, figure)
            if isinstance(found, Mapping):
                yield from (((label, key), count) for key, count in found.items())
            else:
                yield label, found

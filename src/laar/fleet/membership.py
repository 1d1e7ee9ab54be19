"""The set of endpoints, as described by their sources and by their own reports.

Sources (a file, DNS, Kubernetes) may overlap: the first wins, but pools are combined. An endpoint's
own report adds its model's other names and its adapters, except names that the configuration gives
to another model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

EVENTS_LABEL = "laar.dev/kv-events"
"""Label for an endpoint's KV event socket: a port on its own host, or ``tcp://host:port``."""

REPLAY_LABEL = "laar.dev/kv-events-replay"
"""Label for the socket that replays KV events; it has the same form."""

POOL_LABEL = "laar.dev/pool"
"""Label for an endpoint's pool, to which a gateway may route requests; its value may list several,
separated by commas."""

TASK_LABEL = "laar.dev/task"
"""Label for an endpoint's task: ``generate``, or another such as ``embed``."""

ROLE_LABEL = "llm-d.ai/role"
"""Label for an endpoint's role in disaggregated prefill, with llm-d's values."""

DRAIN_LABEL = "laar.dev/drain"
"""Label of an endpoint that should get no new requests: ``true``. Once idle, it is left out."""

PULL_LABEL = "laar.dev/kv-pull"
"""Label of an endpoint that can pull KV from its peers, and they from it: ``true``."""

ON_DEMAND_LABEL = "laar.dev/on-demand"
"""Label or annotation with the names that an engine loads when it is first asked for them, besides
those that it lists: names, or beginnings of names and a ``*``, separated by commas."""

SYSTEM_CA = "system"
"""Value given instead of a PEM file to use the system's CAs."""

PREFILL = frozenset(
    {"prefill", "encode-prefill", "prefill-decode", "encode-prefill-decode", "both"}
)
"""Roles of endpoints that may prefill for others."""

FETCH = frozenset({"decode", "prefill-decode", "encode-prefill-decode", "both"})
"""Roles of endpoints that can fetch the KV of prompts prefilled elsewhere."""

_SEPARATORS = "-.:@_"

_FOR_OTHERS = frozenset({"encode", "prefill", "encode-prefill"})


def key_of(address: str, rank: int | None) -> str:
    """Return an endpoint's identity: its address, and ``#`` with the rank if it has one."""
    return address if rank is None else f"{address}#{rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How to reach an engine; by default, over plain HTTP with ``/v1`` at its root.

    Args:
        base: base path of its API, instead of ``/v1``.
        tls: whether it uses TLS.
        ca_file: PEM file with the CAs that verify its certificate; empty means the system's CAs.
        name: name in its certificate and in the Host header; empty if it has none, and the Host
            header stays the client's.
        key: API key to send to the engine in place of the client's; empty keeps the client's.
    """

    base: str = "/v1"
    tls: bool = False
    ca_file: str = ""
    name: str = ""
    key: str = field(default="", repr=False)

    @property
    def ca(self) -> str | None:
        """The CAs with which Envoy verifies the engine's certificate; None if it uses no TLS."""
        return self.ca_file or SYSTEM_CA if self.tls else None

    def path(self, path: str) -> str:
        """Return the engine's path for a path below ``/v1``."""
        if path == "/v1" or path.startswith(("/v1/", "/v1?")):
            return self.base + path[3:]
        return self.base.removesuffix("/v1") + path

    def url(self, address: str, path: str) -> str:
        """Return the engine's URL for a path below ``/v1``."""
        return f"{'https' if self.tls else 'http'}://{address}{self.path(path)}"


PLAIN = Way()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """One endpoint as a source of endpoints (a file, DNS, Kubernetes) describes it.

    Args:
        address: ``ip:port``, IPv6 in brackets, as sent to Envoy.
        models: model names it serves. The first identifies the model for accuracy and latency,
            and is written into a body whose name is not among them. Empty only until
            `laar.datalayer.served_names` has filled it in.
        region: free text, for the dashboard and metrics.
        engine: engine that runs there, which determines its metric names: a key of
            `laar.datalayer.metrics_page.ENGINES`.
        metrics_url: page to scrape; None means the engine's default at the address, empty means
            none.
        labels: free labels from the source.
        priority_field: whether to send the priority: the engine orders by it.
        max_model_len: longest prompt and answer together, in tokens; None when unknown.
        windows: the same of those names in `models` for which it differs.
        same_weights: the names in `models` that are aliases of the first. The others are adapters
            or possibly other models, and share no cached prefixes with it.
        adapters: the names in `models` of LoRA adapters that the engine has loaded.
        aliases: names that its engine accepts besides `models`, since laar resolves them.
        generates: whether it generates text; an embedding engine does not.
        rank: its data-parallel rank, if the engine has several at one address. Each has its own
            cache and queue. None if the engine has no ranks.
        way: how it is reached.
    """

    address: str
    models: tuple[str, ...]
    region: str = ""
    engine: str = "vllm"
    metrics_url: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority_field: bool = False
    max_model_len: int | None = None
    windows: Mapping[str, int | None] = field(default_factory=dict)
    same_weights: tuple[str, ...] = ()
    adapters: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()
    generates: bool = True
    rank: int | None = None
    way: Way = PLAIN

    def url(self, path: str) -> str:
        """Return its URL for a path below ``/v1``."""
        return self.way.url(self.address, path)

    @property
    def has_own_page(self) -> bool:
        """Whether the metrics page is served by the engine rather than by another process."""
        return (self.metrics_url or self.url("/")).startswith(self.url("/"))

    @property
    def key(self) -> str:
        """The endpoint's identity (`key_of`)."""
        return key_of(self.address, self.rank)

    @property
    def role(self) -> str:
        """Its role in disaggregated prefill; empty for an ordinary endpoint."""
        return self.labels.get(ROLE_LABEL, "")

    @property
    def pools(self) -> Sequence[str]:
        """The pools it belongs to."""
        return [name for name in self.labels.get(POOL_LABEL, "").split(",") if name]

    @property
    def on_demand(self) -> Sequence[str]:
        """The names that its engine loads when asked, or their beginnings and a ``*``."""
        return [*filter(None, map(str.strip, self.labels.get(ON_DEMAND_LABEL, "").split(",")))]

    @property
    def drains(self) -> bool:
        """Whether it finishes what it has, and gets nothing new."""
        return self.labels.get(DRAIN_LABEL, "").lower() == "true"

    @property
    def pulls(self) -> bool:
        """Whether it and its peers pull KV from each other. A rank can't: pulls name an address."""
        return self.labels.get(PULL_LABEL, "").lower() == "true" and self.rank is None

    @property
    def takes_requests(self) -> bool:
        """Whether clients' requests may be sent here; an endpoint without a role takes any."""
        return self.role not in _FOR_OTHERS and not self.drains


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The names that an endpoint reports.

    Args:
        weights: names of full models, each with the source from which it was loaded.
        adapters: names of loaded LoRA adapters, each with the model it belongs to.
        generates: whether it generates text; None when unknown.
        stated: longest prompt and answer together by name, or of any if the name is empty; each
            after its rank, the better the lower.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    generates: bool | None = None
    stated: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def window(self, name: str) -> int | None:
        """Return the window of a name in tokens; None when unknown."""
        said = self.says(name)
        return said and said[1]

    def says(self, name: str) -> tuple[int, int] | None:
        """Return what is stated of a name: itself, its base, or all names."""
        said = self.stated
        others = [n for n in said if n not in ("", name) and goes_by(n, (name,))]
        others = others if len(others) == 1 else []  # which of several is unknown
        if name not in self.weights and name not in self.adapters and len(self.weights) == 1:
            others += self.weights  # an engine that takes any name
        own = name if name in said else self.adapters.get(name, "")
        return min((said[known] for known in (own, "", *others) if known in said), default=None)


@dataclass(slots=True)
class Membership:
    """What is known about the endpoints; `specs` merges it and drops removed addresses.

    Args:
        sources: the endpoints of each source, by address.
        served: the names that endpoints report, by address.
        ranks: the number of data-parallel ranks, by address.
        withheld: pairs of an address and a model that it lists but does not have.
        aliases: aliases of models: endpoints may not use these names for adapters.
    """

    sources: dict[str, dict[str, EndpointSpec]] = field(default_factory=dict)
    served: dict[str, Served] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    withheld: set[tuple[str, str]] = field(default_factory=set)
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def specs(self) -> dict[str, EndpointSpec]:
        """Return all endpoints by key, each with all its names."""
        found: dict[str, EndpointSpec] = {}
        for known in self.sources.values():
            for address, spec in known.items():
                first = found.setdefault(address, spec)
                if first is not spec:
                    found[address] = _in_pools_of(first, spec)
        configured = dict.fromkeys(self.aliases, "")
        for spec in found.values():
            for name in spec.models:
                configured.setdefault(name, spec.models[0])
        self.served = {a: said for a, said in self.served.items() if a in found}
        names = {n for a, said in self.served.items() for n in _own_names(found[a], said)}
        for address, said in self.served.items():
            spec = found[address]
            found[address] = _as_served(spec, said, configured, names.difference(spec.models))
        self.withheld = {
            (a, name) for a, name in self.withheld if a in found and name in found[a].models[1:]
        }
        for address, withheld in self.withheld:
            models = tuple(name for name in found[address].models if name != withheld)
            found[address] = replace(found[address], models=models)
        self.ranks = {a: ranks for a, ranks in self.ranks.items() if a in found and ranks > 1}
        if not self.ranks:
            return found
        ranked: dict[str, EndpointSpec] = {}
        for address, spec in found.items():
            ranks = range(self.ranks[address]) if address in self.ranks else (None,)
            ranked |= {key_of(address, rank): replace(spec, rank=rank) for rank in ranks}
        return ranked


def _in_pools_of(first: EndpointSpec, other: EndpointSpec) -> EndpointSpec:
    pools = sorted({*first.pools, *other.pools})
    if not pools or pools == first.pools:
        return first
    return replace(first, labels={**first.labels, POOL_LABEL: ",".join(pools)})


def _own_names(spec: EndpointSpec, served: Served) -> Sequence[str]:
    """Return the names of an endpoint's model: its own, and those that share its source."""
    root = served.weights.get(spec.models[0])
    return [spec.models[0], *(n for n, other in served.weights.items() if root and other == root)]


def _as_served(
    spec: EndpointSpec, served: Served, configured: Mapping[str, str], taken: Set[str]
) -> EndpointSpec:
    """Return the endpoint with its adapters and its model's other names added.

    An endpoint cannot claim a name that the configuration gives to another model, and its adapters
    cannot have a name in `taken`: endpoints list those names for full models.
    """
    own, same = spec.models[0], _own_names(spec, served)
    adapters = [n for n, parent in served.adapters.items() if parent in same and n not in taken]
    free = [name for name in (*same, *adapters) if configured.get(name, own) == own]
    models = tuple(dict.fromkeys((*spec.models, *free)))
    window = spec.max_model_len or served.window(own)
    windows = {} if spec.max_model_len else {name: served.window(name) for name in models}
    return replace(
        spec,
        models=models,
        adapters=frozenset(adapters).intersection(free),
        aliases=tuple(name for name in same if configured.get(name) == "" and name not in models),
        same_weights=tuple(name for name in models if name in same),
        generates=served.generates is not False,
        max_model_len=window,
        windows={name: tokens for name, tokens in windows.items() if tokens != window},
    )


def goes_by(name: str, known: Iterable[str]) -> bool:
    """Return whether an answer's model name is a known name or a variant of one.

    Engines may give the path that the model was loaded from, or append a date or version.
    """
    own = _last_part(name)
    for other in map(_last_part, known):
        short, long = sorted((own, other), key=len)
        if long.startswith(short) and (short == long or long[len(short)] in _SEPARATORS):
            return bool(short)
    return False


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].casefold()

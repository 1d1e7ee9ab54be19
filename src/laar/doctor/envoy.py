"""Is this Envoy configured for a picker? Each fault as a place, a value and the value it needs.

Works on Envoy's configuration as JSON, from its admin port or from a bootstrap, so that it reads
Envoys that others have configured as well. Every fault knows how to be put right in place; applying
all of them is the corrected bootstrap. Limits and time-outs are those of `laar envoy`; reasons are
in docs of `laar.envoy.bootstrap`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from laar.doctor.findings import Finding, Level
from laar.envoy import BootstrapOptions
from laar.envoy.bootstrap import MESSAGE_TIMEOUT_S, RETRIED, RETRY_ON
from laar.protocol.agreed import ATTEMPTED, DETAILS, PICKING_SERVICE
from laar.protocol.headers import attributes_read

__all__ = [
    "DECISION_MARGIN_S",
    "Fault",
    "Needs",
    "configuration",
    "envoy_findings",
    "faults",
    "fixed",
]

Json = dict[str, Any]

_RENDERED = BootstrapOptions()
_DESTINATION = "x-gateway-destination-endpoint"
_NAMESPACES = ("envoy.lb", "envoy.lb.subset_hint")
DECISION_MARGIN_S = 10.0
"""What the picker may take beyond the longest hold of its queue."""

_POLICIES = "type.googleapis.com/envoy.extensions.load_balancing_policies"
_HEALTH_CHECK: Json = {
    "timeout": "1.5s",
    "interval": "0.25s",
    "no_traffic_interval": "0.25s",
    "unhealthy_threshold": 1,
    "healthy_threshold": 1,
    "grpc_health_check": {"service_name": PICKING_SERVICE},
}
_LONGEST_HANG_S = 10.0
_MIN_IN_FLIGHT = 10_000
_IN_FLIGHT = 100_000
_BREAKERS = ("max_connections", "max_pending_requests", "max_requests")
_BREAKER_DEFAULT = 1024
_MIN_ROUTE_S = 600.0
_DEFAULT_BUFFER_BYTES = 1 << 20
_DEFAULT_MESSAGE_TIMEOUT_S = 0.2
_DEFAULT_ROUTE_TIMEOUT_S = 15.0
_DEFAULT_IDLE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the picker's settings ask of Envoy.

    Args:
        max_body_bytes: longest request body.
        tenant_header: that flow control reads.
        message_timeout_s: least time Envoy has to wait for an answer of the picker that asks it to.
        request_timeout_s: time for a whole exchange that a fix writes.
    """

    max_body_bytes: int = _RENDERED.max_body_bytes
    tenant_header: str = _RENDERED.tenant_header
    message_timeout_s: float = _RENDERED.longest_answer_s
    request_timeout_s: float = _RENDERED.request_timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A field that should say something else; `fix` writes it.

    Args:
        level: how bad it is.
        where: name of the listener, filter or cluster.
        field: dotted path below it.
        what: what the present value does.
        holder: the object that has the last part of the path as a key.
        wanted: value to write there.
    """

    level: Level
    where: str
    field: str
    what: str
    holder: Json
    wanted: object

    def fix(self) -> None:
        """Writes the wanted value."""
        self.holder[self.field.rpartition(".")[2]] = copy.deepcopy(self.wanted)

    @property
    def finding(self) -> Finding:
        """For the reader."""
        return Finding(
            level=self.level,
            where=f"Envoy {self.where}",
            what=self.what,
            remedy=f"set {self.field}: {_shown(self.wanted)}",
        )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def configuration(document: Json) -> Json:
    """Listeners, clusters and routes of a config dump, or of a bootstrap, in a bootstrap's form."""
    if "configs" not in document:
        return document
    found: Json = {"listeners": [], "clusters": [], "routes": []}
    bootstrap: Json = {}
    for part in document["configs"]:
        kind = str(part.get("@type", ""))
        if kind.endswith("BootstrapConfigDump"):
            bootstrap = part.get("bootstrap", {})
        for entry in part.get("dynamic_listeners", ()):
            found["listeners"].append(entry.get("active_state", {}).get("listener", {}))
        for entry in part.get("dynamic_active_clusters", ()):
            found["clusters"].append(entry.get("cluster", {}))
        for entry in part.get("dynamic_route_configs", ()):
            found["routes"].append(entry.get("route_config", {}))
    static = bootstrap.setdefault("static_resources", {})
    for name in ("listeners", "clusters"):
        static[name] = [*static.get(name, ()), *found[name]]
    bootstrap["_routes"] = found["routes"]
    return bootstrap


def envoy_findings(document: Json, needs: Needs) -> list[Finding]:
    """What is wrong with a configuration; one word of praise when nothing is."""
    config = configuration(copy.deepcopy(document))
    if not any(True for _ in _processors(config)):
        return [
            Finding(
                level=Level.ERROR,
                where="Envoy",
                what="no ext_proc filter: requests do not reach the picker",
                remedy="start from `laar envoy --shape sidecar|standalone|gateway`",
            )
        ]
    found = [fault.finding for fault in faults(config, needs)]
    return found or [
        Finding(level=Level.OK, where="Envoy", what="modes, limits, time-outs and breakers fit")
    ]


def fixed(document: Json, needs: Needs) -> Json:
    """The bootstrap with every fault put right; of a config dump, its bootstrap."""
    config = configuration(copy.deepcopy(document))
    for fault in faults(config, needs):
        fault.fix()
    config.pop("_routes", None)
    return config


def faults(config: Json, needs: Needs) -> Iterator[Fault]:
    """Every fault of a configuration in a bootstrap's form."""
    clusters = {
        c.get("name", ""): c for c in config.get("static_resources", {}).get("clusters", ())
    }
    for listener, manager, processor in _processors(config):
        name = f"listener {listener.get('name', '?')}"
        yield from _processor_faults(f"{name}, ext_proc", processor, needs)
        yield from _buffer_faults(name, listener, processor, needs)
        picker = processor.get("grpc_service", {}).get("envoy_grpc", {}).get("cluster_name", "")
        if picker in clusters:
            yield from _picker_cluster_faults(f"cluster {picker}", clusters[picker])
        targets = set()
        for route in _routes(manager, config):
            action = route.get("route", {})
            yield from _route_faults(f"{name}, route", action, needs)
            yield from _retry_faults(f"{name}, route", action)
            targets.add(action.get("cluster", ""))
        for target in sorted(targets & clusters.keys()):
            yield from _endpoints_faults(f"cluster {target}", clusters[target])


# -- walking -----------------------------------------------------------------------------------


def _processors(config: Json) -> Iterator[tuple[Json, Json, Json]]:
    """Each ext_proc filter, with its connection manager and listener."""
    for listener in config.get("static_resources", {}).get("listeners", ()):
        chains = [*listener.get("filter_chains", ())]
        if "default_filter_chain" in listener:
            chains.append(listener["default_filter_chain"])
        for chain in chains:
            for network_filter in chain.get("filters", ()):
                manager = network_filter.get("typed_config", {})
                for http_filter in manager.get("http_filters", ()):
                    typed = http_filter.get("typed_config", {})
                    if str(typed.get("@type", "")).endswith("ext_proc.v3.ExternalProcessor"):
                        yield listener, manager, typed


def _routes(manager: Json, config: Json) -> Iterator[Json]:
    wanted = manager.get("rds", {}).get("route_config_name")
    tables = [manager.get("route_config", {})]
    tables += [table for table in config.get("_routes", ()) if table.get("name") == wanted]
    for table in tables:
        for host in table.get("virtual_hosts", ()):
            yield from (route for route in host.get("routes", ()) if "route" in route)


def _seconds(value: object, default: float) -> float:
    """A duration as JSON has it (``1.5s``); 0 stands for none, that is for ever."""
    if not isinstance(value, str) or not value.endswith("s"):
        return default
    seconds = float(value[:-1])
    return seconds or float("inf")


def _duration(seconds: float) -> str:
    return f"{seconds:g}s"


# -- rules -------------------------------------------------------------------------------------


def _processor_faults(where: str, processor: Json, needs: Needs) -> Iterator[Fault]:
    def fault(level: Level, field: str, what: str, wanted: object, holder: Json) -> Fault:
        return Fault(level=level, where=where, field=field, what=what, holder=holder, wanted=wanted)

    mode = processor.setdefault("processing_mode", {})
    for field, value, what in _mode_faults(mode):
        yield fault(Level.ERROR, f"processing_mode.{field}", what, value, mode)
    native = mode.get("request_body_mode") != "FULL_DUPLEX_STREAMED"
    if native and mode.get("request_header_mode") == "SKIP":
        known = processor.get("request_attributes", [])
        missing = [name for name in attributes_read(needs.tenant_header) if name not in known]
        if missing:
            what = f"without the headers the picker needs {', '.join(missing)} as attributes"
            yield fault(Level.ERROR, "request_attributes", what, [*known, *missing], processor)
    if native and not processor.get("allow_mode_override"):
        what = "answers can't be sampled, so nothing is learned of first tokens and cached prefixes"
        yield fault(Level.WARNING, "allow_mode_override", what, True, processor)
    if native:  # full duplex has no message time-out
        for level, field, what, wanted in _patience_faults(processor, needs):
            yield fault(level, field, what, wanted, processor)
    known = processor.get("response_attributes", [])
    missing = [name for name in (ATTEMPTED, DETAILS) if name not in known]
    if missing:
        what = "Envoy's own errors pass for an endpoint's, and attempts that failed aren't known"
        yield fault(Level.WARNING, "response_attributes", what, [*known, *missing], processor)
    if not processor.get("failure_mode_allow"):
        what = "a picker that is down fails every request instead of leaving them to Envoy"
        yield fault(Level.WARNING, "failure_mode_allow", what, True, processor)
    for field in ("observability_mode", "disable_immediate_response"):
        if processor.get(field):
            what = "what the picker answers is ignored"
            yield fault(Level.ERROR, field, what, False, processor)
    yield from _namespace_faults(fault, processor)


def _patience_faults(processor: Json, needs: Needs) -> Iterator[tuple[Level, str, str, str]]:
    """How long Envoy waits for the picker: not long, but longer when it is asked to."""
    waits_s = _seconds(processor.get("message_timeout"), _DEFAULT_MESSAGE_TIMEOUT_S)
    if waits_s < MESSAGE_TIMEOUT_S:
        what = f"Envoy gives the picker up after {waits_s:g} s: a busy moment, and it is passed by"
        yield Level.ERROR, "message_timeout", what, _duration(MESSAGE_TIMEOUT_S)
    elif waits_s > _LONGEST_HANG_S:
        what = f"a picker that hangs holds every request for {waits_s:g} s"
        yield Level.WARNING, "message_timeout", what, _duration(MESSAGE_TIMEOUT_S)
    most_s = _seconds(processor.get("max_message_timeout"), 0.0)
    if max(waits_s, most_s) < needs.message_timeout_s:
        what = "Envoy doesn't wait for requests that the picker holds"
        yield Level.ERROR, "max_message_timeout", what, _duration(needs.message_timeout_s)


def _mode_faults(mode: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Fields of the processing mode that fit neither of the two shapes."""
    body = mode.get("request_body_mode", "NONE")
    if body == "FULL_DUPLEX_STREAMED":
        wanted = {"request_trailer_mode": "SEND", "response_trailer_mode": "SEND"}
        wanted["response_body_mode"] = "FULL_DUPLEX_STREAMED"
        what = "full duplex needs bodies and trailers both ways, or requests hang"
    else:
        wanted = {"response_body_mode": "NONE"}
        what = "every chunk of an answer costs a message, and the end of a request is seen late"
    for field, value in wanted.items():
        if mode.get(field, "NONE" if field.endswith("body_mode") else "SKIP") != value:
            yield field, value, what
    if body not in ("FULL_DUPLEX_STREAMED", "BUFFERED"):
        yield "request_body_mode", "BUFFERED", f"the picker never sees a whole body ({body})"
    full = body == "FULL_DUPLEX_STREAMED"  # else attributes may stand for the request's headers
    for field in ("response_header_mode", *(("request_header_mode",) if full else ())):
        if mode.get(field) == "SKIP":
            yield field, "SEND", "the picker needs these headers"


def _namespace_faults(fault: Any, processor: Json) -> Iterator[Fault]:
    options = processor.setdefault("metadata_options", {})
    for direction, wanted, level, what in (
        (
            "forwarding_namespaces",
            _NAMESPACES,
            Level.WARNING,
            "the picker isn't told which endpoint served, nor a gateway's subset",
        ),
        (
            "receiving_namespaces",
            _NAMESPACES[:1],
            Level.WARNING,
            "the picker's metadata is refused",
        ),
    ):
        namespaces = options.setdefault(direction, {})
        known = namespaces.get("untyped", [])
        missing = [name for name in wanted if name not in known]
        if missing:
            field = f"metadata_options.{direction}.untyped"
            yield fault(level, field, what, [*known, *missing], namespaces)


def _buffer_faults(where: str, listener: Json, processor: Json, needs: Needs) -> Iterator[Fault]:
    if processor["processing_mode"].get("request_body_mode") == "FULL_DUPLEX_STREAMED":
        return
    limit = int(listener.get("per_connection_buffer_limit_bytes", _DEFAULT_BUFFER_BYTES))
    if limit < needs.max_body_bytes:
        yield Fault(
            level=Level.ERROR,
            where=where,
            field="per_connection_buffer_limit_bytes",
            what=f"prompts longer than {limit} bytes get 413 (bodies.max_body_bytes is "
            f"{needs.max_body_bytes})",
            holder=listener,
            wanted=needs.max_body_bytes,
        )


def _breaker_faults(where: str, cluster: Json, what: str) -> Iterator[Fault]:
    breakers = cluster.setdefault("circuit_breakers", {})
    thresholds = breakers.get("thresholds") or [{}]
    low = [n for n in _BREAKERS if int(thresholds[0].get(n, _BREAKER_DEFAULT)) < _MIN_IN_FLIGHT]
    if low:
        raised = thresholds[0] | dict.fromkeys(_BREAKERS, _IN_FLIGHT)
        yield Fault(
            level=Level.ERROR,
            where=where,
            field="circuit_breakers.thresholds",
            what=f"{', '.join(low)} below {_MIN_IN_FLIGHT}: {what}",
            holder=breakers,
            wanted=[raised, *thresholds[1:]],
        )


def _picker_cluster_faults(where: str, cluster: Json) -> Iterator[Fault]:
    what = "each request in flight holds a stream to the picker, and those beyond it fail"
    yield from _breaker_faults(where, cluster, what)
    checks = cluster.get("health_checks", [])
    if not any("grpc_health_check" in check for check in checks):
        yield Fault(
            level=Level.WARNING,
            where=where,
            field="health_checks",
            what="Envoy isn't told that a picker leaves, nor finds out that it hangs",
            holder=cluster,
            wanted=[_HEALTH_CHECK],
        )
    common = cluster.setdefault("common_lb_config", {})
    panic = common.get("healthy_panic_threshold")
    if cluster.get("health_checks") and (panic is None or panic.get("value", 0)):
        yield Fault(
            level=Level.WARNING,
            where=where,
            field="common_lb_config.healthy_panic_threshold",
            what="Envoy goes on asking a picker that its health checks have found dead",
            holder=common,
            wanted={"value": 0},
        )


def _route_faults(where: str, action: Json, needs: Needs) -> Iterator[Fault]:
    for field, default, what in (
        ("timeout", _DEFAULT_ROUTE_TIMEOUT_S, "longer answers are cut off"),
        ("idle_timeout", _DEFAULT_IDLE_S, "a long prompt is silent for longer before its answer"),
    ):
        limit_s = _seconds(action.get(field), default)
        if limit_s < _MIN_ROUTE_S:
            yield Fault(
                level=Level.ERROR if field == "timeout" else Level.WARNING,
                where=where,
                field=field,
                what=f"{limit_s:g} s: {what}",
                holder=action,
                wanted=_duration(needs.request_timeout_s),
            )


def _retry_faults(where: str, action: Json) -> Iterator[Fault]:
    causes = str(action.get("retry_policy", {}).get("retry_on", ""))
    if "connect-failure" not in causes:
        yield Fault(
            level=Level.WARNING,
            where=where,
            field="retry_policy",
            what="the fallbacks that the picker names are never tried",
            holder=action,
            wanted={
                "retry_on": RETRY_ON,
                "retriable_status_codes": list(RETRIED),
                "num_retries": _RENDERED.retries,
            },
        )


def _endpoints_faults(where: str, cluster: Json) -> Iterator[Fault]:
    yield from _breaker_faults(where, cluster, "Envoy answers 503 itself beyond it")
    policies = cluster.get("load_balancing_policy", {}).get("policies", ())
    typed = [p.get("typed_extension_config", {}).get("typed_config", {}) for p in policies]
    override = next((t for t in typed if str(t.get("@type", "")).endswith("OverrideHost")), None)
    by_header = cluster.get("original_dst_lb_config", {}).get("use_http_header", False)
    if override is None and not by_header:
        cluster.pop("lb_policy", None)
        yield Fault(
            level=Level.ERROR,
            where=where,
            field="load_balancing_policy",
            what=f"nothing reads {_DESTINATION}: the picker's choice is ignored",
            holder=cluster,
            wanted=_override_host(),
        )
    if override is not None and "least_request" in str(override.get("fallback_policy"))[:200]:
        yield Fault(
            level=Level.WARNING,
            where=where,
            field="load_balancing_policy.fallback_policy",
            what="when the picker's list is used up, Envoy asks an endpoint of any other model",
            holder=override,
            wanted=_fallback(),
        )
    if override is not None and not override.get("selected_host_key"):
        yield Fault(
            level=Level.WARNING,
            where=where,
            field="load_balancing_policy.selected_host_key",
            what="the picker isn't told which endpoint served after a retry",
            holder=override,
            wanted=_key(f"{_DESTINATION}-served"),
        )


def _key(name: str) -> Json:
    return {"key": _NAMESPACES[0], "path": [{"key": name}]}


def _fallback() -> Json:
    """Any endpoint where the picker named none, and none where it did."""
    least = {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {"@type": f"{_POLICIES}.least_request.v3.LeastRequest"},
    }
    subset = {
        "@type": f"{_POLICIES}.subset.v3.Subset",
        "fallback_policy": "ANY_ENDPOINT",
        "subset_selectors": [{"keys": [_DESTINATION], "fallback_policy": "NO_FALLBACK"}],
        "allow_redundant_keys": True,
        "subset_lb_policy": {"policies": [{"typed_extension_config": least}]},
    }
    name = "envoy.load_balancing_policies.subset"
    return {"policies": [{"typed_extension_config": {"name": name, "typed_config": subset}}]}


def _override_host() -> Json:
    override = {
        "@type": f"{_POLICIES}.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": _DESTINATION}, {"metadata": _key(_DESTINATION)}],
        "selected_host_key": _key(f"{_DESTINATION}-served"),
        "fallback_policy": _fallback(),
    }
    name = "envoy.load_balancing_policies.override_host"
    return {"policies": [{"typed_extension_config": {"name": name, "typed_config": override}}]}

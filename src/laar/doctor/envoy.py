"""Check whether an Envoy is configured for a picker; each finding gives the value to set.

The input is Envoy's configuration as JSON, from its admin port or a bootstrap; `laar envoy` need
not have rendered it. For each kind of object, a function yields findings, and the caller adds the
object's place. The function is also given laar's `own` object, from a bootstrap for the picker's
settings, to show its values; ``laar/envoy/bootstrap.yaml`` gives the reasons for them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from laar.doctor.findings import Finding, Level, error, fine
from laar.envoy.bootstrap import render
from laar.envoy.options import BootstrapOptions
from laar.protocol.agreed import ANSWERED_BY, LONG_BODIES, NAME_KEY
from laar.protocol.headers import DESTINATION

Json = dict[str, Any]

_LONGEST_HANG_S = 10.0
_MIN_IN_FLIGHT = 10_000
_BREAKERS = ("max_connections", "max_pending_requests", "max_requests")
_BREAKER_DEFAULT = 1024
_MIN_ROUTE_S = 600.0
_DEFAULT_BUFFER_BYTES = 1 << 20
_DEFAULT_MESSAGE_TIMEOUT_S = 0.2
_DEFAULT_ROUTE_TIMEOUT_S = 15.0
_DEFAULT_IDLE_S = 300.0
_FULL_DUPLEX = "FULL_DUPLEX_STREAMED"
_BOTH_WAYS = {
    "request_trailer_mode": "SEND",
    "response_trailer_mode": "SEND",
    "response_body_mode": _FULL_DUPLEX,
}
_LISTS = {
    "request_attributes": "without the headers the picker needs {} as attributes",
    "response_attributes": (
        "Envoy's errors look like an endpoint's, and failed attempts are unknown"
    ),
    "metadata_options.forwarding_namespaces.untyped": (
        "the picker is not told which endpoint served a request, or a gateway's subset"
    ),
    "metadata_options.receiving_namespaces.untyped": "the picker's metadata is rejected",
}
"""Lists of an ext_proc filter, and the effect of missing entries."""
_NOT_REQUIRED = ("xds.", ANSWERED_BY)
"""Attributes that only refine decisions: metadata of laar's routes, and which address answered."""

Check = Callable[[Json, Json], Iterator[Finding]]
"""Yields what is wrong with an object, compared with laar's own of this kind."""


def configuration(document: Json) -> Json:
    """Convert a config dump, in place, to the form of a bootstrap; return a bootstrap unchanged."""
    if "configs" not in document:
        return document
    parts: list[Json] = document["configs"]
    dumps = (part for part in parts if str(part.get("@type", "")).endswith("BootstrapConfigDump"))
    bootstrap: Json = next(dumps, {}).get("bootstrap", {})
    static = bootstrap.setdefault("static_resources", {})
    for name, *path in (
        ("listeners", "dynamic_listeners", "active_state", "listener"),
        ("clusters", "dynamic_active_clusters", "cluster"),
    ):
        static[name] = [*static.get(name, ()), *_received(parts, *path)]
    bootstrap["_routes"] = _received(parts, "dynamic_route_configs", "route_config")
    return bootstrap


def _received(parts: Iterable[Json], kind: str, *path: str) -> list[Json]:
    """Return the objects of a kind that Envoy received by xDS."""
    found = [entry for part in parts for entry in part.get(kind, ())]
    for key in path:
        found = [entry.get(key, {}) for entry in found]
    return found


def envoy_findings(config: Json, options: BootstrapOptions) -> list[Finding]:
    """Return the problems of a `configuration`, or a single finding of level OK.

    The `options` describe the Envoy that laar renders for the picker.
    """
    if not any(True for _ in _processors(config)):
        return [
            error(
                "Envoy",
                "no ext_proc filter: requests do not reach the picker",
                "start with a bootstrap from `laar envoy --shape sidecar|standalone|gateway`",
            )
        ]
    own = {check: subject for _, subject, check in _subjects(render("sidecar", options))}
    found = {
        replace(fault, where=f"Envoy {where}"): None
        for where, subject, check in _subjects(config)
        for fault in check(subject, own[check])
    }  # without duplicates: a listener has many routes, often with the same problems
    return [*found] or [fine("Envoy", "modes, limits, timeouts and breakers are consistent")]


def fails_open(config: Json) -> bool:
    """Return whether requests go on to an endpoint while no picker answers."""
    return any(processor.get("failure_mode_allow") for *_, processor in _processors(config))


def keeps_to_models(config: Json) -> bool:
    """Return whether Envoy then chooses among the endpoints that accept the request's model."""
    return any(
        check is endpoints_faults and selector.get("keys") == [NAME_KEY]
        for _, cluster, check in _subjects(config)
        for policy in (override_of(cluster) or {}).get("fallback_policy", {}).get("policies", ())
        for selector in policy["typed_extension_config"]["typed_config"].get("subset_selectors", ())
    )


def oldest(config: Json) -> tuple[int, int]:
    """Return the oldest version of Envoy for a configuration."""
    native = any(is_native(processor) for *_, processor in _processors(config))
    return (1, 39) if native else (1, 35)  # 1.38 ends the picker's streams at an answer's headers


def host_findings(config: Json, statuses: Iterable[Json]) -> Iterator[Finding]:
    """Yield findings on clusters of pickers or endpoints that have no reachable host.

    Args:
        config: the `configuration`.
        statuses: the ``cluster_statuses`` from Envoy's admin port.
    """
    hosts = {str(status.get("name", "")): status.get("host_statuses", ()) for status in statuses}
    for where, cluster, check in _subjects(config):
        known = hosts.get(cluster.get("name", ""))
        if known is None:
            continue
        fail = (host.get("health_status", {}).get("failed_active_health_check") for host in known)
        if check is picker_faults and all(fail):
            shown = ", ".join(map(_address, known)) or "no address"
            yield error(
                f"Envoy {where}",
                f"no picker answers at {shown}: requests go on without it",
                "write the address of listen.ext_proc there, use TLS only if listen.tls is set, "
                "and make sure that Envoy reaches it",
            )
        if check is endpoints_faults and override_of(cluster) is not None and not known:
            yield error(
                f"Envoy {where}",
                "has no endpoint, so every request fails",
                "if the picker has endpoints, let Envoy read its file (envoy.eds_file)",
            )


def _address(host: Json) -> str:
    address = host.get("address", {}).get("socket_address", {})
    return f"{address.get('address', '?')}:{address.get('port_value', '?')}"


def _subjects(config: Json) -> Iterator[tuple[str, Json, Check]]:
    """Yield the objects to check, with their names and checks."""
    clusters = {
        c.get("name", ""): c for c in config.get("static_resources", {}).get("clusters", ())
    }
    for listener, manager, processor in _processors(config):
        name = f"listener {listener.get('name', '?')}"
        yield f"{name}, ext_proc", processor, processor_faults
        if is_native(processor):
            limit = int(listener.get("per_connection_buffer_limit_bytes", _DEFAULT_BUFFER_BYTES))
            for host in _hosts(_collecting(config, manager), config):
                host = {"request_body_buffer_limit": limit} | host
                yield f"{name}, virtual host", host, host_faults
        picker = processor.get("grpc_service", {}).get("envoy_grpc", {}).get("cluster_name", "")
        if picker in clusters:
            yield f"cluster {picker}", clusters[picker], picker_faults
        targets = set()
        routes = [r for host in _hosts(manager, config) for r in host.get("routes", ())]
        for route in routes:
            action = route.get("route", {})
            if not action or action.get("cluster") == LONG_BODIES:
                continue
            yield f"{name}, route", action, route_faults
            weighted = action.get("weighted_clusters", {}).get("clusters", ())
            targets |= {action.get("cluster", ""), *(each.get("name", "") for each in weighted)}
        for target in sorted(targets & clusters.keys()):
            yield f"cluster {target}", clusters[target], endpoints_faults


# -- walking -----------------------------------------------------------------------------------


def _processors(config: Json) -> Iterator[tuple[Json, Json, Json]]:
    """Yield each ext_proc filter, with its connection manager and listener."""
    for listener in config.get("static_resources", {}).get("listeners", ()):
        if listener.get("name") == LONG_BODIES:
            continue  # the data listener once more
        for chain in (*listener.get("filter_chains", ()), listener.get("default_filter_chain", {})):
            for network_filter in chain.get("filters", ()):
                manager = network_filter.get("typed_config", {})
                for http_filter in manager.get("http_filters", ()):
                    typed = http_filter.get("typed_config", {})
                    if str(typed.get("@type", "")).endswith("ext_proc.v3.ExternalProcessor"):
                        yield listener, manager, typed


def _collecting(config: Json, manager: Json) -> Json:
    """Return the connection manager that collects long bodies."""
    for listener in config.get("static_resources", {}).get("listeners", ()):
        if listener.get("name") == LONG_BODIES:
            found: Json = listener["filter_chains"][0]["filters"][0]["typed_config"]
            return found
    return manager


def _hosts(manager: Json, config: Json) -> Iterator[Json]:
    wanted = manager.get("rds", {}).get("route_config_name")
    tables = [manager.get("route_config", {})]
    tables += [table for table in config.get("_routes", ()) if table.get("name") == wanted]
    for table in tables:
        yield from table.get("virtual_hosts", ())


# -- findings ------------------------------------------------------------------------------------


def _set(level: Level, field: str, effect: str, wanted: object) -> Finding:
    """Return the finding on a wrong field; the caller adds the object's place.

    Args:
        level: severity.
        field: dotted path below the object.
        effect: what the value causes.
        wanted: the value to write instead.
    """
    shown = wanted if isinstance(wanted, str) else json.dumps(wanted)
    return Finding(level=level, where="", what=effect, remedy=f"set {field}: {shown}")


_error, _warning = partial(_set, Level.ERROR), partial(_set, Level.WARNING)


def _seconds(value: object, default: float) -> float:
    """Parse a JSON duration (``1.5s``); 0 means no limit."""
    if not isinstance(value, str) or not value.endswith("s"):
        return default
    return float(value[:-1]) or math.inf


def is_native(processor: Json) -> bool:
    """Return whether the picker receives complete request bodies instead of each chunk."""
    return bool(_mode(processor).get("request_body_mode") != _FULL_DUPLEX)


def override_of(cluster: Json) -> Json | None:
    """Return the cluster's override-host policy; None if it has none."""
    policies = cluster.get("load_balancing_policy", {}).get("policies", ())
    typed = [p.get("typed_extension_config", {}).get("typed_config", {}) for p in policies]
    return next((t for t in typed if str(t.get("@type", "")).endswith("OverrideHost")), None)


# -- the ext_proc filter and its listener --------------------------------------------------------


def processor_faults(processor: Json, own: Json) -> Iterator[Finding]:
    """Yield what is wrong with an ext_proc filter."""
    yield from _modes(processor)
    yield from _timeouts(processor, own)
    yield from _lists(processor, own)
    yield from _switches(processor, own)


def _mode(processor: Json) -> Json:
    return processor.get("processing_mode") or {}


def _modes(processor: Json) -> Iterator[Finding]:
    """Require the parts of the exchange that the picker reads, in a form that it can read."""
    mode = _mode(processor)
    headers = ["response_header_mode"]
    if is_native(processor):  # the request's headers may come as attributes
        body = mode.get("request_body_mode", "NONE")
        if body != "BUFFERED":
            effect = f"the picker never sees a complete body ({body})"
            yield _error("processing_mode.request_body_mode", effect, "BUFFERED")
        if mode.get("response_body_mode", "NONE") not in ("NONE", "STREAMED"):
            effect = "the picker gets answers in a form that it can't read"
            yield _error("processing_mode.response_body_mode", effect, "NONE")
    else:
        headers.append("request_header_mode")
        for field, wanted in _BOTH_WAYS.items():
            if mode.get(field) != wanted:
                effect = "full duplex needs bodies and trailers both ways, or requests hang"
                yield _error(f"processing_mode.{field}", effect, wanted)
    for field in headers:
        if mode.get(field) == "SKIP":
            yield _error(f"processing_mode.{field}", "the picker needs these headers", "SEND")


def _timeouts(processor: Json, own: Json) -> Iterator[Finding]:
    """Require Envoy to wait for an overloaded picker and held requests, but not for a hung picker.

    In full duplex there is no timeout.
    """
    waits_s = math.inf
    if is_native(processor):
        waits_s = _seconds(processor.get("message_timeout"), _DEFAULT_MESSAGE_TIMEOUT_S)
        wanted = own["message_timeout"]
        if waits_s < _seconds(wanted, math.inf):
            effect = f"Envoy gives up on the picker after {waits_s:g} s, so a short overload "
            yield _error("message_timeout", effect + "bypasses it", wanted)
        if waits_s > _LONGEST_HANG_S:
            effect = f"a picker that hangs holds every request for {waits_s:g} s"
            yield _warning("message_timeout", effect, wanted)
    longest_s = max(waits_s, _seconds(processor.get("max_message_timeout"), 0.0))
    if longest_s < _seconds(own["max_message_timeout"], math.inf):
        effect = "Envoy doesn't wait for requests that the picker holds"
        yield _error("max_message_timeout", effect, own["max_message_timeout"])


def _lists(processor: Json, own: Json) -> Iterator[Finding]:
    """Require all needed attributes and metadata, including headers if these are not sent."""
    skipped = is_native(processor) and _mode(processor).get("request_header_mode") == "SKIP"
    for field, effect in _LISTS.items():
        level = Level.ERROR if field == "request_attributes" else Level.WARNING
        known: Any = processor
        wanted: Any = own
        for name in field.split("."):
            known, wanted = known.get(name) or {}, wanted[name]
        missing = [
            name for name in wanted if name not in known and not name.startswith(_NOT_REQUIRED)
        ]
        if missing and (skipped or level is Level.WARNING):
            yield _set(level, field, effect.format(", ".join(missing)), [*known, *missing])


def _switches(processor: Json, own: Json) -> Iterator[Finding]:
    if is_native(processor) and not processor.get("allow_mode_override"):
        effect = "answers can't be sampled, so TTFT and cached prefixes are not learned from them"
        yield _warning("allow_mode_override", effect, True)
    # A filter that laar rendered with `--no-fail-open` fails closed on purpose.
    if (
        not processor.get("failure_mode_allow")
        and processor.get("stat_prefix") != own["stat_prefix"]
    ):
        effect = "if the picker is down, every request fails instead of being routed by Envoy"
        yield _warning("failure_mode_allow", effect, True)
    for field in ("observability_mode", "disable_immediate_response"):
        if processor.get(field):
            yield _error(field, "the picker's answers are ignored", False)


def host_faults(host: Json, own: Json) -> Iterator[Finding]:
    """Yield what is wrong with a virtual host whose complete bodies are sent to the picker."""
    limit, wanted = (int(each["request_body_buffer_limit"]) for each in (host, own))
    if limit < wanted:
        effect = f"prompts longer than {limit} bytes get 413 (bodies.max_body_bytes is {wanted})"
        yield _error("request_body_buffer_limit", effect, wanted)


# -- the picker's cluster ------------------------------------------------------------------------


def picker_faults(cluster: Json, own: Json) -> Iterator[Finding]:
    """Yield what is wrong with the cluster that the ext_proc filter calls."""
    effect = "each request in flight holds a stream to the picker, and requests beyond that fail"
    yield from _breakers(cluster, own, effect)
    yield from _without_http2(cluster, own)
    if not any("grpc_health_check" in check for check in cluster.get("health_checks", [])):
        effect = "Envoy does not notice when a picker stops or hangs"
        yield _warning("health_checks", effect, own["health_checks"])
    panic = cluster.get("common_lb_config", {}).get("healthy_panic_threshold")
    if cluster.get("health_checks") and (panic is None or panic.get("value", 0)):
        effect = "Envoy keeps calling a picker whose health check has failed"
        wanted = own["common_lb_config"]["healthy_panic_threshold"]
        yield _warning("common_lb_config.healthy_panic_threshold", effect, wanted)


def _breakers(cluster: Json, own: Json, effect: str) -> Iterator[Finding]:
    """Require a cluster's circuit breakers to allow enough requests in flight."""
    first, *others = cluster.get("circuit_breakers", {}).get("thresholds") or [{}]
    low = [n for n in _BREAKERS if int(first.get(n, _BREAKER_DEFAULT)) < _MIN_IN_FLIGHT]
    if low:
        limits = own["circuit_breakers"]["thresholds"][0]
        raised = first | {name: limits[name] for name in _BREAKERS}
        effect = f"{', '.join(low)} below {_MIN_IN_FLIGHT}: {effect}"
        yield _error("circuit_breakers.thresholds", effect, [raised, *others])


def _without_http2(cluster: Json, own: Json) -> Iterator[Finding]:
    """Require Envoy to speak HTTP/2 to the picker."""
    options = cluster.get("typed_extension_protocol_options") or {}
    ((key, http2),) = own["typed_extension_protocol_options"].items()
    http2 = http2 | {"explicit_http_config": {"http2_protocol_options": {}}}
    mine = options.get(key) or {}
    ways = [mine.get("explicit_http_config"), mine.get("use_downstream_protocol_config"), cluster]
    if "auto_config" in mine or any("http2_protocol_options" in (way or {}) for way in ways):
        return
    kept = {name: value for name, value in mine.items() if not name.endswith("_config")}
    effect = "every call to the picker fails, since gRPC needs HTTP/2"
    yield _error("typed_extension_protocol_options", effect, {**options, key: {**kept, **http2}})


# -- routes and endpoints ------------------------------------------------------------------------


def route_faults(action: Json, own: Json) -> Iterator[Finding]:
    """Yield what is wrong with a route's action."""
    wanted = own["timeout"]
    limit_s = _seconds(action.get("timeout"), _DEFAULT_ROUTE_TIMEOUT_S)
    if limit_s < _MIN_ROUTE_S:
        yield _error("timeout", f"{limit_s:g} s: longer answers are cut off", wanted)
    limit_s = _seconds(action.get("idle_timeout"), _DEFAULT_IDLE_S)
    if limit_s < _MIN_ROUTE_S:
        effect = f"{limit_s:g} s: answers to long prompts take longer to begin"
        yield _warning("idle_timeout", effect, wanted)
    if "connect-failure" not in str(action.get("retry_policy", {}).get("retry_on", "")):
        names = ("retry_on", "retriable_status_codes", "num_retries")
        policy = {name: own["retry_policy"][name] for name in names}
        effect = "the fallbacks that the picker names are never tried"
        yield _warning("retry_policy", effect, policy)


def endpoints_faults(cluster: Json, own: Json) -> Iterator[Finding]:
    """Yield what is wrong with a cluster of endpoints."""
    yield from _breakers(cluster, own, "requests beyond that get 503")
    override, wanted = override_of(cluster), override_of(own) or {}
    if override is not None:
        if "least_request" in str(override.get("fallback_policy"))[:200]:
            effect = "when the picker's list is exhausted, Envoy tries endpoints of other models"
            fallback = wanted["fallback_policy"]
            yield _warning("load_balancing_policy.fallback_policy", effect, fallback)
        if not override.get("selected_host_key"):
            effect = "the picker does not learn which endpoint served after a retry"
            key = wanted["selected_host_key"]
            yield _warning("load_balancing_policy.selected_host_key", effect, key)
    elif DESTINATION not in str(cluster | {"typed_extension_protocol_options": {}}):
        # Neither ORIGINAL_DST by header nor a subset of this key.
        effect = f"nothing reads {DESTINATION}: the picker's choice is ignored"
        yield _error("load_balancing_policy", effect, own["load_balancing_policy"])
    if missing := [ca for ca in _trusted(own) if ca not in _trusted(cluster)]:
        effect = f"https endpoints with a certificate from {', '.join(missing)} can't be reached"
        yield _error("transport_socket_matches", effect, own["transport_socket_matches"])


def _trusted(cluster: Json) -> dict[str, None]:
    """Return the CAs that a cluster's TLS matches accept."""
    matches = [each.get("match", {}) for each in cluster.get("transport_socket_matches", ())]
    return dict.fromkeys(match["ca"] for match in matches if "ca" in match)

"""Check whether an Envoy is configured for a picker; each fault has the value to write.

The input is Envoy's configuration as JSON, from its admin port or a bootstrap; `laar envoy` need
not have rendered it. The checks are in `laar.doctor.envoy_checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from laar.doctor.envoy_checks import (
    Json,
    endpoints_faults,
    is_native,
    listener_faults,
    override_of,
    picker_faults,
    processor_faults,
    route_faults,
)
from laar.doctor.findings import Finding, error, fine
from laar.envoy.bootstrap import render
from laar.envoy.options import BootstrapOptions

Check = Callable[[Json, Json], Iterator[Finding]]
"""Yields the faults of an object, compared with laar's own of this kind."""


def configuration(document: Json) -> Json:
    """Convert a config dump, in place, to the form of a bootstrap; return a bootstrap unchanged."""
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


def envoy_findings(config: Json, options: BootstrapOptions) -> list[Finding]:
    """Return the faults of a `configuration`, or a single finding of level OK.

    The `options` are those of an Envoy that laar renders for the picker.
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
    }  # without duplicates: a listener has many routes, often with the same faults
    return [*found] or [fine("Envoy", "modes, limits, timeouts and breakers fit")]


def fails_open(config: Json) -> bool:
    """Return whether requests go on to an endpoint while no picker answers."""
    return any(processor.get("failure_mode_allow") for *_, processor in _processors(config))


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
                f"no picker answers at {shown}: requests go on without one",
                "write the address of listen.ext_proc there, use TLS only if listen.tls is set, "
                "and make sure that Envoy reaches it",
            )
        if check is endpoints_faults and override_of(cluster) is not None and not known:
            yield error(
                f"Envoy {where}",
                "has no endpoint, so every request fails",
                "let it read the file that the picker writes (envoy.eds_file)",
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
            yield name, listener, listener_faults
        picker = processor.get("grpc_service", {}).get("envoy_grpc", {}).get("cluster_name", "")
        if picker in clusters:
            yield f"cluster {picker}", clusters[picker], picker_faults
        targets = set()
        for route in _routes(manager, config):
            action = route.get("route", {})
            yield f"{name}, route", action, route_faults
            weighted = action.get("weighted_clusters", {}).get("clusters", ())
            targets |= {
                action.get("cluster", ""),
                *(cluster.get("name", "") for cluster in weighted),
            }
        for target in sorted(targets & clusters.keys()):
            yield f"cluster {target}", clusters[target], endpoints_faults


# -- walking -----------------------------------------------------------------------------------


def _processors(config: Json) -> Iterator[tuple[Json, Json, Json]]:
    """Yield each ext_proc filter, with its connection manager and listener."""
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

"""Requirements on Envoy's configuration: one check per field that may be wrong.

A check has a field, the severity of a wrong value, and a judge: a function that returns the effect
of the value and the value to write instead, or None if it is right. Limits and timeouts are those
of `laar envoy`; see `laar.envoy.bootstrap` for the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from laar.doctor.findings import Level
from laar.envoy.clusters import HEALTH_CHECK, fallback, http_options, override_host, tls_matches
from laar.envoy.listeners import STAT_PREFIX
from laar.envoy.options import MESSAGE_TIMEOUT_S, RETRIED, RETRY_ON, BootstrapOptions
from laar.envoy.parts import duration, lb_key
from laar.protocol.agreed import ATTEMPTED, DETAILS, LB_NAMESPACE, SUBSET_NAMESPACE
from laar.protocol.headers import DESTINATION, SERVED, attributes_read

Json = dict[str, Any]

_RENDERED = BootstrapOptions()
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
_FULL_DUPLEX = "FULL_DUPLEX_STREAMED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Requirements on Envoy that follow from the picker's settings.

    Args:
        max_body_bytes: longest request body.
        tenant_header: header that flow control reads.
        message_timeout_s: seconds for which Envoy must be able to wait for a held request.
        request_timeout_s: request timeout that a remedy suggests.
        endpoint_cas: CAs that verify https endpoints.
    """

    max_body_bytes: int = _RENDERED.max_body_bytes
    tenant_header: str = _RENDERED.tenant_header
    message_timeout_s: float = _RENDERED.longest_answer_s
    request_timeout_s: float = _RENDERED.request_timeout_s
    endpoint_cas: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong value: its effect, and the value to write instead."""

    effect: str
    wanted: object


Judge = Callable[[Json, Needs], Wrong | None]
"""Returns what is wrong with an object; None if nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One field of an object in Envoy's configuration.

    Args:
        field: dotted path below the object.
        level: severity of a wrong value.
        judge: returns what is wrong with the object; None if nothing is.
        above: path of the object within its parent, for the report.
    """

    field: str
    level: Level
    judge: Judge
    above: str = ""


def _seconds(value: object, default: float) -> float:
    """Parse a JSON duration (``1.5s``); 0 means no limit."""
    if not isinstance(value, str) or not value.endswith("s"):
        return default
    seconds = float(value[:-1])
    return seconds or math.inf


def _error(field: str, judge: Judge) -> Check:
    return Check(field=field, level=Level.ERROR, judge=judge)


def _warning(field: str, judge: Judge) -> Check:
    return Check(field=field, level=Level.WARNING, judge=judge)


def _requires(
    field: str,
    fits: Callable[[Json], object],
    effect: str,
    wanted: object,
    *,
    level: Level = Level.WARNING,
    above: str = "",
) -> Check:
    """Return a check that an object fits."""
    wrong = Wrong(effect, wanted)
    return Check(
        field=field,
        level=level,
        judge=lambda subject, _needs: None if fits(subject) else wrong,
        above=above,
    )


def _lists(
    field: str,
    listed: Callable[[Json], Sequence[str]],
    needed: Callable[[Json, Needs], Sequence[str]],
    effect: str,
    *,
    level: Level = Level.WARNING,
) -> Check:
    """Return a check that a list has all needed names."""

    def judge(subject: Json, needs: Needs) -> Wrong | None:
        known = listed(subject)
        missing = [name for name in needed(subject, needs) if name not in known]
        return Wrong(effect.format(", ".join(missing)), [*known, *missing]) if missing else None

    return Check(field=field, level=level, judge=judge)


def is_native(processor: Json) -> bool:
    """Return whether the picker gets complete request bodies instead of each chunk."""
    return bool(_mode(processor).get("request_body_mode") != _FULL_DUPLEX)


def override_of(cluster: Json) -> Json | None:
    """Return the cluster's override-host policy; None if it has none."""
    policies = cluster.get("load_balancing_policy", {}).get("policies", ())
    typed = [p.get("typed_extension_config", {}).get("typed_config", {}) for p in policies]
    return next((t for t in typed if str(t.get("@type", "")).endswith("OverrideHost")), None)


# -- the ext_proc filter ------------------------------------------------------------------------


def _mode(processor: Json) -> Json:
    return processor.get("processing_mode") or {}


def _mode_is(field: str, *, native: str | None, full_duplex: str | None) -> Check:
    """Require a value for a field of the processing mode, by shape; None allows any."""
    default = "NONE" if field.endswith("body_mode") else "SKIP"
    effects = {
        native: "the picker gets answers in a form that it can't read",
        full_duplex: "full duplex needs bodies and trailers both ways, or requests hang",
    }

    def judge(processor: Json, _needs: Needs) -> Wrong | None:
        wanted, value = full_duplex, _mode(processor).get(field, default)
        if is_native(processor):
            wanted = native
            if field == "response_body_mode" and value == "STREAMED":
                return None  # as in the gateway shape
        if wanted is None or value == wanted:
            return None
        return Wrong(effects[wanted], wanted)

    return _error(f"processing_mode.{field}", judge)


def _complete_body(processor: Json, _needs: Needs) -> Wrong | None:
    """Require complete request bodies to reach the picker."""
    body = _mode(processor).get("request_body_mode", "NONE")
    if body in (_FULL_DUPLEX, "BUFFERED"):
        return None
    return Wrong(f"the picker never sees a complete body ({body})", "BUFFERED")


def _attributes_needed(processor: Json, needs: Needs) -> Sequence[str]:
    """Return the headers to be sent as attributes: all if there are no header messages."""
    skipped = is_native(processor) and _mode(processor).get("request_header_mode") == "SKIP"
    return attributes_read(needs.tenant_header) if skipped else ()


def _waits_long_enough(processor: Json, _needs: Needs) -> Wrong | None:
    """Require Envoy to tolerate a picker that is briefly overloaded."""
    waits_s = _waits_s(processor)
    if waits_s >= MESSAGE_TIMEOUT_S:
        return None
    effect = f"Envoy gives up on the picker after {waits_s:g} s, so a short overload bypasses it"
    return Wrong(effect, duration(MESSAGE_TIMEOUT_S))


def _gives_up_in_time(processor: Json, _needs: Needs) -> Wrong | None:
    """Require Envoy to give up on a picker that hangs."""
    waits_s = _waits_s(processor)
    if not is_native(processor) or waits_s <= _LONGEST_HANG_S:
        return None
    effect = f"a picker that hangs holds every request for {waits_s:g} s"
    return Wrong(effect, duration(MESSAGE_TIMEOUT_S))


def _waits_for_held(processor: Json, needs: Needs) -> Wrong | None:
    """Require Envoy to wait for requests held in the picker's queue."""
    most_s = max(_waits_s(processor), _seconds(processor.get("max_message_timeout"), 0.0))
    if most_s >= needs.message_timeout_s:
        return None
    effect = "Envoy doesn't wait for requests that the picker holds"
    return Wrong(effect, duration(needs.message_timeout_s))


def _waits_s(processor: Json) -> float:
    """Return the seconds that Envoy waits for the picker; infinite in full duplex."""
    if not is_native(processor):
        return float("inf")
    return _seconds(processor.get("message_timeout"), _DEFAULT_MESSAGE_TIMEOUT_S)


def _namespaces(processor: Json, direction: str) -> Sequence[str]:
    options = processor.get("metadata_options") or {}
    found: Sequence[str] = options.get(direction, {}).get("untyped", [])
    return found


def _is_off(field: str) -> Check:
    return _requires(
        field,
        lambda p: not p.get(field),
        "the picker's answers are ignored",
        False,
        level=Level.ERROR,
    )


_NO_HEADERS = "the picker needs these headers"

PROCESSOR = (
    _mode_is("request_trailer_mode", native=None, full_duplex="SEND"),
    _mode_is("response_trailer_mode", native=None, full_duplex="SEND"),
    _mode_is("response_body_mode", native="NONE", full_duplex=_FULL_DUPLEX),
    _error("processing_mode.request_body_mode", _complete_body),
    _requires(
        "processing_mode.response_header_mode",
        lambda p: _mode(p).get("response_header_mode") != "SKIP",
        _NO_HEADERS,
        "SEND",
        level=Level.ERROR,
    ),
    # In native mode the headers may come as attributes.
    _requires(
        "processing_mode.request_header_mode",
        lambda p: is_native(p) or _mode(p).get("request_header_mode") != "SKIP",
        _NO_HEADERS,
        "SEND",
        level=Level.ERROR,
    ),
    _lists(
        "request_attributes",
        lambda p: p.get("request_attributes", []),
        _attributes_needed,
        "without the headers the picker needs {} as attributes",
        level=Level.ERROR,
    ),
    _requires(
        "allow_mode_override",
        lambda p: p.get("allow_mode_override") or not is_native(p),
        "answers can't be sampled, so TTFT and cached prefixes are not learned from them",
        True,
    ),
    _error("message_timeout", _waits_long_enough),
    _warning("message_timeout", _gives_up_in_time),
    _error("max_message_timeout", _waits_for_held),
    _lists(
        "response_attributes",
        lambda p: p.get("response_attributes", []),
        lambda _processor, _needs: (ATTEMPTED, DETAILS),
        "Envoy's errors look like an endpoint's, and failed attempts are unknown",
    ),
    # A filter that laar rendered with `--no-fail-open` is to fail closed.
    _requires(
        "failure_mode_allow",
        lambda p: p.get("failure_mode_allow") or p.get("stat_prefix") == STAT_PREFIX,
        "if the picker is down, every request fails instead of being routed by Envoy",
        True,
    ),
    _is_off("observability_mode"),
    _is_off("disable_immediate_response"),
    _lists(
        "metadata_options.forwarding_namespaces.untyped",
        lambda p: _namespaces(p, "forwarding_namespaces"),
        lambda _processor, _needs: (LB_NAMESPACE, SUBSET_NAMESPACE),
        "the picker learns neither which endpoint served nor a gateway's subset",
    ),
    _lists(
        "metadata_options.receiving_namespaces.untyped",
        lambda p: _namespaces(p, "receiving_namespaces"),
        lambda _processor, _needs: (LB_NAMESPACE,),
        "the picker's metadata is rejected",
    ),
)
"""Checks of the ext_proc filter."""


# -- its listener --------------------------------------------------------------------------------


def _buffers_bodies(listener: Json, needs: Needs) -> Wrong | None:
    """Require Envoy to buffer the longest body that the picker accepts."""
    limit = int(listener.get("per_connection_buffer_limit_bytes", _DEFAULT_BUFFER_BYTES))
    if limit >= needs.max_body_bytes:
        return None
    effect = f"prompts longer than {limit} bytes get 413 "
    effect += f"(bodies.max_body_bytes is {needs.max_body_bytes})"
    return Wrong(effect, needs.max_body_bytes)


NATIVE_LISTENER = (_error("per_connection_buffer_limit_bytes", _buffers_bodies),)
"""Checks of a listener that sends complete bodies to the picker."""


# -- the picker's cluster ------------------------------------------------------------------------


def _breakers(effect: str) -> Check:
    """Require the cluster's circuit breakers to allow enough requests in flight."""

    def judge(cluster: Json, _needs: Needs) -> Wrong | None:
        first, *others = cluster.get("circuit_breakers", {}).get("thresholds") or [{}]
        low = [n for n in _BREAKERS if int(first.get(n, _BREAKER_DEFAULT)) < _MIN_IN_FLIGHT]
        if not low:
            return None
        raised = first | dict.fromkeys(_BREAKERS, _IN_FLIGHT)
        return Wrong(f"{', '.join(low)} below {_MIN_IN_FLIGHT}: {effect}", [raised, *others])

    return _error("circuit_breakers.thresholds", judge)


def _speaks_http2(cluster: Json, _needs: Needs) -> Wrong | None:
    """Require Envoy to speak HTTP/2 to the picker."""
    options = cluster.get("typed_extension_protocol_options") or {}
    ((key, http2),) = http_options(explicit_http_config={"http2_protocol_options": {}}).items()
    mine = options.get(key) or {}
    ways = [mine.get("explicit_http_config"), mine.get("use_downstream_protocol_config"), cluster]
    if "auto_config" in mine or any("http2_protocol_options" in (way or {}) for way in ways):
        return None
    kept = {name: value for name, value in mine.items() if not name.endswith("_config")}
    wanted = {**options, key: {**kept, **http2}}
    return Wrong("every call to the picker fails, since gRPC needs HTTP/2", wanted)


def _leaves_dead_picker(cluster: Json) -> bool:
    panic = cluster.get("common_lb_config", {}).get("healthy_panic_threshold")
    return not cluster.get("health_checks") or (panic is not None and not panic.get("value", 0))


PICKER_CLUSTER = (
    _breakers("each request in flight holds a stream to the picker; those above it fail"),
    _error("typed_extension_protocol_options", _speaks_http2),
    _requires(
        "health_checks",
        lambda cluster: any("grpc_health_check" in c for c in cluster.get("health_checks", [])),
        "Envoy does not notice that a picker stops or hangs",
        [HEALTH_CHECK],
    ),
    _requires(
        "common_lb_config.healthy_panic_threshold",
        _leaves_dead_picker,
        "Envoy keeps calling a picker whose health check has failed",
        {"value": 0},
    ),
)
"""Checks of the cluster that the ext_proc filter calls."""


# -- routes and endpoints ------------------------------------------------------------------------


def _lasts(field: str, default_s: float, effect: str) -> Judge:
    """Require a route's timeout to leave time for a complete answer."""

    def judge(action: Json, needs: Needs) -> Wrong | None:
        limit_s = _seconds(action.get(field), default_s)
        if limit_s >= _MIN_ROUTE_S:
            return None
        return Wrong(f"{limit_s:g} s: {effect}", duration(needs.request_timeout_s))

    return judge


ROUTE = (
    _error("timeout", _lasts("timeout", _DEFAULT_ROUTE_TIMEOUT_S, "longer answers are cut off")),
    _warning(
        "idle_timeout",
        _lasts("idle_timeout", _DEFAULT_IDLE_S, "answers to long prompts take longer to begin"),
    ),
    _requires(
        "retry_policy",
        lambda a: "connect-failure" in str(a.get("retry_policy", {}).get("retry_on", "")),
        "the fallbacks that the picker names are never tried",
        {
            "retry_on": RETRY_ON,
            "retriable_status_codes": list(RETRIED),
            "num_retries": _RENDERED.retries,
        },
    ),
)
"""Checks of a route's action."""


def _follows_picker(cluster: Json) -> bool:
    by_header = cluster.get("original_dst_lb_config", {}).get("use_http_header", False)
    return by_header or override_of(cluster) is not None


def _verifies_endpoints(cluster: Json, needs: Needs) -> Wrong | None:
    """Require every https endpoint to be verified with its CA."""
    matches = cluster.get("transport_socket_matches", ())
    known = {match.get("match", {}).get("ca") for match in matches}
    missing = [ca for ca in needs.endpoint_cas if ca not in known]
    if not missing:
        return None
    effect = f"https endpoints with a certificate from {', '.join(missing)} can't be reached"
    return Wrong(effect, tls_matches(needs.endpoint_cas))


ENDPOINTS = (
    _breakers("Envoy answers 503 above it"),
    _requires(
        "load_balancing_policy",
        _follows_picker,
        f"nothing reads {DESTINATION}: the picker's choice is ignored",
        override_host(),
        level=Level.ERROR,
    ),
    _error("transport_socket_matches", _verifies_endpoints),
)
"""Checks of a cluster of endpoints."""

OVERRIDE_HOST = (
    _requires(
        "fallback_policy",
        lambda override: "least_request" not in str(override.get("fallback_policy"))[:200],
        "when the picker's list is exhausted, Envoy tries endpoints of other models",
        fallback(),
        above="load_balancing_policy.",
    ),
    _requires(
        "selected_host_key",
        lambda override: override.get("selected_host_key"),
        "the picker does not learn which endpoint served after a retry",
        lb_key(SERVED),
        above="load_balancing_policy.",
    ),
)
"""Checks of the override-host policy of a cluster of endpoints."""

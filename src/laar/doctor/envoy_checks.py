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
from laar.envoy.listeners import DELAYED_CLOSE_S, STAT_PREFIX
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
_DEFAULT_DELAYED_CLOSE_S = 1.0
_DEFAULT_ROUTE_TIMEOUT_S = 15.0
_DEFAULT_IDLE_S = 300.0
_FULL_DUPLEX = "FULL_DUPLEX_STREAMED"
_NAMESPACES = (LB_NAMESPACE, SUBSET_NAMESPACE)
"""Namespaces of the metadata that Envoy and the picker exchange."""


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


PROCESSOR: list[Check] = []
"""Checks of the ext_proc filter."""
MANAGER: list[Check] = []
"""Checks of the connection manager that has the ext_proc filter."""
NATIVE_LISTENER: list[Check] = []
"""Checks of a listener that sends complete bodies to the picker."""
PICKER_CLUSTER: list[Check] = []
"""Checks of the cluster that the ext_proc filter calls."""
ROUTE: list[Check] = []
"""Checks of a route's action."""
ENDPOINTS: list[Check] = []
"""Checks of a cluster of endpoints."""
OVERRIDE_HOST: list[Check] = []
"""Checks of the override-host policy of a cluster of endpoints."""


def _error(checks: list[Check], field: str, **more: Any) -> Callable[[Judge], Judge]:
    return _check(checks, field, Level.ERROR, **more)


def _warning(checks: list[Check], field: str, **more: Any) -> Callable[[Judge], Judge]:
    return _check(checks, field, Level.WARNING, **more)


def _check(checks: list[Check], field: str, level: Level, **more: Any) -> Callable[[Judge], Judge]:
    """Return a decorator that appends its judge to the checks."""

    def add(judge: Judge) -> Judge:
        checks.append(Check(field=field, level=level, judge=judge, **more))
        return judge

    return add


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


def _mode_is(field: str, *, native: str | None, full_duplex: str | None) -> Judge:
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

    return judge


for _field, _native, _full_duplex in (
    ("request_trailer_mode", None, "SEND"),
    ("response_trailer_mode", None, "SEND"),
    ("response_body_mode", "NONE", _FULL_DUPLEX),
):
    _error(PROCESSOR, f"processing_mode.{_field}")(
        _mode_is(_field, native=_native, full_duplex=_full_duplex)
    )


@_error(PROCESSOR, "processing_mode.request_body_mode")
def _complete_body(processor: Json, _needs: Needs) -> Wrong | None:
    """Require complete request bodies to reach the picker."""
    body = _mode(processor).get("request_body_mode", "NONE")
    if body in (_FULL_DUPLEX, "BUFFERED"):
        return None
    return Wrong(f"the picker never sees a complete body ({body})", "BUFFERED")


@_error(PROCESSOR, "processing_mode.response_header_mode")
def _response_headers(processor: Json, _needs: Needs) -> Wrong | None:
    """Require the response headers to reach the picker."""
    return _headers_sent(processor, "response_header_mode")


@_error(PROCESSOR, "processing_mode.request_header_mode")
def _request_headers(processor: Json, _needs: Needs) -> Wrong | None:
    """Require request headers to reach the picker as a message, or natively as attributes."""
    return None if is_native(processor) else _headers_sent(processor, "request_header_mode")


def _headers_sent(processor: Json, field: str) -> Wrong | None:
    skipped = _mode(processor).get(field) == "SKIP"
    return Wrong("the picker needs these headers", "SEND") if skipped else None


@_error(PROCESSOR, "request_attributes")
def _request_attributes(processor: Json, needs: Needs) -> Wrong | None:
    """Require the headers as attributes if there are no header messages."""
    if not is_native(processor) or _mode(processor).get("request_header_mode") != "SKIP":
        return None
    known = processor.get("request_attributes", [])
    effect = "without the headers the picker needs {} as attributes"
    return _has_all(known, attributes_read(needs.tenant_header), effect)


def _has_all(known: Sequence[str], needed: Sequence[str], effect: str) -> Wrong | None:
    missing = [name for name in needed if name not in known]
    return Wrong(effect.format(", ".join(missing)), [*known, *missing]) if missing else None


@_warning(PROCESSOR, "allow_mode_override")
def _overrides_mode(processor: Json, _needs: Needs) -> Wrong | None:
    """Require that the picker can sample answers in native mode."""
    if processor.get("allow_mode_override") or not is_native(processor):
        return None
    effect = "answers can't be sampled, so TTFT and cached prefixes are not learned from them"
    return Wrong(effect, True)


@_error(PROCESSOR, "message_timeout")
def _waits_long_enough(processor: Json, _needs: Needs) -> Wrong | None:
    """Require Envoy to tolerate a picker that is briefly overloaded."""
    waits_s = _waits_s(processor)
    if waits_s >= MESSAGE_TIMEOUT_S:
        return None
    effect = f"Envoy gives up on the picker after {waits_s:g} s, so a short overload bypasses it"
    return Wrong(effect, duration(MESSAGE_TIMEOUT_S))


@_warning(PROCESSOR, "message_timeout")
def _gives_up_in_time(processor: Json, _needs: Needs) -> Wrong | None:
    """Require Envoy to give up on a picker that hangs."""
    waits_s = _waits_s(processor)
    if not is_native(processor) or waits_s <= _LONGEST_HANG_S:
        return None
    effect = f"a picker that hangs holds every request for {waits_s:g} s"
    return Wrong(effect, duration(MESSAGE_TIMEOUT_S))


@_error(PROCESSOR, "max_message_timeout")
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


@_warning(PROCESSOR, "response_attributes")
def _response_attributes(processor: Json, _needs: Needs) -> Wrong | None:
    """Require the picker to learn where an error comes from and which attempts failed."""
    known = processor.get("response_attributes", [])
    effect = "Envoy's errors look like an endpoint's, and failed attempts are unknown"
    return _has_all(known, (ATTEMPTED, DETAILS), effect)


@_warning(PROCESSOR, "failure_mode_allow")
def _fails_open(processor: Json, _needs: Needs) -> Wrong | None:
    """Require requests to pass without a picker, unless rendered with `--no-fail-open`."""
    if processor.get("failure_mode_allow") or processor.get("stat_prefix") == STAT_PREFIX:
        return None
    effect = "if the picker is down, every request fails instead of being routed by Envoy"
    return Wrong(effect, True)


def _is_off(field: str) -> Judge:
    """Return a judge that requires a field to be unset or false."""
    wrong = Wrong("the picker's answers are ignored", False)
    return lambda processor, _needs: wrong if processor.get(field) else None


for _field in ("observability_mode", "disable_immediate_response"):
    _error(PROCESSOR, _field)(_is_off(_field))


@_warning(PROCESSOR, "metadata_options.forwarding_namespaces.untyped")
def _forwards_metadata(processor: Json, _needs: Needs) -> Wrong | None:
    """Require the picker to get the metadata that Envoy and a gateway set."""
    effect = "the picker learns neither which endpoint served nor a gateway's subset"
    return _namespaces(processor, "forwarding_namespaces", _NAMESPACES, effect)


@_warning(PROCESSOR, "metadata_options.receiving_namespaces.untyped")
def _takes_metadata(processor: Json, _needs: Needs) -> Wrong | None:
    """Require Envoy to accept the metadata that the picker sets."""
    effect = "the picker's metadata is rejected"
    return _namespaces(processor, "receiving_namespaces", _NAMESPACES[:1], effect)


def _namespaces(
    processor: Json, direction: str, needed: Sequence[str], effect: str
) -> Wrong | None:
    options = processor.get("metadata_options") or {}
    return _has_all(options.get(direction, {}).get("untyped", []), needed, effect)


# -- its manager and listener --------------------------------------------------------------------


@_warning(MANAGER, "delayed_close_timeout")
def _breaks_off_at_once(manager: Json, _: Needs) -> Wrong | None:
    """Require clients to be told promptly that an answer was cut off."""
    delay_s = _seconds(manager.get("delayed_close_timeout"), _DEFAULT_DELAYED_CLOSE_S)
    if not _DEFAULT_DELAYED_CLOSE_S <= delay_s < math.inf:  # 0 means no delay
        return None
    wanted = DELAYED_CLOSE_S
    return Wrong("clients learn only after this time that an answer was cut off", duration(wanted))


@_error(NATIVE_LISTENER, "per_connection_buffer_limit_bytes")
def _buffers_bodies(listener: Json, needs: Needs) -> Wrong | None:
    """Require Envoy to buffer the longest body that the picker accepts."""
    limit = int(listener.get("per_connection_buffer_limit_bytes", _DEFAULT_BUFFER_BYTES))
    if limit >= needs.max_body_bytes:
        return None
    effect = f"prompts longer than {limit} bytes get 413 "
    effect += f"(bodies.max_body_bytes is {needs.max_body_bytes})"
    return Wrong(effect, needs.max_body_bytes)


# -- the picker's cluster ------------------------------------------------------------------------


def _breakers(effect: str) -> Judge:
    """Require the cluster's circuit breakers to allow enough requests in flight."""

    def judge(cluster: Json, _needs: Needs) -> Wrong | None:
        first, *others = cluster.get("circuit_breakers", {}).get("thresholds") or [{}]
        low = [n for n in _BREAKERS if int(first.get(n, _BREAKER_DEFAULT)) < _MIN_IN_FLIGHT]
        if not low:
            return None
        raised = first | dict.fromkeys(_BREAKERS, _IN_FLIGHT)
        return Wrong(f"{', '.join(low)} below {_MIN_IN_FLIGHT}: {effect}", [raised, *others])

    return judge


_error(PICKER_CLUSTER, "circuit_breakers.thresholds")(
    _breakers("each request in flight holds a stream to the picker; those above it fail")
)
_error(ENDPOINTS, "circuit_breakers.thresholds")(_breakers("Envoy answers 503 above it"))


@_error(PICKER_CLUSTER, "typed_extension_protocol_options")
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


@_warning(PICKER_CLUSTER, "health_checks")
def _checks_picker(cluster: Json, _needs: Needs) -> Wrong | None:
    """Require Envoy to check the picker's health."""
    if any("grpc_health_check" in check for check in cluster.get("health_checks", [])):
        return None
    effect = "Envoy does not notice that a picker stops or hangs"
    return Wrong(effect, [HEALTH_CHECK])


@_warning(PICKER_CLUSTER, "common_lb_config.healthy_panic_threshold")
def _leaves_dead_picker(cluster: Json, _needs: Needs) -> Wrong | None:
    """Require Envoy to send nothing to a picker whose health check fails."""
    panic = cluster.get("common_lb_config", {}).get("healthy_panic_threshold")
    if not cluster.get("health_checks") or (panic is not None and not panic.get("value", 0)):
        return None
    effect = "Envoy keeps calling a picker whose health check has failed"
    return Wrong(effect, {"value": 0})


# -- routes and endpoints ------------------------------------------------------------------------


def _lasts(field: str, default_s: float, effect: str) -> Judge:
    """Require a route's timeout to leave time for a complete answer."""

    def judge(action: Json, needs: Needs) -> Wrong | None:
        limit_s = _seconds(action.get(field), default_s)
        if limit_s >= _MIN_ROUTE_S:
            return None
        return Wrong(f"{limit_s:g} s: {effect}", duration(needs.request_timeout_s))

    return judge


_error(ROUTE, "timeout")(_lasts("timeout", _DEFAULT_ROUTE_TIMEOUT_S, "longer answers are cut off"))
_warning(ROUTE, "idle_timeout")(
    _lasts("idle_timeout", _DEFAULT_IDLE_S, "answers to long prompts take longer to begin")
)


@_warning(ROUTE, "retry_policy")
def _retries(action: Json, _needs: Needs) -> Wrong | None:
    """Require the route to try the fallbacks that the picker names."""
    if "connect-failure" in str(action.get("retry_policy", {}).get("retry_on", "")):
        return None
    return Wrong(
        "the fallbacks that the picker names are never tried",
        {
            "retry_on": RETRY_ON,
            "retriable_status_codes": list(RETRIED),
            "num_retries": _RENDERED.retries,
        },
    )


@_error(ENDPOINTS, "load_balancing_policy")
def _follows_picker(cluster: Json, _needs: Needs) -> Wrong | None:
    """Require the cluster to follow the picker's choice."""
    by_header = cluster.get("original_dst_lb_config", {}).get("use_http_header", False)
    if override_of(cluster) is not None or by_header:
        return None
    return Wrong(f"nothing reads {DESTINATION}: the picker's choice is ignored", override_host())


@_error(ENDPOINTS, "transport_socket_matches")
def _verifies_endpoints(cluster: Json, needs: Needs) -> Wrong | None:
    """Require every https endpoint to be verified with its CA."""
    matches = cluster.get("transport_socket_matches", ())
    known = {match.get("match", {}).get("ca") for match in matches}
    missing = [ca for ca in needs.endpoint_cas if ca not in known]
    if not missing:
        return None
    effect = f"https endpoints with a certificate from {', '.join(missing)} can't be reached"
    return Wrong(effect, tls_matches(needs.endpoint_cas))


@_warning(OVERRIDE_HOST, "fallback_policy", above="load_balancing_policy.")
def _falls_back_rightly(override: Json, _needs: Needs) -> Wrong | None:
    """Require that Envoy does not choose another model's endpoint after the picker's list."""
    if "least_request" not in str(override.get("fallback_policy"))[:200]:
        return None
    effect = "when the picker's list is exhausted, Envoy tries endpoints of other models"
    return Wrong(effect, fallback())


@_warning(OVERRIDE_HOST, "selected_host_key", above="load_balancing_policy.")
def _names_server(override: Json, _needs: Needs) -> Wrong | None:
    """Require Envoy to tell the picker which endpoint served a request."""
    if override.get("selected_host_key"):
        return None
    effect = "the picker does not learn which endpoint served after a retry"
    return Wrong(effect, lb_key(SERVED))


def _seconds(value: object, default: float) -> float:
    """Parse a JSON duration (``1.5s``); 0 means no limit."""
    if not isinstance(value, str) or not value.endswith("s"):
        return default
    seconds = float(value[:-1])
    return seconds or math.inf

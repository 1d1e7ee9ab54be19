"""Judgements of Envoy's configuration: the fault of an object, and the value to write.

Limits and time-outs are those of `laar envoy`; `laar.envoy.bootstrap` has the reasons. Which fields
are judged, and how bad a wrong one is, stands in `laar.doctor.envoy_checks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laar.doctor.envoy_values import (
    HEALTH_CHECK,
    HTTP2_OPTIONS,
    PROTOCOL_OPTIONS,
    Json,
    fallback,
    key,
    override_host,
)
from laar.envoy.listeners import DELAYED_CLOSE, STAT_PREFIX
from laar.envoy.options import MESSAGE_TIMEOUT_S, RETRIED, RETRY_ON, BootstrapOptions
from laar.protocol.agreed import ATTEMPTED, DETAILS
from laar.protocol.headers import DESTINATION, SERVED, attributes_read

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
DEFAULT_ROUTE_TIMEOUT_S = 15.0
DEFAULT_IDLE_S = 300.0
FULL_DUPLEX = "FULL_DUPLEX_STREAMED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Requirements of the picker's settings.

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


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong value: its effect, and the value to write instead."""

    effect: str
    wanted: object


Judge = Callable[[Json, Needs], Wrong | None]
"""Returns the fault of an object; None where it fits."""


def is_native(processor: Json) -> bool:
    """Whether the picker gets whole bodies, rather than every chunk."""
    return bool(_mode(processor).get("request_body_mode") != FULL_DUPLEX)


def override_of(cluster: Json) -> Json | None:
    """The settings of the cluster's override-host policy; None without one."""
    policies = cluster.get("load_balancing_policy", {}).get("policies", ())
    typed = [p.get("typed_extension_config", {}).get("typed_config", {}) for p in policies]
    return next((t for t in typed if str(t.get("@type", "")).endswith("OverrideHost")), None)


# -- kinds of judgement ------------------------------------------------------------------------


def _mode(processor: Json) -> Json:
    return processor.get("processing_mode") or {}


def mode_is(field: str, *, native: str | None, full_duplex: str | None) -> Judge:
    """A field of the processing mode has a value in each shape; None leaves it open."""
    default = "NONE" if field.endswith("body_mode") else "SKIP"
    effects = {
        native: "the picker gets answers in a form that it does not read",
        full_duplex: "full duplex needs bodies and trailers both ways, or requests hang",
    }

    def judge(processor: Json, _needs: Needs) -> Wrong | None:
        wanted, value = full_duplex, _mode(processor).get(field, default)
        if is_native(processor):
            wanted = native
            if field == "response_body_mode" and value == "STREAMED":
                return None  # as the gateway shape has it
        if wanted is None or value == wanted:
            return None
        return Wrong(effects[wanted], wanted)

    return judge


def headers_sent(field: str, *, may_be_attributes: bool) -> Judge:
    """Headers reach the picker as messages, or natively as attributes where these may stand in."""

    def judge(processor: Json, _needs: Needs) -> Wrong | None:
        if _mode(processor).get(field) != "SKIP" or (may_be_attributes and is_native(processor)):
            return None
        return Wrong("the picker needs these headers", "SEND")

    return judge


def _has_all(known: Sequence[str], needed: Sequence[str], effect: str) -> Wrong | None:
    missing = [name for name in needed if name not in known]
    return Wrong(effect.format(", ".join(missing)), [*known, *missing]) if missing else None


def is_on(field: str, effect: str, *, native_only: bool = False) -> Judge:
    """A field is true."""

    def judge(processor: Json, _needs: Needs) -> Wrong | None:
        if processor.get(field) or (native_only and not is_native(processor)):
            return None
        return Wrong(effect, True)

    return judge


def is_off(field: str, effect: str) -> Judge:
    """A field is not true."""
    return lambda processor, _needs: Wrong(effect, False) if processor.get(field) else None


def namespaces(direction: str, needed: Sequence[str], effect: str) -> Judge:
    """A direction's metadata namespaces hold all that are needed."""

    def judge(processor: Json, _needs: Needs) -> Wrong | None:
        options = processor.get("metadata_options") or {}
        return _has_all(options.get(direction, {}).get("untyped", []), needed, effect)

    return judge


def breakers(effect: str) -> Judge:
    """The cluster's circuit breakers let enough requests be in flight."""

    def judge(cluster: Json, _needs: Needs) -> Wrong | None:
        first, *others = cluster.get("circuit_breakers", {}).get("thresholds") or [{}]
        low = [n for n in _BREAKERS if int(first.get(n, _BREAKER_DEFAULT)) < _MIN_IN_FLIGHT]
        if not low:
            return None
        raised = first | dict.fromkeys(_BREAKERS, _IN_FLIGHT)
        return Wrong(f"{', '.join(low)} below {_MIN_IN_FLIGHT}: {effect}", [raised, *others])

    return judge


def lasts(field: str, default_s: float, effect: str) -> Judge:
    """A route's time-out leaves time for a whole answer."""

    def judge(action: Json, needs: Needs) -> Wrong | None:
        limit_s = _seconds(action.get(field), default_s)
        if limit_s >= _MIN_ROUTE_S:
            return None
        return Wrong(f"{limit_s:g} s: {effect}", _duration(needs.request_timeout_s))

    return judge


def _seconds(value: object, default: float) -> float:
    """A duration as JSON has it (``1.5s``); 0 stands for no limit."""
    if not isinstance(value, str) or not value.endswith("s"):
        return default
    seconds = float(value[:-1])
    return seconds or math.inf


def _duration(seconds: float) -> str:
    return f"{seconds:g}s"


# -- single judgements -------------------------------------------------------------------------


def breaks_off_at_once(manager: Json, _: Needs) -> Wrong | None:
    """A client learns soon that its answer will not be finished."""
    delay_s = _seconds(manager.get("delayed_close_timeout"), _DEFAULT_DELAYED_CLOSE_S)
    if not _DEFAULT_DELAYED_CLOSE_S <= delay_s < math.inf:  # 0 here is for no delay
        return None
    wanted = DELAYED_CLOSE.total_seconds()
    return Wrong("a client waits as long to learn that its answer is broken off", _duration(wanted))


def whole_body(processor: Json, _needs: Needs) -> Wrong | None:
    """Request bodies reach the picker whole."""
    body = _mode(processor).get("request_body_mode", "NONE")
    if body in (FULL_DUPLEX, "BUFFERED"):
        return None
    return Wrong(f"the picker never sees a whole body ({body})", "BUFFERED")


def request_attributes(processor: Json, needs: Needs) -> Wrong | None:
    """Without header messages the attributes hold the headers that the picker needs."""
    if not is_native(processor) or _mode(processor).get("request_header_mode") != "SKIP":
        return None
    known = processor.get("request_attributes", [])
    effect = "without the headers the picker needs {} as attributes"
    return _has_all(known, attributes_read(needs.tenant_header), effect)


def response_attributes(processor: Json, _needs: Needs) -> Wrong | None:
    """The picker sees whose error an error is, and which attempts failed."""
    known = processor.get("response_attributes", [])
    effect = "Envoy's own errors pass for an endpoint's, and attempts that failed aren't known"
    return _has_all(known, (ATTEMPTED, DETAILS), effect)


def fails_open(processor: Json, _needs: Needs) -> Wrong | None:
    """Requests go on without a picker, unless `laar envoy --no-fail-open` was asked for."""
    if processor.get("failure_mode_allow") or processor.get("stat_prefix") == STAT_PREFIX:
        return None
    effect = "a picker that is down fails every request instead of leaving them to Envoy"
    return Wrong(effect, True)


def _waits_s(processor: Json) -> float:
    """Seconds that Envoy waits for the picker; infinite in full duplex."""
    if not is_native(processor):
        return float("inf")
    return _seconds(processor.get("message_timeout"), _DEFAULT_MESSAGE_TIMEOUT_S)


def waits_long_enough(processor: Json, _needs: Needs) -> Wrong | None:
    """Envoy waits for a picker that is busy for a moment."""
    waits_s = _waits_s(processor)
    if waits_s >= MESSAGE_TIMEOUT_S:
        return None
    effect = f"Envoy gives the picker up after {waits_s:g} s: a busy moment, and it is passed by"
    return Wrong(effect, _duration(MESSAGE_TIMEOUT_S))


def gives_up_in_time(processor: Json, _needs: Needs) -> Wrong | None:
    """Envoy gives up a picker that hangs."""
    waits_s = _waits_s(processor)
    if not is_native(processor) or waits_s <= _LONGEST_HANG_S:
        return None
    effect = f"a picker that hangs holds every request for {waits_s:g} s"
    return Wrong(effect, _duration(MESSAGE_TIMEOUT_S))


def waits_for_held(processor: Json, needs: Needs) -> Wrong | None:
    """Envoy waits for requests that the picker's queue holds."""
    most_s = max(_waits_s(processor), _seconds(processor.get("max_message_timeout"), 0.0))
    if most_s >= needs.message_timeout_s:
        return None
    effect = "Envoy doesn't wait for requests that the picker holds"
    return Wrong(effect, _duration(needs.message_timeout_s))


def buffers_bodies(listener: Json, needs: Needs) -> Wrong | None:
    """Envoy buffers the longest body that the picker takes."""
    limit = int(listener.get("per_connection_buffer_limit_bytes", _DEFAULT_BUFFER_BYTES))
    if limit >= needs.max_body_bytes:
        return None
    effect = f"prompts longer than {limit} bytes get 413 "
    effect += f"(bodies.max_body_bytes is {needs.max_body_bytes})"
    return Wrong(effect, needs.max_body_bytes)


def speaks_http2(cluster: Json, _needs: Needs) -> Wrong | None:
    """Envoy speaks HTTP/2 to the picker."""
    options = cluster.get("typed_extension_protocol_options") or {}
    mine = options.get(PROTOCOL_OPTIONS) or {}
    ways = [mine.get("explicit_http_config"), mine.get("use_downstream_protocol_config"), cluster]
    if "auto_config" in mine or any("http2_protocol_options" in (way or {}) for way in ways):
        return None
    kept = {key: value for key, value in mine.items() if not key.endswith("_config")}
    wanted = {**options, PROTOCOL_OPTIONS: kept | HTTP2_OPTIONS}
    return Wrong("every call of the picker fails, for gRPC needs HTTP/2", wanted)


def checks_picker(cluster: Json, _needs: Needs) -> Wrong | None:
    """Envoy checks the picker's health."""
    if any("grpc_health_check" in check for check in cluster.get("health_checks", [])):
        return None
    effect = "Envoy does not notice that a picker leaves or hangs"
    return Wrong(effect, [HEALTH_CHECK])


def leaves_dead_picker(cluster: Json, _needs: Needs) -> Wrong | None:
    """Envoy asks no picker that its health checks found dead."""
    panic = cluster.get("common_lb_config", {}).get("healthy_panic_threshold")
    if not cluster.get("health_checks") or (panic is not None and not panic.get("value", 0)):
        return None
    effect = "Envoy goes on asking a picker that its health checks have found dead"
    return Wrong(effect, {"value": 0})


def retries(action: Json, _needs: Needs) -> Wrong | None:
    """The route tries the fallbacks that the picker names."""
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


def follows_picker(cluster: Json, _needs: Needs) -> Wrong | None:
    """The cluster sends each request where the picker wants it."""
    by_header = cluster.get("original_dst_lb_config", {}).get("use_http_header", False)
    if override_of(cluster) is not None or by_header:
        return None
    return Wrong(f"nothing reads {DESTINATION}: the picker's choice is ignored", override_host())


def falls_back_rightly(override: Json, _needs: Needs) -> Wrong | None:
    """A list that is used up leads to no endpoint of another model."""
    if "least_request" not in str(override.get("fallback_policy"))[:200]:
        return None
    effect = "when the picker's list is used up, Envoy asks an endpoint of any other model"
    return Wrong(effect, fallback())


def names_server(override: Json, _needs: Needs) -> Wrong | None:
    """Checks that Envoy reports to the picker which endpoint served."""
    if override.get("selected_host_key"):
        return None
    effect = "the picker does not learn which endpoint served after a retry"
    return Wrong(effect, key(SERVED))

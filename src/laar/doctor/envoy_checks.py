"""What Envoy needs for a picker, as data: one check for each field that may be wrong.

A check knows its field, how bad a wrong value is, what that value does and the value to write.
Limits and time-outs are those of `laar envoy`; `laar.envoy.bootstrap` has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from laar.doctor.envoy_values import (
    DESTINATION,
    HEALTH_CHECK,
    NAMESPACES,
    Json,
    fallback,
    key,
    override_host,
)
from laar.doctor.findings import Level
from laar.envoy import BootstrapOptions
from laar.envoy.bootstrap import MESSAGE_TIMEOUT_S, RETRIED, RETRY_ON
from laar.protocol.agreed import ATTEMPTED, DETAILS
from laar.protocol.headers import attributes_read

__all__ = [
    "DECISION_MARGIN_S",
    "ENDPOINTS",
    "NATIVE_LISTENER",
    "OVERRIDE_HOST",
    "PICKER_CLUSTER",
    "PROCESSOR",
    "ROUTE",
    "Check",
    "Needs",
    "Wrong",
    "is_native",
    "override_of",
]

_RENDERED = BootstrapOptions()
DECISION_MARGIN_S = 10.0
"""Time for the picker beyond the longest hold of its queue."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One field of an object in Envoy's configuration.

    Args:
        field: dotted path below the object.
        level: how bad a wrong value is.
        judge: what is wrong with the object's value; None where it fits.
        above: path of the object, for a reader who looks from further up.
        drops: keys of the object that a fix takes out.
    """

    field: str
    level: Level
    judge: Callable[[Json, Needs], Wrong | None]
    above: str = ""
    drops: Sequence[str] = ()


def is_native(processor: Json) -> bool:
    """Whether the picker gets whole bodies, rather than every chunk."""
    return bool(_mode(processor).get("request_body_mode") != _FULL_DUPLEX)


def override_of(cluster: Json) -> Json | None:
    """The settings of the cluster's override-host policy; None without one."""
    policies = cluster.get("load_balancing_policy", {}).get("policies", ())
    typed = [p.get("typed_extension_config", {}).get("typed_config", {}) for p in policies]
    return next((t for t in typed if str(t.get("@type", "")).endswith("OverrideHost")), None)


# -- kinds of judgement ------------------------------------------------------------------------

Judge = Callable[[Json, Needs], Wrong | None]


def _mode(processor: Json) -> Json:
    return processor.get("processing_mode") or {}


def _mode_is(field: str, *, native: str | None, full_duplex: str | None) -> Judge:
    """A field of the processing mode has a value in each shape; None leaves it open."""
    default = "NONE" if field.endswith("body_mode") else "SKIP"
    effects = {
        native: "every chunk of an answer costs a message, and the end of a request is seen late",
        full_duplex: "full duplex needs bodies and trailers both ways, or requests hang",
    }

    def judge(processor: Json, _needs: Needs) -> Wrong | None:
        wanted = native if is_native(processor) else full_duplex
        if wanted is None or _mode(processor).get(field, default) == wanted:
            return None
        return Wrong(effects[wanted], wanted)

    return judge


def _headers_sent(field: str, *, may_be_attributes: bool) -> Judge:
    def judge(processor: Json, _needs: Needs) -> Wrong | None:
        if _mode(processor).get(field) != "SKIP" or (may_be_attributes and is_native(processor)):
            return None
        return Wrong("the picker needs these headers", "SEND")

    return judge


def _has_all(known: Sequence[str], needed: Sequence[str], effect: str) -> Wrong | None:
    missing = [name for name in needed if name not in known]
    return Wrong(effect.format(", ".join(missing)), [*known, *missing]) if missing else None


def _is_on(field: str, effect: str, *, native_only: bool = False) -> Judge:
    def judge(processor: Json, _needs: Needs) -> Wrong | None:
        if processor.get(field) or (native_only and not is_native(processor)):
            return None
        return Wrong(effect, True)

    return judge


def _is_off(field: str, effect: str) -> Judge:
    return lambda processor, _needs: Wrong(effect, False) if processor.get(field) else None


def _namespaces(direction: str, needed: Sequence[str], effect: str) -> Judge:
    def judge(processor: Json, _needs: Needs) -> Wrong | None:
        options = processor.get("metadata_options") or {}
        return _has_all(options.get(direction, {}).get("untyped", []), needed, effect)

    return judge


def _breakers(effect: str) -> Judge:
    def judge(cluster: Json, _needs: Needs) -> Wrong | None:
        first, *others = cluster.get("circuit_breakers", {}).get("thresholds") or [{}]
        low = [n for n in _BREAKERS if int(first.get(n, _BREAKER_DEFAULT)) < _MIN_IN_FLIGHT]
        if not low:
            return None
        raised = first | dict.fromkeys(_BREAKERS, _IN_FLIGHT)
        return Wrong(f"{', '.join(low)} below {_MIN_IN_FLIGHT}: {effect}", [raised, *others])

    return judge


def _lasts(field: str, default_s: float, effect: str) -> Judge:
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
    return seconds or float("inf")


def _duration(seconds: float) -> str:
    return f"{seconds:g}s"


# -- single judgements -------------------------------------------------------------------------


def _whole_body(processor: Json, _needs: Needs) -> Wrong | None:
    body = _mode(processor).get("request_body_mode", "NONE")
    if body in (_FULL_DUPLEX, "BUFFERED"):
        return None
    return Wrong(f"the picker never sees a whole body ({body})", "BUFFERED")


def _request_attributes(processor: Json, needs: Needs) -> Wrong | None:
    if not is_native(processor) or _mode(processor).get("request_header_mode") != "SKIP":
        return None
    known = processor.get("request_attributes", [])
    effect = "without the headers the picker needs {} as attributes"
    return _has_all(known, attributes_read(needs.tenant_header), effect)


def _response_attributes(processor: Json, _needs: Needs) -> Wrong | None:
    known = processor.get("response_attributes", [])
    effect = "Envoy's own errors pass for an endpoint's, and attempts that failed aren't known"
    return _has_all(known, (ATTEMPTED, DETAILS), effect)


def _waits_s(processor: Json) -> float:
    """How long Envoy waits for the picker; for ever in full duplex."""
    if not is_native(processor):
        return float("inf")
    return _seconds(processor.get("message_timeout"), _DEFAULT_MESSAGE_TIMEOUT_S)


def _waits_long_enough(processor: Json, _needs: Needs) -> Wrong | None:
    waits_s = _waits_s(processor)
    if waits_s >= MESSAGE_TIMEOUT_S:
        return None
    effect = f"Envoy gives the picker up after {waits_s:g} s: a busy moment, and it is passed by"
    return Wrong(effect, _duration(MESSAGE_TIMEOUT_S))


def _gives_up_in_time(processor: Json, _needs: Needs) -> Wrong | None:
    waits_s = _waits_s(processor)
    if not is_native(processor) or waits_s <= _LONGEST_HANG_S:
        return None
    effect = f"a picker that hangs holds every request for {waits_s:g} s"
    return Wrong(effect, _duration(MESSAGE_TIMEOUT_S))


def _waits_for_held(processor: Json, needs: Needs) -> Wrong | None:
    most_s = max(_waits_s(processor), _seconds(processor.get("max_message_timeout"), 0.0))
    if most_s >= needs.message_timeout_s:
        return None
    effect = "Envoy doesn't wait for requests that the picker holds"
    return Wrong(effect, _duration(needs.message_timeout_s))


def _buffers_bodies(listener: Json, needs: Needs) -> Wrong | None:
    limit = int(listener.get("per_connection_buffer_limit_bytes", _DEFAULT_BUFFER_BYTES))
    if limit >= needs.max_body_bytes:
        return None
    effect = f"prompts longer than {limit} bytes get 413 "
    effect += f"(bodies.max_body_bytes is {needs.max_body_bytes})"
    return Wrong(effect, needs.max_body_bytes)


def _checks_picker(cluster: Json, _needs: Needs) -> Wrong | None:
    if any("grpc_health_check" in check for check in cluster.get("health_checks", [])):
        return None
    effect = "Envoy does not notice that a picker leaves or hangs"
    return Wrong(effect, [HEALTH_CHECK])


def _leaves_dead_picker(cluster: Json, _needs: Needs) -> Wrong | None:
    panic = cluster.get("common_lb_config", {}).get("healthy_panic_threshold")
    if not cluster.get("health_checks") or (panic is not None and not panic.get("value", 0)):
        return None
    effect = "Envoy goes on asking a picker that its health checks have found dead"
    return Wrong(effect, {"value": 0})


def _retries(action: Json, _needs: Needs) -> Wrong | None:
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


def _follows_picker(cluster: Json, _needs: Needs) -> Wrong | None:
    by_header = cluster.get("original_dst_lb_config", {}).get("use_http_header", False)
    if override_of(cluster) is not None or by_header:
        return None
    return Wrong(f"nothing reads {DESTINATION}: the picker's choice is ignored", override_host())


def _falls_back_rightly(override: Json, _needs: Needs) -> Wrong | None:
    if "least_request" not in str(override.get("fallback_policy"))[:200]:
        return None
    effect = "when the picker's list is used up, Envoy asks an endpoint of any other model"
    return Wrong(effect, fallback())


def _names_server(override: Json, _needs: Needs) -> Wrong | None:
    if override.get("selected_host_key"):
        return None
    effect = "the picker does not learn which endpoint served after a retry"
    return Wrong(effect, key(f"{DESTINATION}-served"))


# -- the checks, by the object they look at ----------------------------------------------------


def _error(field: str, judge: Judge, **more: Any) -> Check:
    return Check(field=field, level=Level.ERROR, judge=judge, **more)


def _warning(field: str, judge: Judge, **more: Any) -> Check:
    return Check(field=field, level=Level.WARNING, judge=judge, **more)


_IGNORED = "the picker's answers are ignored"

PROCESSOR = (
    *(
        _error(f"processing_mode.{field}", _mode_is(field, native=native, full_duplex=full_duplex))
        for field, native, full_duplex in (
            ("request_trailer_mode", None, "SEND"),
            ("response_trailer_mode", None, "SEND"),
            ("response_body_mode", "NONE", _FULL_DUPLEX),
        )
    ),
    _error("processing_mode.request_body_mode", _whole_body),
    _error(
        "processing_mode.response_header_mode",
        _headers_sent("response_header_mode", may_be_attributes=False),
    ),
    _error(
        "processing_mode.request_header_mode",
        _headers_sent("request_header_mode", may_be_attributes=True),
    ),
    _error("request_attributes", _request_attributes),
    _warning(
        "allow_mode_override",
        _is_on(
            "allow_mode_override",
            "answers can't be sampled, so nothing is learned of first tokens and cached prefixes",
            native_only=True,
        ),
    ),
    _error("message_timeout", _waits_long_enough),
    _warning("message_timeout", _gives_up_in_time),
    _error("max_message_timeout", _waits_for_held),
    _warning("response_attributes", _response_attributes),
    _warning(
        "failure_mode_allow",
        _is_on(
            "failure_mode_allow",
            "a picker that is down fails every request instead of leaving them to Envoy",
        ),
    ),
    _error("observability_mode", _is_off("observability_mode", _IGNORED)),
    _error("disable_immediate_response", _is_off("disable_immediate_response", _IGNORED)),
    _warning(
        "metadata_options.forwarding_namespaces.untyped",
        _namespaces(
            "forwarding_namespaces",
            NAMESPACES,
            "the picker learns neither which endpoint served nor a gateway's subset",
        ),
    ),
    _warning(
        "metadata_options.receiving_namespaces.untyped",
        _namespaces("receiving_namespaces", NAMESPACES[:1], "the picker's metadata is refused"),
    ),
)
"""Of the ext_proc filter."""

NATIVE_LISTENER = (_error("per_connection_buffer_limit_bytes", _buffers_bodies),)
"""Of a listener whose bodies reach the picker whole."""

PICKER_CLUSTER = (
    _error(
        "circuit_breakers.thresholds",
        _breakers("each request in flight holds a stream to the picker, and those beyond it fail"),
    ),
    _warning("health_checks", _checks_picker),
    _warning("common_lb_config.healthy_panic_threshold", _leaves_dead_picker),
)
"""Of the cluster that the ext_proc filter asks."""

ROUTE = (
    _error("timeout", _lasts("timeout", _DEFAULT_ROUTE_TIMEOUT_S, "longer answers are cut off")),
    _warning(
        "idle_timeout",
        _lasts(
            "idle_timeout",
            _DEFAULT_IDLE_S,
            "a long prompt is silent for longer before its answer",
        ),
    ),
    _warning("retry_policy", _retries),
)
"""Of a route's action."""

ENDPOINTS = (
    _error("circuit_breakers.thresholds", _breakers("Envoy answers 503 itself beyond it")),
    _error("load_balancing_policy", _follows_picker, drops=("lb_policy",)),
)
"""Of a cluster of endpoints."""

OVERRIDE_HOST = tuple(
    _warning(field, judge, above="load_balancing_policy.")
    for field, judge in (
        ("fallback_policy", _falls_back_rightly),
        ("selected_host_key", _names_server),
    )
)
"""Of the override-host policy of a cluster of endpoints."""

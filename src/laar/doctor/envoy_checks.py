"""Envoy's needs for a picker, as data: one check for each field that may be wrong.

A check has its field, the level of a wrong value, the effect of that value and the value to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from laar.doctor.envoy_judgements import (
    DEFAULT_IDLE_S,
    DEFAULT_ROUTE_TIMEOUT_S,
    FULL_DUPLEX,
    Judge,
    breakers,
    breaks_off_at_once,
    buffers_bodies,
    checks_picker,
    fails_open,
    falls_back_rightly,
    follows_picker,
    gives_up_in_time,
    headers_sent,
    is_off,
    is_on,
    lasts,
    leaves_dead_picker,
    mode_is,
    names_server,
    namespaces,
    request_attributes,
    response_attributes,
    retries,
    speaks_http2,
    waits_for_held,
    waits_long_enough,
    whole_body,
)
from laar.doctor.envoy_values import NAMESPACES
from laar.doctor.findings import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One field of an object in Envoy's configuration.

    Args:
        field: dotted path below the object.
        level: how bad a wrong value is.
        judge: returns the fault of the object's value; None where it fits.
        above: path of the object, for a reader who looks from further up.
        drops: keys of the object that a fix takes out.
    """

    field: str
    level: Level
    judge: Judge
    above: str = ""
    drops: Sequence[str] = ()


# -- the checks, by the object they look at ----------------------------------------------------


def _error(field: str, judge: Judge, **more: Any) -> Check:
    return Check(field=field, level=Level.ERROR, judge=judge, **more)


def _warning(field: str, judge: Judge, **more: Any) -> Check:
    return Check(field=field, level=Level.WARNING, judge=judge, **more)


_IGNORED = "the picker's answers are ignored"

PROCESSOR = (
    *(
        _error(f"processing_mode.{field}", mode_is(field, native=native, full_duplex=full_duplex))
        for field, native, full_duplex in (
            ("request_trailer_mode", None, "SEND"),
            ("response_trailer_mode", None, "SEND"),
            ("response_body_mode", "NONE", FULL_DUPLEX),
        )
    ),
    _error("processing_mode.request_body_mode", whole_body),
    _error(
        "processing_mode.response_header_mode",
        headers_sent("response_header_mode", may_be_attributes=False),
    ),
    _error(
        "processing_mode.request_header_mode",
        headers_sent("request_header_mode", may_be_attributes=True),
    ),
    _error("request_attributes", request_attributes),
    _warning(
        "allow_mode_override",
        is_on(
            "allow_mode_override",
            "answers can't be sampled, so nothing is learned of first tokens and cached prefixes",
            native_only=True,
        ),
    ),
    _error("message_timeout", waits_long_enough),
    _warning("message_timeout", gives_up_in_time),
    _error("max_message_timeout", waits_for_held),
    _warning("response_attributes", response_attributes),
    _warning("failure_mode_allow", fails_open),
    _error("observability_mode", is_off("observability_mode", _IGNORED)),
    _error("disable_immediate_response", is_off("disable_immediate_response", _IGNORED)),
    _warning(
        "metadata_options.forwarding_namespaces.untyped",
        namespaces(
            "forwarding_namespaces",
            NAMESPACES,
            "the picker learns neither which endpoint served nor a gateway's subset",
        ),
    ),
    _warning(
        "metadata_options.receiving_namespaces.untyped",
        namespaces("receiving_namespaces", NAMESPACES[:1], "the picker's metadata is refused"),
    ),
)
"""Checks of the ext_proc filter."""

MANAGER = (_warning("delayed_close_timeout", breaks_off_at_once),)
"""Checks of the connection manager that has the ext_proc filter."""

NATIVE_LISTENER = (_error("per_connection_buffer_limit_bytes", buffers_bodies),)
"""Checks of a listener whose bodies reach the picker whole."""

PICKER_CLUSTER = (
    _error(
        "circuit_breakers.thresholds",
        breakers("each request in flight holds a stream to the picker, and those beyond it fail"),
    ),
    _error("typed_extension_protocol_options", speaks_http2),
    _warning("health_checks", checks_picker),
    _warning("common_lb_config.healthy_panic_threshold", leaves_dead_picker),
)
"""Checks of the cluster that the ext_proc filter calls."""

ROUTE = (
    _error("timeout", lasts("timeout", DEFAULT_ROUTE_TIMEOUT_S, "longer answers are cut off")),
    _warning(
        "idle_timeout",
        lasts(
            "idle_timeout",
            DEFAULT_IDLE_S,
            "a long prompt is silent for longer before its answer",
        ),
    ),
    _warning("retry_policy", retries),
)
"""Checks of a route's action."""

ENDPOINTS = (
    _error("circuit_breakers.thresholds", breakers("Envoy answers 503 itself beyond it")),
    _error("load_balancing_policy", follows_picker, drops=("lb_policy",)),
)
"""Checks of a cluster of endpoints."""

OVERRIDE_HOST = tuple(
    _warning(field, judge, above="load_balancing_policy.")
    for field, judge in (
        ("fallback_policy", falls_back_rightly),
        ("selected_host_key", names_server),
    )
)
"""Checks of the override-host policy of a cluster of endpoints."""

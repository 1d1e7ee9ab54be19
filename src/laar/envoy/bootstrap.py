"""Render Envoy bootstraps, one for each way of running laar.

Every shape has an ext_proc filter that calls the picker, the endpoints in an ``override_host``
cluster, retries on the endpoints that the picker names next (`_routes`), errors in both
OpenAI's and Anthropic's format, early removal of headers that clients may not set, a JSON access
log, and a second listener with ``/ready`` and ``/stats/prometheus`` for kubelet and Prometheus:
the admin port can stop Envoy, so it is on loopback only.

========== ======================= ===================================== ====================
shape      listens on              its clients                           bodies
========== ======================= ===================================== ====================
sidecar    127.0.0.1               one trusted application next to it:   native
                                   x-forwarded-for passes unchanged
standalone all addresses           anyone: x-forwarded-for gets their    native
                                   address, slow headers are refused,
                                   and those with underscores dropped
gateway    all addresses           as standalone                         streamed
========== ======================= ===================================== ====================

*Native* sends the picker the body of an inference request and the headers of the answer: two
messages each way, however long the answer is. *Streamed* also sends the answer's body chunk by
chunk; Envoy keeps each until the picker replies, so nothing is lost if the picker fails. Gateway
API gateways send every chunk of both bodies and receive it back, in *full duplex*; laar renders no
bootstrap for this.

Failing open, the default, keeps requests flowing while no picker decides: Envoy reads the model's
name from the path or a JSON body, and balances by least request over the endpoints that accept it.
It knows their names from the endpoints file. A request whose model it can't know goes to any
endpoint if all accept the same names, and otherwise gets 503; with ``fail_open=False`` all do.

Out of scope: TLS toward clients, authentication and rate limits. Put a gateway in front for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from string import Template
from typing import Any

import orjson
import yaml

from laar.datalayer.endpoints_file import is_ip
from laar.envoy import endpoints_file
from laar.envoy.options import (
    ANY_IPV4,
    BUFFER_BYTES,
    HEAP_SHARE,
    LOOPBACK,
    MESSAGE_TIMEOUT_S,
    SLOWEST_UPLOAD_BYTES_PER_S,
    SOCKET_BYTES,
    UNREAD_S,
    BootstrapOptions,
    Shape,
)
from laar.fleet.membership import SYSTEM_CA
from laar.protocol import agreed
from laar.protocol import headers as names
from laar.protocol.answers import error_body, error_document
from laar.protocol.paths import (
    ANY_NAME_PATH,
    DENIED_ERROR,
    DENIED_PATHS,
    HEALTH_PATHS,
    NAMING_PATH,
    SUFFIXES,
)
from laar.protocol.reserved import header_pattern
from laar.protocol.stream.attempts import REPEATS
from laar.request import Api

_HEADING = "# Rendered by `laar envoy`; change the options it was rendered with, not this file.\n"

_LISTENER = "x-envoy-listener"
"""Request header for routes only: the address of the listener that the request came to."""
_EARLY = {_LISTENER: "%DOWNSTREAM_LOCAL_ADDRESS%", **dict([names.UNCOMPRESSED])}
"""Request headers that Envoy sets before it looks for a route."""
_IS_HEDGE = "x-envoy-is-timeout-retry"
"""Envoy's request header: whether the last attempt was made while another is open."""
_ID, _ANSWERED_ID = "%REQ(X-REQUEST-ID)%", "%RESP(X-REQUEST-ID)%"
_HEDGED = "x-envoy-hedged"
"""Response header for retry policies only: `_JUDGED`."""
_JUDGED = (
    f"%REQ({_IS_HEDGE})% %RESP(:STATUS)%"
    f" %DYNAMIC_METADATA({agreed.LB_NAMESPACE}:{names.RETRY_ON})% %RESP(CONTENT-TYPE)%"
)
PAGES = r"(?i:text/(?:[^ep]|e[^v]|p[^l])|application/xhtml)"
"""Types of text but ``text/event-stream`` and ``text/plain``, which some engines give for JSON."""
_FAILED = rf"true 4..( .*)?|(\w* )?2.. \S*{agreed.RETRY_PAGES} {PAGES}.*"
_FAILED_ALONE = rf"true 4..( .*)?|(\w* )?2.. \S* ?{PAGES}.*"
"""What has failed by `_JUDGED`; without a picker, if the path is a computation's."""

_CONSTANTS = {
    **vars(agreed),
    **vars(names),
    **vars(endpoints_file),
    "LISTENER": _LISTENER,
    "IS_HEDGE": _IS_HEDGE,
    "HEDGED": _HEDGED,
    "JUDGED": _JUDGED,
}
"""The constants that appear in capitals in the template."""

_NOTHING_DONE = (
    "connect-failure,refused-stream,reset-before-request,retriable-status-codes,retriable-headers"
)
"""Envoy's conditions for the first row of `laar.protocol.stream.attempts`."""

_SHORT_BYTES = 128 << 10
"""What a filter of Envoy's holds of an answer, or of a short body (`long_bodies` in the template):
Envoy has one limit for both."""
_COLLECTED = ("max_request_bytes", "request_body_buffer_limit")
"""The fields of that limit."""
_ROOM = {"max_headers_count": 120, "max_request_headers_kb": 64}
"""The limits of requests that have passed a listener, which adds about a dozen headers."""

_LONG_BODY = "0*([2-9][0-9]{6}|[1-9][0-9]{7,})"
"""A ``content-length`` of 2 MB or more: reading JSON takes Envoy up to a hundred times its size."""

_SYSTEM_CA_PATH = "/etc/ssl/certs/ca-certificates.crt"
"""The system's CAs in Debian, Ubuntu, Alpine and Envoy images."""


def render(shape: Shape, options: BootstrapOptions | None = None) -> dict[str, Any]:
    """Return a bootstrap as plain JSON values, with Envoy's field names."""
    options = options or BootstrapOptions()
    streamed, pickers = shape == "gateway", options.picker_addresses
    data_host = options.listen_host or (LOOPBACK if shape == "sidecar" else ANY_IPV4)
    answers = {"answer_bodies": "NONE", "answer_trailers": "SKIP"}
    if streamed:
        answers = {"answer_bodies": "STREAMED", "answer_trailers": "SEND"}
    named = [_part("metadata_has", key=key) for key in (names.DESTINATION, agreed.NAME_KEY)]
    named.append(_part("header_has", header=names.DESTINATION, pattern=".+"))
    unread = [
        _part("header_has", header="upgrade", pattern=".+"),  # its body never ends
        _part("header_has", header="content-type", pattern="(?i)multipart/.*"),
        _part("header_has", header="content-length", pattern=_LONG_BODY),
    ]
    bootstrap = _part(
        "bootstrap",
        **asdict(options),
        shape=shape,
        data_address=_address(data_host, options.listen_port),
        probe_address=_address(options.listen_host or ANY_IPV4, options.ready_port),
        client=_part("trusted_client" if shape == "sidecar" else "any_client"),
        **_header_changes(shape, options),
        **_limits(options),
        routes=[_denied_route(), *_routes(options, answers)],
        any_of_them={agreed.ALIKE_KEY: True},
        naming_path=f"{NAMING_PATH}|({'|'.join(HEALTH_PATHS)})([/_?].*)?$|.*",
        unless_named=_part("skip_if", conditions=named),
        unless_unread=_part("skip_if", conditions=[*named, *unread]),
        local_replies=[
            _local_reply(**each)
            for each in _part("local_replies", max_body_bytes=options.max_body_bytes)
        ],
        **answers,
        # A route may name its pool: metadata {laar: {pool: NAME}}.
        attributes=[
            names.POOL,
            agreed.ATTEMPTS,
            agreed.LONGEST_HOLD,
            *names.attributes_read(options.tenant_header),
        ],
        eds_directory=str(PurePath(options.eds_path).parent),
        tls_matches=[*_tls_matches(options), _part("tls_of_nobody")],
        picker_type="STATIC" if all(is_ip(host) for host, _ in pickers) else "STRICT_DNS",
        picker_authority=options.picker.partition(",")[0],
        pickers=[{"endpoint": {"address": _address(*each)}} for each in pickers],
        pings=_part("pings", timeout="1.5s" if options.fail_open else "12s") if streamed else {},
        picker_tls={}
        if options.picker_ca_path is None
        else _picker_tls([host for host, _ in pickers], options),
    )
    # Copy it so that no values are shared: callers may modify it, and YAML would contain anchors.
    rendered: dict[str, Any] = orjson.loads(orjson.dumps(bootstrap))
    data, *_, long_bodies = rendered["static_resources"]["listeners"]
    filters = data["filter_chains"][0]["filters"]
    limits = dict.fromkeys(_COLLECTED, options.max_body_bytes) | _ROOM
    long_bodies["filter_chains"][0]["filters"] = _limited(filters, limits)
    return rendered


def _header_changes(shape: Shape, options: BootstrapOptions) -> dict[str, Any]:
    """Return the changes of request headers: before, in and after the choice of a route."""
    return {
        "early_changes": [
            *({"remove": name} for name in sorted(_not_for(shape, options))),
            _part("removed_headers", pattern=header_pattern()),
            *({"append": each} for each in _set(_EARLY)),
        ],
        "control_headers": [
            {"remove": name}
            for name in sorted({_LISTENER, *names.CONTROL_HEADERS} - {names.DESTINATION})
        ],
        "set_by_routes": _set(
            {
                name: f"%DYNAMIC_METADATA({agreed.LB_NAMESPACE}:{name})%"
                for name in names.SET_BY_ROUTES
            }
        ),
    }


def _limits(options: BootstrapOptions) -> dict[str, Any]:
    """Return limits of time and memory."""
    return {
        "idle_timeout": duration(options.idle_timeout_s),
        "upload_timeout": duration(
            agreed.DECISION_MARGIN_S + options.max_body_bytes // SLOWEST_UPLOAD_BYTES_PER_S
        ),
        "message_timeout": duration(MESSAGE_TIMEOUT_S),
        "longest_answer": duration(options.longest_hold_s + agreed.DECISION_MARGIN_S),
        "socket_bytes": SOCKET_BYTES,
        "unread_ms": int(1000 * UNREAD_S),
        "answer_buffer_bytes": BUFFER_BYTES,
        "most_connections": options.most_connections,
        "collected_bytes": min(_SHORT_BYTES, options.max_body_bytes),
        "max_heap_bytes": int(HEAP_SHARE * options.memory_bytes),
    }


def _limited(part: Any, limits: Mapping[str, int]) -> Any:
    """Return filters with other limits.

    All that has none of these limits is the same object, so that a change applies to both. In YAML
    it is an alias.
    """
    if isinstance(part, list):
        found: Any = [_limited(each, limits) for each in part]
        return part if all(a is b for a, b in zip(part, found, strict=True)) else found
    if isinstance(part, dict):
        found = {key: limits.get(key, _limited(below, limits)) for key, below in part.items()}
        return part if all(found[key] is part[key] for key in part) else found
    return part


def to_yaml(bootstrap: dict[str, Any]) -> str:
    """Return a bootstrap as YAML, the usual format for Envoy."""
    return _HEADING + yaml.safe_dump(bootstrap, sort_keys=False, width=100)


def duration(seconds: float) -> str:
    """Return a duration in Envoy's notation."""
    return f"{seconds:.13g}s"


# -- the template ------------------------------------------------------------------------------


@cache
def _template() -> Any:
    return yaml.safe_load((files("laar.envoy") / "bootstrap.yaml").read_text("utf-8"))


def _part(name: str, /, **values: Any) -> Any:
    """Return a part of the template with its values filled in."""
    return _filled(_template()[name], {**_CONSTANTS, **values})


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    """Replace `$name` in a part of the template with its value; do not replace within values."""
    if isinstance(part, list):
        return [_filled(each, values) for each in part]
    if isinstance(part, dict):
        found: dict[str, Any] = {}
        for key, below in part.items():
            if key.startswith("$"):
                found |= values[key[1:]]
            else:
                found[key] = _filled(below, values)
        return found
    if not isinstance(part, str):
        return part
    known = part.startswith("$") and part[1:] in values
    return values[part[1:]] if known else Template(part).substitute(values)


# -- its values --------------------------------------------------------------------------------


def _set(headers: Mapping[str, str]) -> list[Any]:
    """Return Envoy's options that set headers; empty values set none."""
    return [_part("set_header", key=key, value=value) for key, value in headers.items()]


def _address(host: str, port: int) -> dict[str, Any]:
    """Return a TCP address; `host` is an IP address or, for the picker, a DNS name.

    ``::`` accepts clients over IPv4 as well, as in laar's listeners.
    """
    families = {"ipv4_compat": True} if host == "::" else {}
    return {"socket_address": {"address": host, "port_value": port, **families}}


def _not_for(shape: Shape, options: BootstrapOptions) -> frozenset[str]:
    """Return the headers that clients may not set.

    With the picker down, a destination header would take effect, and only a gateway may set tenant,
    objective or model headers. A sidecar trusts its application to set these. A tenant header that
    carries credentials is kept, since engines check it.
    """
    trusted = options.trust_gateway_headers
    if trusted is None:
        trusted = shape == "sidecar"
    never = {
        *(names.DESTINATION, names.SERVED, names.SUBSET, _IS_HEDGE, *names.PRIORITIES),
        *names.RETRY_HEADERS,
    }
    if trusted:
        return frozenset(never)
    tenant = {options.tenant_header.lower()}.difference(names.CREDENTIALS)
    return frozenset({*never, *names.GATEWAY_HEADERS, *tenant})


def _denied_route() -> Any:
    error = DENIED_ERROR
    paths = "|".join(re.escape(path.strip("/")) for path in DENIED_PATHS)
    body = error_body(error).decode()
    return _part(
        "denied_route",
        paths=paths,
        naming=ANY_NAME_PATH,
        status=error.status,
        body=body,
        headers=_set(
            {
                "content-type": "application/json",
                names.REASON: error.reason,
                names.ANSWERED_IDS[1]: _ID,
            }
        ),
    )


def _local_reply(
    *,
    reason: str,
    status: int,
    message: str,
    filters: list[Any],
    changes: Mapping[str, Any] | None = None,
) -> Any:
    # A request that Envoy refuses unread has no id; an empty one replaces none.
    headers = {names.REASON: reason, **dict.fromkeys(names.ANSWERED_IDS, _ID)}
    if status >= 500:
        headers[names.RETRY_AFTER] = "1"
    body = error_document(status, reason, message, _ANSWERED_ID)
    made = [*_set({names.REQUEST_ID: "%UNIQUE_ID%"}), *_set(headers)]
    return _part("local_reply", filters=filters, changes=changes or {}, headers=made, body=body)


def _routes(options: BootstrapOptions, answers: Mapping[str, str]) -> Iterator[Any]:
    """Yield the routes: of long bodies, then to the endpoints of decided and of other requests."""
    timeouts = {
        "request_timeout": duration(options.request_timeout_s),
        "idle_timeout": duration(options.idle_timeout_s),
    }
    for long in _part("long_bodies"):
        yield _part("long_route", long=long, **timeouts)

    def route(
        filters: str,
        match: dict[str, Any],
        *,
        silence_s: float = math.inf,
        begin_s: int = 0,
        repeats: bool = False,
        is_decided: bool = False,
        failed: str = _FAILED,
    ) -> Any:
        return _part(
            "route",
            **asdict(options),
            match=match,
            filters=_part(filters, **answers),
            attempts=1 + options.retries,
            **timeouts,
            retry_on=f"{_NOTHING_DONE},5xx" if repeats else _NOTHING_DONE,
            retried_statuses=[] if is_decided else [408, 429] if repeats else [429, 529],
            most=min(REPEATS, options.retries) if repeats else options.retries,
            failed=failed,
            silence=duration(min(silence_s, options.idle_timeout_s)),
            # If response headers do not arrive in time, the request is also sent to the next
            # endpoint, and the first to respond wins: an endpoint that is only slow is not cut off.
            begin={"per_try_timeout": duration(begin_s)} if begin_s else {},
            hedge={"hedge_policy": {"hedge_on_per_try_timeout": True}} if begin_s else {},
            headers=_set({} if is_decided else {names.REASON: names.FAILED_OPEN}),
        )

    for silence_s in (*names.BEGINS_S, names.SILENCE_S, None):
        yield route(
            "other",
            _decided(silence_s),
            silence_s=math.inf if silence_s is None else names.SILENCE_S,
            begin_s=silence_s if silence_s in names.BEGINS_S else 0,
            is_decided=True,
        )
    for repeats in (True, False):
        ends = "|".join(end for end, api in SUFFIXES if repeats is (api is not Api.RESPONSES))
        path = {"safe_regex": {"regex": f".*({ends})/?"}}
        match = {**path, "headers": _part("is_inference")}
        failed = _FAILED_ALONE if repeats else _FAILED
        yield route("inference", match, repeats=repeats, failed=failed)
    yield route("other", {"prefix": "/", "headers": _part("is_safe")}, repeats=True)
    yield route("other", {"prefix": "/"})


def _decided(silence_s: int | None) -> dict[str, Any]:
    """Return the match of decided requests: of those with this patience, or of all."""
    if silence_s is None:
        metadata = _part("metadata_match", key=names.DESTINATION, value={"present_match": True})
    else:
        value = {"string_match": {"exact": str(silence_s)}}
        metadata = _part("metadata_match", key=names.PATIENCE, value=value)
    return {"prefix": "/", "dynamic_metadata": [metadata]}


def _tls_matches(options: BootstrapOptions) -> Iterator[Any]:
    """Yield TLS settings for endpoints by CA; the host name is verified if the endpoint has one."""
    for ca in options.endpoint_cas:
        for named in (True, False):
            if named or ca != SYSTEM_CA:
                checks = ("auto_host_sni", "auto_sni_san_validation") if named else ()
                yield _part(
                    "tls_match",
                    name=f"{ca} {'by name' if named else 'without a name'}",
                    match=endpoints_file.tls_match(ca, named=named),
                    ca_path=_SYSTEM_CA_PATH if ca == SYSTEM_CA else ca,
                    by_name=dict.fromkeys(checks, True),
                )


def _picker_tls(hosts: Sequence[str], options: BootstrapOptions) -> Any:
    hosts = [host.removesuffix(".") for host in hosts]  # which certificates never have
    certificate: dict[str, Any] = {}
    if options.picker_certificate_path is not None:
        chain = {"filename": options.picker_certificate_path}
        key = {"filename": options.picker_key_path}
        certificate["tls_certificates"] = [{"certificate_chain": chain, "private_key": key}]
    return _part(
        "picker_tls",
        ca_path=options.picker_ca_path,
        names=[
            {"san_type": "IP_ADDRESS" if is_ip(host) else "DNS", "matcher": {"exact": host}}
            for host in hosts
        ],
        client_certificate=certificate,
        sni={} if is_ip(hosts[0]) else {"sni": hosts[0]},
    )

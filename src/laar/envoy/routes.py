"""The routes of requests, the number of attempts, and the silence that an endpoint may keep.

**Retries.** An attempt that fails before the first byte of an answer is repeated on the next
endpoint of the picker's list: when no connection comes about, when the endpoint resets it, and for
the statuses of `RETRIED`. 500 and resets are among them although the engine may have begun: a
endpoint that fails at once is far more common than a request that breaks each engine, and the
number of attempts bounds the harm of such a request. A client's own retries multiply it.

**Silence.** A stream that neither begins nor goes on is ended by ``per_try_idle_timeout``. Only the
picker knows how long a prompt's prefill may take, and a route's time-outs are fixed; so there are
routes for several silences. The picker names one in its metadata, and Envoy looks for the route
again.

**Delay.** Where an answer's head does not come within the time that the picker names,
``per_try_timeout`` has the next endpoint asked as well, and the first to begin answers
(``hedge_on_per_try_timeout``): one that is merely slow loses nothing by it.
"""

from __future__ import annotations

from datetime import timedelta

from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    Metadata,
)
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    HedgePolicy,
    RetryPolicy,
    RetryPolicyRetryHostPredicate,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.http.buffer.v3 import Buffer, BufferPerRoute
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExtProcOverrides,
    ExtProcPerRoute,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.type.matcher.v3 import (
    MetadataMatcher,
    MetadataMatcherPathSegment,
    RegexMatcher,
    StringMatcher,
    ValueMatcher,
)
from envoy_data_plane.google.protobuf import Any, Struct

from laar.envoy.endpoints_file import ENDPOINTS_CLUSTER, METADATA_NAMESPACE
from laar.envoy.options import RETRIED, RETRY_ON, BodyMode, BootstrapOptions
from laar.protocol import headers as names
from laar.protocol.agreed import LB_NAMESPACE
from laar.protocol.events import Patience
from laar.protocol.openai import SUFFIXES
from laar.protocol.stream.sending import ONCE

EXT_PROC = "envoy.filters.http.ext_proc"
BUFFER = "envoy.filters.http.buffer"

_GENERATION_PATHS = f".*({'|'.join(suffix for suffix, _ in SUFFIXES)})/?"
_SOME_BODY = "0*[1-9][0-9]*"

_HOST_ATTEMPTS = 5
"""Draws of the fallback policy that may hit an endpoint that has just failed, for one retry."""


def routes(*entries: Route) -> RouteConfiguration:
    """A table of one virtual host."""
    return RouteConfiguration(
        virtual_hosts=[VirtualHost(name="all", domains=["*"], routes=list(entries))],
        # For the picker alone, and where Envoy keeps the headers no other part takes them off. The
        # destination stays: endpoints behind a further picker may want to know.
        request_headers_to_remove=sorted(names.CONTROL_HEADERS - {names.DESTINATION}),
        # Where Envoy keeps the headers the picker can't set one: it uses the metadata.
        request_headers_to_add=[
            HeaderValueOption(
                header=HeaderValue(key=name, value=f"%DYNAMIC_METADATA({LB_NAMESPACE}:{name})%"),
                append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for name in names.SET_BY_ROUTES
        ],
    )


def endpoints_routes(body_mode: BodyMode, options: BootstrapOptions) -> list[Route]:
    """Routes of all silences, all to the same endpoints; before the decision the last ones count.

    In the native mode the requests that models answer, which have a body, cost the picker one
    message instead of two: Envoy keeps their headers. Any other request is decided at its headers,
    also one whose body has no length: were it empty, there would be no message at all.
    """
    allowed = (
        ONCE,
        *(Patience(silence_s, begin_s) for begin_s, silence_s in names.BEGINS_S.items()),
        *(Patience(silence_s) for silence_s in names.SILENCES_S),
        Patience(),
    )
    found = []
    for patience in allowed:
        if (patience.silence_s or 0) >= options.idle_timeout_s and not patience.once:
            continue
        if body_mode != "full-duplex":
            generation = RouteMatch(
                safe_regex=RegexMatcher(regex=_GENERATION_PATHS),
                headers=[
                    HeaderMatcher(name=":method", string_match=StringMatcher(exact="POST")),
                    HeaderMatcher(
                        name="content-length",
                        string_match=StringMatcher(safe_regex=RegexMatcher(regex=_SOME_BODY)),
                    ),
                    # The body of an upgrade has no end, whatever its length is said to be.
                    HeaderMatcher(name="upgrade", present_match=True, invert_match=True),
                ],
            )
            kept = _route(generation, options, patience, ExtProcOverrides())
            whole = BufferPerRoute(buffer=Buffer(max_request_bytes=options.max_body_bytes))
            kept.typed_per_filter_config[BUFFER] = Any.pack(whole)
            found.append(kept)
        mode = None if body_mode == "full-duplex" else processing_mode(body_mode, headers=True)
        other = ExtProcOverrides(processing_mode=mode)
        found.append(_route(RouteMatch(prefix="/"), options, patience, other))
    return found


def processing_mode(body_mode: BodyMode, *, headers: bool) -> ProcessingMode:
    """The parts of a stream that Envoy sends to the picker.

    Without `headers`, it sends no request headers; the picker gets those it reads as attributes.
    """
    send, skip = ProcessingModeHeaderSendMode.SEND, ProcessingModeHeaderSendMode.SKIP
    bodies = ProcessingModeBodySendMode
    requests, answers = {
        "native": (bodies.BUFFERED, bodies.NONE),
        "streamed": (bodies.BUFFERED, bodies.STREAMED),
        "full-duplex": (bodies.FULL_DUPLEX_STREAMED, bodies.FULL_DUPLEX_STREAMED),
    }[body_mode]
    return ProcessingMode(
        request_header_mode=send if headers else skip,
        request_body_mode=requests,
        request_trailer_mode=send if body_mode == "full-duplex" else skip,
        response_header_mode=send,
        response_body_mode=answers,
        response_trailer_mode=skip if body_mode == "native" else send,
    )


def _route(
    match: RouteMatch, options: BootstrapOptions, patience: Patience, picking: ExtProcOverrides
) -> Route:
    named = {names.SILENCE: patience.silence_s, names.BEGIN: patience.begin_s}
    if patience.once:
        named = {names.ONCE: 1}
    match.dynamic_metadata = [_named(key, str(s)) for key, s in named.items() if s is not None]
    silence_s = min(patience.silence_s or options.idle_timeout_s, options.idle_timeout_s)
    idle = timedelta(seconds=silence_s)
    begin = None if patience.begin_s is None else timedelta(seconds=patience.begin_s)
    return Route(
        match=match,
        metadata=Metadata(
            filter_metadata={
                METADATA_NAMESPACE: Struct.from_dict({"attempts": 1 + options.retries})
            }
        ),
        typed_per_filter_config={EXT_PROC: Any.pack(ExtProcPerRoute(overrides=picking))},
        route=RouteAction(
            cluster=ENDPOINTS_CLUSTER,
            timeout=timedelta(seconds=options.request_timeout_s),
            idle_timeout=timedelta(seconds=options.idle_timeout_s),
            hedge_policy=None if begin is None else HedgePolicy(hedge_on_per_try_timeout=True),
            retry_policy=RetryPolicy(
                # A connection that is refused is never the request's fault.
                retry_on="connect-failure" if patience.once else RETRY_ON,
                retriable_status_codes=list(RETRIED),
                num_retries=options.retries,
                per_try_timeout=begin,
                per_try_idle_timeout=idle,
                host_selection_retry_max_attempts=_HOST_ATTEMPTS,
                retry_host_predicate=[
                    RetryPolicyRetryHostPredicate(
                        name="envoy.retry_host_predicates.previous_hosts",
                        typed_config=Any.pack(PreviousHostsPredicate()),
                    )
                ],
            ),
        ),
    )


def _named(key: str, value: str) -> MetadataMatcher:
    return MetadataMatcher(
        filter=LB_NAMESPACE,
        path=[MetadataMatcherPathSegment(key=key)],
        value=ValueMatcher(string_match=StringMatcher(exact=value)),
    )

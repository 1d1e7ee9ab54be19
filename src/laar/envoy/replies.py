"""The answers that Envoy gives itself, in the form of OpenAI's errors.

The picker replaces such answers with better ones as long as it is there. These are for the rest:
the picker is gone, or Envoy refuses a request before the picker hears of it.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    AndFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    ExtensionFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RuntimeUInt32,
    SubstitutionFormatString,
)
from envoy_data_plane.envoy.extensions.access_loggers.filters.cel.v3 import ExpressionFilter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    LocalReplyConfig,
    ResponseMapper,
)
from envoy_data_plane.google.protobuf import Any, Struct

from laar.protocol.headers import REASON, RETRY_AFTER

_NOT_THE_PICKERS = f"!('{REASON}' in response.headers)"
_RETRY_AFTER_S = 1
_FAILED_CLOSED = "response.code_details.startsWith('ext_proc_error')"
_NO_PICKER = "no picker chose an endpoint; try again"
_NO_ANSWER = "no endpoint could be asked; try again"
_TOO_LARGE = "the body is longer than this gateway takes"
_REFUSED = "the request was refused before it was read"


def local_replies() -> LocalReplyConfig:
    """The first mapper that fits is used."""
    return LocalReplyConfig(
        mappers=[
            _mapper(
                500,
                "service_unavailable_error",
                "no-picker",
                _NO_PICKER,
                retry=True,
                also=_FAILED_CLOSED,
            ),
            _mapper(500, "service_unavailable_error", "no-answer", _NO_ANSWER, retry=True),
            _mapper(413, "request_too_large", "body-too-large", _TOO_LARGE, below=414),
            _mapper(400, "invalid_request_error", "bad-request", _REFUSED),
        ]
    )


def _mapper(
    least: int,
    kind: str,
    reason: str,
    message: str,
    *,
    below: int | None = None,
    retry: bool = False,
    also: str | None = None,
) -> ResponseMapper:
    """Statuses from `least` on. Refusals of the picker are recognised by their reason, and left."""
    filters = [_status(ComparisonFilterOp.GE, least), _expression(_NOT_THE_PICKERS)]
    if also is not None:
        filters.append(_expression(also))
    if below is not None:
        filters.append(_status(ComparisonFilterOp.LE, below - 1))
    added = {REASON: reason, **({RETRY_AFTER: str(_RETRY_AFTER_S)} if retry else {})}
    return ResponseMapper(
        filter=AccessLogFilter(and_filter=AndFilter(filters=filters)),
        headers_to_add=[
            HeaderValueOption(
                header=HeaderValue(key=name, value=value),
                append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for name, value in added.items()
        ],
        body_format_override=SubstitutionFormatString(
            json_format=Struct.from_dict(
                {
                    "error": {
                        "message": message,
                        "type": kind,
                        "param": None,
                        "code": "%RESPONSE_CODE%",
                        "reason": reason,
                    }
                }
            )
        ),
    )


def _status(op: ComparisonFilterOp, value: int) -> AccessLogFilter:
    return AccessLogFilter(
        status_code_filter=StatusCodeFilter(
            comparison=ComparisonFilter(
                op=op, value=RuntimeUInt32(default_value=value, runtime_key="laar.local_replies")
            )
        )
    )


def _expression(text: str) -> AccessLogFilter:
    return AccessLogFilter(
        extension_filter=ExtensionFilter(
            name="envoy.access_loggers.extension_filters.cel",
            typed_config=Any.pack(ExpressionFilter(expression=text)),
        )
    )

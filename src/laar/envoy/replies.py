"""Give answers that Envoy generates the form of OpenAI errors.

While the picker runs it replaces such answers with better ones. These are for the other cases: the
picker is down, or Envoy rejects a request before the picker sees it.
"""

from __future__ import annotations

import re

from laar.envoy.parts import Json, extension, set_headers
from laar.protocol.answers import error_body
from laar.protocol.headers import REASON, RETRY_AFTER
from laar.protocol.paths import DENIED_PATHS, denied_path_error

_NOT_THE_PICKERS = f"!('{REASON}' in response.headers)"
"""Matches answers not from the picker, whose refusals have a reason and stay unchanged."""


def denied_route() -> Json:
    """Return the route that denies `DENIED_PATHS`, with or without a prefix.

    It keeps clients off the engines' operator paths even if the picker is down.
    """
    error = denied_path_error()
    names = "|".join(re.escape(path.strip("/")) for path in DENIED_PATHS)
    return {
        "match": {"safe_regex": {"regex": f"(.*/)?({names})/?"}},
        "direct_response": {
            "status": error.status,
            "body": {"inline_string": error_body(error).decode()},
        },
        "response_headers_to_add": set_headers(
            {"content-type": "application/json", REASON: error.reason}
        ),
    }


def local_replies() -> Json:
    """Return the mappers of answers that Envoy generates; the first match applies."""
    failed = _expression("response.code_details.startsWith('ext_proc_error')")
    unavailable, retry = "service_unavailable_error", {RETRY_AFTER: "1"}
    undecided = _error("no-picker", unavailable, "no picker chose an endpoint; try again", **retry)
    unanswered = _error("no-answer", unavailable, "no endpoint was reached; try again", **retry)
    too_large = _error(
        "body-too-large", "request_too_large", "the body is longer than this gateway accepts"
    )
    refused = _error(
        "bad-request", "invalid_request_error", "the request was refused before it was read"
    )
    return {
        "mappers": [
            {"filter": _answers(500, failed), **undecided},
            {"filter": _answers(500), **unanswered},
            {"filter": _answers(413, _status("LE", 413)), **too_large},
            {"filter": _answers(400), **refused},
        ]
    }


def _answers(lowest_status: int, *conditions: Json) -> Json:
    filters = [_status("GE", lowest_status), _expression(_NOT_THE_PICKERS), *conditions]
    return {"and_filter": {"filters": filters}}


def _error(reason: str, kind: str, message: str, **headers: str) -> Json:
    error = {"message": message, "type": kind, "param": None, "code": "%RESPONSE_CODE%"}
    return {
        "headers_to_add": set_headers({REASON: reason, **headers}),
        "body_format_override": {"json_format": {"error": {**error, "reason": reason}}},
    }


def _status(comparison: str, status: int) -> Json:
    value = {"default_value": status, "runtime_key": "laar.local_replies"}
    return {"status_code_filter": {"comparison": {"op": comparison, "value": value}}}


def _expression(text: str) -> Json:
    return {
        "extension_filter": extension(
            "access_loggers.extension_filters.cel",
            "extensions.access_loggers.filters.cel.v3.ExpressionFilter",
            expression=text,
        )
    }

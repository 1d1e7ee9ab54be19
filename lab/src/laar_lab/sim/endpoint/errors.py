"""Errors in vLLM's envelope."""

from __future__ import annotations

from http import HTTPStatus

import orjson

DONE = b"data: [DONE]\n\n"

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    429: "Too Many Requests",
    500: "InternalServerError",
    503: "Service Unavailable",
}


class ApiError(Exception):
    """An error in vLLM's envelope.

    Args:
        status: HTTP status, which the envelope repeats as its code.
        message: text for the client, without any part of the prompt.
        param: field of the body that caused the error.
        retry_after: value of a ``retry-after`` header; None for no header.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.retry_after = retry_after

    def after(self, retry_after: int | None) -> ApiError:
        """Set the ``retry-after`` header and return this error."""
        self.retry_after = retry_after
        return self

    def body(self) -> bytes:
        """Return the envelope as JSON."""
        error = {
            "message": str(self),
            "type": _TYPES.get(self.status) or HTTPStatus(self.status).phrase,
            "param": self.param,
            "code": self.status,
        }
        return orjson.dumps({"error": error})


def error_event(error: ApiError) -> bytes:
    """Return the error as a stream event followed by a regular end of stream, as in vLLM."""
    return b"data: " + error.body() + b"\n\n" + DONE

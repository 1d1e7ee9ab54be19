"""Refusals in the envelope that vLLM puts them in."""

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
    """A refusal in vLLM's envelope.

    Args:
        status: HTTP status, which the envelope repeats as its code.
        message: text for the client; holds none of the prompt.
        param: field of the body that is at fault.
        retry_after: value of a ``retry-after`` header; None for no such header.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.retry_after = retry_after

    def after(self, retry_after: int | None) -> ApiError:
        """Return the same error with a ``retry-after`` header."""
        self.retry_after = retry_after
        return self

    def body(self) -> bytes:
        """Return the envelope."""
        error = {
            "message": str(self),
            "type": _TYPES.get(self.status) or HTTPStatus(self.status).phrase,
            "param": self.param,
            "code": self.status,
        }
        return orjson.dumps({"error": error})


def error_event(error: ApiError) -> bytes:
    """Return the error as a line of a stream, which then ends regularly, as vLLM's do."""
    return b"data: " + error.body() + b"\n\n" + DONE

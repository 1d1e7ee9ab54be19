"""Build responses of the admin port: JSON and refusals."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from laar.errors import RequestError
from laar.protocol.answers import error_body


def as_json(value: object) -> Response:
    """Return a response with a value as indented JSON."""
    return Response(orjson.dumps(value, option=orjson.OPT_INDENT_2), media_type="application/json")


def refused(error: RequestError) -> Response:
    """Return the response for a refused request, in the format of the data path."""
    return Response(error_body(error), error.status, media_type="application/json")

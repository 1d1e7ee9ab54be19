"""Forms (``multipart/form-data``), in which clients send audio and images: where a field stands.

A file in a form may be megabytes of any bytes, which the standard library's parser reads line by
line. So the parts are separated at their boundary, and the library reads their headings alone. The
boundary is a form's first line, as clients write it: the request's headers are not needed. A form
that an engine might read and this reader does not is refused: its model is unknown.
"""

from __future__ import annotations

import re
from email.parser import BytesHeaderParser

from laar.errors import RequestError
from laar.protocol.jsonscan import Span

MAX_PARTS = 100
"""Parts of a form; an API's has some ten."""

MAX_HEADING_BYTES = 4096
"""Bytes of a part's heading, and of the boundary."""

_LINE = b"\r\n"
_OPENING = re.compile(rb"[\r\n]*(--[^\r\n]{0,%d})\r\n[!-9;-~]+:" % MAX_HEADING_BYTES)
"""The first boundary and the beginning of a heading. Some clients begin with an empty line."""
_HEADINGS = BytesHeaderParser()


def field_span(body: bytes, name: str) -> Span | None:
    """Return the span of a field's value; of a field that repeats the last, as engines take it.

    Args:
        body: the whole body.
        name: the field's.

    Returns:
        None where the body is no form, or has no such field.

    Raises:
        RequestError: a form of too many parts, or with a heading that is too long, or with its
            boundary inside a part.
    """
    opening = _OPENING.match(body)
    if opening is None:
        return None
    boundary, end, found = _LINE + opening[1], opening.end(1), None
    for _ in range(MAX_PARTS):
        blank = body.find(2 * _LINE, end, end + MAX_HEADING_BYTES)
        if blank < 0 and len(body) - end > MAX_HEADING_BYTES:
            raise _unread(f"the heading of a part is longer than {MAX_HEADING_BYTES} bytes")
        start = blank + 2 * len(_LINE)
        close = body.find(boundary, start) if blank >= 0 else -1
        if close < 0:
            return found  # cut off
        heading = _HEADINGS.parsebytes(body[end + len(_LINE) : start])
        if heading.get_param("name", header="content-disposition") == name:
            found = start, close
        end = close + len(boundary)
        if body.startswith(b"--", end):
            return found
        if not body.startswith(_LINE, end):
            raise _unread("its boundary stands inside a part")
    raise _unread(f"it has more than {MAX_PARTS} parts")


def _unread(fault: str) -> RequestError:
    return RequestError(400, "bad-request", f"the form can't be read: {fault}")

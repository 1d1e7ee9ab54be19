"""Forms (``multipart/form-data``), in which clients send audio and images: where a field stands.

A file in a form may be megabytes of any bytes, which the standard library's parser reads line by
line. So the parts are separated at their boundary, and the library reads their headings alone. The
boundary is a form's first line, as clients write it: the request's headers are not needed.
"""

from __future__ import annotations

from email.parser import BytesHeaderParser

from laar.protocol.jsonscan import Span

__all__ = ["field_span"]

MAX_PARTS = 100
"""Parts that are looked at; an API's form has some ten."""

_MAX_BOUNDARY_BYTES = 128
_MAX_HEADING_BYTES = 4096
_LINE = b"\r\n"
_HEADINGS = BytesHeaderParser()


def field_span(body: bytes, name: str) -> Span | None:
    """The span of a field's value; of a field that repeats the last, as engines take it.

    Args:
        body: the whole body.
        name: the field's.

    Returns:
        None where the body is no form, or has no such field.
    """
    end = body.find(_LINE, 0, _MAX_BOUNDARY_BYTES)
    if not body.startswith(b"--") or end < 0:
        return None
    boundary, found = _LINE + body[:end], None
    for _ in range(MAX_PARTS):
        blank = body.find(2 * _LINE, end, end + _MAX_HEADING_BYTES)
        start = blank + 2 * len(_LINE)
        close = body.find(boundary, start) if blank >= 0 else -1
        if close < 0:
            break
        heading = _HEADINGS.parsebytes(body[end + len(_LINE) : start])
        if heading.get_param("name", header="content-disposition") == name:
            found = start, close
        end = close + len(boundary)
    return found

"""Locate a field in a form (``multipart/form-data``), as used for audio and images.

A file in a form may be megabytes of arbitrary bytes, which the standard library's parser would read
line by line. So this module splits the parts at the boundary and parses only their headers with the
library. The boundary is the form's first line, so the request's headers are not needed. A form that
an engine might be able to read, but this module can't, is refused, since its model is unknown.
"""

from __future__ import annotations

import re
from email.parser import BytesHeaderParser

from laar.errors import RequestError
from laar.protocol.jsonscan import Span

MAX_PARTS = 100
"""Maximum number of parts in a form; APIs use about ten."""

MAX_HEADING_BYTES = 4096
"""Maximum size of a part's headers, and of the boundary."""

_LINE = b"\r\n"
_OPENING = re.compile(rb"[\r\n]*(--[^\r\n]{0,%d})\r\n[!-9;-~]+:" % MAX_HEADING_BYTES)
"""The first boundary and the start of a part's headers. Some clients send an empty line first."""
_HEADINGS = BytesHeaderParser()


def field_span(body: bytes, name: str) -> Span | None:
    """Return the span of a field's value: the last of any repeated fields, as in engines.

    Raise `RequestError` if the form has too many parts, part headers that are too long, or its
    boundary inside a part.

    Returns:
        None if the body is not a form or lacks the field.
    """
    opening = _OPENING.match(body)
    if opening is None:
        return None
    boundary, end, found = _LINE + opening[1], opening.end(1), None
    for _ in range(MAX_PARTS):
        blank = body.find(2 * _LINE, end, end + MAX_HEADING_BYTES)
        if blank < 0 and len(body) - end > MAX_HEADING_BYTES:
            raise _unread(f"the headers of a part are longer than {MAX_HEADING_BYTES} bytes")
        start = blank + 2 * len(_LINE)
        close = body.find(boundary, start) if blank >= 0 else -1
        if close < 0:
            return found  # the form is cut off
        heading = _HEADINGS.parsebytes(body[end + len(_LINE) : start])
        if heading.get_param("name", header="content-disposition") == name:
            found = start, close
        end = close + len(boundary)
        if body.startswith(b"--", end):
            return found
        if not body.startswith(_LINE, end):
            raise _unread("its boundary occurs inside a part")
    raise _unread(f"it has more than {MAX_PARTS} parts")


def _unread(fault: str) -> RequestError:
    return RequestError(400, "bad-request", f"the form can't be read: {fault}")

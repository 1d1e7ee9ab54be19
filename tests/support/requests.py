"""Requests as a picker sees them, for tests of decisions."""

from __future__ import annotations

from typing import Any

from laar.request import Api, Request


def request_of(*spans: str, **fields: Any) -> Request:
    """Return a request for a chat with the model m; the last span is its question."""
    chars = sum(map(len, spans))
    known = {"id": "r", "api": Api.CHAT, "model": "m", "spans": spans, "chars": chars}
    return Request(**known | {"question": spans[-1] if spans else ""} | fields)

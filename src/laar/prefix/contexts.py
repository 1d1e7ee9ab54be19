"""The context of a session's turn, as flow control and other pickers know it."""

from __future__ import annotations

from typing import NamedTuple


class Context(NamedTuple):
    """The context of a session's turn, in the cache of the endpoint that it was sent to.

    Args:
        session: key of the session, with its tenant and model.
        shared: how many of these tokens were already cached there for others.
        reread_s: cost of prefilling it again, in seconds.
    """

    session: str
    tokens: float
    shared: float
    reread_s: float

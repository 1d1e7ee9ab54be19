"""The draw that says which decisions count; the rest are in shadow: made, recorded, not applied."""

from __future__ import annotations

import zlib

__all__ = ["EnforcedShare"]


class EnforcedShare:
    """Draws by a hash of the key, so that a session does not flap between the two.

    A session that is in force at one share is in force at each larger one.

    Args:
        share: of the decisions, 0 to 1; may be changed.
    """

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, key: str) -> bool:
        """Whether the decision counts on a request of the session (or with the id) `key`."""
        return self.share >= 1.0 or zlib.crc32(key.encode()) < self.share * 2**32

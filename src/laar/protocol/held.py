"""Bodies that are being collected, all streams together."""

from __future__ import annotations

__all__ = ["HeldBytes"]


class HeldBytes:
    """How much of unfinished bodies is held, and how much may be.

    Args:
        limit_bytes: of all streams together; may be changed.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.now_bytes = 0

    def take(self, count: int) -> bool:
        """Takes so many bytes more; False, and nothing is taken, where there is no room."""
        if self.now_bytes + count > self.limit_bytes:
            return False
        self.now_bytes += count
        return True

    def give_back(self, count: int) -> None:
        """Lets go of bytes that were taken."""
        self.now_bytes -= count

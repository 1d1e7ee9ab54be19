"""Sign the time of a question's first attempt, which its retries carry.

A user who retries has been waiting since the first attempt, so the retry's slack counts from then.
The picker stores no session: its answer carries the time of the first attempt (``x-laar-since``),
and the client returns it with the list of tried models. The value is bound to the request and
signed with a key of this process, so clients can't forge one or reuse it for another question.
Another picker, or this one after a restart, lacks the key and treats a retry as new.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from secrets import token_bytes

from laar.core.request import Request

MAX_WAITED_S = 600.0
"""Maximum wait credited, so that a client can't gain more by saving a stamp for later."""

_SAMPLE_CHARS = 200


class Since:
    """Creates and verifies stamps with a random key."""

    def __init__(self) -> None:
        self._keyed = blake2b(key=token_bytes(32), digest_size=12)

    def stamp(self, request: Request, now: float) -> str:
        """Return the signed time of the request's first attempt, for retries to send back."""
        at_ms = round((now - request.waited_s) * 1000)
        return f"{at_ms}.{self._signature(at_ms, request)}"

    def waited_s(self, stamp: str, request: Request, now: float) -> float:
        """Return the seconds since a stamped first attempt; 0 for an invalid or foreign stamp."""
        if not request.tried or not 0 < len(stamp) <= 64:
            return 0.0
        at, _, signature = stamp.partition(".")
        if not at.isascii() or not at.removeprefix("-").isdigit():
            return 0.0
        at_ms = int(at)
        if not hmac.compare_digest(signature.encode(), self._signature(at_ms, request).encode()):
            return 0.0
        return min(max(now - at_ms / 1000, 0.0), MAX_WAITED_S)

    def _signature(self, at_ms: int, request: Request) -> str:
        question = request.question
        sample = f"{at_ms}\0{request.tenant}\0{request.chars}\0"
        sample += f"{question[:_SAMPLE_CHARS]}\0{question[-_SAMPLE_CHARS:]}"
        digest = self._keyed.copy()
        digest.update(sample.encode("utf-8", "replace"))
        return digest.hexdigest()

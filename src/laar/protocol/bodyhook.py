"""What a stream asks of a hook that may change a request's body before anything is made of it.

A hook is called between the whole body and the request, so that prefixes are hashed over what the
endpoint will see. It never raises and never refuses: it leaves the body alone.
"""

from __future__ import annotations

from typing import Protocol

from laar.core.request import Api
from laar.protocol.answers import Usage
from laar.protocol.headers import Head

__all__ = ["BodyHook", "Rework"]


class Rework(Protocol):
    """What became of one body; told later how the request went."""

    @property
    def body(self) -> bytes:
        """To forward; the very object that came in unless something was changed."""
        ...

    def accepted(self, endpoint: str, request: str, now: float, *, decision: str = "") -> None:
        """An endpoint answers with a 2xx status.

        Args:
            endpoint: its address, empty where it is not known.
            request: the id that it knows the request by; the same.
            now: seconds, monotonic.
            decision: the id that an outcome is reported by; the same.
        """
        ...

    def ended(self, ttft_s: float | None, usage: Usage) -> None:
        """An accepted answer passed to its end; its first byte came `ttft_s` after the decision.

        Args:
            ttft_s: None where nobody looked.
            usage: empty where nobody looked.
        """
        ...


class BodyHook(Protocol):
    """Looks at request bodies."""

    def reads_answer(self, head: Head, now: float) -> bool:
        """Whether this request's answer is wanted for measuring, if its body turns out fit."""
        ...

    def apply(
        self, body: bytes, *, api: Api, model: str, head: Head, may_change: bool, now: float
    ) -> Rework | None:
        """Looks at a body that was read without fault; None when it has nothing to do with it.

        Args:
            body: whole, as it came.
            api: its format.
            model: the client's name for it.
            head: of the request.
            may_change: False in shadow: look, and leave it alone.
            now: seconds, monotonic.
        """
        ...

"""The interfaces that a stream calls: a body hook, the cluster's rules, and the share in force.

Each is implemented in a room above, or by a test. None of them may raise on purpose: a fault in
one lets the request go on without the picker.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Protocol

from laar.core.request import Api
from laar.protocol.answers import Usage
from laar.protocol.headers import Head

IsEnforced = Callable[[str], bool]
"""Returns whether a decision counts, by the session, or the request's id where there is none. A
request whose decision does not is in shadow."""


class GatewayRules(Protocol):
    """Priorities of objectives and other names for models; looked up for each request."""

    @property
    def rewrites(self) -> Container[str]:
        """The pools in which `rewrite` may have another name, empty for requests without one."""
        ...

    def priority(self, objective: str, pool: str) -> int:
        """Return the priority of a pool's objective by name; 0 for an unknown one and for none.

        Where no pool is named, the objectives of all of them count. So do the rewrites.
        """
        ...

    def rewrite(self, model: str, pool: str) -> str | None:
        """Return the name to use for a model that a client asked for; None leaves it."""
        ...


class NoRules:
    """The rules of a picker without a cluster: one priority, and each name stays."""

    rewrites: Container[str] = ()

    def priority(self, objective: str, pool: str) -> int:
        """Return 0: every request is as important as any other."""
        return 0

    def rewrite(self, model: str, pool: str) -> str | None:
        """Return None: every name stays."""
        return None


class Restorer(Protocol):
    """Puts back in an answer what was changed for its engine, however it is cut into pieces."""

    @property
    def holds_back(self) -> bool:
        """Whether a part of the pieces so far waits for the next one."""
        ...

    def feed(self, piece: bytes, *, end: bool) -> bytes:
        """Return the piece restored, without the bytes held back."""
        ...


class Rework(Protocol):
    """The hook's result for one body; it hears later how the request went."""

    @property
    def body(self) -> bytes:
        """The body to forward: the very object that came in unless something was changed."""
        ...

    @property
    def context(self) -> tuple[int, ...]:
        """Hashes of the first documents, as in `Request.context`."""
        ...

    @property
    def renames(self) -> bool:
        """Whether documents were renamed in the body, so that the answer may have the new names."""
        ...

    def restorer(self, *, events: bool, encoded: bool) -> Restorer | None:
        """Return what puts the client's names back in an accepted answer; None for nothing to do.

        Args:
            events: the answer is an event stream.
            encoded: it is compressed, so that no name can be put back in it.
        """
        ...

    def asked(self, request: str, now: float) -> None:
        """Note that the request is on its way; `accepted` or `refused` follows."""
        ...

    def refused(self) -> None:
        """Note that no endpoint took the request."""
        ...

    def accepted(self, endpoint: str, request: str, now: float, *, decision: str = "") -> None:
        """Note that an endpoint answers with a 2xx status.

        Args:
            endpoint: its address, empty where it is not known.
            request: the endpoint's id of the request; empty where it is not known.
            now: seconds, monotonic.
            decision: the id that an outcome is reported by; the same.
        """
        ...

    def ended(self, ttft_s: float | None, usage: Usage) -> None:
        """Note that an accepted answer passed to its end.

        Args:
            ttft_s: from the decision to its first byte; None where the answer was not read.
            usage: empty where the answer was not read.
        """
        ...


class BodyHook(Protocol):
    """Looks at request bodies, and may change them.

    A stream calls it between the whole body and the request, so that prefixes are hashed over the
    bytes that the endpoint will see. It never refuses: it leaves the body alone.
    """

    def reads_answer(self, head: Head, now: float) -> bool:
        """Return whether the answer is wanted for measuring, if the body turns out fit."""
        ...

    def apply(
        self,
        body: bytes,
        *,
        api: Api,
        model: str,
        head: Head,
        may_change: bool,
        shows_answer: bool,
        now: float,
        document: dict[str, Any] | None = None,
    ) -> Rework | None:
        """Look at a body that was read without fault; return None when there is nothing to do.

        Args:
            body: the whole body, as received.
            api: its format.
            model: the client's name for it.
            head: headers of the request.
            may_change: False in shadow: look, and leave it alone.
            shows_answer: the answer's body will pass, whether it is asked for or not.
            now: seconds, monotonic.
            document: the body as `orjson` reads it; None if that was not done.
        """
        ...

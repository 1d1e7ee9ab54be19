"""What endpoints store from earlier requests: answers, conversations, and session contexts.

In the Responses API, answers are continued and fetched by id, and so are conversations. Engines do
not share them, so a request that uses one can be served only by the engine that stores it. If the
picker does not know an answer's id, it cannot guess, so it forwards the request only if just one
endpoint could have stored the answer. Unknown conversations are left to the engines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from laar.core.names import is_among
from laar.core.request import Request
from laar.errors import RequestError
from laar.latest import Shared

MAX_STORED = 65_536
"""Maximum number of ids (about 30 MB); beyond that, the tenant with most loses its least recent."""


class At(NamedTuple):
    """An object's address, session, and tenant."""

    address: str
    session: str
    tenant: str = ""


class Context(NamedTuple):
    """The context of a session's turn, in the cache of the endpoint that it was sent to.

    Args:
        session: key of the session, with its tenant and model.
        tokens: its length.
        shared: how many of these tokens were already cached there for others.
        reread_s: cost of prefilling it again, in seconds.
    """

    session: str
    tokens: float
    shared: float
    reread_s: float


class StoredObjects:
    """Remembers, by id, the endpoint that stores each object, and the object's session."""

    def __init__(self) -> None:
        self._kept: Shared[str, At] = Shared(MAX_STORED, lambda _id, at: at.tenant)
        self.on_note: Callable[[str, str, str, str], None] = lambda *_noted: None
        """Called with the arguments of each `note` that reports something new."""

    def note(self, object_id: str, address: str, session: str, tenant: str = "") -> None:
        """Record an object that an endpoint stores; call `on_note` unless it is known."""
        known = self._kept.get(object_id)
        self.heard(object_id, address, session, tenant)
        if self._kept[object_id] != known:
            self.on_note(object_id, address, session, tenant)

    def heard(self, object_id: str, address: str, session: str, tenant: str = "") -> None:
        """Record an object that another picker saw."""
        self._kept[object_id] = At(address, session or object_id, tenant)

    def latest(self, most: int) -> list[tuple[str, str, str, str]]:
        """Return the most recently used ids, oldest first, each with the fields of `At`."""
        return [(object_id, *kept) for object_id, kept in list(self._kept.items())[-most:]]

    def subset(self, request: Request) -> frozenset[str] | None:
        """Return the endpoint that stores what the request names, or else the request's subset.

        The first known id decides. A request that has no session is assigned to that of the answer
        it continues.

        Raises:
            RequestError: 404 if the gateway does not allow that endpoint.
        """
        names = (request.response_id, request.conversation_id)
        known = next((name for name in names if name in self._kept), None)
        if known is None:
            return request.subset
        self._kept.move_to_end(known)
        address, session, _ = self._kept[known]
        if known == request.response_id:
            request.session = request.session or session
        allowed = request.subset
        if allowed is None or is_among(address, allowed):
            return frozenset((address,))
        raise not_stored()


def not_stored() -> RequestError:
    """Return the error for a request that refers to an object that no known endpoint stores."""
    return RequestError(
        404, "unknown-response", "no endpoint is known to store what the request names"
    )

"""What endpoints store from earlier requests: answers and conversations.

In the Responses API, answers are continued and fetched by id, and so are conversations. Engines do
not share them, so a request that uses one can be served only by the engine that stores it. If the
picker does not know an answer's id, it cannot guess, so it forwards the request only if just one
endpoint could have stored the answer. Unknown conversations are left to the engines.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from laar.core.decision import Decision
from laar.core.plugin import Admitted, Plugin
from laar.errors import RequestError
from laar.fleet.names import is_among
from laar.latest import Shared
from laar.request import Request
from laar.untrusted import Text, valid

MAX_STORED = 65_536
"""Maximum number of ids (about 30 MB); beyond that, the tenant with most loses its least recent."""


class At(NamedTuple):
    """An object's address, session, and tenant."""

    address: str
    session: str
    tenant: str = ""


MAX_SAVED = 8192
"""Maximum number of ids in a snapshot; the latest are kept."""


class _Saved(NamedTuple):
    """An id and the fields of `At`; versions before 0.4 saved no tenant."""

    object_id: Text
    address: Text
    session: Text
    tenant: Text = ""


class StoredObjects(Plugin):
    """Remembers, by id, the endpoint that stores each object, and the object's session."""

    name = "stored"

    def __init__(self) -> None:
        self._kept: Shared[str, At] = Shared(MAX_STORED, lambda _id, at: at.tenant)
        self.on_note: Callable[[str, str, str, str], None] = lambda *_noted: None
        """Called with the arguments of each `note` that reports something new."""

    def admit(self, request: Request, now: float) -> Admitted | None:
        """Leave a request that names an object to the endpoint that stores it.

        Raises:
            RequestError: 404 if the gateway does not allow that endpoint.
        """
        if not (request.response_id or request.conversation_id):
            return None
        subset = self.subset(request)
        unknown = request.response_id and subset is request.subset
        return Admitted(subset=subset, unless_sole=not_stored() if unknown else None)

    def keeps(self, decision: Decision, stored_id: str) -> None:
        """Record an object that an endpoint stores; clients may use it before the answer ends."""
        if decision.flight.served or not decision.request.shadow:
            request = decision.request
            self.note(stored_id, decision.flight.address, request.session, request.tenant)

    def save(self) -> object:
        """Return the most recently used ids, oldest first, each with its address and session."""
        return self.latest(MAX_SAVED)

    def restore(self, saved: object) -> None:
        """Restore a result of `save`."""
        for noted in islice(valid(saved, _Saved), MAX_SAVED):
            self.heard(*noted)

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

"""What streams report and decide: a recorder that also tells a director, and a look at actions."""

from __future__ import annotations

from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.health import Reply
from laar.plugins.stored import StoredObjects
from laar.protocol.events import Action, AnswerBody, AnswerHeaders
from laar.protocol.ports import Recorder


def decided(action: Action) -> AnswerHeaders | None:
    """Return the answer to headers that an action is or carries, if any."""
    if isinstance(action, AnswerBody):
        return action.decided
    return action if isinstance(action, AnswerHeaders) else None


class Recording(Recorder):
    """Records for a director as the server does, without flow control."""

    def __init__(self, director: Director) -> None:
        self._director = director
        self.failed: list[tuple[str, ...]] = []
        self.moved: list[str] = []
        self.replies: list[tuple[Reply, bool]] = []
        self.began: list[bool] = []
        self.ends: list[Completion] = []
        self.decisions: list[Decision] = []
        """The decision of each end."""

    def attempted(self, decision: Decision, failed: tuple[str, ...], now: float) -> None:
        self.failed.append(failed)
        self._director.attempted(decision, failed, now)

    def served(self, decision: Decision, address: str, now: float) -> None:
        self.moved.append(address)
        self._director.served_by(decision, address, now)

    def replied(self, decision: Decision, reply: Reply, now: float, *, read: bool) -> None:
        self.replies.append((reply, read))
        self._director.replied(decision, reply, now, read=read)

    def answering(
        self, decision: Decision, now: float, *, ok: bool, full: bool, said: bool
    ) -> None:
        self.began.append(ok)
        self._director.answering(decision, now, ok=ok, said=said)

    def finished(self, decision: Decision, now: float) -> None:
        self._director.finished(decision)

    def stored(self, decision: Decision, stored_id: str) -> None:
        self._director.plugins.get(StoredObjects).keeps(decision, stored_id)

    def ended(self, decision: Decision, end: Completion) -> None:
        self.decisions.append(decision)
        self.ends.append(end)
        self._director.settle(decision, end)

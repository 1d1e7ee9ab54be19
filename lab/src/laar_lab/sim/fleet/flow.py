"""Flow control of a virtual picker: the production queue, called as in the server."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from laar.core.decision import Decision
from laar.core.director import Director
from laar.errors import RequestError
from laar.flow.admission import Admission
from laar.flow.settings import FlowSettings
from laar.request import Request
from laar.sharing.prefixes import SharedPrefixes
from laar_lab.sim.fleet.clock import VirtualClock
from laar_lab.sim.fleet.prompts import BlockPrefixes, Prompt


@dataclass(slots=True)
class _Held:
    """A queued request."""

    request: Request
    on_decided: Callable[[Decision], None]
    on_refused: Callable[[RequestError], None]


class FlowControl:
    """Holds requests until an endpoint can take them.

    Args:
        director: director that decides.
        prefixes: prefix index of that director.
        settings: settings of the queue.
        clock: clock of the run.
        by_load: hold requests while every endpoint is full, instead of holding only turns whose
            context has no room in a cache.
    """

    def __init__(
        self,
        director: Director,
        prefixes: BlockPrefixes,
        settings: FlowSettings,
        clock: VirtualClock,
        *,
        by_load: bool,
    ) -> None:
        self._admission = Admission(director, settings, by_load=by_load)
        self._prefixes = prefixes
        self._clock = clock
        self._held: dict[Hashable, _Held] = {}

    @property
    def left(self) -> int:
        """Number of queued requests, plus long prompts that are counted as in flight."""
        load = self._admission.load
        return self._admission.queue.waiting + (len(load.longs) if load else 0)

    def share(self, prefixes: SharedPrefixes) -> None:
        """Share with other pickers where each session is placed."""
        self._admission.on_turn, prefixes.on_turn = prefixes.turn, self._admission.heard

    def ask(
        self,
        request: Request,
        prompt: Prompt,
        on_decided: Callable[[Decision], None],
        on_refused: Callable[[RequestError], None],
    ) -> None:
        """Decide on a request now, or once there is room; call one of the two callbacks."""
        self._prefixes.upcoming = prompt
        try:
            answer = self._admission.ask(request, self._clock.now)
        except RequestError as error:
            on_refused(error)
            return
        if isinstance(answer, Decision):
            on_decided(answer)
            return
        self._prefixes.held[request.id] = prompt
        self._held[answer] = _Held(request, on_decided, on_refused)
        self.dispatch()

    def dispatch(self) -> None:
        """Send the requests whose turn has come; called after any change."""
        for outcome in self._admission.dispatch(self._clock.now):
            held = self._held.pop(outcome.ticket)
            del self._prefixes.held[held.request.id]
            if isinstance(outcome.verdict, Decision):
                held.on_decided(outcome.verdict)
            elif isinstance(outcome.verdict, RequestError):
                held.on_refused(outcome.verdict)
            else:
                raise outcome.verdict

    def moved(self, decision: Decision) -> None:
        """Handle a request that was served at an endpoint other than the one picked."""
        self._admission.moved(decision, self._clock.now)

    def answering(self, decision: Decision, *, ok: bool = True) -> None:
        """Handle the first token of an answer; unless `ok`, a refusal for lack of room."""
        self._admission.answering(decision, ok=ok, full=not ok)
        self.dispatch()

    def ended(self, decision: Decision) -> None:
        """Handle the end of an answer."""
        self._admission.ended(decision, self._clock.now)
        self.dispatch()

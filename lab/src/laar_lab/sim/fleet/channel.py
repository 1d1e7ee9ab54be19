"""Several pickers in virtual time, which share state as in production, but over this channel.

Every batch reaches all other pickers after the same delay and in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from laar.core.director import Director
from laar.sharing.settings import SharingSettings
from laar.sharing.sharing import Sharing
from laar_lab.sim.fleet.clock import VirtualClock
from laar_lab.sim.fleet.flow import FlowControl

_FLUSH_MS = 5.0  # shorter than a real picker's; the delay dominates
_LOOK_S = 0.25  # as in a real picker


class Channel:
    """Connects the directors of a fleet.

    Args:
        clock: clock of the run.
        directors: one for each picker.
        delay_s: seconds from sending a batch until the others receive it.
        flows: flow control of each picker; empty if they have none.
    """

    def __init__(
        self,
        clock: VirtualClock,
        directors: Sequence[Director],
        delay_s: float,
        flows: Sequence[FlowControl] = (),
    ) -> None:
        settings = SharingSettings(flush_ms=_FLUSH_MS)
        self.sharings = [
            Sharing(
                director,
                settings,
                origin=f"{number}/1",
                key=b"lab",
                wall_clock=lambda: clock.now,
            )
            for number, director in enumerate(directors)
        ]
        for sharing, flow in zip(self.sharings, flows, strict=False):
            if sharing.prefixes is not None:
                flow.share(sharing.prefixes)
        self._clock = clock
        self._delay_s = delay_s
        self._flush_s = settings.flush_ms / 1e3
        self._due = [False] * len(directors)
        for number in range(len(directors)):
            self._beat(number)

    def touched(self, number: int) -> None:
        """Schedule the sending of a picker's changes, including any made until then."""
        if not self._due[number]:
            self._due[number] = True
            self._clock.later(self._clock.now + self._flush_s, self._flush, number)

    def _flush(self, number: int) -> None:
        self._due[number] = False
        now = self._clock.now
        for data in self.sharings[number].batches(now):
            self._clock.later(now + self._delay_s, self._deliver, number, data)
        if self.sharings[number].outbox.waiting_bytes:
            self.touched(number)

    def _deliver(self, sender: int, data: bytes) -> None:
        for number, sharing in enumerate(self.sharings):
            if number != sender:
                sharing.take(data, self._clock.now)

    def _beat(self, number: int) -> None:
        self.sharings[number].poll(self._clock.now)
        self._flush(number)
        self._clock.later(self._clock.now + _LOOK_S, self._beat, number)

"""Save a running picker's outcomes in a file, in a thread and atomically."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from laar.server.whole_file import WholeFile
from laar.telemetry.problems import Problems

_SETTING = "accuracy.state_file"
INTERVAL_S = 60.0
"""Seconds between saves; a crash loses at most what was learned in that time."""


class StateFile:
    """Keeps a state on disk.

    Args:
        path: path of the file; None to save nothing.
        take: returns the content; called in a thread.
        problems: receives a problem if the file cannot be written.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        take: Callable[[], bytes],
        problems: Problems,
    ) -> None:
        self._file = None if path is None else WholeFile(path)
        self._take = take
        self._problems = problems

    async def keep_saving(self) -> None:
        """Save every `INTERVAL_S`; return at once if no file is set."""
        while self._file is not None:
            await asyncio.sleep(INTERVAL_S)
            await self.save()

    async def save(self) -> None:
        """Write the state, if there is a file; report a failure instead of raising it."""
        if self._file is None:
            return
        try:
            await asyncio.to_thread(self._file.write, self._take)
            self._problems.report(_SETTING, None)
        except OSError as fault:
            self._problems.report(
                _SETTING,
                f"{self._file.path} can't be written ({fault.strerror}); what is learned will be "
                "lost when this process ends",
            )

"""`laar serve --with-envoy`: run the picker in a child process, and Envoy beside it.

The parent serves no requests. It restarts a picker that ends or hangs, and passes on signals. The
picker leaves its state in a snapshot to its successor, which stands by with its imports done. Envoy
starts once a picker serves, keeps running while none does, and is drained before the picker stops.
If the parent dies, the kernel (of Linux) ends both.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laar.datalayer.files import Stamp, stamp_of
from laar.datalayer.visits import cancel, occurs
from laar.envoy.process import EnvoyProcess, dying_with_us
from laar.errors import LaarError, SettingError
from laar.settings import Loaded, load
from laar.settings.changes import change
from laar.settings.listening import Shutdown

_LOG = logging.getLogger(__name__)

_LOOK_S = 0.05
_AGAIN_S = (0.2, 5.0)  # first and longest wait before a picker is restarted
_SOUND_S = 2.0  # a picker that lived longer is restarted after the first wait
_BEAT_S = 1.0
_GO = b"go\n"
_HUNG_BEATS = 10  # missed beats after which a picker is considered hung
_STUCK_S = 10.0  # seconds beyond drain and grace after which a stopping picker is considered hung


@dataclass(frozen=True, slots=True)
class Home:
    """The parent's temporary directory, as its picker sees it."""

    path: Path

    @property
    def snapshot(self) -> Path:
        """Return the snapshot file for the next picker, unless the settings name one."""
        return self.path / "snapshot"

    @property
    def beat(self) -> Path:
        """Return the file whose time shows that a picker serves and its loop is running."""
        return self.path / "beat"

    @staticmethod
    def stand_by() -> bool:
        """Wait until the parent starts this picker; return False if it never does."""
        return sys.stdin.buffer.readline() == _GO

    async def keep_beating(self) -> None:
        """Touch `beat` until cancelled."""
        while True:
            self.beat.touch()
            await asyncio.sleep(_BEAT_S)


def supervise(loaded: Loaded, command: Sequence[str], envoy: EnvoyProcess) -> None:
    """Run a picker and Envoy until SIGTERM or SIGINT. Blocks.

    Raise `LaarError` if the picker or Envoy could not start, or Envoy exited unexpectedly.

    Args:
        loaded: the settings; each picker reads them again.
        command: the picker's command; the parent's directory is appended.
        envoy: the Envoy to run.
    """
    with tempfile.TemporaryDirectory(prefix="laar-picker-") as directory:
        asyncio.run(_Parent(loaded, command, Home(Path(directory)), envoy).run())


@dataclass
class _Parent:
    loaded: Loaded
    command: Sequence[str]
    home: Home
    envoy: EnvoyProcess

    def __post_init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._next: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._ending: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_picker())
                group.create_task(self._keep_envoy())
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None
        finally:
            self._pass_on(signal.SIGKILL)  # one is left only after an error
            if self._next is not None and self._next.returncode is None:
                self._next.kill()
                await self._next.wait()

    async def _keep_envoy(self) -> None:
        """Run Envoy from the picker's start until a stop is requested; then drain it.

        Raise `LaarError` if Envoy can't start, or exited unexpectedly.
        """
        envoy = self.envoy
        while not (self._stopping.is_set() or self.home.beat.exists()):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        if not self._stopping.is_set():
            async with envoy:
                _LOG.info("Envoy listens on %s; its log is %s", envoy.listens_on, envoy.log_path)
                ended = asyncio.create_task(envoy.wait())
                stopping = asyncio.create_task(self._stopping.wait())
                others = [
                    asyncio.create_task(envoy.keep_log_short()),
                    asyncio.create_task(envoy.report_bypasses()),
                ]
                try:
                    await asyncio.wait([ended, stopping], return_when=asyncio.FIRST_COMPLETED)
                    if ended.done():
                        raise LaarError(f"Envoy exited with {ended.result()}:\n{envoy.log_tail()}")
                    await envoy.drain(self._shutdown().grace_s)
                finally:
                    await cancel([ended, stopping, *others])
        self._stop_picker(signal.SIGTERM)

    async def _keep_picker(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s, most_s = _AGAIN_S
        has_started = False  # if True, its exit is not due to the settings
        while not self._stopping.is_set():
            began = loop.time()
            try:
                status = await self._run_picker()
                end = f"ended ({status})"
            except OSError as fault:  # the system may lack resources for a process right now
                status, end = 1, f"can't be run ({fault.strerror})"
            if self._stopping.is_set():
                return
            lived_s = loop.time() - began
            has_started = has_started or self.home.beat.exists()
            if status > 0 and not has_started:
                raise LaarError(f"the picker could not start: it {end}; see any error above")
            pause_s = _AGAIN_S[0] if lived_s > _SOUND_S else min(most_s, 2.0 * pause_s)
            _LOG.warning("the picker %s; restarting it in %g s", end, pause_s)
            await occurs(self._stopping, pause_s)

    async def _run_picker(self) -> int:
        """Run a picker until it ends; return its status.

        Raise `OSError` if no process can be started now.
        """
        self.home.beat.unlink(missing_ok=True)
        process, self._next = self._next, None
        if process is None or process.returncode is not None:
            process = await self._start()
        self._process = process
        assert process.stdin is not None
        process.stdin.write(_GO)
        watching = asyncio.create_task(self._watch(process))
        if self._ending is not None:  # the signal arrived while the process was being created
            process.terminate()
        try:
            return await process.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
            raise
        finally:
            await cancel([watching])

    async def _start(self) -> asyncio.subprocess.Process:
        """Start a picker process, which does its imports and waits for `_GO`."""
        command = dying_with_us([*self.command, "--home", str(self.home.path)])
        # In a new session, so that Ctrl-C reaches only the parent, which shuts down in order.
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill the picker if it hangs; while it serves, keep its successor ready."""
        seen, missed = Stamp(), 0
        while not self._stopping.is_set():
            await asyncio.sleep(_BEAT_S)
            last = stamp_of(self.home.beat)  # empty while it starts
            missed = missed + 1 if last and last == seen else 0
            seen = last
            if last and (self._next is None or self._next.returncode is not None):
                with contextlib.suppress(OSError):  # the system may lack resources
                    self._next = await self._start()
            if missed >= _HUNG_BEATS:
                _LOG.error("the picker has hung for %g s; killing it", missed * _BEAT_S)
                process.kill()
                return

    def _stop(self, number: int) -> None:
        again = self._stopping.is_set()
        self._stopping.set()
        if again:
            self._stop_picker(number)

    def _stop_picker(self, number: int) -> None:
        self._pass_on(number)
        if self._ending is None:
            shutdown = self._shutdown()
            patience_s = shutdown.drain_s + shutdown.grace_s + _STUCK_S
            self._ending = asyncio.get_running_loop().call_later(patience_s, self._end_stuck)

    def _shutdown(self) -> Shutdown:
        """Return the picker's shutdown times, from the current file if it is usable."""
        running = self.loaded.settings
        if self.loaded.path is not None:
            with contextlib.suppress(SettingError, OSError):
                running = change(running, load(self.loaded.path).settings).settings
        return running.shutdown

    def _end_stuck(self) -> None:
        _LOG.error("the picker did not stop in time; killing it")
        self._pass_on(signal.SIGKILL)

    def _pass_on(self, number: int) -> None:
        """Signal the picker, but send no SIGHUP before it can handle it."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        if number != signal.SIGHUP or self.home.beat.exists():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

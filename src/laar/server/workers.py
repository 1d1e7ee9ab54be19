"""`laar serve --workers` and `--with-envoy`: supervise worker processes on one port, and Envoy.

The parent serves no requests. It restarts workers that end or hang, and passes on signals. Several
workers share state through a store. A single worker passes its state to its successor in a
snapshot, and the successor stands by with its imports done. With `--with-envoy` the parent also
runs Envoy. It starts Envoy once a worker serves, keeps it running while no worker runs, and drains
it before the workers stop. The kernel assigns each client connection to one worker. If the parent
dies, workers exit once their open streams end, since they would share the port with the next
parent's workers.
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

ORPHANED = signal.SIGUSR1
"""Signal to a worker whose parent is gone; `os.getppid` shows this only once the parent's last
thread has ended."""

_LOG = logging.getLogger(__name__)

_LOOK_S = 0.05
_AGAIN_S = (0.2, 5.0)  # first and longest wait before a worker is restarted
_SOUND_S = 2.0  # a worker that lived longer is restarted after the first wait
_BEAT_S = 1.0
_GO = b"go\n"
_HUNG_BEATS = 10  # missed beats after which a worker is considered hung
_STUCK_S = 10.0  # seconds beyond drain and grace after which a stopping worker is considered hung


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One of several processes on the same ports.

    Args:
        index: number of the worker, from 0; added to the admin port in the settings.
        home: the parent's temporary directory.
    """

    index: int
    home: Path

    @property
    def snapshot(self) -> Path:
        """Return the snapshot file for the next worker, unless the settings name one."""
        return self.home / "snapshot"

    @staticmethod
    def stand_by() -> bool:
        """Wait until the parent starts this worker; return False if it never does."""
        return sys.stdin.buffer.readline() == _GO

    async def keep_beating(self) -> None:
        """Show the parent, until cancelled, that this worker serves and its loop is running."""
        while True:
            _beat(self.home, self.index).touch()
            await asyncio.sleep(_BEAT_S)


def _beat(home: Path, index: int) -> Path:
    return home / f"beat-{index}"


def run_workers(
    loaded: Loaded, count: int, command: Sequence[str], envoy: EnvoyProcess | None = None
) -> None:
    """Run workers until SIGTERM or SIGINT. Blocks.

    Args:
        loaded: the settings; each worker reads them again.
        count: number of workers.
        command: a worker's command; its index and the parent's directory are appended.
        envoy: Envoy to run with the workers; None to run none.

    Raises:
        LaarError: a worker or Envoy could not start, or Envoy exited unexpectedly.
    """
    with tempfile.TemporaryDirectory(prefix="laar-workers-") as directory:
        asyncio.run(_Parent(loaded, count, command, Path(directory), envoy).run())


@dataclass
class _Parent:
    loaded: Loaded
    count: int
    command: Sequence[str]
    home: Path
    envoy: EnvoyProcess | None = None

    def __post_init__(self) -> None:
        self._processes: dict[int, asyncio.subprocess.Process] = {}
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
                for index in range(self.count):
                    group.create_task(self._keep(index))
                if self.envoy is not None:
                    group.create_task(self._keep_envoy(self.envoy))
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None
        finally:
            self._pass_on(signal.SIGKILL)  # some are left only after an error
            if self._next is not None and self._next.returncode is None:
                self._next.kill()
                await self._next.wait()

    async def _keep_envoy(self, envoy: EnvoyProcess) -> None:
        """Run Envoy from a worker's start until a stop is requested; then drain it.

        Raises:
            LaarError: Envoy can't start, or exited unexpectedly.
        """
        beats = [_beat(self.home, index) for index in range(self.count)]
        while not (self._stopping.is_set() or any(b.exists() for b in beats)):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        if not self._stopping.is_set():
            async with envoy:
                _LOG.info("Envoy listens on %s; its log is %s", envoy.listens_on, envoy.log_path)
                ended = asyncio.create_task(envoy.wait())
                stopping = asyncio.create_task(self._stopping.wait())
                tidying = asyncio.create_task(envoy.keep_log_short())
                try:
                    await asyncio.wait([ended, stopping], return_when=asyncio.FIRST_COMPLETED)
                    if ended.done():
                        raise LaarError(f"Envoy exited with {ended.result()}:\n{envoy.log_tail()}")
                    await envoy.drain(self._shutdown().grace_s)
                finally:
                    await cancel([ended, stopping, tidying])
        self._stop_workers(signal.SIGTERM)

    async def _keep(self, index: int) -> None:
        """Keep one worker running."""
        loop = asyncio.get_running_loop()
        pause_s, most_s = _AGAIN_S
        has_started = False  # if True, its exit is not due to the settings
        while not self._stopping.is_set():
            began = loop.time()
            try:
                status = await self._run_one(index)
                end = f"ended ({status})"
            except OSError as fault:  # the system may lack resources for a process right now
                status, end = 1, f"can't be run ({fault.strerror})"
            if self._stopping.is_set():
                return
            lived_s = loop.time() - began
            has_started = has_started or _beat(self.home, index).exists()
            if status > 0 and not has_started:
                raise LaarError(f"worker {index} could not start: it {end}; see any error above")
            pause_s = _AGAIN_S[0] if lived_s > _SOUND_S else min(most_s, 2.0 * pause_s)
            _LOG.warning("worker %d %s; restarting it in %g s", index, end, pause_s)
            await occurs(self._stopping, pause_s)

    async def _run_one(self, index: int) -> int:
        """Run a worker until it ends; return its status.

        Raises:
            OSError: no process can be started now.
        """
        _beat(self.home, index).unlink(missing_ok=True)
        process, self._next = self._next, None
        if process is None or process.returncode is not None:
            process = await self._start(index)
        self._processes[index] = process
        assert process.stdin is not None
        process.stdin.write(_GO)
        watching = asyncio.create_task(self._watch(index, process))
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

    async def _start(self, index: int) -> asyncio.subprocess.Process:
        """Start a worker process, which does its imports and waits for `_GO`."""
        own = ("--worker-index", str(index), "--worker-home", str(self.home))
        command = dying_with_us([*self.command, *own], ORPHANED)
        # In a new session, so that Ctrl-C reaches only the parent, which shuts down in order.
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )

    async def _watch(self, index: int, process: asyncio.subprocess.Process) -> None:
        """Kill a worker that hangs; if it is the only one, keep its successor ready.

        The kernel would keep assigning connections to a hung worker, and an Envoy whose health
        check uses one of them would avoid the other workers as well.
        """
        beat, seen, missed = _beat(self.home, index), Stamp(), 0
        while not self._stopping.is_set():
            await asyncio.sleep(_BEAT_S)
            last = stamp_of(beat)  # empty while it starts
            missed = missed + 1 if last and last == seen else 0
            seen = last
            lacking = self._next is None or self._next.returncode is not None
            if last and lacking and self.envoy is not None and self.count == 1:
                with contextlib.suppress(OSError):  # the system may lack resources
                    self._next = await self._start(index)
            if missed >= _HUNG_BEATS:
                _LOG.error("worker %d has hung for %g s; killing it", index, missed * _BEAT_S)
                process.kill()
                return

    def _stop(self, number: int) -> None:
        again = self._stopping.is_set()
        self._stopping.set()
        if self.envoy is None or again:
            self._stop_workers(number)

    def _stop_workers(self, number: int) -> None:
        self._pass_on(number)
        if self._ending is None:
            shutdown = self._shutdown()
            patience_s = shutdown.drain_s + shutdown.grace_s + _STUCK_S
            self._ending = asyncio.get_running_loop().call_later(patience_s, self._end_stuck)

    def _shutdown(self) -> Shutdown:
        """Return the workers' shutdown times, from the current file if it is usable."""
        running = self.loaded.settings
        if self.loaded.path is not None:
            with contextlib.suppress(SettingError, OSError):
                running = change(running, load(self.loaded.path).settings).settings
        return running.shutdown

    def _end_stuck(self) -> None:
        _LOG.error("a worker did not stop in time; killing it")
        self._pass_on(signal.SIGKILL)

    def _pass_on(self, number: int) -> None:
        """Signal the workers; SIGHUP skips starting ones, which might die before they handle it."""
        for index, process in self._processes.items():
            starts = number == signal.SIGHUP and not _beat(self.home, index).exists()
            if process.returncode is None and not starts:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

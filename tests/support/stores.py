"""A real Redis or Valkey on a Unix socket, started and stopped by a test."""

import asyncio
import contextlib
import shutil
import subprocess

import pytest

SERVERS = ("redis-server", "valkey-server")


class StoreProcess:
    """A server that loses its data when it stops."""

    def __init__(self, binary, directory, *options):
        self.socket = directory / "store"
        self.log = directory / "store.log"
        self._command = [
            binary,
            *("--port", "0", "--unixsocket", str(self.socket), "--save", "", "--dir", directory),
            *("--logfile", str(self.log)),
            *options,
        ]
        self._process = None

    @property
    def url(self):
        return f"unix://{self.socket}"

    async def start(self):
        self._process = _begin(self._command)
        for _ in range(500):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_unix_connection(self.socket)
                writer.close()
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the store does not start")

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.socket.unlink(missing_ok=True)

    async def ask(self, *command):
        from redis.asyncio import Redis

        client = Redis.from_url(self.url)
        try:
            return await client.execute_command(*command)
        finally:
            await client.aclose()


def _begin(command):
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def binary_of(name):
    """Return the server's path; skip the test if it is not installed."""
    pytest.importorskip("redis", reason="needs the Redis client: pip install '.[share]'")
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")
    return found

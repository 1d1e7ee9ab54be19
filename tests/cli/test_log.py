"""The log: its lines, and a pipe that nobody reads."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from datetime import datetime

import pytest
import yaml

from laar.cli.terminal import LogLines
from laar.envoy.options import MESSAGE_TIMEOUT_S
from support import eventually, free_port

GAP = b"log lines dropped because nobody read them in time: "


@pytest.mark.long
async def test_a_log_that_nobody_reads_does_not_stop_the_picker(tmp_path, http):
    listen = {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")}
    settings = {
        "endpoints": [{"address": "127.0.0.1:1", "model": "m"}],
        "listen": listen,
        "shutdown": {"drain_s": 0.0, "grace_s": 1.0},
    }
    path = tmp_path / "laar.yaml"
    path.write_text(yaml.safe_dump(settings))
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    filler = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filler += os.write(writer, b" ")
    os.set_blocking(writer, True)  # as a picker inherits it
    command = (sys.executable, "-m", "laar.cli", "serve", "-c", str(path))
    picker = await asyncio.create_subprocess_exec(*command, stderr=writer)
    os.close(writer)

    async def is_ready():
        try:
            async with http.get(f"http://{listen['admin']}/readyz") as answer:
                return answer.status == 200
        except OSError:
            return False

    log = b""

    def reads(expected):
        nonlocal log
        with contextlib.suppress(BlockingIOError):
            log += os.read(reader, 1 << 20)
        return expected in log

    try:
        await eventually(is_ready, what="the picker", timeout_s=30)
        assert not reads(b"serving")
        assert len(log) == filler
        path.write_text(yaml.safe_dump(settings | {"routing": {"max_waiting": 2}}))
        picker.send_signal(signal.SIGHUP)
        await eventually(lambda: reads(b"now in effect"), what="a line of the log")
        assert GAP in log
        picker.terminate()
        assert await picker.wait() == 0
        assert reads(b"no longer ready")
    finally:
        with contextlib.suppress(ProcessLookupError):
            picker.kill()
        os.close(reader)


def test_a_line_in_json_has_any_text():
    record = logging.LogRecord("laar", logging.INFO, "", 0, "can't read %s", ("\udc80\n",), None)
    line = LogLines("json").format(record)
    assert json.loads(line)["message"] == "can't read \udc80\n"
    assert line.isascii()


@pytest.mark.long
async def test_lines_in_json_say_when_the_picker_answered_nobody(tmp_path):
    listen = {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")}
    path = tmp_path / "laar.yaml"
    path.write_text(
        yaml.safe_dump({"endpoints": [{"address": "127.0.0.1:1", "model": "m"}], "listen": listen})
    )
    command = (sys.executable, "-m", "laar.cli", "serve", "-c", str(path), "--log-format", "json")
    picker = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)

    async def line_with(words):
        while True:
            line = json.loads(await picker.stderr.readline())
            assert datetime.fromisoformat(line["time"]).tzinfo is not None
            if words in line["message"]:
                return line

    try:
        async with asyncio.timeout(60):
            assert (await line_with("serving"))["level"] == "INFO"
            await line_with("probe 127.0.0.1:1")
            picker.send_signal(signal.SIGSTOP)
            await asyncio.sleep(MESSAGE_TIMEOUT_S + 0.2)
            picker.send_signal(signal.SIGCONT)
            assert (await line_with("answered nobody"))["level"] == "WARNING"
    finally:
        picker.kill()
        await picker.wait()

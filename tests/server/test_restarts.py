"""Draining an endpoint, and restarting Envoy and the picker, lose no request at 50 a second."""

import asyncio
import os
import re
from pathlib import Path

import aiohttp
import pytest

from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from support import eventually, free_port
from support.bootstraps import rendered

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "laar-envoy@.service"
INTERVAL_S = 0.02


def stop_command():
    """Return the unit's command that drains Envoy, as systemd passes it to the shell."""
    [command] = re.findall(r"^ExecStop=/bin/sh -c '(.*)'$", UNIT.read_text(), re.MULTILINE)
    return command.replace("$$", "$")


@pytest.mark.slow
@pytest.mark.envoy
async def test_draining_and_restarting_lose_no_request(gateway, http, tmp_path):
    slow, fast = await gateway.simulated(), await gateway.simulated(time_scale=0.2)
    gateway.members((slow.address, "m"), (fast.address, "m"))
    await gateway.picker(shutdown={"drain_s": 5.0, "grace_s": 5.0})
    port, answers, stopping = free_port(), [], asyncio.Event()

    def envoy(name):
        (tmp_path / name).mkdir()
        options = BootstrapOptions(
            picker=gateway.settings.listen.ext_proc,
            listen_port=port,
            share_port=True,
            ready_port=0,
            admin_port=0,
            eds_path=str(gateway.eds),
        )
        return EnvoyProcess(rendered("standalone", options), tmp_path / name)

    async def ask(number):
        body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
        headers = {"connection": "close"} if number % 2 else {}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        try:
            async with http.post(url, json=body, headers=headers) as answer:
                await answer.read()
                answers.append(answer.status)
        except aiohttp.ClientError as fault:
            answers.append(fault)

    async def load():
        async with asyncio.TaskGroup() as group:
            for number in range(10_000):
                group.create_task(ask(number))
                await asyncio.sleep(INTERVAL_S)
                if stopping.is_set():
                    return

    async def more(count):
        reached = len(answers) + count
        await eventually(lambda: len(answers) >= reached)

    async with envoy("0") as first:
        loading = asyncio.create_task(load())
        await more(50)
        gateway.members((slow.address, "m"), (fast.address, "m"), draining=[slow.address])
        await eventually(lambda: slow.address in gateway.runner.picker.table.drained)
        await more(50)
        async with envoy("1"):
            admin = first.admin_url.removeprefix("http://")
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", stop_command(), env={**os.environ, "ADMIN": admin}
            )
            assert await process.wait() == 0
            await first.stop()
            await more(50)
            listen = dict(gateway.document["listen"])
            await gateway.picker(listen=listen, shutdown={"drain_s": 5.0, "grace_s": 5.0})
            await more(100)
            stopping.set()
            await loading
    assert [each for each in answers if each != 200] == []
    assert len(answers) > 300

"""An Envoy is served even while another peer of the ext_proc port exhausts every limit."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path

import orjson
import pytest
import yaml

from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar_lab.live.processes import LaarProcess
from support import RecordingUpstream, eventually, free_port
from support.bootstraps import rendered

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(120)]

PEER = Path(__file__).with_name("unfair_peer.py")
ASKED_S, A_SECOND = 4.0, 15


@asynccontextmanager
async def attacked(port, attack):
    command = (sys.executable, str(PEER), str(port), attack, "30")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("attack", ["resets", "undecodable", "streams", "padded"])
@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_an_envoys_requests_are_decided_despite_a_peer_at_full_speed(
    tmp_path, envoy_binary, http, shape, attack
):
    ports = {name: free_port() for name in ("ext_proc", "health", "admin")}
    eds = tmp_path / "run" / "endpoints.json"
    settings = tmp_path / "laar.yaml"
    decided = []
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(RecordingUpstream())
        document = {
            "endpoints": [{"address": upstream.address, "models": ["m"]}],
            "listen": {name: f"127.0.0.1:{port}" for name, port in ports.items()},
            "envoy": {"eds_file": str(eds)},
        }
        settings.write_text(yaml.safe_dump(document))
        picker = LaarProcess(("serve", "-c", str(settings)), tmp_path / "picker.log")
        await stack.enter_async_context(picker)
        await eventually(eds.exists, what="the picker", timeout_s=60.0)
        options = BootstrapOptions(
            picker=f"127.0.0.1:{ports['ext_proc']}",
            listen_port=0,
            ready_port=0,
            admin_port=0,
            eds_path=str(eds),
        )
        envoy = await stack.enter_async_context(EnvoyProcess(rendered(shape, options), tmp_path))
        url = envoy.url() + "/v1/chat/completions"
        body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})

        async def ask():
            headers = {"content-type": "application/json"}
            async with http.post(url, data=BytesIO(body), headers=headers) as answer:
                decided.append(answer.status == 200 and "x-laar-decision-id" in answer.headers)
            return decided[-1]

        await eventually(ask, what="a decision", timeout_s=60.0)
        decided.clear()
        async with attacked(ports["ext_proc"], attack), asyncio.TaskGroup() as group:
            for _ in range(int(ASKED_S * A_SECOND)):
                group.create_task(ask())
                await asyncio.sleep(1 / A_SECOND)
    assert sum(decided) >= 0.95 * len(decided)

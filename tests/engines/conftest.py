"""The model that real engines serve, and Envoy and a picker in front of them."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml
from behind_envoy import Gateway
from vllm_server import QUESTION, write_model

from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar.server.runner import Runner
from laar.settings import load
from support import eventually
from support.bootstraps import rendered
from support.waiting import free_ports


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    write_model(directory)
    return directory


@pytest.fixture
async def gateway(request, tmp_path, envoy_binary):
    """Return a function that starts Envoy and a picker in front of engines."""

    @asynccontextmanager
    async def start(shape="standalone", *, of=None, events=True, endpoint=None, **sections):
        engines = of or request.getfixturevalue("engines")
        names = ("ext_proc", "health", "admin")
        listen = zip(names, free_ports(3), strict=True)
        eds = tmp_path / "eds" / "endpoints.json"
        eds.parent.mkdir(exist_ok=True)
        document = {
            "endpoints": [
                {
                    "address": engine.address,
                    "models": ["tiny"],
                    "engine": engine.kind,
                    "labels": engine.labels if events else {},
                    **(endpoint or {}),
                }
                for engine in engines
            ],
            "listen": {name: f"127.0.0.1:{port}" for name, port in listen},
            "envoy": {"eds_file": str(eds)},
            "shutdown": {"drain_s": 0.0, "grace_s": 1.0},
            "bodies": {"sample_answers": 1},
            **sections,
        }
        settings = tmp_path / "laar.yaml"
        settings.write_text(yaml.safe_dump(document))
        loaded = load(settings)
        runner = Runner(loaded, seed=5)
        serving = asyncio.Event()
        served = asyncio.create_task(runner.run(started=serving))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_stop, runner, served)
            await serving.wait()
            options = BootstrapOptions(
                picker=document["listen"]["ext_proc"],
                listen_port=0,
                ready_port=0,
                admin_port=0,
                eds_path=str(eds),
            )
            directory = tempfile.mkdtemp(dir=tmp_path)
            process = EnvoyProcess(rendered(shape, options), Path(directory))
            envoy = await stack.enter_async_context(process)
            http = await stack.enter_async_context(aiohttp.ClientSession())
            behind = Gateway(envoy.url(), runner, http, loaded.settings)

            async def ready():
                body = {"model": "tiny", "prompt": QUESTION, "max_tokens": 2}
                status, _, _ = await behind.ask("/v1/completions", body)
                return status == 200

            await eventually(ready, what="an answer through Envoy")
            yield behind

    return start


async def _stop(runner, served):
    runner.stop()
    await served

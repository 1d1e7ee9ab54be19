"""A picker in this process without Envoy; tests call its director directly."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import yaml

from laar.core.decision import Completion
from laar.fleet.endpoints import Reading
from laar.server.runner import Runner
from laar.settings import load
from support import free_port
from support.requests import request_of

PROMPT = "a secret of the client's "
ENDPOINTS = (
    ("10.9.0.1:8000", "small", "eu-west"),
    ("10.9.0.2:8000", "large", "us-east"),
    ("10.9.0.3:8000", "large", "eu-west"),
)


@asynccontextmanager
async def watched_picker(directory, endpoints=ENDPOINTS, **sections):
    """Run a picker for some endpoints without scraping them."""
    document = {
        "endpoints": [
            {"address": address, "model": model, "region": region, "metrics_url": ""}
            for address, model, region in endpoints
        ],
        "listen": {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")},
        "readings": {"probe_interval_s": 600, "scrape_interval_s": 60},
        "shutdown": {"drain_s": 0.0, "grace_s": 0.0},
        **sections,
    }
    path = directory / "laar.yaml"
    path.write_text(yaml.safe_dump(document))
    runner = Runner(load(path), seed=3)
    started = asyncio.Event()
    running = asyncio.create_task(runner.run(started=started))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
    try:
        yield runner, f"http://{runner.picker.settings.listen.admin}"
    finally:
        runner.stop()
        await running


def ask(runner, *, model="auto", id="r-1", after_s=0.0, **fields):  # noqa: A002 - the header's name
    """Decide on a request as a stream does, `after_s` from now."""
    text = fields.pop("text", PROMPT * 400)
    known = {"id": id, "model": model, "chars": len(text), "body_bytes": len(text)}
    request = request_of("\x1euser\x1f", text, **known | fields)
    return runner.picker.director.decide(request, runner.picker.clock() + after_s)


def settle(runner, decision, **fields):
    """End a request successfully, unless `fields` differ."""
    end = {"status": 200, "cause": "complete", "latency_s": 1.5, "ttft_s": 0.4}
    runner.picker.director.settle(decision, Completion(**{**end, **fields}))


def read(runner, address, **numbers):
    """Store a reading of an endpoint's engine."""
    runner.fleet.reading(address, Reading(**numbers), runner.picker.clock())

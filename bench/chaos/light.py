"""Run endpoints that cost almost nothing: ``python -m bench.chaos.light SPEC.json``.

They echo like `laar_lab.sim.endpoint`, but immediately and without an engine, so that a soak test
loads Envoy and the picker. They have health and metrics pages, but no faults.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import orjson
import uvloop
from aiohttp import web

from laar_lab.sim.endpoint.echo import echo_text

DELAY_S = 0.004
CHUNKS = 3
PAGE = (
    b'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
    b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.1\n'
)


async def serve(spec: list[dict[str, object]]) -> None:
    """Run the endpoints until SIGTERM."""
    runners = []
    for one in spec:
        endpoint = _Endpoint(str(one["model"]), f"127.0.0.1:{one['port']}")
        runner = web.ServerRunner(web.Server(endpoint.handle, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(str(one["port"]))).start()
        runners.append(runner)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    for runner in runners:
        await runner.cleanup()


class _Endpoint:
    """A light endpoint."""

    def __init__(self, model: str, address: str) -> None:
        self._model = model
        self._headers = {"x-sim-endpoint": address}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request of any kind."""
        if request.path == "/metrics":
            return web.Response(body=PAGE, content_type="text/plain")
        if request.method != "POST":
            return web.Response()
        body = orjson.loads(await request.read())
        text = echo_text(
            model=self._model,
            asked=body["model"],
            question=body["messages"][0]["content"],
            tokens=body["max_tokens"],
        )
        await asyncio.sleep(DELAY_S)
        if body.get("stream"):
            return await self._stream(request, text)
        usage = {"prompt_tokens": 100, "completion_tokens": body["max_tokens"]}
        answer = {"model": self._model, "choices": [{"message": {"content": text}}], "usage": usage}
        kind = "application/json"
        return web.Response(body=orjson.dumps(answer), content_type=kind, headers=self._headers)

    async def _stream(self, request: web.BaseRequest, text: str) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream", **self._headers}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        try:
            for start in range(CHUNKS):
                piece = text[start * len(text) // CHUNKS : (start + 1) * len(text) // CHUNKS]
                finish = "length" if start == CHUNKS - 1 else None
                choice = {"delta": {"content": piece}, "finish_reason": finish}
                event = orjson.dumps({"model": self._model, "choices": [choice]})
                await response.write(b"data: " + event + b"\n\n")
                await asyncio.sleep(DELAY_S / CHUNKS)
            await response.write(b"data: [DONE]\n\n")
        except ConnectionError:
            pass  # the client hung up
        return response


if __name__ == "__main__":
    uvloop.run(serve(orjson.loads(Path(sys.argv[1]).read_bytes())))

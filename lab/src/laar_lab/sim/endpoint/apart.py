"""Work of llm-d's sidecar in front of an endpoint that answers prompts another one has read.

The request goes to the endpoint that `x-prefiller-host-port` names, for one token; then the KV
comes over, and the engine here answers without reading the prompt. Where that endpoint fails, the
request is read here, as if nothing had been asked for; its refusals go back to the client.
"""

from __future__ import annotations

import aiohttp
import orjson

from laar.protocol.headers import REQUEST_ID
from laar_lab.sim.endpoint.errors import ApiError

PATHS = ("/v1/chat/completions", "/v1/completions")
"""Paths whose requests the sidecar splits into prefill and decode; it passes all others."""

_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5.0)


async def prefilled_elsewhere(address: str, path: str, body: bytes, request_id: str) -> bool:
    """Let another endpoint prefill a prompt; return False if that failed.

    Raises:
        ApiError: the other endpoint refused the request.
    """
    fields = orjson.loads(body)
    fields.pop("stream_options", None)
    asked = fields | {"stream": False, "max_tokens": 1, "max_completion_tokens": 1}
    headers = {"content-type": "application/json", REQUEST_ID: request_id}
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as http,
            http.post(f"http://{address}{path}", data=orjson.dumps(asked), headers=headers) as got,
        ):
            await got.read()
            status = got.status
    except (TimeoutError, aiohttp.ClientError, ValueError):
        return False
    if 400 <= status < 500:
        raise ApiError(status, "The endpoint that reads the prompt refused the request.")
    return status == 200

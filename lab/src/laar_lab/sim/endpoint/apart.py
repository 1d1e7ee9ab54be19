"""llm-d's sidecar, in front of an endpoint that decodes prompts prefilled elsewhere.

The request, limited to a single token, goes to the endpoint named in `x-prefiller-host-port`; then
the KV is transferred, and this engine decodes without prefilling. If the other endpoint fails, the
prompt is prefilled here as usual; if it refuses the request, the client gets the refusal.
"""

from __future__ import annotations

import aiohttp
import orjson

from laar.protocol.headers import REQUEST_ID
from laar_lab.sim.endpoint.errors import ApiError

PATHS = ("/v1/chat/completions", "/v1/completions")
"""Paths whose requests the sidecar splits into prefill and decode; it forwards all others."""

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
        raise ApiError(status, "The prefill endpoint refused the request.")
    return status == 200

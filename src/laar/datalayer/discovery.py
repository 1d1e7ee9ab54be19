"""Inspect engines over HTTP: their models, adapters and kind, and whether they require a key.

`laar init` writes a configuration from the result. Only GET requests are sent. Responses are
untrusted: limited in size and parsed defensively.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from laar.datalayer.endpoints_file import Endpoint
from laar.datalayer.fetching import fault_of, get, read_capped
from laar.datalayer.metrics_page import ENGINES
from laar.datalayer.served_names import read_served
from laar.fleet.membership import EndpointSpec, Served

TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 4 << 20
LISTED_BY_LAAR = b'"owned_by":"laar"'  # in a picker's answer to `GET /v1/models`
OTHER_LAAR = "is a laar picker, not an engine: list its engines (its own address causes a loop)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine, as it describes itself.

    Args:
        address: as in an endpoints file.
        served: the names that it lists: of its model, the main one first, and of loaded adapters.
        kind: the kind of engine, as `engine` in an endpoints file; empty if not recognized.
        remarks: findings for the user, one sentence each.
    """

    address: str
    served: Served = field(default_factory=Served)
    kind: str = ""
    remarks: tuple[str, ...] = ()


async def look_at(
    endpoints: Sequence[Endpoint], headers: Mapping[str, str] | None = None
) -> list[Engine]:
    """Return an `Engine` for each endpoint, in order; if it is unreachable, a remark says so.

    Raise `SettingError` if a file named by an endpoint can't be read.

    Args:
        endpoints: as in an endpoints file; their models are ignored.
        headers: sent with each request, such as ``authorization``.
    """
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as http:
        return list(await asyncio.gather(*(_look(http, endpoint) for endpoint in endpoints)))


async def _look(http: aiohttp.ClientSession, endpoint: Endpoint) -> Engine:
    address, spec = endpoint.address, endpoint.spec()
    status, body = await _get(http, spec, "/v1/models")
    if status is None:
        ask = "is the CA of its certificate in --ca-file" if b"SSL" in body else "is it running"
        remark = f"no answer at /v1/models ({body.decode()}); {ask}?"
        return Engine(address=address, remarks=(remark,))
    if LISTED_BY_LAAR in body:
        return Engine(address=address, remarks=(OTHER_LAAR,))
    paths = {names.path for names in ENGINES.values()}
    page = b"".join([(await _get(http, spec, path))[1] for path in paths])
    kind = next((name for name, names in ENGINES.items() if names.prefix in page), "")
    served, remarks = Served(), []
    if status in (401, 403):
        remarks.append(
            f"/v1/models answers {status}: the engine requires a key. Give it with --key-file, or "
            f"with --key-env if clients send their own and laar only forwards it"
        )
    elif status != 200:
        why = "; it may still be loading its model" if status == 503 else body.decode()
        remarks.append(f"/v1/models answers {status}{why}")
    else:
        try:
            served = read_served(body)
        except ValueError as error:
            remarks.append(f"/v1/models: {error}")
    if not kind:
        remarks.append(
            "no metrics page that laar can read: queues and caches stay estimates. llama.cpp has "
            "one with --metrics, SGLang and LMDeploy with --enable-metrics; for a page at another "
            "address set `engine` and `metrics_url`"
        )
    roots = set(served.weights.values())
    if len(served.weights) > 1 and (len(roots) > 1 or roots == {""}):
        remarks.append(
            "these may be names of several models, but an endpoint serves one: keep only that "
            "model's names in the endpoints file"
        )
    elif served.weights and "auto" not in served.weights:
        remarks.append(
            "it does not serve `auto`: while no picker answers, requests for `auto` get 404"
            + (
                f". Start vLLM with --served-model-name {next(iter(served.weights))} auto"
                if kind == "vllm"
                else ", unless it accepts any name"
            )
        )
    return Engine(address=address, served=served, kind=kind, remarks=tuple(remarks))


async def _get(
    http: aiohttp.ClientSession, spec: EndpointSpec, path: str
) -> tuple[int | None, bytes]:
    """Return the status and the body or redirect; None and the reason if there is no response."""
    try:
        async with get(http, spec.url(path), spec) as response:
            if response.status == 200:
                return 200, await read_capped(response.content, _MAX_ANSWER_BYTES)
            location = response.headers.get("location")
            return response.status, f", a redirect to {location}".encode() if location else b""
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return None, fault_of(error).encode()

"""The engines that all routers share: find out what they serve, and empty their caches.

A user's engines are left as they are except for their caches, which vLLM empties on
`/reset_prefix_cache` (with VLLM_SERVER_DEV_MODE=1) and SGLang on `/flush_cache`. Simulated engines
are restarted for each turn.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson

from laar.errors import LaarError, SettingError
from laar_lab.live.processes import Program, free_ports, wait_for
from laar_lab.race.words import text
from laar_lab.tokens import ASCII_PER_TOKEN

RESETS = ("/reset_prefix_cache", "/flush_cache")
"""Paths of vLLM and SGLang that empty a cache."""

_BUSY = re.compile(
    rb"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs)\S* (\S+)",
    re.MULTILINE,
)
_IDLE_S = 60.0
_ASK_S = 60.0
_PROBE_CHARS = (1_200, 3_600)
_SIMULATED_CONTEXT = 131_072
_SIMULATED_MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """A fleet of engines.

    Args:
        urls: base URL of each engine.
        model: the model to request.
        context_tokens: shortest context length among the engines.
        chars_per_token: characters of English text per token of the model.
        simulated: whether the engines are restarted for each turn.
        headers: headers to send with each request to them.
        time_scale: real seconds per second of the engines.
    """

    urls: tuple[str, ...]
    model: str
    context_tokens: int
    chars_per_token: float
    simulated: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    time_scale: float = 1.0


async def look_at(
    urls: Sequence[str], model: str | None, headers: Mapping[str, str] | None = None
) -> Engines:
    """Ask a user's engines what they serve; measure characters per token with two short requests.

    Raises:
        SettingError: an engine does not answer, or no model is served by all.
    """
    timeout = aiohttp.ClientTimeout(total=_ASK_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        served = await asyncio.gather(*(_models(session, url) for url in urls))
        common = [name for name in served[0] if all(name in models for models in served)]
        if model is None and not common:
            raise SettingError("no model is served by all engines; name one with --model")
        model = model or common[0]
        lengths = [models.get(model, 0) for models in served]
        return Engines(
            urls=tuple(url.rstrip("/") for url in urls),
            model=model,
            context_tokens=min((length for length in lengths if length), default=32_768),
            chars_per_token=await _chars_per_token(session, urls[0], model),
            headers=headers or {},
        )


async def _models(session: aiohttp.ClientSession, url: str) -> dict[str, int]:
    """Return the context length of each model; 0 if unknown."""
    try:
        async with session.get(f"{url.rstrip('/')}/v1/models") as answer:
            if answer.status in {401, 403}:
                raise SettingError(
                    f"--engines {url} needs a key: name its environment variable with --key-env"
                )
            page = orjson.loads(await answer.read())
        return {entry["id"]: int(entry.get("max_model_len") or 0) for entry in page["data"]}
    except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, KeyError) as error:
        said = str(error) or type(error).__name__
        raise SettingError(f"--engines {url}: no list of models at /v1/models: {said}") from None


async def _chars_per_token(session: aiohttp.ClientSession, url: str, model: str) -> float:
    counts = []
    for chars in _PROBE_CHARS:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text(chars, chars)}],
            "max_tokens": 1,
        }
        try:
            async with session.post(f"{url.rstrip('/')}/v1/chat/completions", json=body) as answer:
                page = orjson.loads(await answer.read())
            counts.append(int(page["usage"]["prompt_tokens"]))
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, KeyError) as error:
            said = str(error) or type(error).__name__
            raise SettingError(
                f"--engines {url}: the answer to a chat with {model} has no token counts: {said}"
            ) from None
    return (_PROBE_CHARS[1] - _PROBE_CHARS[0]) / max(1, counts[1] - counts[0])


@asynccontextmanager
async def simulated(
    directory: Path,
    profile: str,
    count: int,
    time_scale: float,
    fault: str = "",
    *,
    num_blocks: int | None = None,
) -> AsyncIterator[Engines]:
    """Start simulated engines, of `num_blocks` KV blocks each, and stop them after the block."""
    ports = free_ports(count)
    about = {"profile": profile, "time_scale": time_scale, "num_blocks": num_blocks}
    engines = [{"model": _SIMULATED_MODEL, "port": port, **about} for port in ports]
    engines[0] |= {"faults": [fault]} if fault else {}
    spec = directory / "engines.json"
    spec.write_bytes(orjson.dumps(engines))
    command = (sys.executable, "-m", "laar_lab.race.simulated", str(spec))
    async with Program(command, directory / "engines.log") as program:
        for port in ports:
            await wait_for(f"http://127.0.0.1:{port}/health", program)
        yield Engines(
            urls=tuple(f"http://127.0.0.1:{port}" for port in ports),
            model=_SIMULATED_MODEL,
            context_tokens=_SIMULATED_CONTEXT,
            chars_per_token=float(ASCII_PER_TOKEN),
            simulated=True,
            time_scale=time_scale,
        )


async def emptied(engines: Engines) -> list[str]:
    """Wait until the engines are idle and empty their caches; return those that can't be emptied.

    Raises:
        LaarError: an engine is busy with requests from outside the race.
    """
    timeout = aiohttp.ClientTimeout(total=_ASK_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=engines.headers) as session:
        await asyncio.gather(*(_idle(session, url) for url in engines.urls))
        done = await asyncio.gather(*(_empty(session, url) for url in engines.urls))
    return [url for url, emptied in zip(engines.urls, done, strict=True) if not emptied]


async def _idle(session: aiohttp.ClientSession, url: str) -> None:
    ends_s = time.monotonic() + _IDLE_S
    while True:
        try:
            async with session.get(f"{url}/metrics") as answer:
                page = await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return  # without a metrics page the load is unknown
        if not any(float(count) for count in _BUSY.findall(page)):
            return
        if time.monotonic() > ends_s:
            raise LaarError(
                f"{url} was still busy after {_IDLE_S:g} s in which the race sent nothing: use "
                "engines without other traffic"
            )
        await asyncio.sleep(0.2)


async def _empty(session: aiohttp.ClientSession, url: str) -> bool:
    for path in RESETS:
        try:
            async with session.post(f"{url}{path}") as answer:
                if answer.status == 200:
                    return True
        except (aiohttp.ClientError, TimeoutError):
            return False
    return False

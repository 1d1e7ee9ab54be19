"""Measure a running engine over HTTP: vLLM, or any engine with the same API.

Prompts are random token ids, different each time, so the engine's prefix cache holds only the
prompts put there for the measurement. The fastest of several repeats is used, because other work on
the machine can only add time. Each round measures all points, so that no busy period affects only
one of them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from statistics import mean

import aiohttp
import orjson

from laar.datalayer.fetching import read_capped
from laar.errors import SettingError
from laar_lab.sim.engine.fitting import Facts, Point, Seen

TIMEOUT_S = 600.0

GAP = 0.25
"""Delay before the other prompts are sent, as a share of the time that one prompt takes alone. If
all were sent together, chance would decide which of them join the first prompt's iteration."""

SHORT_TOKENS, OFTEN = 1024, 4
"""Prompts of up to `SHORT_TOKENS` are sent `OFTEN` times per round: they take milliseconds, so
other work on the machine dominates a single measurement."""

_MAX_PAGE_BYTES = 16 << 20
_FIRST_ID, _END_ID = 3, 1000
"""Range from which token ids are drawn: all exist in every vocabulary, and none ends an answer."""

_UNDER_WAY = re.compile(
    r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\d+(?:\.\d+)?)$", re.MULTILINE
)
_DEFAULT_BLOCK, _DEFAULT_BLOCKS = 16, 65_536  # as in vLLM on a GPU; 1M tokens


async def facts_of(
    session: aiohttp.ClientSession, url: str, model: str | None, batched_tokens: int
) -> tuple[Facts, int]:
    """Return the facts that the endpoint reports, and its context length (0 if not reported).

    Raises:
        SettingError: the endpoint does not answer, or does not serve the model.
    """
    try:
        listed = orjson.loads(await _page(session, f"{url}/v1/models"))
        models = {str(entry["id"]): entry for entry in listed["data"]}
        name = model or next(iter(models))
        longest = int(models[name].get("max_model_len") or 0)
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration):
        raise SettingError(f"{url}/v1/models does not list {model or 'a model'}") from None
    page = (await _page(session, f"{url}/metrics")).decode("utf-8", "replace")
    labels = {}
    for label in ("block_size", "num_gpu_blocks"):
        found = re.search(rf'^vllm:cache_config_info\{{.*\b{label}="(\d+)"', page, re.MULTILINE)
        if found and int(found[1]):
            labels[label] = int(found[1])
    facts = Facts(
        model=name,
        block_size=labels.get("block_size", _DEFAULT_BLOCK),
        num_blocks=labels.get("num_gpu_blocks", _DEFAULT_BLOCKS),
        max_num_batched_tokens=batched_tokens,
        others=sum(int(float(number)) for number in _UNDER_WAY.findall(page)),
    )
    return facts, longest


async def measure(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    points: Sequence[Point],
    *,
    repeat: int,
    progress: Callable[[], None],
) -> Mapping[Point, Seen]:
    """Measure each point `repeat` times; `progress` is called after each measurement.

    Raises:
        SettingError: the endpoint rejects a prompt, or aborts an answer.
    """
    seen: dict[Point, Seen] = {}
    rng = Random()  # seeded by the system, so each run has new prompts
    await _ask(session, url, model, _prompt(rng, 64), 2)  # the first request is slower
    for _ in range(repeat):
        for point in points:
            short = (point.prompt_tokens - point.cached_tokens) * point.together <= SHORT_TOKENS
            prompts: list[list[int]] = []
            for _ in range(OFTEN if short else 1):
                if not prompts or point.cached_tokens < point.prompt_tokens:
                    count = point.together + (point.together > 1)  # one of them is sent alone
                    prompts = [_prompt(rng, point.prompt_tokens) for _ in range(count)]
                    if point.cached_tokens:
                        await _ask(session, url, model, prompts[0][: point.cached_tokens], 1)
                found = await _point(session, url, model, point, prompts)
                seen[point] = _better(seen.get(point, found), found)
            progress()
    return seen


def _better(one: Seen, other: Seen) -> Seen:
    """Return the measurement with the shorter last TTFT, and the shorter answer time of the two."""
    best = min(one, other, key=lambda seen: max(seen.ttft_s))
    return replace(best, answer_s=min(one.answer_s, other.answer_s))


async def _point(
    session: aiohttp.ClientSession, url: str, model: str, point: Point, prompts: list[list[int]]
) -> Seen:
    gap_s = 0.0
    if point.together > 1 and point.output_tokens == 1:
        alone_s, _, _ = await _ask(session, url, model, prompts[-1], 1)
        gap_s = GAP * alone_s
    asked = [
        _ask(session, url, model, prompt, point.output_tokens, gap_s * (number > 0))
        for number, prompt in enumerate(prompts[: point.together])
    ]
    answers = await asyncio.gather(*asked)
    return Seen(
        ttft_s=tuple(sorted(first_s for first_s, _, _ in answers)),
        answer_s=mean(last_s for _, last_s, _ in answers),
        cached_tokens=answers[-1][2],
        gap_s=gap_s,
    )


def _prompt(rng: Random, tokens: int) -> list[int]:
    return [rng.randrange(_FIRST_ID, _END_ID) for _ in range(tokens)]


async def _ask(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    prompt: Sequence[int],
    tokens: int,
    delay_s: float = 0.0,
) -> tuple[float, float, int | None]:
    """Return the seconds to the first and last token, and the reported number of cached tokens."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    payload = orjson.dumps(body)
    first_s = last_s = None
    cached: int | None = None
    await asyncio.sleep(delay_s)
    begin = time.perf_counter()
    try:
        async with session.post(
            f"{url}/v1/completions",
            data=payload,
            headers={"content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        ) as answer:
            if answer.status != 200:
                said = (await answer.content.read(300)).decode("utf-8", "replace")
                raise SettingError(f"{url}: HTTP {answer.status} for {len(prompt)} tokens: {said}")
            async for line in answer.content:
                if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                chunk = orjson.loads(line[5:])
                if not isinstance(chunk, dict) or chunk.get("error"):
                    raise SettingError(f"{url} aborted an answer: {chunk!r:.300}")
                if chunk.get("choices"):
                    last_s = time.perf_counter() - begin
                    first_s = first_s or last_s
                details = (chunk.get("usage") or {}).get("prompt_tokens_details") or {}
                cached = details.get("cached_tokens", cached)
    except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as fault:
        raise SettingError(f"{url}: {str(fault) or type(fault).__name__}") from None
    if first_s is None or last_s is None:
        raise SettingError(f"{url}: an answer had no tokens; does it stream completions?")
    return first_s, last_s, cached


async def _page(session: aiohttp.ClientSession, url: str) -> bytes:
    try:
        async with session.get(url) as answer:
            return await read_capped(answer.content, _MAX_PAGE_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError) as fault:
        raise SettingError(f"{url}: {str(fault) or type(fault).__name__}: is it running?") from None

"""What tests ask of real engines behind a real Envoy and a picker."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import aiohttp
import orjson

from laar.server.runner import Runner
from laar.settings import Settings
from support import metric


@dataclass
class Gateway:
    """Envoy and the picker in front of the engines."""

    url: str
    runner: Runner
    http: aiohttp.ClientSession
    settings: Settings

    async def ask(self, path, body, **headers):
        """Return the status, headers and body of one answer."""
        return await exchange(self.http, self.url, "POST", path, body, headers)

    async def chat(self, messages, **more):
        """Return a successful answer, and its usage."""
        body = {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, **more}
        status, headers, text = await self.ask("/v1/chat/completions", body)
        assert status == 200, text
        return orjson.loads(text), headers


async def exchange(http, url, method, path, body, headers):
    data = orjson.dumps(body) if isinstance(body, dict) else body
    headers = {"content-type": "application/json", **headers}
    async with http.request(method, url + path, data=data, headers=headers) as answer:
        return answer.status, answer.headers, await answer.read()


def words(rng, count):
    return " ".join("".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 8))) for _ in range(count))


async def converse(behind, talks, turns, *, seed, at_once=4):
    """Hold conversations in turns; return the numbers of prompt tokens and of cached ones."""
    rng = random.Random(seed)
    system = {"role": "system", "content": words(rng, 60)}
    texts = [[words(rng, rng.randint(20, 120)) for _ in range(turns)] for _ in range(talks)]
    talks = [([system], lines) for lines in texts]
    prompt = cached = 0

    async def user():
        nonlocal prompt, cached
        while talks:
            messages, lines = talk = talks.pop(rng.randrange(len(talks)))
            messages.append({"role": "user", "content": lines.pop()})
            answer, _ = await behind.chat(messages)
            usage = answer["usage"]
            prompt += usage["prompt_tokens"]
            cached += (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
            messages.append(answer["choices"][0]["message"] | {"role": "assistant"})
            if lines:
                talks.append(talk)

    await asyncio.gather(*(user() for _ in range(at_once)))
    return prompt, cached


def prefixes(runner):
    """Return the numbers of prompt tokens found cached and believed cached so far."""
    names = ("laar_prefix_found_tokens_total", "laar_prefix_believed_tokens_total")
    return tuple(metric(runner, name) for name in names)


async def shares_of(behind, talks, seed, at_once, turns=5):
    """Converse; return the shares of prompt tokens found, believed and reported as cached."""
    before = prefixes(behind.runner)
    prompt, cached = await converse(behind, talks, turns, seed=seed, at_once=at_once)
    after = prefixes(behind.runner)
    found, believed = ((now - then) / prompt for now, then in zip(after, before, strict=True))
    return found, believed, cached / prompt

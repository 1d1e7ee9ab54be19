"""How laar handles each API of each kind of engine, through a real Envoy, and the page on this."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from laar.datalayer.metrics_page import ENGINES
from support.stand_ins import CACHED_TOKENS, KINDS, PROMPT_TOKENS, Kind, StandIn

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "engines.md"


@dataclass(frozen=True)
class ApiRow:
    """An API: its name on the page, its path, and the form of its body.

    For `native` and `tokenize`, the path and body differ by engine.
    """

    name: str
    path: str
    form: str


APIS = (
    ApiRow("Chat", "/v1/chat/completions", "chat"),
    ApiRow("Chat, streamed", "/v1/chat/completions", "streamed"),
    ApiRow("Completions", "/v1/completions", "text"),
    ApiRow("Responses", "/v1/responses", "input"),
    ApiRow("Messages (Anthropic's)", "/v1/messages", "chat"),
    ApiRow("Embeddings", "/v1/embeddings", "input"),
    ApiRow("Rerank", "/v1/rerank", "rerank"),
    ApiRow("Transcriptions (a form)", "/v1/audio/transcriptions", "form"),
    ApiRow("Images", "/v1/images/generations", "text"),
    ApiRow("Count tokens", "", "tokenize"),
    ApiRow("The engine's own", "", "native"),
    ApiRow("`GET /v1/models/NAME`", "/v1/models/", "get"),
)


def path_of(api: ApiRow, kind: Kind) -> str:
    """Return the path that a client requests; empty if the engine has none."""
    if api.form in ("native", "tokenize"):
        return getattr(kind, api.form)[0]
    return api.path


def body_of(api: ApiRow, kind: Kind, model: str) -> Any:
    """Return a body for an API, with its own prompt, long enough to be cached."""
    prompt = f"{kind.name} {api.name} " + " ".join(f"word{n}" for n in range(1000))
    if api.form == "form":
        form = aiohttp.FormData()
        form.add_field("file", prompt.encode(), filename="a.wav")
        form.add_field("model", model)
        return form
    if api.form in ("native", "tokenize"):
        text = json.dumps(getattr(kind, api.form)[1]).replace("MODEL", model)
        return text.replace('"IDS"', json.dumps(list(range(1000)))).replace("PROMPT", prompt)
    chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 8}
    rest = {
        "chat": chat,
        "streamed": {**chat, "stream": True, "stream_options": {"include_usage": True}},
        "text": {"prompt": prompt},
        "input": {"input": prompt},
        "rerank": {"query": prompt, "documents": ["a", "b"]},
    }[api.form]
    return json.dumps({"model": model, **rest})


NONE = "—"
REFUSED = "refused"
LAAR = "laar"
ROUTED = "routed"
PRICED = "priced"


@dataclass(frozen=True)
class Seen:
    """What laar did with one API of one engine.

    Args:
        how: one of the words above.
        usage: the tokens that it read from the answer: empty, "tokens" or "tokens, cached".
    """

    how: str
    usage: str = ""


@dataclass(frozen=True)
class Reach:
    """What laar reads from an engine in addition to its answers.

    Args:
        readings: what was found on its metrics page.
    """

    readings: tuple[str, ...]


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    engines: Sequence[StandIn],
    mine: StandIn,
    api: ApiRow,
) -> str | Seen:
    """Send two requests to one API of one engine; both must succeed, or name no model.

    Return what laar did if that is known immediately, else the id of the second decision.
    """
    path = path_of(api, mine.kind)
    if not path:
        return Seen(NONE)
    before = [len(each.asked) for each in engines]
    statuses, name = [], ""
    for _ in range(2):
        if api.form == "get":
            call = http.get(f"{url}{path}{mine.model}")
        else:
            headers = {} if api.form == "form" else {"content-type": "application/json"}
            call = http.post(url + path, data=body_of(api, mine.kind, mine.model), headers=headers)
        async with call as answer:
            await answer.read()
            statuses.append(answer.status)
            name = answer.headers.get("x-laar-decision-id", "")
    reached = {
        each.kind.name: each.asked[known:]
        for each, known in zip(engines, before, strict=True)
        if len(each.asked) > known
    }
    where = f"{mine.kind.name}, {api.name}: {statuses}, {reached}"
    if api.form == "get":
        assert not reached, where
        assert statuses == [200, 200], where
        return Seen(LAAR)
    if api.form in ("native", "tokenize") and "model" not in getattr(mine.kind, api.form)[1]:
        assert (statuses, reached) == ([400, 400], {}), where
        return Seen(REFUSED)
    assert reached == {mine.kind.name: [mine.expected(path)] * 2}, where
    if path not in (*mine.kind.serves, mine.kind.native[0], mine.kind.tokenize[0]):
        assert statuses == [404, 404], where
        return Seen(NONE)
    assert statuses == [200, 200], where
    return name


def judged(record: Mapping[str, Any]) -> Seen:
    """Return what laar did, according to a decision's record."""
    cached = record["candidates"][record["picked"]].get("cached_tokens", 0.0)
    end = record["completion"]
    usage = [
        name
        for name, said in (("prompt_tokens", PROMPT_TOKENS), ("cached_tokens", CACHED_TOKENS))
        if end[name] == said
    ]
    return Seen(PRICED if cached > 0 else ROUTED, ("", "tokens", "tokens, cached")[len(usage)])


def page(seen: Mapping[tuple[str, str], Seen], reach: Mapping[str, Reach]) -> str:
    """Return the page of all results, by API and engine."""
    kinds = [kind.name for kind in KINDS]

    def table(cell: Callable[[Seen], str], rows: Sequence[ApiRow]) -> list[str]:
        return [
            f"| API | {' | '.join(kinds)} |\n| --- |{' --- |' * len(kinds)}\n",
            *(
                f"| {api.name} | {' | '.join(cell(seen[api.name, k]) for k in kinds)} |\n"
                for api in rows
            ),
        ]

    read = [api for api in APIS if any(seen[api.name, k].usage for k in kinds)]
    lines = [_HEAD, *table(lambda one: one.how, APIS), _USAGE]
    lines += table(lambda one: one.usage or NONE, read)
    lines.append(_REACH)
    quotes = '""'
    for kind in KINDS:
        own = " and ".join(f"`{each[0]}`" for each in (kind.native, kind.tokenize) if each[0])
        entry = ", ".join(f"`{k}: {v or quotes}`" for k, v in kind.settings.items())
        found = reach[kind.name]
        lines.append(
            f"| [{kind.name}]({kind.docs}) | {entry or NONE} | {', '.join(found.readings) or NONE} "
            f"| {own or NONE} |\n"
        )
    lines += [_KNOWN, *map(_known_row, KINDS), _TAIL]
    return "".join(lines)


_FACTS = {
    "size of its KV cache": ("capacity_tokens", "capacity_info"),
    "cache hits": ("hits_tokens",),
    "restarts": ("started", "worked"),
    "a full queue": ("refused",),
    "adapters": ("adapters_info",),
    "ranks": ("rank",),
    "KV events": ("events_path",),
    "sleep": ("awake",),
}
"""What laar would know of an engine, and what says so (`laar.datalayer.metrics_page`)."""


def _known_row(kind: Kind) -> str:
    names = None if "metrics_url" in kind.settings else ENGINES[kind.settings.get("engine", "vllm")]

    def is_read(fields: tuple[str, ...]) -> bool:
        given = (getattr(names, field, ()) for field in fields)
        return any(bool(of) and bool(of[0]) for of in given)

    read = [fact for fact, fields in _FACTS.items() if is_read(fields)]
    guessed = [fact for fact in _FACTS if fact not in read]
    is_real = kind.name in ("vLLM", "SGLang", "llama.cpp")
    run = f"`make test-{kind.name.lower().replace('.', '-')}`" if is_real else "stand-in"
    return f"| {kind.name} | {', '.join(read) or NONE} | {', '.join(guessed) or NONE} | {run} |\n"


_HEAD = """# Engines by APIs

Made by `tests/server/test_engines_by_apis.py`: eight stand-ins, each with one model, which have
the routes, usage and metrics pages that each engine documents, behind laar and a real Envoy in
all shapes. How releases deviate is not seen: `make test-vllm`, `make test-sglang` and `make
test-llama-cpp` run real engines.

## What laar does with a request

* **priced**: laar reads the prompt and sends it to the engine of its model where it costs least,
  with the prefix that each engine has cached taken into account.
* **routed**: it goes to an engine of its model. laar does not read the prompt.
* **refused**: the request names no model, so it gets 400 where several are served. Put such
  engines behind a separate Envoy, or use OpenAI's API.
* **laar**: laar answers itself, with the names of the whole fleet.
* **—**: the engine documents no such API. laar routes the request by its model, and the client
  gets the engine's 404.

"""

_USAGE = """
## What laar reads from an answer

laar reads the prompt's tokens, and how many of them the engine found in its cache, to correct
its estimate. A stream has them if the request has `stream_options: {"include_usage":
true}`. In the shapes `sidecar` and `standalone` laar reads a sample of the answers
(`bodies.sample_answers`). vLLM reports cached tokens with `--enable-prompt-tokens-details`,
SGLang with `--enable-cache-report`.

"""

_REACH = """
## How they are reached

| engine | its entry says | read from its metrics page | its own APIs |
| --- | --- | --- | --- |
"""

_KNOWN = """
## What is read, guessed, and run

What is not read is guessed: caches have room, and hold what laar sent as far as the usage of
answers confirms it; refused connections are restarts, a 429 is a full queue, adapters are loaded
where they were used lately. Ranks, KV events and sleep are then not used. Which models an engine
holds, and what loading another takes, is learned from first tokens. Context windows are read in
each engine's own words, LM Studio's too. SGLang's adapters are `BASE:NAME`: for the name alone its
base model answers. llama.cpp reuses less than is believed of a prompt that a longer one began with.
`transformers serve` (5.19, `metrics_url: ""`) was run by hand: each of two answered half.

| engine | read besides | guessed | run by the tests as |
| --- | --- | --- | --- |
"""

_TAIL = """
*hosted* is any service with OpenAI's API behind https, a base path and a key: `address:
https://HOST/openai/v1`, `ca_file`, `sni` and `key_file`
([how](../guides/vllm.md#engines-with-https-a-base-path-or-a-key)). A client's `authorization`,
`x-api-key` and `api-key` never reach it, and its key reaches no other engine.

LM Studio, NVIDIA NIM, Ray Serve, Dynamo, LiteLLM and Azure OpenAI are in [In front of
vLLM](../guides/vllm.md#other-engines-and-services).
"""

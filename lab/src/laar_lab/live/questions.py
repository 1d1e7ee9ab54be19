"""Ask a gateway questions with checked answers, under several policies in turn.

Each policy gets the same questions with a different cache salt, so that it never finds a warm
cache. A question is repeated until its answer is correct, every model has been tried, or ten
attempts have been made (LAAR, section 6.1).
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import aiohttp

from laar.client import Outcome, until_correct
from laar.plugins.trying import Trying
from laar.protocol import headers as names
from laar.protocol.sessions import SESSION
from laar_lab.kv_lookup import LANGUAGES, Query, queries
from laar_lab.sim.fleet.clients import MAX_ATTEMPTS

CONCURRENCY = 2
"""With more, every model is busy, and there is little to choose."""


@dataclass(slots=True)
class Asked:
    """The questions asked under one policy.

    Args:
        outcomes: outcome of each question, by its id.
        faults: violations of the contract.
        salt: the policy's own cache.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    salt: str = field(default_factory=partial(secrets.token_hex, 8))


def drawn(count: int, seed: int, lengths_tokens: Sequence[int]) -> list[Query]:
    """Return questions, spread evenly over languages and lengths."""
    per_cell = math.ceil(count / (len(LANGUAGES) * len(lengths_tokens)))
    found = queries(lengths_tokens=lengths_tokens, per_cell=per_cell, split="evaluate", seed=seed)
    # Take from the cells in turn, so that they are spread evenly if not all are needed.
    order = sorted(range(len(found)), key=lambda i: (i % per_cell, i))
    return [found[i] for i in order[:count]]


async def ask(
    url: str, asked: Sequence[Query], policy: str, models: Mapping[str, str], found: Asked
) -> None:
    """Ask questions under one policy, and add to what was found.

    Args:
        url: URL of Envoy.
        asked: the questions.
        policy: name of the policy.
        models: model of each endpoint by address, used to check the answers' headers.
        found: what was found so far.
    """
    waiting = iter(asked)

    async def worker(session: aiohttp.ClientSession) -> None:
        for query in waiting:
            outcome = await until_correct(
                [{"role": "user", "content": query.prompt}],
                partial(_holds, query.answer),
                base_url=url,
                session=session,
                max_attempts=MAX_ATTEMPTS,
                headers={names.POLICY: policy, SESSION: query.id},
                params={"cache_salt": found.salt},
            )
            found.outcomes[query.id] = outcome
            found.faults += breaches(policy, outcome, models)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker(session))


def _holds(value: str, answer: str) -> bool:
    return value in answer


def breaches(policy: str, outcome: Outcome, models: Mapping[str, str]) -> list[str]:
    """Return violations of the contract of the x-laar-* headers (docs/reference/headers.md)."""
    found = []
    tried: list[str | None] = []
    for attempt in outcome.attempts:
        if attempt.status != 200:
            found.append(f"{policy}: status {attempt.status} ({attempt.error})")
            continue
        if models.get(attempt.endpoint or "") != attempt.model:
            found.append(f"{policy}: {attempt.endpoint} does not serve {attempt.model}")
        if not attempt.decision_id or attempt.reason not in (policy, Trying.name):
            found.append(f"{policy}: decided as {attempt.reason} ({attempt.decision_id})")
        if attempt.model in tried:
            found.append(f"{policy}: {attempt.model} was tried twice")
        tried.append(attempt.model)
    if outcome.exhausted and set(tried) != set(models.values()):
        found.append(f"{policy}: exhausted after {tried}")
    return found

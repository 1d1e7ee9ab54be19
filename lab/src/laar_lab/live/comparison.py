"""Send questions with checked answers through a gateway, once under each policy.

Each policy gets the same questions with a different cache salt, so that it never finds a warm
cache. A question is repeated until its answer is correct, every model has been tried, or ten
attempts have been made (LAAR, section 6.1).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from laar.client import Outcome, until_correct
from laar.protocol import headers as names
from laar.protocol.sessions import SESSION
from laar_lab.kv_lookup import Query
from laar_lab.live.pages import read_totals
from laar_lab.policies.llm_router import REASONS
from laar_lab.sim.fleet.clients import MAX_ATTEMPTS

BROKEN = 1
"""Exit status if an exchange violated the contract."""
_FAULTS_SHOWN = 10

_REASONS = {"llm-router": REASONS}
"""The reasons that a policy may give; by default only its name."""


@dataclass(slots=True)
class Tally:
    """Results of one policy.

    Args:
        policy: name of the policy.
        results: each question with its outcome.
        faults: violations of the contract.
        engine_s: seconds that its requests spent in engines, without queueing; None if the
            endpoints are unknown.
        served_s: the same with queueing: from a request's arrival at its engine to its end.
    """

    policy: str
    results: list[tuple[Query, Outcome]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    engine_s: float | None = None
    served_s: float | None = None


async def compare(
    console: Console,
    url: str,
    asked: Sequence[Query],
    *,
    policies: Sequence[str],
    concurrency: int,
    models: Mapping[str, str] | None = None,
    stream: bool = False,
) -> list[Tally]:
    """Send all questions under each policy in turn.

    Args:
        console: console for the progress bars.
        url: URL of Envoy.
        asked: the questions.
        policies: names of the policies.
        concurrency: number of concurrent questions.
        models: model of each endpoint by address, if known, used to check the answers' headers.
        stream: ask for streamed answers, so that the picker sees when a prompt has been prefilled.
    """
    tallies = [Tally(policy) for policy in policies]
    columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        for tally in tallies:
            task = progress.add_task(tally.policy, total=len(asked))
            async with aiohttp.ClientSession() as session:
                before = await _spent(session, models or ())
                await _run_policy(
                    url,
                    session,
                    tally,
                    asked,
                    concurrency,
                    models,
                    stream,
                    partial(progress.advance, task),
                )
                if models:
                    after = await _spent(session, models)
                    tally.engine_s, tally.served_s = after[0] - before[0], after[1] - before[1]
    return tallies


async def _spent(session: aiohttp.ClientSession, addresses: Iterable[str]) -> tuple[float, float]:
    """Return the endpoints' total request seconds so far, without and with queueing."""
    pages = [await read_totals(session, f"http://{address}/metrics") for address in addresses]
    return (
        sum(page["vllm:request_inference_time_seconds_sum"] for page in pages),
        sum(page["vllm:e2e_request_latency_seconds_sum"] for page in pages),
    )


async def _run_policy(
    url: str,
    session: aiohttp.ClientSession,
    tally: Tally,
    asked: Sequence[Query],
    concurrency: int,
    models: Mapping[str, str] | None,
    stream: bool,
    advance: Callable[[], None],
) -> None:
    waiting = iter(asked)
    salt = secrets.token_hex(8)  # so that a policy that runs twice also starts cold

    async def worker() -> None:
        for query in waiting:
            outcome = await until_correct(
                [{"role": "user", "content": query.prompt}],
                partial(_holds, query.answer),
                base_url=url,
                session=session,
                max_attempts=MAX_ATTEMPTS,
                stream=stream,
                headers={names.POLICY: tally.policy, SESSION: query.id},
                params={"cache_salt": salt},
            )
            tally.results.append((query, outcome))
            tally.faults += _breaches(tally.policy, outcome, models)
            advance()

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())


def exit_status(console: Console, tallies: Sequence[Tally]) -> int:
    """Print the first contract violations; return `BROKEN` if there are any, else 0."""
    faults = [fault for tally in tallies for fault in tally.faults]
    for fault in faults[:_FAULTS_SHOWN]:
        console.print(f"[red]contract violated:[/red] {fault}")
    return BROKEN if faults else 0


def _holds(value: str, answer: str) -> bool:
    return value in answer


def _breaches(policy: str, outcome: Outcome, models: Mapping[str, str] | None) -> list[str]:
    """Return violations of the contract of the x-laar-* headers (docs/reference/headers.md)."""
    found = []
    tried: list[str | None] = []
    for attempt in outcome.attempts:
        if attempt.status != 200:
            found.append(f"{policy}: status {attempt.status} ({attempt.error})")
            continue
        if models is not None and models.get(attempt.endpoint or "") != attempt.model:
            found.append(f"{policy}: {attempt.endpoint} does not serve {attempt.model}")
        if not attempt.decision_id or attempt.reason not in _REASONS.get(policy, (policy,)):
            found.append(f"{policy}: decided as {attempt.reason} ({attempt.decision_id})")
        if policy == "laar" and attempt.model in tried:
            found.append(f"laar: {attempt.model} was tried twice")
        tried.append(attempt.model)
    if models is not None and outcome.exhausted and set(tried) != set(models.values()):
        found.append(f"{policy}: exhausted after {tried}")
    return found

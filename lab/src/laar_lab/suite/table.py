"""The suite: every workload on which the default policy has to hold its own.

Policies are developed on the workloads with the role `choose`. The others are for the verdict, with
different seeds: new seeds of the same generator would not make a new workload. Loads are as heavy
as a good policy can carry without saturation, unless a workload is about overload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from laar_lab.sim.fleet import Arrival
from laar_lab.suite import fleets
from laar_lab.suite.case import Case, Closed, Open, Together
from laar_lab.suite.real import agent_cases, conversation_cases
from laar_lab.workloads.sessions import (
    GORGO_CHATS,
    WILDCHAT,
    RouterShape,
    chats,
    router_sessions,
)
from laar_lab.workloads.shared_prompts import (
    AgentShape,
    BatchShape,
    Questions,
    agents,
    batches,
    in_bursts,
    questions,
)


def _chats(rate: float, **changed: object) -> Open:
    shape = replace(GORGO_CHATS, requests_per_s=rate, **changed)  # type: ignore[arg-type]
    return Open(draw=partial(chats, shape))


def _bursts(rng: Random, duration_s: float) -> Iterator[Arrival]:
    return in_bursts(chats(replace(GORGO_CHATS, requests_per_s=4.5), rng, duration_s))


def _router(sessions: int) -> Together:
    shape = RouterShape(sessions=sessions, output_tokens=7, long_share=0.2)
    return Together(draw=partial(router_sessions, shape), rounds=max(2, 96 // sessions))


def _art(slower: float) -> Open:
    """Return a load of prompts of 18,000 tokens, nine tenths of which were seen before."""
    return _chats(
        4.6 / slower,
        first_log=(8.8, 0.8),
        max_prompt_tokens=64_000,
        single_share=0.1,
        mean_turns=14.0,
    )


def _questions(shape: Questions) -> Open:
    return Open(draw=partial(questions, shape))


_LONG_ANSWERS = {"output_log": (5.6, 0.7), "max_output_tokens": 1000}  # as in Mooncake's trace
_ROUTER = partial(fleets.of_one, "qwen2.5-14b-a100", 4)
_EIGHT = partial(fleets.of_one, "gorgo-main", 8)
_DOCUMENTS = Questions(requests_per_s=14.0, texts=400, text_log=(9.2, 0.4))
_TENANTS = Questions(
    requests_per_s=24.0,
    texts=300,
    skew=0.9,
    text_log=(8.0, 0.6),
    question_log=(5.5, 0.9),
    output_log=(5.0, 0.6),
)
_DECODING = Questions(
    requests_per_s=22.0,
    question_log=(5.5, 0.8),
    output_log=(6.6, 1.0),
    max_output_tokens=6000,
)
_LONG_TAILED = Questions(requests_per_s=3.0, question_log=(7.5, 1.5), output_log=(4.6, 0.7))

SUITE: tuple[Case, ...] = (
    # Workloads to choose on.
    Case(
        name="router-8",
        about="llm-router's benchmark: 8 sessions with one long system prompt, 4 cold workers",
        role="choose",
        fleet=_ROUTER,
        load=_router(8),
    ),
    Case(
        name="router-16",
        about="the same with 16 sessions",
        role="choose",
        fleet=_ROUTER,
        load=_router(16),
    ),
    Case(
        name="regions",
        about="GORGO's conversations on its three regions, two thirds of its load",
        role="choose",
        fleet=fleets.regions,
        load=_chats(3.07),
        minutes=10.0,
    ),
    Case(
        name="documents",
        about="questions on 400 documents of some 10,000 tokens, some asked about far more often",
        role="choose",
        fleet=_EIGHT,
        load=_questions(_DOCUMENTS),
        minutes=3.0,
    ),
    Case(
        name="agents-8k",
        about="coding agents behind one system prompt of 8,192 tokens",
        role="choose",
        fleet=_EIGHT,
        load=Closed(draw=partial(agents, AgentShape()), at_once=56),
        minutes=4.0,
    ),
    Case(
        name="decoding",
        about="short prompts, long answers, batches of 64 nearly full",
        role="choose",
        fleet=_EIGHT,
        load=_questions(_DECODING),
        minutes=2.5,
    ),
    Case(
        name="mixed-devices",
        about="one model on four fast devices and four that are three times slower, unlabeled",
        role="choose",
        fleet=partial(fleets.mixed_devices, "gorgo-main", 4, 4, 3.0),
        load=_chats(5.5),
        minutes=5.0,
    ),
    Case(
        name="art-x2",
        about="prompts of 18,000 tokens, 90 % seen before, on six replicas in three regions",
        role="choose",
        fleet=partial(fleets.regions, 2),
        load=_art(2.0),
        minutes=8.0,
    ),
    Case(
        name="parallel-chats",
        about="conversations on engines that prefill side by side",
        role="choose",
        fleet=fleets.parallel,
        load=_chats(13.0, **_LONG_ANSWERS),
        minutes=3.0,
    ),
    Case(
        name="interference",
        about="a batch of 32 makes every token three times as slow",
        role="choose",
        fleet=partial(fleets.decode_bound, 6),
        load=_chats(5.5, output_log=(5.0, 0.8), max_output_tokens=1000),
        minutes=5.0,
    ),
    # Workloads to judge on.
    Case(
        name="router-12",
        about="llm-router's benchmark: 12 sessions",
        role="judge",
        fleet=_ROUTER,
        load=_router(12),
    ),
    Case(
        name="router-24",
        about="llm-router's benchmark: 24 sessions",
        role="judge",
        fleet=_ROUTER,
        load=_router(24),
    ),
    Case(
        name="low-reuse",
        about="single questions over three regions, 5 % seen before",
        role="judge",
        fleet=fleets.regions,
        load=Open(draw=partial(chats, replace(WILDCHAT, requests_per_s=5.7))),
        minutes=6.0,
    ),
    Case(
        name="batch-jobs",
        about="jobs that ask dozens of questions on one fresh document, plus single questions",
        role="judge",
        fleet=partial(fleets.of_one, "gorgo-main", 6),
        load=Open(draw=partial(batches, BatchShape())),
        minutes=6.0,
    ),
    Case(
        name="bursts",
        about="conversations over three regions, three quarters of them in a quarter of the time",
        role="judge",
        fleet=partial(fleets.regions, 2),
        load=Open(draw=_bursts),
        minutes=8.0,
    ),
    Case(
        name="tenants",
        about="300 tenants, each with its own system prompt",
        role="judge",
        fleet=_EIGHT,
        load=_questions(_TENANTS),
        minutes=2.0,
    ),
    Case(
        name="art-x1",
        about="the same at twice the rate",
        role="judge",
        fleet=partial(fleets.regions, 2),
        load=_art(1.0),
        minutes=5.0,
    ),
    Case(
        name="art-x3",
        about="the same at two thirds of the rate",
        role="judge",
        fleet=partial(fleets.regions, 2),
        load=_art(3.0),
        minutes=10.0,
    ),
    Case(
        name="roofline-chats",
        about="conversations on engines with chunked prefill, with times from the hardware",
        role="judge",
        fleet=partial(fleets.of_one, "llama-3-8b-a100", 8),
        load=_chats(9.0),
        minutes=3.0,
    ),
    Case(
        name="long-tails",
        about="single prompts of 10 to 100,000 tokens on the same engines",
        role="judge",
        fleet=partial(fleets.of_one, "llama-3-8b-a100", 4),
        load=_questions(_LONG_TAILED),
        minutes=6.0,
    ),
    Case(
        name="mixed-models",
        about="three models of different speed, any of which may answer; speeds measured",
        role="judge",
        fleet=fleets.mixed_models,
        load=_chats(5.0),
        knowledge=fleets.measured,
        minutes=5.0,
    ),
    Case(
        name="native-devices",
        about="fast and slow devices as in mixed-devices; one answer every 0.25 s is read",
        role="judge",
        fleet=partial(fleets.mixed_devices, "gorgo-main", 4, 4, 3.0),
        load=_chats(5.5),
        minutes=5.0,
        first_tokens="sampled",
    ),
    Case(
        name="native-models",
        about="three models of different speed; one answer every 0.25 s is read",
        role="judge",
        fleet=fleets.mixed_models,
        load=_chats(5.0),
        knowledge=fleets.measured,
        minutes=5.0,
        first_tokens="sampled",
    ),
    Case(
        name="parallel-mixed",
        about="engines that prefill side by side, half of them 2.5 times slower",
        role="judge",
        fleet=partial(fleets.parallel, 4, 4),
        load=_chats(8.5, **_LONG_ANSWERS),
        minutes=4.0,
    ),
    Case(
        name="parallel-agents",
        about="coding agents on engines that prefill side by side, with short caches",
        role="judge",
        fleet=partial(fleets.parallel, kv_tokens=200_000),
        load=Closed(draw=partial(agents, AgentShape(growth_log=(7.0, 0.9))), at_once=56),
        minutes=4.0,
    ),
    Case(
        name="superlinear",
        about="a prompt of 16,000 tokens takes twice its linear time",
        role="judge",
        fleet=partial(fleets.superlinear, 6),
        load=_chats(5.0),
        minutes=5.0,
    ),
    Case(
        name="heavy-answers",
        about="answers whose lengths span three orders of magnitude",
        role="judge",
        fleet=partial(fleets.of_one, "gorgo-main", 6),
        load=_chats(5.5, output_log=(4.6, 1.6), max_output_tokens=8000),
        minutes=5.0,
    ),
    Case(
        name="wrong-speeds",
        about="two models of the same speed, one believed twice as slow, the other twice as fast",
        role="judge",
        fleet=fleets.two_names,
        load=_chats(5.5),
        knowledge=fleets.mistaken,
        minutes=5.0,
    ),
    Case(
        name="strangers",
        about="half of the sessions come through another picker",
        role="judge",
        fleet=partial(fleets.of_one, "gorgo-main", 6),
        load=replace(_chats(6.0), strangers=0.5),
        minutes=6.0,
    ),
    Case(
        name="evictions",
        about="conversations with caches that hold a sixth of them",
        role="judge",
        fleet=partial(fleets.of_one, "gorgo-main", 6, kv_tokens=100_000),
        load=_chats(3.6),
        minutes=7.0,
    ),
)


def cases(data: Path | None = None) -> tuple[Case, ...]:
    """Return all workloads, including real traffic if its directory `data` is given.

    Raises:
        SettingError: a file of real traffic is missing.
    """
    return SUITE if data is None else (*SUITE, *agent_cases(data), *conversation_cases(data))

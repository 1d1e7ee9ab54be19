"""`laar overload`: its judgment of answers, its checks, and a short run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from laar_lab.live.leftovers import Rest, kept_files
from laar_lab.live.openloop import HUNG, Answered, send
from laar_lab.live.overload import run_overload
from laar_lab.live.verdict import Run, judge
from laar_lab.report import Report
from laar_lab.workloads.overload import QUEUES, asks
from support import Answer, RecordingUpstream

DRAWN = asks(10.0, 400, 1)
DONE = b"data: {}\n\ndata: [DONE]\n\n"
QUIET = Rest(left={}, rss_bytes=100 << 20, files=30)
ANSWERED = ("hangs", "each gets a complete", "twice", "left", "grows")
"""Words in the names of the checks on answers, as opposed to gains."""


async def chunks(*texts: str, then: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    for text in texts:
        yield text.encode()
    if then is not None:
        await then.wait()


async def test_only_a_complete_stream_or_an_honest_refusal_is_an_answer(
    start_upstream: Callable[[], Awaitable[RecordingUpstream]],
) -> None:
    upstream = await start_upstream()
    never = asyncio.Event()
    scripted = {
        "": Answer.sse(chunks("data: {}\n\n", "data: [DO", "NE]\n\n")),
        "ended early": Answer.sse(chunks("data: {}\n\n")),
        HUNG: Answer.sse(chunks("data: {}\n\n", then=never)),
        "status 500": Answer(status=500),
        "without a retry-after": Answer(status=429),
        "retry-after": Answer(status=503, headers={"retry-after": "0"}),
    }
    for number, (fault, answer) in enumerate(scripted.items()):
        upstream.script(answer)
        (got,) = await send(upstream.url, DRAWN[:1], time_scale=0.001, deadline_s=0.5)
        assert fault in got.fault, number
        assert bool(fault) == bool(got.fault)
        assert (got.ttft_s is not None) == (fault in ("", "ended early"))
    upstream.script(Answer(status=503, headers={"retry-after": "7", "x-laar-reason": "full"}))
    (shed,) = await send(upstream.url, DRAWN[:1], time_scale=0.001, deadline_s=5.0)
    assert (shed.status, shed.reason, shed.fault) == (503, "full", "")
    never.set()


async def test_a_request_that_hangs_holds_up_no_other(
    start_upstream: Callable[[], Awaitable[RecordingUpstream]],
) -> None:
    upstream = await start_upstream()
    never = asyncio.Event()
    upstream.script(Answer.sse(chunks("data: {}\n\n", then=never)))
    upstream.default_answer = Answer(headers={"content-type": "text/event-stream"}, body=DONE)
    first, *others = await send(upstream.url, DRAWN[:10], time_scale=0.1, deadline_s=1.0)
    never.set()
    assert first.fault == HUNG
    assert [one.fault for one in others] == [""] * 9
    assert all(one.late_s >= 0.0 for one in others)


async def test_requests_are_sent_according_to_the_schedule(
    start_upstream: Callable[[], Awaitable[RecordingUpstream]],
) -> None:
    upstream = await start_upstream()
    for policy in ("", "laar-paper"):
        await send(upstream.url, DRAWN[:20], time_scale=0.001, deadline_s=10.0, policy=policy)
    first, second = upstream.asked[:20], upstream.asked[20:]
    assert sorted(r.body for r in first) == sorted(r.body for r in second)
    assert {r.headers.get("x-laar-policy") for r in second} == {"laar-paper"}
    by_number = {
        int(orjson.loads(r.body)["messages"][0]["content"].partition(".")[0]): r for r in first
    }
    for ask in DRAWN[:20]:
        sent = by_number[ask.number]
        content = orjson.loads(sent.body)["messages"][0]["content"]
        assert len(content) == 6 * ask.prompt_tokens
        assert int(sent.headers["x-slo-ttft-ms"]) == pytest.approx(ask.objective_s, abs=0.6)


def runs(**changed: Run) -> dict[str, list[Run]]:
    """Return a faultless run for each route; half of the answers are late except in slack order."""
    well = {}
    for route in QUEUES:
        late = 1 if route == "slack" else 2
        answers = [
            Answered(
                ask=ask,
                status=200,
                ttft_s=0.1 if number % late == 0 else ask.objective_s + 1,
                late_s=0.0,
            )
            for number, ask in enumerate(DRAWN)
        ]
        well[route] = [Run(seed=1, answers=answers, served=len(answers), before=QUIET, after=QUIET)]
    return well | {route: [run] for route, run in changed.items()}


def verdict(given: dict[str, list[Run]], speed: float = 1.0) -> Report:
    return judge(given, speed=speed, seconds=60.0, time_scale=1.0)


def failed(given: dict[str, list[Run]]) -> list[str]:
    return [check.claim for check in verdict(given).checks if not check.held]


def test_a_run_without_faults_passes() -> None:
    assert verdict(runs()).held
    assert {one.kind for one in DRAWN} == {"conversation", "document"}
    assert not verdict(runs(), speed=0.8).held


@pytest.mark.parametrize("fault", ["hung", "cut", "twice", "left", "files", "grown"])
def test_each_violation_fails_its_own_check(fault: str) -> None:
    (well,) = runs()["slack"]
    first, *others = well.answers
    spoilt = {
        "hung": replace(well, answers=[replace(first, fault=HUNG, status=None), *others]),
        "cut": replace(well, answers=[replace(first, fault="the answer ended early"), *others]),
        "twice": replace(well, served=well.served + 1),
        "left": replace(well, after=replace(QUIET, left={"laar_flow_waiting": 1.0})),
        "files": replace(well, after=replace(QUIET, files=30 + kept_files(4) + 1)),
        "grown": replace(well, after=replace(QUIET, rss_bytes=1 << 30)),
    }
    claims = failed(runs(slack=spoilt[fault]))
    words = {
        "hung": "hangs",
        "cut": "each gets",
        "twice": "twice",
        "files": "left",
        "grown": "grows",
    }
    assert any(words.get(fault, fault) in claim for claim in claims)


def test_a_starving_class_fails_even_if_all_others_do_well() -> None:
    (well,) = runs()["slack"]
    starved = [
        replace(one, ttft_s=one.ask.objective_s + 1) if one.ask.kind == "document" else one
        for one in well.answers
    ]
    assert failed(runs(slack=replace(well, answers=starved))) == [
        "documents keep at least 90 % of the goodput that they have in arrival order"
    ]


def test_a_missing_gain_is_reported() -> None:
    level = runs()["arrival"][0]
    (claim,) = failed(runs(slack=level))
    assert "25 % higher" in claim


@pytest.mark.slow
@pytest.mark.envoy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", ["standalone", "gateway"])
@pytest.mark.usefixtures("envoy_binary")
def test_a_few_seconds_of_overload_lose_no_request_and_leave_nothing_behind(
    shape: str, tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    run_overload(
        seconds=8.0,
        seed=1000,
        seeds=1,
        probe_requests=60,
        time_scale=0.25,
        shape="gateway" if shape == "gateway" else "standalone",
        json_file=figures,
    )
    report = orjson.loads(figures.read_bytes())
    told = [c for c in report["checks"] if any(word in c["claim"] for word in ANSWERED)]
    assert len(told) == len(ANSWERED)
    assert all(check["held"] for check in told), told
    requests = [row[2] for row in report["tables"][0]["rows"]]
    assert len(requests) == len(QUEUES)
    assert min(requests) == max(requests) > 10

"""Real SGLang and llama.cpp behind a real Envoy and a picker: `make test-sglang`, `test-llama-cpp`.

Shares are asserted, but no times, since the engines share two cores with everything else.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import ClassVar

import orjson
import pytest

pytest.importorskip("tokenizers", reason="NO tokenizers HERE")
from behind_envoy import exchange, shares_of, words
from llama_cpp_server import NEEDS_LLAMA_CPP, LlamaCpp
from sglang_server import NEEDS_SGLANG, SGLang
from vllm_server import running, started

from laar.doctor import Doctor, Level
from support import eventually
from support.waiting import free_ports

pytestmark = pytest.mark.timeout(1800)

KINDS = [
    pytest.param(SGLang, id="SGLang", marks=NEEDS_SGLANG),
    pytest.param(LlamaCpp, id="llama.cpp", marks=NEEDS_LLAMA_CPP),
]
ONLY_SGLANG = pytest.mark.parametrize("engines", KINDS[:1], indirect=True)


@pytest.fixture(scope="module", params=KINDS)
def engines(request, model, tmp_path_factory):
    """Run two identical engines."""
    logs = tmp_path_factory.mktemp("engines")
    with running(model, logs, 2, *request.param.options, of=request.param) as two:
        yield two


class Silent(SGLang):
    """An engine whose events go nowhere."""

    labels: ClassVar = {"laar.dev/kv-events": "9"}


async def spread(behind, count, *, at_once, seed="shares"):
    """Ask unrelated questions; return how many each endpoint answered."""
    rng, went = random.Random(seed), Counter()
    left = [words(rng, rng.randint(20, 200)) for _ in range(count)]

    async def user():
        while left:
            _, headers = await behind.chat([{"role": "user", "content": left.pop()}])
            if chosen := headers.get("x-laar-endpoint"):  # else the picker was starved of CPU time
                went[chosen] += 1

    await asyncio.gather(*(user() for _ in range(at_once)))
    return went


async def probed(behind, count):
    """Wait until each endpoint has a round trip; return them in seconds."""
    table = behind.runner.picker.table
    await eventually(lambda: not any(table.rtt_s[n] != table.rtt_s[n] for n in range(count)))
    return table.rtt_s[:count].tolist()


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
@pytest.mark.parametrize("at_once", [1, 4])
async def test_two_equal_engines_share_the_work(gateway, engines, at_once, shape, figure):
    async with gateway(shape, of=engines, events=False) as behind:
        rtts_s = await probed(behind, 2)
        went = await spread(behind, 160, at_once=at_once)  # of 64, 6 % of runs miss by chance
    share = max(went.values()) / sum(went.values())
    sys.stdout.write(f"\n{went}, round trips {rtts_s}\n")
    figure(f"largest share of two equal {engines[0].kind}, {at_once} at once", share, ".6")
    assert share <= engines[0].most


@pytest.mark.parametrize(
    ("events", "at_once"),
    [
        pytest.param(False, 3, id="text alone"),
        pytest.param(True, 3, id="text and events"),
        pytest.param(True, 1, id="one at a time"),
    ],
)
@ONLY_SGLANG
async def test_prefixes_believed_cached_are_found(
    events, at_once, gateway, engines, figure, request
):
    silent = [Silent(each.port, each.events, each.replay) for each in engines]
    name = request.node.callspec.id
    async with gateway(of=engines if events else silent) as behind:
        found, believed, reported = await shares_of(behind, talks=12, seed=name, at_once=at_once)
    sys.stdout.write(f"\n{name}: found {found:.3f}, believed {believed:.3f}\n")
    figure(f"SGLang, {name}: believed cached less found", believed - found, "within .05")
    assert found >= 0.3, "the test would show nothing otherwise"
    assert found == pytest.approx(reported, rel=0.02)
    assert believed == pytest.approx(found, abs=0.05)


SLOTS = ("--cache_ram_mib", "0", "--n_parallel")


@pytest.mark.parametrize(
    ("options", "at_once"),
    [((), 3), ((*SLOTS, "2"), 3), ((*SLOTS, "1"), 1)],
    ids=["host cache", "two slots", "one slot"],
)
@pytest.mark.parametrize("of", KINDS[1:])
async def test_slots_that_keep_one_prompt_each_are_believed_to(
    of, options, at_once, gateway, model, tmp_path, figure, request
):
    name = request.node.callspec.id
    with running(model, tmp_path, 2, *options, of=of) as two:
        async with gateway(of=two) as behind:
            found, believed, reported = await shares_of(behind, 8, "slots", at_once, turns=20)
    sys.stdout.write(f"\n{name}: found {found:.3f}, believed {believed:.3f}\n")
    figure(f"{name}: believed cached less found", believed - found, "within .1")
    assert found >= 0.2, "the test would show nothing otherwise"
    assert found == pytest.approx(reported, rel=0.02)
    assert believed == pytest.approx(found, abs=0.1)


async def test_its_metrics_are_read(gateway, engines):
    of = engines[0]
    async with gateway(of=engines) as behind:
        table = behind.runner.picker.table
        await eventually(lambda: not any(table.read_at[n] != table.read_at[n] for n in (0, 1)))
        known = table.capacity_tokens[:2].tolist()
        assert known == [of.capacity_tokens] * 2 or of.capacity_tokens is None
        usage = table.kv_usage[:2]
        assert of.capacity_tokens is None or 0.0 <= usage.min() <= usage.max() <= 1.0
        assert table.waiting[:2].tolist() == [0.0, 0.0]
        await eventually(lambda: table.windows(table.active, "tiny").tolist() == [of.window] * 2)
        counted = behind.runner.picker.prefixes.found.counted
        await spread(behind, 8, at_once=2)
        await eventually(lambda: len(counted) == 2 and min(counted.values()) > (0,))


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
BODIES = {
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    },
    "regex": {"regex": "(yes|no)"},
    "too long": {"messages": [{"role": "user", "content": "long " * 20_000}]},
    "no messages": {"messages": "none"},
    "temperature": {"temperature": "hot"},
    "bad schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {"type": "nothing"}},
        }
    },
    "stream": {"stream": True, "stream_options": {"include_usage": True}},
    "two": {"n": 2},
}


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_answers_and_refusals_are_those_of_the_engine(shape, gateway, engines):
    own = {"model": "tiny", "messages": [{"role": "user", "content": "tell the tale"}]}
    async with gateway(shape, of=engines) as behind:
        for name, more in BODIES.items():
            body = {**own, "max_tokens": 6, "temperature": 0, **more}
            path = "/v1/chat/completions"
            direct = await exchange(behind.http, engines[0].url, "POST", path, body, {})
            status, headers, text = await behind.ask(path, body)
            sys.stdout.write(f"\n{name}: {status} {text[:150]}")
            assert (status, headers.get("content-type")) == (
                direct[0], direct[1].get("content-type")
            ), (name, text)  # fmt: skip
            if status == 200 and name in ("schema", "regex"):
                said = orjson.loads(text)["choices"][0]["message"]["content"]
                assert said == orjson.loads(direct[2])["choices"][0]["message"]["content"]
            elif status != 200:
                times = rb"\[[\d:]+\]"  # of SGLang's log
                assert re.sub(times, b"", text) == re.sub(times, b"", direct[2])


@pytest.mark.parametrize("of", KINDS[:1])
async def test_an_urgent_request_overtakes_in_the_engine(of, gateway, model, tmp_path, figure):
    """With one slot, those that wait in the engine are served by the picker's priority."""
    options = ("--enable-priority-scheduling", "--schedule-low-priority-values-first")
    options += ("--max-running-requests", "1", *of.options)
    flow = {"enabled": True, "max_prefill_s": 600.0}
    order, patient_ms, urgent_ms = [], "900000", "900"
    with running(model, tmp_path, 1, *options, of=of) as one:
        async with gateway(of=one, flow=flow, endpoint={"priority_field": True}) as behind:

            async def ask(number, objective_ms):
                messages = [{"role": "user", "content": words(random.Random(number), 300)}]
                body = {"model": "tiny", "messages": messages, "max_tokens": 40}
                header = {"x-slo-ttft-ms": objective_ms}
                status, _, said = await behind.ask("/v1/chat/completions", body, **header)
                assert status == 200, said
                order.append(objective_ms)

            table = behind.runner.picker.table
            async with asyncio.TaskGroup() as group:
                for number in range(8):
                    group.create_task(ask(number, patient_ms))
                await eventually(lambda: table.in_flight.item(0) >= 8.0)
                for number in (100, 101):
                    group.create_task(ask(number, urgent_ms))
    sys.stdout.write(f"\n{order}\n")
    last = max(at for at, each in enumerate(order) if each == urgent_ms)
    figure("place of the last of two urgent requests behind eight others", last + 1, "under 6")
    assert last < 7


@ONLY_SGLANG
async def test_one_beside_a_vllm_gets_a_share(gateway, engines, model, tmp_path, figure):
    with running(
        model, tmp_path, 1, "--block-size", "32", "--num-gpu-blocks-override", "400"
    ) as one:
        async with gateway(of=[engines[0], *one]) as behind:
            rtts_s = await probed(behind, 2)
            went = await spread(behind, 60, at_once=3)
    share = went[engines[0].address] / sum(went.values())
    sys.stdout.write(f"\n{went}, round trips {rtts_s}\n")
    figure("share of an SGLang beside a vLLM", share, ".25")
    assert share >= 0.2


@ONLY_SGLANG
async def test_its_health_page_generates_and_is_no_distance(gateway, engines, figure):
    async with gateway(of=engines) as behind:
        rtts_s = await probed(behind, 2)
        took_s = {}
        for path in ("/health", "/ping"):
            begin = time.perf_counter()
            await exchange(behind.http, engines[0].url, "GET", path, b"", {})
            took_s[path] = time.perf_counter() - begin
    sys.stdout.write(f"\n{took_s}, round trips {rtts_s}\n")
    figure(
        "round trip to an SGLang beside its health page's time",
        max(rtts_s) / took_s["/health"],
        ".2",
    )
    assert max(rtts_s) < 0.5 * took_s["/health"]


@pytest.mark.parametrize("of", KINDS)
async def test_after_a_restart_it_serves_again_and_nothing_is_believed_cached(
    of, gateway, model, tmp_path
):
    engine = of(*free_ports(3))

    async def shares(behind, what):
        found, believed, _ = await shares_of(behind, talks=5, turns=4, seed="again", at_once=1)
        sys.stdout.write(f"\n{what}: found {found:.3f}, believed {believed:.3f}\n")
        return found, believed

    async def read_again(behind):
        table = behind.runner.picker.table
        read_at = table.read_at.item(0)
        await eventually(lambda: table.read_at.item(0) > read_at, timeout_s=90.0)

    async with AsyncExitStack() as stack:
        with started([engine], model, tmp_path, *of.options):
            behind = await stack.enter_async_context(gateway(of=[engine]))
            first, _ = await shares(behind, "at first")
            again, _ = await shares(behind, "again")
            assert again > first + 0.1, "the test would show nothing otherwise"
            await read_again(behind)
        with started([engine], model, tmp_path, *of.options):
            await read_again(behind)
            found, believed = await shares(behind, "restarted")
            assert found == pytest.approx(first, abs=0.05)
            assert believed == pytest.approx(found, abs=of.off)


async def test_doctor_finds_nothing_wrong(gateway, engines):
    async with gateway(of=engines) as behind:
        await probed(behind, 2)
        await spread(behind, 6, at_once=2)
        admin = f"http://{behind.settings.listen.admin}"
        findings = await Doctor(behind.settings, envoy=None, picker=admin).examine()
    for finding in findings:
        sys.stdout.write(f"\n{finding}")
    assert [f for f in findings if f.level is Level.ERROR] == []

"""Disaggregated prefill in simulation: the times, and which caches hold the prompts."""

import pytest
from sim_endpoint import running

from laar.core.cost import CostWeights
from laar.plugins.apart import PrefillApart
from laar_lab.sim.engine import Job, build_engine, drive, load_profile
from laar_lab.sim.fleet import (
    Arrival,
    FleetSettings,
    Prompt,
    Site,
    VirtualFleet,
    replay_open,
    spread,
)

PREFILLER = "x-prefiller-host-port"
ENGINE = load_profile("llama-3-8b-a100")


def job(name="j", prompt=8_000, output=50, **fields):
    blocks = spread(7, (prompt + output) // 16)
    return Job(
        **{"id": name, "arrival_s": 0.0, "prompt_tokens": prompt, "output_tokens": output}
        | {"blocks": blocks}
        | fields
    )


def test_an_answer_whose_prompt_was_fetched_begins_immediately():
    plain = drive(build_engine(ENGINE), [job()])["j"]
    fetched = drive(build_engine(ENGINE), [job(fetched=7_999)])["j"]
    assert fetched.ttft_s < 0.1 * plain.ttft_s
    rest_s = plain.end_s - plain.first_token_s
    assert fetched.end_s - fetched.first_token_s == pytest.approx(rest_s, rel=0.05)


def test_a_prompt_that_was_fetched_is_in_the_cache():
    engine = build_engine(ENGINE)
    assert engine.cached_tokens(job()) == 0
    drive(engine, [job(fetched=7_999)])
    assert engine.cached_tokens(job("again")) >= 7_900
    assert engine.load().prefix_hits_tokens == 0


def fleet(*roles, apart, **site):
    sites = [
        Site(name=f"e{n}", model="m", engine=ENGINE, role=role, **site)
        for n, role in enumerate(roles)
    ]
    settings = FleetSettings(apart=apart, weights=CostWeights())
    return VirtualFleet(sites, settings, seed=1)


def run(fleet, *at_s, prompt=8_000, output=50):
    done = []
    arrivals = [
        Arrival(
            at_s=t,
            prompt=Prompt(
                prompt_tokens=prompt,
                output_tokens=output,
                blocks=spread(1 + n * 10**6, (prompt + output) // 16),
            ),
        )
        for n, t in enumerate(at_s)
    ]
    replay_open(fleet, arrivals, lambda _arrival, exchange: done.append(exchange))
    return done


@pytest.mark.parametrize("slower", [1.0, 100.0])
def test_the_first_token_comes_after_the_prefill_and_the_transfer(slower):
    rate = 100_000.0 / slower
    [plain] = run(fleet("prefill", "decode", apart="never"), 0.0)
    [apart] = run(fleet("prefill", "decode", apart="always", transfer_tokens_per_s=rate), 0.0)
    assert PrefillApart.of(plain.decision) is None
    assert PrefillApart.of(apart.decision).address == "e0"
    transfer_s = 8_000 / rate
    more_s = (apart.first_s - apart.sent_s) - (plain.first_s - plain.sent_s)
    assert more_s == pytest.approx(transfer_s, abs=0.03)


def test_answers_in_flight_are_not_delayed_by_prompts_prefilled_elsewhere():
    def answering_s(apart):
        at_s = [0.0, *(2.0 + 0.5 * n for n in range(4))]
        done = run(fleet("prefill", "decode", apart=apart), *at_s, output=300)
        first = min(done, key=lambda exchange: exchange.sent_s)
        return first.end_s - first.first_s

    assert answering_s("always") < 0.7 * answering_s("never")


async def test_an_endpoint_lets_the_one_named_in_the_header_prefill_the_prompt():
    body = {"model": "sim", "messages": [{"role": "user", "content": "a word " * 3000}]}
    async with running() as p, running() as d:
        headers = {PREFILLER: p.endpoint.address}
        for stream in (False, True):
            answer = await d.http.post(
                "/v1/chat/completions",
                json={**body, "max_tokens": 5, "stream": stream},
                headers=headers,
            )
            assert answer.status_code == 200, answer.text
            assert b"This endpoint" in answer.content or stream
        assert await p.metric("vllm:prompt_tokens_total") > 6000
        assert await p.metric("vllm:generation_tokens_total") == 2
        assert await d.metric("vllm:generation_tokens_total") == 10
        # The second prompt's tokens, from the first.
        assert await d.metric("vllm:prefix_cache_hits_total") > 2000


async def test_if_the_other_endpoint_fails_the_prompt_is_prefilled_locally():
    body = {"model": "sim", "prompt": "a word " * 100, "max_tokens": 5}
    async with running() as p, running() as d:
        fails = {PREFILLER: "127.0.0.1:1"}
        answer = await d.http.post("/v1/completions", json=body, headers=fails)
        assert answer.status_code == 200
        for fault, status in (("503", 200), ("400", 400)):
            put = await p.http.put("/sim/faults", json={"faults": [fault]})
            assert put.status_code < 300, put.text
            answer = await d.http.post(
                "/v1/completions", json=body, headers={PREFILLER: p.endpoint.address}
            )
            assert answer.status_code == status, answer.text


@pytest.mark.parametrize(("rule", "expected_s"), [("never", (0.0, 0.0)), ("always", (0.8, 1.6))])
def test_pulls_from_an_endpoint_take_time_and_share_its_bandwidth(rule, expected_s):
    sites = [
        Site(name=f"e{n}", model="m", engine=ENGINE, transfer_tokens_per_s=10_000.0)
        for n in range(3)
    ]
    settings = FleetSettings(policy="round-robin", pulls=rule)
    prompt = Prompt(prompt_tokens=8_000, output_tokens=50, blocks=spread(1, 503))
    arrivals, done = [Arrival(at_s=t, prompt=prompt) for t in (0.0, 5.0, 5.0)], []
    fleet = VirtualFleet(sites, settings, seed=1)
    replay_open(fleet, arrivals, lambda _arrival, exchange: done.append(exchange))
    assert {exchange.address for exchange in done} == {"e0", "e1", "e2"}
    first, *later = sorted(done, key=lambda exchange: exchange.sent_s)
    assert first.cached_tokens == 0
    ttft = sorted(exchange.first_s - exchange.sent_s for exchange in later)
    if rule == "never":
        assert ttft == pytest.approx([first.first_s] * 2, abs=0.01)
    else:
        assert [exchange.cached_tokens for exchange in later] == [7_984, 7_984]
        assert [exchange.cached_tokens for exchange in later] == [7_984, 7_984]
        assert ttft == pytest.approx(expected_s, abs=0.1)


def test_a_prompt_behind_a_pulled_one_finds_what_was_pulled():
    engine = build_engine(ENGINE)
    first = job("first", blocks=spread(10**6, 503))
    done = drive(engine, [first, job(fetched=7_984), job("behind")])
    assert done["behind"].cached_tokens == 7_984

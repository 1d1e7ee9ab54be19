"""The tuner climbs on live traffic: conversations, a real Envoy, endpoints in three regions."""

import asyncio
import itertools
import json
from contextlib import asynccontextmanager

import aiohttp
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from laar.cli import app
from laar_lab.sim.endpoint import EndpointSettings, SimulatedEndpoint
from support import eventually, free_port

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

WINDOW = 60
REGIONS = {"near": 0.0, "middle": 0.03, "far": 0.06}
PEOPLE = 8
DEADLINE_S = 40.0


@asynccontextmanager
async def regions():
    """Start endpoints; yield their addresses by region. Only the near one can be made slow."""
    endpoints = {
        region: SimulatedEndpoint(
            EndpointSettings(
                model="chat",
                profile="gorgo-main",
                time_scale=0.2,
                round_trip_s=round_trip_s,
                allow_fault_header=region == "near",
            )
        )
        for region, round_trip_s in REGIONS.items()
    }
    for endpoint in endpoints.values():
        await endpoint.start()
    try:
        yield {region: endpoint.address for region, endpoint in endpoints.items()}
    finally:
        for endpoint in endpoints.values():
            await endpoint.stop()


class People:
    """Users in growing conversations, who ask until they are stopped."""

    def __init__(self, http, url):
        self._http, self._url = http, f"{url}/v1/chat/completions"
        self.headers = {}
        self.answered = {}  # seconds by decision id
        self.failed = []
        self._talking = []
        self._numbers = itertools.count()

    async def __aenter__(self):
        self._talking = [asyncio.create_task(self._talk()) for _ in range(PEOPLE)]
        return self

    async def __aexit__(self, *_):
        for task in self._talking:
            task.cancel()
        await asyncio.gather(*self._talking, return_exceptions=True)

    async def _talk(self):
        loop = asyncio.get_running_loop()
        while True:
            messages = [{"role": "system", "content": f"conversation {next(self._numbers)}"}]
            for turn in range(6):
                messages.append({"role": "user", "content": f"{turn} tell me more " * 60})
                body = {"model": "chat", "messages": messages, "max_tokens": 100}
                began = loop.time()
                async with self._http.post(self._url, json=body, headers=self.headers) as answer:
                    said = await answer.read()
                    if answer.status != 200:
                        self.failed.append((answer.status, said))
                        continue
                    # Without a picker Envoy forwards requests, and no header names a decision.
                    decision = answer.headers.get("x-laar-decision-id", "")
                    self.answered[decision] = loop.time() - began
                messages.append({"role": "assistant", "content": "so it is"})


async def get(http, gateway, path):
    async with http.get(gateway.url("admin", path)) as answer:
        assert answer.status == 200
        return await answer.json()


async def decisions(http, gateway):
    """Return the last decisions, newest first, as many as the API allows."""
    return (await get(http, gateway, "/decisions?limit=200"))["decisions"]


async def tuner_says(http, gateway, condition, what):
    """Return the answer of `/tuner` as soon as the condition holds."""
    found = {}

    async def held():
        found.update(await get(http, gateway, "/tuner"))
        return bool(condition(found))

    await eventually(held, what=what, timeout_s=DEADLINE_S)
    return found


def ended(shown, outcome):
    return [window for window in shown["windows"] if window["outcome"] == outcome]


def endpoint_records(addresses):
    return [{"address": a, "models": ["chat"], "region": r} for r, a in addresses.items()]


async def laar_tune(gateway, *options):
    """Run the command in parallel with the picker."""
    picker = gateway.url("admin", "")
    arguments = ["tune", "--live", "--picker", picker, *map(str, options)]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


async def test_a_live_climb_ends_with_frozen_weights(gateway, tmp_path, monkeypatch):
    # Failures due to a busy machine must not exclude an endpoint.
    monkeypatch.setattr("laar.core.filters.MAX_FAILURES", 1000)
    windows = tmp_path / "windows.json"
    # Envoy knows the picker by these ports, so they stay after a restart.
    listen = {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")}
    settings = {
        "listen": listen,
        "tuner": {"enabled": True, "window": WINDOW},
        "bodies": {"sample_answers": 1.0},
        "health": {"enabled": False},  # which would hide a slow endpoint from the tuner
    }
    async with regions() as addresses, aiohttp.ClientSession() as http:
        gateway.endpoints_file.write_text(
            yaml.safe_dump({"endpoints": endpoint_records(addresses)})
        )
        await gateway.picker(**settings)
        envoy = await gateway.envoy()
        async with People(http, envoy.url()) as people:
            # First the climb measures the incumbent, then it tries and judges candidates.
            shown = await tuner_says(
                http,
                gateway,
                lambda shown: (
                    ended(shown, "measured")
                    and len(ended(shown, "rejected") + ended(shown, "won once")) >= 3
                ),
                "some windows",
            )
            assert shown["windows"][0]["role"] == "incumbent"
            whole = [window for window in shown["windows"] if window["outcome"] != "stopped"]
            assert {window["requests"] for window in whole} == {WINDOW}
            assert all(window["failure_share"] == 0.0 for window in whole)
            tried = [w["weights"] for w in shown["windows"] if w["role"] == "candidate"]
            for name, (floor, cap) in shown["bounds"].items():
                assert all(floor <= weights[name] <= cap for weights in tried)
            records = await decisions(http, gateway)
            assert_only_its_own(shown, records, people)
            rtts = {c["region"]: c["rtt_s"] for c in records[0]["candidates"]}
            assert rtts["near"] < rtts["middle"] < rtts["far"]

            # If an endpoint becomes slow while a candidate serves, the incumbent returns.
            shown = await tuner_says(
                http,
                gateway,
                lambda shown: (
                    shown["under_way"]["role"] == "candidate"
                    and shown["under_way"]["decided"] < WINDOW / 4
                ),
                "a candidate",
            )
            people.headers = {"x-sim-fault": "slow:3"}
            version = shown["under_way"]["version"]
            shown = await tuner_says(
                http,
                gateway,
                lambda shown: shown["windows"][-1]["version"] == version,
                "the end of its window",
            )
            assert shown["windows"][-1]["outcome"] == "stopped"
            assert shown["windows"][-1]["requests"] <= WINDOW
            assert shown["under_way"]["role"] == "incumbent"
            assert shown["under_way"]["weights"] == shown["weights"]
            allowed_s = 1.5 * ended(shown, "measured")[-1]["e2e_p99_s"]
            slow = [
                record["endpoint"]
                for record in await decisions(http, gateway)
                if record.get("tuner", {}).get("window") == version
                and record.get("completion", {}).get("latency_s", 0.0) > allowed_s
            ]
            assert len(slow) > 3
            assert slow.count(addresses["near"]) >= 3
            people.headers = {}

            # After a restart the climb begins again.
            await gateway.stop_picker()
            await gateway.picker(**settings)
            shown = await tuner_says(http, gateway, lambda shown: shown["windows"], "a window")
            assert shown["windows"][0]["role"] == "incumbent"
            assert not people.failed

            # The operator ends the climb.
            ran = await laar_tune(gateway, "--freeze", "--json", windows)
            assert ran.exit_code == 0, ran.output
            shown = await get(http, gateway, "/tuner")
            assert shown["under_way"] == {"role": "frozen", "weights": shown["weights"]}
            exported = json.loads(windows.read_text())
            assert exported["weights"] == shown["weights"]
            assert exported["frozen"] is True
            assert [w["version"] for w in exported["windows"]] == [
                w["version"] for w in shown["windows"]
            ]
            assert all(w["cost_s"] for w in ended(exported, "measured"))

            # A picker with the printed settings serves the weights that were found.
            printed = yaml.safe_load(ran.stdout.partition("# for laar.yaml\n")[2])
            await gateway.picker(listen=listen, **printed)
            assert (await get(http, gateway, "/tuner")) == {"enabled": False}
            before = len(people.answered)
            await eventually(
                lambda: len(people.answered) > before + 20, what="answers", timeout_s=DEADLINE_S
            )
            assert not people.failed
            priced = (await decisions(http, gateway))[0]
            assert "tuner" not in priced
            weighted_s = {c["region"]: c["rtt_s"] for c in priced["candidates"]}
            expected_s = exported["weights"]["k_rtt"] * REGIONS["far"]
            assert expected_s < weighted_s["far"] < 2 * expected_s


def assert_only_its_own(shown, records, people):
    """Assert that each window's figures cover exactly the decisions with its number."""
    checked = 0
    for window in shown["windows"]:
        own = [r for r in records if r.get("tuner", {}).get("window") == window["version"]]
        if len(own) < WINDOW:
            continue  # the window was stopped, or is older than the decisions shown
        assert len(own) == WINDOW
        assert all(r["tuner"]["weights"] == window["weights"] for r in own)
        times = [record["completion"]["latency_s"] for record in own]
        assert window["e2e_p95_s"] == pytest.approx(np.quantile(times, 0.95))
        checked += 1
    assert checked >= 2
    for record in records:
        if "completion" in record and record["id"] in people.answered:
            assert record["completion"]["latency_s"] <= people.answered[record["id"]] + 0.05

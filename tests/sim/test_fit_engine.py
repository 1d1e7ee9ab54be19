"""Fitting the engine model to a simulated endpoint recovers the endpoint's parameters."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml
from typer.testing import CliRunner

from laar.cli import app
from laar_lab.probing import facts_of
from laar_lab.sim.endpoint import EndpointSettings, SimulatedEndpoint
from laar_lab.sim.engine import EngineProfile, EngineSettings, LinearCost, load_profile
from laar_lab.sim.engine.fitting import Facts, check_points, fit, fit_points, predict
from laar_lab.sim.fleet_file import read_fleet

RUN = CliRunner()
LONGEST = 4096
TRUE = EngineProfile(
    name="true",
    cost=LinearCost(
        seconds_per_token=3e-5,
        decode_s_per_token=6e-3,
        prefill_overhead_s=6e-3,
        decode_s_per_sequence=1e-3,
        decode_s_per_context_token=2e-7,
        prefill_s_per_pair=1e-8,
    ),
    settings=EngineSettings(
        num_blocks=4096, block_size=32, max_num_batched_tokens=1024, intake_s=2e-3
    ),
)
FACTS = Facts(model="true", block_size=32, num_blocks=4096, max_num_batched_tokens=1024)


def written(path: Path, profile: EngineProfile) -> Path:
    """Write a profile as a user would; return the path."""
    cost = {
        name: {"value": getattr(profile.cost, name), "source": "a test"}
        for name in LinearCost.__slots__
    }
    kept = ("num_blocks", "block_size", "max_num_batched_tokens", "intake_s", "intake_s_per_token")
    settings = {name: getattr(profile.settings, name) for name in kept}
    path.write_text(yaml.safe_dump({profile.name: {"linear": cost, "settings": settings}}))
    return path


def test_measurements_from_the_model_itself_are_fitted_exactly() -> None:
    seen = {name: predict(TRUE, point) for name, point in fit_points(LONGEST).items()}
    fitted = fit(seen, LONGEST, FACTS)
    for group in check_points(LONGEST).values():
        for point in group:
            assert predict(fitted, point).ttft_s == pytest.approx(
                predict(TRUE, point).ttft_s, rel=0.02
            )
            assert predict(fitted, point).cached_tokens == predict(TRUE, point).cached_tokens
    for name in LinearCost.__slots__:
        ours, true = getattr(fitted.cost, name), getattr(TRUE.cost, name)
        assert ours == pytest.approx(true, rel=0.1), name


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Run a simulated endpoint with the profile `TRUE` in a thread; yield its URL."""
    settings = EndpointSettings(
        model="sim", profile=str(written(tmp_path / "true.yaml", TRUE)), max_model_len=8192
    )
    ready = threading.Event()
    told: list[str] = []
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        sim = SimulatedEndpoint(settings)
        await sim.start()
        told.append(sim.url)
        ready.set()
        await over.wait()
        await sim.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield told[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.close()


@pytest.mark.slow
def test_measuring_an_endpoint_recovers_its_profile(endpoint: str, tmp_path: Path) -> None:
    out, data = tmp_path / "own.yaml", tmp_path / "own.json"
    told = ["fit-engine", endpoint, "--longest", str(LONGEST), "--max-num-batched-tokens", "1024"]
    told += ["--repeat", "1", "--out", str(out), "--json", str(data)]
    ran = RUN.invoke(app, ["lab", *told])
    missed = "NOT held" in ran.output
    # If the model does not hold, that is due to other work on the machine.
    assert ran.exit_code == (3 if missed else 0), ran.output
    found = [row[3] for row in json.loads(data.read_bytes())["tables"][1]["rows"]]
    assert {1024, 2048, 3072, LONGEST - 32} <= set(found), "earlier prompts are found in the cache"
    fitted = load_profile(str(out))
    assert (fitted.name, fitted.settings.block_size, fitted.settings.num_blocks) == (
        *("sim", TRUE.settings.block_size),
        TRUE.settings.num_blocks,
    )
    # Other work on the machine can make measured times much longer, but not shorter.
    whole = check_points(LONGEST)["prompt length"][-1]
    times = predict(fitted, whole).ttft_s[0] / predict(TRUE, whole).ttft_s[0]
    assert 0.7 <= times <= 5.0
    # A fleet file next to the profile can name it.
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("endpoints: [{name: a, profile: own.yaml}]")
    assert read_fleet(fleet).sites()[0].engine == fitted


def test_requests_from_other_clients_are_reported(endpoint: str) -> None:
    async def ask_meanwhile() -> Facts:
        async with aiohttp.ClientSession() as session:
            body = {"model": "sim", "prompt": [5] * 64, "max_tokens": 2000, "stream": True}
            async with session.post(f"{endpoint}/v1/completions", json=body) as answer:
                await answer.content.readline()
                facts, context = await facts_of(session, endpoint, None, 2048)
                assert context == 8192
                return facts

    assert asyncio.run(ask_meanwhile()).others == 1

"""`laar measure` and `laar fit` as a user runs them."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import yaml
from laar_command import MODELS, start

from laar.accuracy.artifact import parse_artifact
from laar.accuracy.fitting.records import parse_records
from laar_lab.kv_lookup import queries
from laar_lab.sim.answers import AccuracySurface
from support import eventually
from support.commands import run_in_thread

Endpoints = Callable[..., Awaitable[list[str]]]


def endpoints(urls: list[str]) -> list[str]:
    return [part for url in urls for part in ("--endpoint", url)]


def lookups(directory: Path, *, per_cell: int, lengths_tokens: list[int]) -> str:
    path = directory / "lookups.jsonl"
    drawn = queries(languages=["en"], lengths_tokens=lengths_tokens, per_cell=per_cell, split="fit")
    questions = [
        {
            "id": query.id,
            "task": "kv-lookup",
            "messages": [{"role": "user", "content": query.prompt}],
            "check": {"contains": query.answer},
        }
        for query in drawn
    ]
    path.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in questions))
    return str(path)


async def test_measuring_and_fitting_recovers_the_properties_of_endpoints(
    sim_endpoints: Endpoints, tmp_path: Path
) -> None:
    urls = await sim_endpoints()
    out, figures = tmp_path / "outcomes.jsonl", tmp_path / "fit.json"
    ran = await run_in_thread(
        *("measure", *endpoints(urls), "--out", out, "--concurrency", 4, "--json", tmp_path / "m"),
        *("--task", lookups(tmp_path, per_cell=40, lengths_tokens=[2048, 8192])),
    )
    assert ran.status == 0, ran.text
    assert orjson.loads((tmp_path / "m").read_bytes())["asked"] == 160
    outcomes = parse_records([(out.read_bytes(), "")]).outcomes
    assert {o.model for o in outcomes} == set(MODELS)  # not their second names
    assert all(o.task == "kv-lookup" and o.ttft_s is not None for o in outcomes)

    capability = tmp_path / "capability.json"
    ran = await run_in_thread("fit", out, "-o", capability, "--json", figures)
    assert ran.status == 0, ran.text
    assert "Held out" in ran.text
    assert 0 < orjson.loads(figures.read_bytes())["overall"]["brier"] < 0.5
    artifact = parse_artifact(capability.read_bytes(), source="")
    surface = AccuracySurface.load()
    for name in MODELS:
        cells = {cell.bucket: cell for cell in artifact.models[name].cells}
        for bucket in (2048, 8192):
            expected = surface.accuracy(name, "en", max(bucket, 4096))
            assert abs(cells[bucket].correct / 40 - expected) < 0.25  # within four standard errors
        # On a busy machine times may scatter too much to fit a speed, which `laar fit` reports.
        assert artifact.models[name].speed or f"{name} has no us/token" in " ".join(
            ran.text.split()
        )

    config = tmp_path / "laar.yaml"
    settings = {
        "endpoints": [{"address": "127.0.0.1:1", "models": ["phi3-mini"]}],
        "accuracy": {"capability": str(capability)},
    }
    config.write_text(yaml.safe_dump(settings))
    assert (await run_in_thread("check", "--no-ports", "-c", config)).status == 0


async def test_ctrl_c_loses_nothing_and_the_next_run_continues(
    sim_endpoints: Endpoints, tmp_path: Path
) -> None:
    urls = await sim_endpoints(time_scale=0.2)
    out = tmp_path / "outcomes.jsonl"
    arguments = [
        *("measure", *endpoints(urls), "--out", str(out), "--model", "phi3-mini"),
        *("--task", lookups(tmp_path, per_cell=15, lengths_tokens=[1024])),
    ]
    process = await start(*arguments)
    await eventually(
        lambda: out.exists() and out.read_bytes().count(b"\n") >= 2,
        what="the first outcomes",
        timeout_s=40,
    )
    process.send_signal(signal.SIGINT)
    said, _ = await process.communicate()
    assert process.returncode == 130
    assert "Run the command again to continue" in said.decode()
    written = out.read_bytes()
    assert 2 <= written.count(b"\n") < 15
    assert written.endswith(b"\n")
    ran = await run_in_thread(*arguments)
    assert ran.status == 0, ran.text
    assert out.read_bytes().startswith(written)
    lines = [orjson.loads(line) for line in out.read_bytes().splitlines()]
    assert len({line["query_id"] for line in lines}) == len(lines) == 15


async def test_an_unserved_model_is_reported_with_the_served_ones(
    sim_endpoints: Endpoints, tmp_path: Path
) -> None:
    urls = await sim_endpoints()
    ran = await run_in_thread(
        *("measure", *endpoints(urls), "--model", "gpt", "--out", tmp_path / "o.jsonl"),
        *("--task", lookups(tmp_path, per_cell=1, lengths_tokens=[256])),
    )
    assert ran.status == 2
    assert "gpt" in ran.text
    assert "granite-3.1-8b, phi3-mini" in ran.text

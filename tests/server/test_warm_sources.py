"""A picker with several sources of endpoints starts from its snapshot."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from laar.core.decision import Completion
from laar.server.runner import Runner
from laar.server.supervisor import Home
from laar.settings import Settings
from support import eventually, free_port
from support.pickers import request, specs

ONE, TWO = "10.0.0.1:8000", "10.0.0.2:8000"
SOURCES = {f"kubernetes ml/app={name}": specs(at) for name, at in (("a", ONE), ("b", TWO))}
TEXTS = {at: f"a long prompt for {at} " * 100 for at in (ONE, TWO)}


@asynccontextmanager
async def serving(snapshot, kept_by):
    nowhere = f"http://127.0.0.1:{free_port()}"
    cluster = {"namespace": "ml", "ports": [8000], "models": ["m"], "api_server": nowhere}
    runner = Runner(
        Settings.model_validate(
            {
                "kubernetes": [cluster | {"selector": {"app": name}} for name in "ab"],
                "listen": {
                    name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")
                },
                "envoy": {"eds_file": str(snapshot.with_name("endpoints.json"))},
                "share": {"snapshot_file": str(snapshot)} if kept_by == "settings" else {},
                "shutdown": {"drain_s": 0, "grace_s": 0},
            }
        ),
        home=Home(snapshot.parent) if kept_by == "parent" else None,
    )
    running = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        runner.stop()
        await running


@pytest.mark.parametrize("kept_by", ["settings", "parent"])
async def test_a_snapshot_also_applies_to_endpoints_found_slightly_later(tmp_path, kept_by):
    async with serving(tmp_path / "snapshot", kept_by) as runner:
        for source, found in SOURCES.items():
            runner.fleet.replace(source, found)
            at = found[0].address
            await eventually(lambda at=at: runner.picker.table.slot(at) >= 0, what=at)
            director, now = runner.picker.director, runner.picker.clock()
            decision = director.decide(request(TEXTS[at]), now)
            director.served_by(decision, at, now)
            end = Completion(status=200, cause="complete", latency_s=0.1)
            director.settle(decision, end)
        await runner.picker.sharer.warmed()  # only a stop after this saves a snapshot
    async with serving(tmp_path / "snapshot", kept_by) as runner:
        sharer, table = runner.picker.sharer, runner.picker.table
        (first, a), (second, b) = SOURCES.items()
        runner.fleet.replace(first, a)
        await eventually(lambda: table.slot(ONE) >= 0, what="the endpoint of the first")
        await asyncio.sleep(0.1)  # as if the second cluster answered later
        runner.fleet.replace(second, b)
        await eventually(lambda: sharer.restored > 0, what="the snapshot")
        await eventually(lambda: table.slot(TWO) >= 0, what="the endpoint of the second")
        prefixes = runner.picker.director.prefixes
        for at, text in TEXTS.items():
            held = prefixes.match(prefixes.chain(request(text)))[0]
            assert held[table.slot(at)] > 0.9

"""A settings file that changes under a running picker, with traffic through a real Envoy."""

import asyncio
import contextlib
import signal
import sys
from importlib.resources import files
from pathlib import Path

import orjson
import pytest
import yaml

from laar.core.cost import CostWeights
from laar.datalayer.visits import cancel
from laar.declaring import Applies
from laar.request import Api, Request
from laar.server.reload import SettingsReloader
from laar.server.runner import Runner
from laar.settings import Settings, load
from laar.settings.section import leaves
from laar.telemetry.problems import Problems
from support import eventually, free_port, metric
from support.clients import chat, post
from support.other_settings import OTHER, document

PENDING, REFUSED = "laar_settings_pending_restart", "laar_settings_refused"
CHANGES = "laar_settings_changes_total"


async def config(gateway, http):
    async with http.get(gateway.url("admin", "/config")) as answer:
        return await answer.json()


class Traffic:
    """Clients that send requests nonstop and keep every unsuccessful answer."""

    def __init__(self, http, envoy, clients=4):
        self._http, self._envoy = http, envoy
        self.failures, self.answers = [], 0
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(clients)]

    async def _ask(self):
        while True:
            answer = await post(self._http, self._envoy, chat())
            self.answers += 1
            if answer.status != 200:
                self.failures.append(answer.status)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.mark.envoy
@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_a_change_takes_effect_under_traffic_without_a_failed_request(gateway, http, shape):
    a, b = await gateway.upstream(), await gateway.upstream()
    gateway.members((a.address, "m", "small"), (b.address, "m", "large"))
    runner = await gateway.picker()
    envoy = await gateway.envoy(shape)
    assert (await post(http, envoy, chat(model="fast"))).status == 404
    async with Traffic(http, envoy) as traffic:
        await eventually(lambda: traffic.answers > 20, what="traffic")
        gateway.change(routing={"policy": "round-robin", "aliases": {"auto": [], "fast": ["m"]}})
        await eventually(lambda: metric(runner, CHANGES) == 1, what="the change")
        assert (await post(http, envoy, chat(model="fast"))).status == 200
        now = traffic.answers
        await eventually(lambda: traffic.answers > now + 30, what="traffic after the change")

        latest = list(runner.picker.observability.memory.latest(20))
        assert {record.decision.policy for record in latest} == {"round-robin"}
        gateway.change(routing={"mode": "shadow"})

        async def shadowed():
            return (await post(http, envoy, chat())).headers.get("x-laar-mode") == "shadow"

        await eventually(shadowed, what="shadow")
        gateway.change(routing={"mode": "enforce"})

        async def enforced():
            return "x-laar-endpoint" in (await post(http, envoy, chat())).headers

        await eventually(enforced, what="enforcement again")
    assert traffic.failures == []
    await eventually(lambda: not runner.picker.table.in_flight.any(), what="every request's end")
    assert not runner.picker.table.queued_tokens.any()


async def test_an_invalid_file_changes_nothing_and_is_reported_until_it_is_fixed(gateway, http):
    gateway.members(("127.0.0.1:1", "m"))
    runner = await gateway.picker()
    good = gateway.settings_file.read_text()
    gateway.settings_file.write_text(good + "  policy: round-robin\n  max_waiting: fast\n")
    await eventually(lambda: metric(runner, REFUSED) == 1, what="the refusal")
    line = len(good.splitlines()) + 2  # it ends with `routing`
    told = runner.picker.problems["settings"]
    assert f"laar.yaml:{line}: routing.max_waiting: " in told
    assert "stay as they were" in told
    assert (await config(gateway, http))["routing"]["policy"] == "laar"
    assert runner.picker.director.settings.policy == "laar"
    gateway.settings_file.write_text(good + "  policy: round-robin\n")
    await eventually(
        lambda: runner.picker.director.settings.policy == "round-robin", what="the change"
    )
    assert metric(runner, REFUSED) == 0
    assert "settings" not in runner.picker.problems


async def test_a_change_that_needs_a_restart_is_reported_until_it_is_reverted(gateway, http):
    gateway.members(("127.0.0.1:1", "m"))
    runner = await gateway.picker(routing={"max_waiting": 5})
    running = gateway.settings.listen.admin
    gateway.change(listen={"admin": "127.0.0.1:1"}, routing={"max_waiting": 9})
    await eventually(lambda: metric(runner, PENDING) == 1, what="the pending setting")
    shown = await config(gateway, http)
    assert shown["listen"]["admin"] == running
    assert shown["pending_restart"] == {
        "listen.admin": {
            "in_effect": running,
            "in_file": "127.0.0.1:1",
            "origin": shown["origins"]["listen.admin"],
        }
    }
    assert shown["routing"]["max_waiting"] == 9
    assert runner.picker.director.settings.max_waiting == 9
    assert shown["origins"]["routing.max_waiting"].startswith("laar.yaml:")
    assert shown["origins"]["routing.fallbacks"] == "default"
    told = runner.picker.problems["restart"]
    assert f"listen.admin ({shown['origins']['listen.admin']})" in told
    gateway.change(listen={"admin": running})
    await eventually(lambda: metric(runner, PENDING) == 0, what="the restored setting")
    assert "restart" not in runner.picker.problems
    assert (await config(gateway, http))["pending_restart"] == {}


async def test_no_password_in_a_url_is_shown(gateway, http):
    page = {"address": "127.0.0.1:1", "model": "m", "metrics_url": "http://me:pass@127.0.0.1:1/m"}
    none = {"address": "127.0.0.1:2", "model": "m", "metrics_url": ""}
    cluster = {"pool": "p", "namespace": "n", "api_server": "http://me:pass@127.0.0.1:1/k8s"}
    await gateway.picker(endpoints=[page, none], endpoints_file=None, kubernetes=[cluster])
    shown = await config(gateway, http)
    assert [each["metrics_url"] for each in shown["endpoints"]] == ["http://127.0.0.1:1/m", ""]
    assert [each["api_server"] for each in shown["kubernetes"]] == ["http://127.0.0.1:1/k8s"]
    async with http.get(gateway.url("admin", "/fleet")) as answer:
        assert "pass@" not in await answer.text()


def artifact(mean):
    """Return the lab's artifact with one mean for all cells of one model."""
    known = orjson.loads(
        (files("laar_lab.sim") / "data" / "laar-fleet.capability.json").read_bytes()
    )
    known["models"]["phi3-mini"] |= {"mean": mean, "cells": []}
    return orjson.dumps(known)


async def test_aim_and_artifact_are_reloaded_and_learned_outcomes_are_kept(gateway, http):
    gateway.members(("127.0.0.1:1", "phi3-mini"))
    capability = gateway.directory / "c.json"
    capability.write_bytes(artifact(0.9))
    runner = await gateway.picker(accuracy={"capability": "c.json"})

    asked = Request(id="r", api=Api.CHAT, model="auto", spans=("hi",), question="hi", chars=2)

    def probability():
        return runner.picker.director.choose(asked, 0.0).view.probability[0]

    decision = runner.picker.director.decide(asked, 0.0)
    runner.picker.learning.reports.report(decision.id, True, 0.0)
    before = probability()
    gateway.change(routing={"aim": "first-token"})
    await eventually(lambda: metric(runner, CHANGES) == 1, what="the aim")
    [(scorer, _)] = runner.picker.director.chooser.policies["laar"].scorers
    assert scorer.weights == CostWeights(aim="first-token")

    capability.write_text("{}")
    await eventually(lambda: metric(runner, REFUSED) == 1, what="the refusal of the artifact")
    assert "c.json" in runner.picker.problems["settings"]
    assert probability() == before

    capability.write_bytes(artifact(0.2))
    await eventually(lambda: metric(runner, CHANGES) == 2, what="the artifact")
    assert metric(runner, REFUSED) == 0
    assert probability() < before
    assert runner.picker.learning.online.by_model(0.0)["phi3-mini"].outcomes == 1
    async with http.get(gateway.url("admin", "/models")) as answer:
        shown = {entry["model"]: entry for entry in (await answer.json())["models"]}
    assert shown["phi3-mini"]["fitted"]["success_rate"] == 0.2
    assert shown["phi3-mini"]["reported"]["outcomes"] > 0


async def test_sighup_rereads_the_files_and_stops_nothing(tmp_path, http):
    listen = {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")}
    settings = {**document(()), "listen": listen, "shutdown": {"drain_s": 0, "grace_s": 0}}
    path = tmp_path / "laar.yaml"
    path.write_text(yaml.safe_dump(settings))
    picker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "laar.cli", "serve", "-c", str(path)),
        stderr=asyncio.subprocess.DEVNULL,
    )

    async def shows(what, page="/metrics"):
        try:
            async with http.get(f"http://{listen['admin']}{page}") as answer:
                return what in await answer.text()
        except OSError:
            return False

    try:
        await eventually(lambda: shows("ready", "/readyz"), what="the picker", timeout_s=30)
        path.write_text(yaml.safe_dump({**settings, "accuracy": {"capability": "c.json"}}))
        await eventually(lambda: shows(f"{REFUSED} 1.0"), what="the refusal")
        (tmp_path / "c.json").write_bytes(artifact(0.2))
        picker.send_signal(signal.SIGHUP)
        await eventually(lambda: shows("c.json", "/config"), what="the artifact")
    finally:
        picker.terminate()
        await picker.wait()


@pytest.mark.parametrize("whole", [True, False])
async def test_a_file_that_never_rests_is_read_now_and_then(tmp_path, monkeypatch, whole):
    monkeypatch.setattr("laar.datalayer.files.Settling.LONGEST_S", 0.1)
    path, count = tmp_path / "laar.yaml", 0
    path.write_text(yaml.safe_dump(document(())))
    seen, problems = [], Problems()
    reloader = SettingsReloader(load(path), problems=problems)
    reloader.poll_s = 0.1

    async def rewrite():
        nonlocal count
        while True:
            count += 1
            text = yaml.safe_dump({**document(()), "routing": {"wrong_answer_s": count / 1000}})
            new = tmp_path / "new" if whole else path
            new.write_text(text)
            new.replace(path)
            await asyncio.sleep(0.05)

    tasks = [
        asyncio.create_task(rewrite()),
        asyncio.create_task(
            reloader.follow(lambda found, _: seen.append(found.routing.wrong_answer_s))
        ),
    ]
    try:
        await eventually(lambda: len(seen) > 2, what="several changes")
    finally:
        await cancel(tasks)
    assert seen == sorted(seen)


async def test_a_config_map_swap_is_applied_without_a_restart(tmp_path):
    """Like a kubelet, swap a link from one directory to the next, and delete the old one."""
    document = {
        "endpoints_file": "endpoints.yaml",
        "accuracy": {"capability": "capability.json"},
        "routing": {},
        "listen": dict.fromkeys(("ext_proc", "health", "admin"), "127.0.0.1:1"),
    }

    def version(name, mean):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "laar.yaml").write_text(yaml.safe_dump(document))
        (directory / "capability.json").write_bytes(artifact(mean))
        (directory / "endpoints.yaml").write_text("endpoints: []")
        (tmp_path / "..new").symlink_to(name)
        (tmp_path / "..new").replace(tmp_path / "..data")
        return directory

    old = version("..2026_01", 0.5)
    for name in ("laar.yaml", "capability.json", "endpoints.yaml"):
        (tmp_path / name).symlink_to(Path("..data") / name)
    runner = Runner(load(tmp_path / "laar.yaml"))
    runner.reloader.poll_s = 0.02
    following = asyncio.create_task(runner.reloader.follow(runner.apply))
    try:
        document["routing"]["policy"] = "random"
        version("..2026_02", 0.25)
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
        online = runner.picker.learning.online
        await eventually(
            lambda: online.capability.measured_models["phi3-mini"].mean == 0.25,
            what="the new artifact",
        )
        assert runner.picker.director.settings.policy == "random"
        assert metric(runner, PENDING) == metric(runner, REFUSED) == 0
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


def rag(**changed):
    return {"routes": [{"name": "rag", "mode": "on", **changed}]}


async def test_a_context_route_keeps_its_memory_unless_its_hook_changes(gateway):
    gateway.members(("127.0.0.1:1", "m"))
    runner = await gateway.picker(context=rag())
    [before] = runner.picker.context.orderings
    gateway.change(context=rag(mode="observe"))
    await eventually(lambda: metric(runner, CHANGES) == 1, what="the mode")
    [kept] = runner.picker.context.orderings
    assert kept is before
    gateway.change(context=rag(mode="observe", dedup="off"))
    await eventually(lambda: metric(runner, CHANGES) == 2, what="the hook")
    [new] = runner.picker.context.orderings
    assert new.hook is not before.hook
    gateway.change(context=rag(mode="off"))
    await eventually(lambda: metric(runner, CHANGES) == 3, what="the switch")
    assert runner.processor.env.hook is None


# -- every live setting ------------------------------------------------------------------------

LIVE = [path for path, applies in leaves(Settings) if applies is Applies.AT_ONCE]


def in_force(runner):
    """Return the settings that the parts of a picker use."""
    picker, processor = runner.picker, runner.processor
    watched, candidates = picker.observability, picker.director.chooser.candidates
    declared = runner.collectors.resolver._declared
    [(scorer, _)] = picker.director.chooser.policies["laar"].scorers
    [(baseline, _)] = picker.director.chooser.policies["load-aware"].scorers
    return {
        "endpoints": [spec for specs in declared.values() for spec in specs],
        "director": picker.director.settings,
        "plug-ins": [getattr(of, "_settings", None) for of in picker.director.plugins.all],
        "candidates": (candidates._aliases, candidates._max_waiting),
        "weights": scorer.weights,
        "baselines": baseline._threshold,
        "policies": sorted(picker.director.chooser.policies),
        "models": picker.learning.online.capability.models,
        "speeds": picker.director.engines._speed("m"),
        "streams": (processor.env.settings, picker.held.limit_bytes),
        "enforced": processor.env.enforced and processor.env.enforced.__self__.share,
        "sampler": (picker.sampler.share, picker.sampler.every_s),
        "flow": picker.admission.queue.settings,
        "context": [ordering.rule for ordering in picker.context.orderings],
        "health": (picker.health.settings, picker.health.reads),
        "hook": processor.env.hook is None,
        "page": watched.page.fleet(0.0)["about"],
        "shutdown": picker.settings.shutdown,
    }


def picker(path, paths):
    """Build a picker from a file in which the settings at `paths` differ; do not run it."""
    made = document({"flow.enabled", "decisions.log", *paths})
    path.write_text(yaml.safe_dump(made))
    runner = Runner(load(path), seed=1)
    runner.collectors.declare(runner.picker.settings.listed())
    return runner


@pytest.mark.parametrize("setting", LIVE)
async def test_a_reloaded_setting_has_the_same_effect_as_a_restart(tmp_path, setting):
    (tmp_path / OTHER["accuracy.capability"]).write_bytes(artifact(0.5))
    path = tmp_path / "laar.yaml"
    changed = picker(path, ())
    before = in_force(changed)
    fresh = picker(path, {setting})
    await changed.reloader._reload(path, changed.apply)
    assert in_force(changed) == in_force(fresh)
    assert in_force(changed) != before, "declared as live, but no part uses it"

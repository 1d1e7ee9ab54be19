"""Show and freeze the tuner of a running picker."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from laar.core.cost import CostWeights
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.errors import LaarError, SettingError
from laar.server.admin.port import tuner_routes
from laar.server.picker import Picker
from laar.settings import load
from laar.settings.routing import Tuning
from laar.tuning.tuner import Tuner
from laar.tuning.windows import Observed
from laar_lab.live.tuner import follow
from support import eventually
from support.admin import admin_port

INITIAL = CostWeights(k_rtt=1.0, k_queue=0.7, k_delay=0.5).tunable()


def tuner(**settings):
    return Tuner(Tuning(enabled=True, **settings).climb, INITIAL)


def serve_windows(tuner, count, seconds):
    """Serve `count` windows; `seconds` maps the weights to an answer's seconds."""
    done = 0
    while done < count and not tuner.frozen:
        weights = tuner.weights(0.0)
        if weights.version:
            took = seconds(weights.values)
            before = len(tuner.export()["windows"])
            tuner.observe(Observed(version=weights.version, ttft_s=took, e2e_s=took), 0.0)
            done += len(tuner.export()["windows"]) - before


def test_the_page_shows_the_history_of_weights_and_objective():
    kept = tuner(window=20)
    serve_windows(kept, 3, lambda weights: 1.0 + weights["k_rtt"])
    with TestClient(Starlette(routes=tuner_routes(kept))) as client:
        shown = client.get("/tuner").json()
    assert [window["version"] for window in shown["windows"]] == [1, 2, 3]
    assert all(window["cost_s"] > 1.0 and window["weights"] for window in shown["windows"])
    assert shown["bounds"].keys() == shown["weights"].keys() == INITIAL.keys()
    assert shown["frozen"] is False


def test_freezing_serves_the_best_weights_and_ends_the_climb():
    kept = tuner(window=20)
    serve_windows(kept, 12, lambda weights: 1.0 + weights["k_rtt"])
    with TestClient(Starlette(routes=tuner_routes(kept))) as client:
        best = client.get("/tuner").json()["weights"]
        assert client.post("/tuner/freeze").json()["frozen"] is True
    assert dict(kept.weights(0.0).values) == best


async def test_laar_tune_follows_and_freezes_a_live_climb():
    kept = tuner(window=20)
    serve_windows(kept, 2, lambda weights: 1.0 + weights["k_rtt"])
    for keeping, found in ((kept, True), (None, False)):
        async with admin_port(Starlette(routes=tuner_routes(keeping))) as server:
            url = f"http://127.0.0.1:{server.port}"
            if found:
                told = []
                found = await follow(url, None, on_window=told.append)
                assert told == found["windows"]
                assert len(told) == 2
                assert (await follow(url, None, freeze=True, wait=True))["frozen"] is True
            else:
                with pytest.raises(LaarError, match=r"tuner\.enabled"):
                    await follow(url, None)


async def test_waiting_for_the_end_of_a_climb_survives_a_picker_restart(monkeypatch):
    monkeypatch.setattr("laar_lab.live.tuner._POLL_S", 0.01)
    lives = [tuner(window=20), tuner(window=20)]
    for life, windows in zip(lives, (3, 1), strict=True):
        serve_windows(life, windows, lambda weights: 1.0 + weights["k_rtt"])
    port, told, waiting = 0, [], None
    for life in lives:
        seen = len(told)
        async with admin_port(Starlette(routes=tuner_routes(life)), port=port) as server:
            port = server.port
            if waiting is None:
                url = f"http://127.0.0.1:{port}"
                waiting = asyncio.create_task(follow(url, None, wait=True, on_window=told.append))
            await eventually(lambda seen=seen: len(told) > seen, what="another window")
            if life is lives[-1]:
                life.freeze()
                assert (await waiting)["frozen"] is True
    assert [window["version"] for window in told] == [1, 2, 3, 1]


SETTINGS = "endpoints: [{address: '10.0.0.1:80', models: [m]}]\n"


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("tuner: {bounds: {k_rtt: [0, 1]}}", "floor"),
        ("tuner: {bounds: {weight: [0.1, 1]}}", "weight"),
        ("tuner: {objective: speed}", "objective"),
        ("tuner: {window: 3}", "window"),
        ("routing: {policy: random}\ntuner: {enabled: true}", "only the policy"),
    ],
)
def test_invalid_settings_are_reported_by_name(tmp_path, section, told):
    path = tmp_path / "laar.yaml"
    path.write_text(SETTINGS + section)
    with pytest.raises(SettingError, match=told):
        load(path)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_picker_uses_the_weights_of_an_enabled_tuner(tmp_path, enabled):
    path = tmp_path / "laar.yaml"
    path.write_text(SETTINGS + f"tuner: {{enabled: {str(enabled).lower()}, window: 20}}")
    director = Picker(load(path).settings, seed=1).director
    director.table.replace("t", [EndpointSpec(address="10.0.0.1:80", models=("m",))])
    request = Request(id="r", api=Api.CHAT, model="auto", spans=("hello",), chars=5)
    decisions = [director.decide(request, 0.0) for _ in range(4)]
    assert [decision.weights_version for decision in decisions] == [
        0,
        0,
        int(enabled),
        int(enabled),
    ]

"""Show and freeze the tuner of a running picker."""

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from laar.core.cost import CostWeights
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.server.admin.port import tuner_routes
from laar.server.picker import Picker
from laar.settings import load
from laar.settings.routing import Tuning
from laar.tuning.tuner import Tuner
from laar.tuning.windows import Observed

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


def test_freezing_serves_the_best_weights_and_ends_the_climb():
    kept = tuner(window=20)
    serve_windows(kept, 12, lambda weights: 1.0 + weights["k_rtt"])
    with TestClient(Starlette(routes=tuner_routes(kept))) as client:
        best = client.get("/tuner").json()["weights"]
        assert client.post("/tuner/freeze").json()["frozen"] is True
    assert dict(kept.weights(0.0).values) == best


SETTINGS = "endpoints: [{address: '10.0.0.1:80', models: [m]}]\n"


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

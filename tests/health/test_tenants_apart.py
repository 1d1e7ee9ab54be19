"""A tenant whose requests no engine answers takes no endpoint away from the others."""

import random

import pytest
import virtual_fleet
from virtual_fleet import Answer, VirtualFleet

from support.requests import request_of

ENDPOINTS = 5


@pytest.mark.parametrize("seed", range(4))
def test_requests_that_no_engine_answers_cost_other_tenants_no_endpoint(seed, monkeypatch, figure):
    rng = random.Random(seed)
    monkeypatch.setattr(virtual_fleet, "PATIENCE_S", rng.uniform(5.0, 12.0))
    others, bad = rng.randint(3, 8), rng.randint(2, 5)
    asks = []

    def silent(_fleet, job, _now, ordinary):
        return Answer(status=None) if 0 <= job.client < bad else ordinary

    def asked(text, **given):
        tenant = "bad" if asks[-1].client < bad else "good"
        return request_of(text, tenant=tenant, **given)

    monkeypatch.setattr(virtual_fleet, "request_of", asked)
    fleet = VirtualFleet(
        ENDPOINTS,
        dict.fromkeys(range(ENDPOINTS), silent),
        clients=bad + others,
        seed=seed,
        think_s=rng.uniform(0.2, 1.5),
        probes=True,
    )
    fleet.text = asks.append
    out = []

    def look():
        fleet.health.look(fleet.now)
        out.append(
            sum(
                fleet.health.state(slot, fleet.now) in ("failing", "on trial")
                for slot in range(ENDPOINTS)
            )
        )
        if fleet.left > 0:
            fleet.call(fleet.now + 0.25, look)

    fleet.call(0.25, look)
    fleet.run(600)
    mean = sum(out) / len(out)
    figure("endpoints out for other tenants, of 5, if one's requests hang", mean, "<= .5")
    assert mean <= 0.5

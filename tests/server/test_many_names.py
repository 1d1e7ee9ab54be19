"""The model names that the endpoints of a large fleet report at startup."""

import sys

import pytest

from laar.core.membership import EndpointSpec, Served
from laar.server.fleet import FleetState
from laar.server.picker import Picker
from laar.settings import Settings


@pytest.mark.parametrize("models", [(), ("m",)], ids=["names", "ranks"])
async def test_the_work_for_a_report_does_not_grow_with_the_number_of_endpoints(models):
    """At startup up to 200 endpoints a second report their names, and that they have one rank."""

    def work(count):
        listed = [{"address": "10.9.0.1:8000", "model": "m"}]
        fleet = FleetState(Picker(Settings.model_validate({"endpoints": listed})))
        pods = [EndpointSpec(address=f"10.0.{n}.1:8000", models=models) for n in range(count)]
        fleet.replace("pods", pods)
        fleet.served(pods[1].address, Served())  # the first report applies immediately
        steps, before = 0, sys.gettrace()

        def step(*_event):
            nonlocal steps
            steps += 1
            return step

        sys.settrace(step)
        try:
            if models:
                fleet.ranked(pods[0].address, 1)
            else:
                fleet.served(pods[0].address, Served(weights={"m": "org/m"}))
        finally:
            sys.settrace(before)
        return steps

    assert work(200) == work(20)

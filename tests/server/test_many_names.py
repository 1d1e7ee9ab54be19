"""The model names that the endpoints of a large fleet report at startup."""

import sys

import pytest

from laar.core.membership import EndpointSpec, Served
from laar.server.fleet import FleetState
from laar.server.picker import Picker
from laar.settings import Settings
from support import eventually


async def test_the_names_of_many_endpoints_cause_only_a_few_changes_of_the_fleet(gateway):
    addresses = [f"127.0.0.{number}:9" for number in range(1, 31)]
    gateway.members(*((address, "m") for address in addresses))
    runner = await gateway.picker()
    table = runner.picker.table
    await eventually(lambda: len(table) == len(addresses), what="the endpoints")
    version = table.version
    lora = Served(weights={"m": "org/m"}, adapters={"lora": "m"})
    runner.fleet.served(addresses[0], lora)
    # The first endpoint's names apply immediately.
    assert table.serving("lora").tolist() == [table.slot(addresses[0])]
    for address in addresses[1:]:
        runner.fleet.served(address, lora)
    await eventually(lambda: len(table.serving("lora")) == len(addresses), what="all names")
    assert table.version - version == 2


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

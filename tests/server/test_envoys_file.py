"""The endpoints file that Envoy reads: while a picker starts, and as endpoints join and leave."""

import asyncio
import contextlib
import json
from dataclasses import replace

import pytest

from laar.envoy.endpoints_file import MAX_NAMES, write_eds
from laar.fleet.endpoints import Reading
from laar.fleet.membership import DRAIN_LABEL, EndpointSpec, Served
from laar.server.fleet import FleetState
from laar.server.picker import Picker
from laar.server.runner import Runner
from laar.settings import Settings
from support import eventually, free_port


@pytest.fixture
def eds(tmp_path):
    return tmp_path / "endpoints.json"


def listed(eds):
    """Return the addresses in the file."""
    (group,) = json.loads(eds.read_bytes())["resources"][0]["endpoints"]
    found = [entry["endpoint"]["address"]["socket_address"] for entry in group["lb_endpoints"]]
    return [f"{one['address']}:{one['port_value']}" for one in found]


def spec(address):
    return EndpointSpec(address=address, models=("m",))


@contextlib.asynccontextmanager
async def running(eds):
    """Run a fleet that publishes its changes; yield the fleet and its endpoint table."""
    listed = {"endpoints": [{"address": "10.0.0.9:8000", "model": "m"}]}
    picker = Picker(Settings.model_validate({**listed, "envoy": {"eds_file": str(eds)}}))
    fleet = FleetState(picker)
    publishing = asyncio.create_task(fleet.run())
    try:
        yield fleet, picker.table
    finally:
        publishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publishing


async def test_a_starting_picker_keeps_the_endpoints_of_envoy_until_it_knows_some(eds):
    write_eds(eds, [EndpointSpec(address="10.0.0.7:8000", models=("m",))])
    nowhere = f"http://127.0.0.1:{free_port()}"
    source = {"selector": {"app": "vllm"}, "ports": [8000], "models": ["m"], "namespace": "ml"}
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")}
    runner = Runner(
        Settings.model_validate(
            {
                "kubernetes": [source | {"api_server": nowhere}],
                "listen": ports,
                "envoy": {"eds_file": str(eds)},
                "shutdown": {"drain_s": 0, "grace_s": 0},
            }
        )
    )
    started = asyncio.Event()
    serving = asyncio.create_task(runner.run(started=started))
    await started.wait()
    assert listed(eds) == ["10.0.0.7:8000"]
    runner.fleet.replace("kubernetes ml/app=vllm", [spec("10.0.0.8:8000")])
    await eventually(lambda: listed(eds) == ["10.0.0.8:8000"], what="the new list")
    runner.stop()
    await serving


async def test_an_endpoint_removed_before_envoy_knows_it_leaves_the_file(eds):
    async with running(eds) as (fleet, table):
        fleet.replace("a", [spec("10.0.0.1:8000")])
        await eventually(lambda: len(table) == 1, what="the endpoint")
        fleet.replace("a", [spec("10.0.0.1:8000"), spec("10.0.0.2:8000")])
        await eventually(lambda: len(listed(eds)) == 2, what="the newcomer in the file")
        fleet.replace("a", [spec("10.0.0.1:8000")])
        await eventually(lambda: listed(eds) == ["10.0.0.1:8000"], what="its removal")
    assert [one.address for one in table.specs()] == ["10.0.0.1:8000"]


async def test_a_removed_endpoint_is_listed_until_its_last_requests_arrive(eds):
    one, two, three = (f"10.0.0.{n}:8000" for n in (1, 2, 3))
    async with running(eds) as (fleet, table):
        fleet.replace("a", [spec(one), spec(two)])
        await eventually(lambda: len(table) == 2, what="the endpoints")
        fleet.replace("a", [spec(one), spec(three)])
        assert [each.address for each in table.specs()] == [one]
        await eventually(lambda: three in listed(eds), what="the change in the file")
        assert set(listed(eds)) == {one, two, three}
        await eventually(lambda: set(listed(eds)) == {one, three}, what="its removal")


async def test_the_only_endpoint_serves_until_envoy_knows_its_successor(eds):
    one, two, three = (f"10.0.0.{n}:8000" for n in (1, 2, 3))
    async with running(eds) as (fleet, table):

        def used():
            return [each.address for each in table.specs()]

        fleet.replace("a", [spec(one)])
        await eventually(lambda: used() == [one], what="the endpoint")
        for leaves, comes in ((one, two), (two, three), (three, two)):
            fleet.replace("a", [spec(comes)])
            assert used() == [leaves]
            await eventually(lambda: comes in listed(eds), what="the successor in the file")  # noqa: B023
            assert leaves in listed(eds)
            await eventually(lambda: used() == [comes], what="the successor in use")  # noqa: B023
            assert leaves in listed(eds), "its last requests may not have arrived"
        await eventually(lambda: listed(eds) == [two], what="the removal of the others")


async def test_a_model_that_nothing_replaces_is_removed_immediately(eds):
    one, two = (EndpointSpec(address=f"10.0.0.{n}:8000", models=(f"m{n}",)) for n in (1, 2))
    async with running(eds) as (fleet, table):
        fleet.replace("a", [one])
        await eventually(lambda: len(table) == 1, what="the endpoint")
        fleet.replace("a", [two])
        assert len(table) == 0


async def test_endpoints_serve_until_envoy_knows_successors_from_another_source(eds):
    one, two = (f"10.0.0.{n}:8000" for n in (1, 2))
    async with running(eds) as (fleet, table):
        fleet.replace("a", [spec(one)])
        await eventually(lambda: len(table) == 1, what="the endpoint")
        fleet.replace("b", [spec(two)])
        fleet.replace("a", [])
        assert [each.address for each in table.specs()] == [one]
        await eventually(lambda: listed(eds) == [two], what="the removal")
        assert [each.address for each in table.specs()] == [two]


async def test_an_endpoint_that_returns_before_envoy_forgets_it_is_treated_as_new(eds):
    """If it were used immediately, Envoy might have just dropped it, and would choose another."""
    one, two, three = (f"10.0.0.{n}:8000" for n in (1, 2, 3))
    async with running(eds) as (fleet, table):

        def used():
            return {each.address for each in table.specs()}

        def all_used():
            assert used() <= set(listed(eds)), "an endpoint that Envoy does not know"
            return used() == {one, two, three}

        fleet.replace("a", [spec(one), spec(two)])
        await eventually(lambda: len(table) == 2, what="the endpoints")
        fleet.replace("a", [spec(one), spec(three)])
        await eventually(lambda: set(listed(eds)) == {one, three}, what="the change in the file")
        fleet.replace("a", [spec(one), spec(two), spec(three)])
        await eventually(all_used, what="all three")


async def test_a_change_is_not_lost_if_publishing_it_fails_at_first(eds, monkeypatch):
    """For example, there is no memory for another thread; the task is then restarted."""

    def fail(*_args, **_options):
        raise RuntimeError("can't start new thread")

    document = {"endpoints": [{"address": "10.0.0.9:8000", "model": "m"}]}
    picker = Picker(Settings.model_validate({**document, "envoy": {"eds_file": str(eds)}}))
    fleet = FleetState(picker)
    fleet.replace("a", [spec("10.0.0.1:8000")])
    with monkeypatch.context() as without_threads:
        without_threads.setattr("laar.envoy.endpoints_file.write_eds", fail)
        with pytest.raises(RuntimeError):
            await asyncio.wait_for(fleet.run(), 20.0)
    publishing = asyncio.create_task(fleet.run())
    await eventually(lambda: len(picker.table) == 1, what="the endpoint")
    assert listed(eds) == ["10.0.0.1:8000"]
    publishing.cancel()
    await asyncio.wait([publishing])


async def test_a_draining_endpoint_stays_until_its_own_page_shows_no_requests(eds):
    one, two, idle = "10.0.0.1:1", "10.0.0.2:2", Reading(waiting=0.0, running=0.0)
    async with running(eds) as (fleet, table):
        fleet.replace("a", [spec(one), spec(two)])
        await eventually(lambda: len(table) == 2, what="the endpoints")
        fleet.reading(one, idle, 1.0)
        fleet.replace("a", [replace(spec(one), labels={DRAIN_LABEL: "true"}), spec(two)])
        await eventually(lambda: bool(table.draining), what="the label")
        fleet.reading(two, idle, 2.0)
        fleet.round_trip(one, 0.01, 2.0)
        for busy in ((0.0, 2.0), (1.0, 0.0), (float("nan"), float("nan"))):
            fleet.reading(one, Reading(waiting=busy[0], running=busy[1]), 3.0)
        assert not table.drained  # another picker's requests may run there
        fleet.reading(one, idle, 4.0)
        assert (table.drained, table.slot(one)) == ({one}, -1)


def accepted(eds):
    """Return the names by which Envoy may choose each port, and whether any endpoint will do."""
    (group,) = json.loads(eds.read_bytes())["resources"][0]["endpoints"]
    found = {}
    for entry in group["lb_endpoints"]:
        marks = entry["metadata"]["filter_metadata"].get("envoy.lb", {"model": [], "alike": False})
        port = entry["endpoint"]["address"]["socket_address"]["port_value"]
        found[port] = ({name for name in marks["model"] if name and name[0] != "/"}, marks["alike"])
    return found


async def test_the_file_has_the_names_that_each_endpoint_accepts_at_present(eds):
    one, two = "10.0.0.1:1", "10.0.0.2:2"
    async with running(eds) as (fleet, table):

        async def become(*names, alike):
            wanted = {port: (set(own), alike) for port, own in enumerate(names, 1)}
            await eventually(lambda: accepted(eds) == wanted, what=f"{wanted}")

        fleet.replace("a", [spec(one), spec(two)])
        await eventually(lambda: len(table) == 2, what="the endpoints")
        await become((), (), alike=True)
        adapter = Served(weights={"m": "w", "also": "w"}, adapters={"adapter": "m"})
        fleet.served(one, adapter)
        await become(("m", "also", "adapter"), ("m",), alike=False)
        table.withhold(one, "adapter", lacks=True)
        await become(("m", "also"), ("m",), alike=False)
        table.withhold(one, "adapter", lacks=False)
        fleet.served(two, adapter)
        await become((), (), alike=True)
        table.use_aliases({"auto": ()})
        fleet.served(two, replace(adapter, weights={"m": "w", "also": "w", "auto": "w"}))
        await become(("m", "also", "adapter"), ("m", "also", "adapter", "auto"), alike=False)
        fleet.replace("a", [spec(one), EndpointSpec(address=two, models=("other",))])
        await become(("m", "also", "adapter"), ("other",), alike=False)
        fleet.replace("a", [spec(one)])
        await become(("m", "also", "adapter"), alike=False)
    async with running(eds) as (fleet, table):  # the next picker
        fleet.replace("a", [EndpointSpec(address=two, models=("other",))])
        await eventually(lambda: accepted(eds) == {2: ({"other"}, False)}, what="the next model")


async def test_only_so_many_names_are_in_the_file(eds):
    """Each costs Envoy memory. Models come before adapters."""
    loras = tuple(f"a{number}" for number in range(MAX_NAMES))
    models = [("z", *loras), ("y",)]
    write_eds(
        eds, [EndpointSpec(address=f"10.0.0.1:{n}", models=m) for n, m in enumerate(models, 1)]
    )
    first, second = (names for names, _ in accepted(eds).values())
    assert len(first | second) == MAX_NAMES
    assert "z" in first
    assert second == {"y"}

"""The model names that the endpoints of a large fleet report at startup."""

from laar.core.membership import Served
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

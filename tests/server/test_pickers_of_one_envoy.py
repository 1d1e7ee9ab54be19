"""Several pickers and one Envoy: they write one endpoints file, which outlives any of them."""

from __future__ import annotations

import pytest

from support import eventually
from support.clients import chat, post

pytestmark = pytest.mark.envoy


async def test_pickers_of_one_envoy_write_one_file_that_outlives_any_of_them(gateway, http):
    engines = [await gateway.upstream() for _ in range(3)]
    gateway.members(*((engine.address, "m") for engine in engines[:2]))
    await gateway.picker()
    (gateway.directory / "second").mkdir()
    second = type(gateway)(gateway.directory / "second", gateway._stack)
    second.endpoints_file, second.eds = gateway.endpoints_file, gateway.eds
    await second.picker()
    both = f"{gateway.settings.listen.ext_proc},{second.settings.listen.ext_proc}"
    envoy = await gateway.envoy(picker=both)

    async def served(*decides):
        got = [await post(http, envoy, chat("m")) for _ in range(8)]
        assert {each.status for each in got} == {200}
        assert {"x-laar-endpoint" in each.headers for each in got} <= {*decides}
        return {each.headers["x-upstream"] for each in got}

    assert await served(True) <= {engine.address for engine in engines[:2]}
    await gateway.stop_picker()
    gateway.members((engines[2].address, "m"))

    async def serves_the_new_one():
        return await served(True, False) == {engines[2].address}  # Envoy may have to turn

    await eventually(serves_the_new_one, what="the new endpoint")
    old = engines[0].address.rpartition(":")[2]
    await eventually(lambda: old not in gateway.eds.read_text(), what="a file without the others")
    await second.stop_picker()
    assert await served(False) == {engines[2].address}, "Envoy alone, by the last file"

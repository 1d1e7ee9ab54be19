"""Findings of `laar doctor` on sharing: the store, and the records of other pickers."""

import pytest

from laar.doctor import Level
from laar.doctor.sharing import sharing_findings, store_findings
from laar.server.sharing.store import Store
from laar.settings.section import part
from laar.settings.share import Share
from laar.sharing.settings import SharingSettings
from support import free_port
from support.stores import SERVERS, StoreProcess, binary_of


@pytest.fixture(params=SERVERS)
async def server(request, tmp_path):
    store = StoreProcess(binary_of(request.param), tmp_path)
    await store.start()
    yield store
    store.stop()


async def found(share):
    (finding,) = await store_findings(share)
    return finding


async def test_without_a_store_there_is_nothing_to_find():
    assert await store_findings(Share()) == []


async def test_a_store_that_is_away_or_refuses_is_an_error(server):
    away = await found(Share(url=f"redis://127.0.0.1:{free_port()}"))
    assert away.level is Level.ERROR
    assert "continues alone" in away.what
    await server.ask("CONFIG", "SET", "requirepass", "sesame")
    locked = await found(Share(url=server.url))
    assert locked.level is Level.ERROR
    assert "password" in locked.remedy


async def test_a_store_that_no_picker_writes_to_is_a_warning(server):
    share = Share(url=server.url)
    silent = await found(share)
    assert silent.level is Level.WARNING
    assert "never" in silent.what
    store = Store(share, part(SharingSettings, share), origin="p/1", secret=None)
    await store.open(b"k" * 16, starting=False)
    await store.send([b"a batch"])
    await store.close()
    keys = await server.ask("KEYS", "*")
    fresh = await found(share)
    assert fresh.level is Level.OK
    assert "its last record is" in fresh.what
    assert (await found(Share(url=server.url, namespace="other"))).level is Level.WARNING
    assert await server.ask("KEYS", "*") == keys, "the doctor changes nothing"


WELL = {"connected": True, "pickers": 2, "age_s": 0.004, "waiting_bytes": 0, "refused": {}}


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (None, {}),
        (WELL | {"connected": False}, {}),  # that is one of the picker's problems
        (WELL, {Level.OK: "knows 2 more; their records are 4 ms old"}),
        (WELL | {"pickers": 0}, {Level.WARNING: "it is alone"}),
        (WELL | {"age_s": 3.0}, {Level.WARNING: "3.0 s old", Level.OK: "3000 ms old"}),
        (WELL | {"refused": {"key": 7}}, {Level.ERROR: "7 batches", Level.OK: "4 ms"}),
        (WELL | {"refused": {"schema": 1}}, {Level.WARNING: "schema", Level.OK: "4 ms"}),
    ],
)
def test_findings_about_other_pickers(shown, said):
    findings = {finding.level: finding.what for finding in sharing_findings("picker", shown)}
    assert findings.keys() == said.keys()
    for level, text in said.items():
        assert text in findings[level]

"""TLS to a real store that requires a client certificate."""

import pytest

from laar.errors import SettingError
from laar.server.sharing import store
from laar.server.sharing.store import Store, StoreError
from laar.settings.section import part
from laar.settings.share import Share
from laar.sharing.settings import SharingSettings
from support import free_port
from support.authority import Authority
from support.stores import SERVERS, StoreProcess, binary_of


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Allow 30 s for a handshake, as the machine may be busy."""
    monkeypatch.setattr(store, "_TIMEOUT_S", 30.0)
    for method in (Store._ask, Store._trip):
        monkeypatch.setitem(method.__kwdefaults__, "within_s", 30.0)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "authority")


@pytest.fixture(params=SERVERS)
async def secured(request, tmp_path, authority):
    """Start a store with a certificate; return its port."""
    stores = []

    async def start(pair):
        port = free_port()
        process = StoreProcess(
            binary_of(request.param),
            tmp_path,
            *("--tls-port", str(port), "--tls-auth-clients", "yes"),
            *("--tls-cert-file", str(pair[0]), "--tls-key-file", str(pair[1])),
            *("--tls-ca-cert-file", str(authority.path)),
        )
        stores.append(process)
        try:
            await process.start()
        except AssertionError:
            if "TLS" in process.log.read_text():
                pytest.skip(f"{request.param} was built without TLS")
            raise
        return f"rediss://127.0.0.1:{port}"

    yield start
    for each in stores:
        each.stop()


async def talk(url, **files):
    """Send a batch, and assert that another picker reads it."""
    share = Share(url=url, **files)
    settings = part(SharingSettings, share)
    one, other = [Store(share, settings, origin=f"{n}/1", secret=None) for n in range(2)]
    try:
        await other.open(b"k" * 16, starting=True)
        begun = await one.open(b"j" * 16, starting=True)
        await one.send([b"a batch"])
        async for received in other.receive():
            if received:
                return begun[0], [data for data, _ in received]
    finally:
        await one.close()
        await other.close()


async def test_both_sides_present_a_certificate_of_the_ca(secured, authority):
    url = await secured(authority.issue("store"))
    cert, key = authority.issue("picker")
    told = await talk(url, ca_file=authority.path, cert_file=cert, key_file=key)
    assert told == (b"k" * 16, [b"a batch"])


async def test_a_picker_without_a_certificate_is_refused(secured, authority):
    url = await secured(authority.issue("store"))
    with pytest.raises(StoreError, match="can't be used"):
        await talk(url, ca_file=authority.path)


async def test_a_store_with_a_different_ca_or_name_is_refused(secured, authority, tmp_path):
    cert, key = authority.issue("picker")
    url = await secured(authority.issue("store", host="10.1.2.3"))
    with pytest.raises(StoreError, match=r"(?i)certificate"):
        await talk(url, ca_file=authority.path, cert_file=cert, key_file=key)
    with pytest.raises(StoreError, match=r"(?i)certificate"):
        await talk(url, cert_file=cert, key_file=key)  # checks it against the system's CAs
    other = Authority(tmp_path, "other")
    with pytest.raises(StoreError, match=r"(?i)certificate"):
        await talk(url, ca_file=other.path, cert_file=cert, key_file=key)


async def test_renewed_certificates_are_used_from_the_next_connection_on(
    secured, authority, tmp_path
):
    url = await secured(authority.issue("store"))
    other = Authority(tmp_path, "other")
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in other.issue("old")))
    share = Share(url=url, ca_file=authority.path, cert_file=both)
    picker = Store(share, part(SharingSettings, share), origin="1/1", secret=None)
    with pytest.raises(StoreError):
        await picker.open(b"k" * 16, starting=True)
    both.write_bytes(b"".join(path.read_bytes() for path in authority.issue("renewed")))
    await picker.open(b"k" * 16, starting=True)
    await picker.close()


@pytest.mark.parametrize("name", ["ca_file", "cert_file"])
def test_an_invalid_certificate_file_is_an_error_at_startup(tmp_path, name):
    pytest.importorskip("redis", reason="needs the Redis client: pip install '.[share]'")
    path = tmp_path / "wrong.pem"
    for content in (None, "no certificate"):
        if content is not None:
            path.write_text(content)
        share = Share(url="rediss://127.0.0.1:1", **{name: path})
        with pytest.raises(SettingError, match=f"share.{name}"):
            Store(share, part(SharingSettings, share), origin="1/1", secret=None)

"""Pickers that share through a real Redis or Valkey: partition, restart, full store, bad data."""

import asyncio
import random
import re
import time
from contextlib import AsyncExitStack, suppress
from hashlib import blake2b

import pytest

from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes
from laar.core.decision import Completion
from laar.errors import SettingError
from laar.health import Health, HealthSettings
from laar.plugins.stored import StoredObjects
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.blocks import ENDS
from laar.server.sharing.sharer import Sharer, new_origin, secret_of
from laar.server.sharing.store import Store, StoreError
from laar.server.tasks import Tasks
from laar.settings.section import part
from laar.settings.share import Share
from laar.sharing.records import Entered
from laar.sharing.settings import SharingSettings
from laar.sharing.sharing import Sharing
from laar.sharing.snapshot import key_of, read_snapshot, snapshot
from laar.telemetry.problems import Problems
from support import free_port
from support.directors import director_of
from support.pickers import request, specs
from support.stores import SERVERS, StoreProcess, binary_of
from support.waiting import eventually

A, B = "10.0.0.1:80", "10.0.0.2:80"


class Member:
    """A director with a sharer, as in a picker, but without ports."""

    def __init__(self, share, number):
        rng = random.Random(number)
        key = rng.randbytes(16)
        self.problems = Problems()
        self.director = director_of(
            *specs(A, B),
            seed=number,
            prefixes=PrefixBeliefs(key=key, max_bytes=8 << 20),
            health=Health(HealthSettings(), rng=rng),
        )
        secret, origin = secret_of(share), new_origin()
        settings = part(SharingSettings, share)
        sharing = Sharing(
            self.director,
            settings,
            origin=origin,
            key=secret or key,
            wall_clock=time.time,
            online=OnlineOutcomes(),
        )
        self.sharer = Sharer(
            sharing,
            Store(share, settings, origin=origin, secret=secret) if share.url else None,
            snapshot_file=share.snapshot_file,
            has_secret=secret is not None,
            clock=time.monotonic,
            problems=self.problems,
        )
        self.sharer.endpoints_known.set()
        self.tasks = Tasks(self.problems)

    async def start(self):
        parts = self.sharer.tasks().items()
        self.parts = {name: self.tasks.spawn(name, run) for name, run in parts}
        await self.sharer.warmed()
        return self

    async def kill(self):
        await self.tasks.cancel()
        if self.sharer.store is not None:
            await self.sharer.store.close()

    def decide(self, text="hello " * 50):
        return self.director.decide(request(text), time.monotonic())

    def settle(self, decision, status=200):
        end = Completion(status=status, cause="complete", latency_s=0.1)
        self.director.settle(decision, end)

    @property
    def in_flight(self):
        return int(self.director.table.in_flight.sum())

    def held(self, text):
        prefixes = self.director.prefixes
        return float(prefixes.match(prefixes.chain(request(text)))[0].max())


@pytest.fixture(params=SERVERS)
def server(request, tmp_path):
    store = StoreProcess(binary_of(request.param), tmp_path)
    yield store
    store.stop()


@pytest.fixture(autouse=True)
def _quick_to_bring_a_key(request, monkeypatch):
    if "introduces_no_other_key" not in request.node.name:
        monkeypatch.setattr("laar.server.sharing.store._OTHERS_S", 0.0)


@pytest.fixture
def snapshots_every(monkeypatch):
    """Set the seconds between two snapshots."""

    def every(seconds):
        for module in ("sharer", "store"):
            monkeypatch.setattr(f"laar.server.sharing.{module}.SNAPSHOT_INTERVAL_S", seconds)

    return every


@pytest.fixture
async def members(server):
    async with AsyncExitStack() as stack:

        async def start(number=1, **settings):
            share = Share(**{"url": server.url, "lease_s": 1.0} | settings)
            member = Member(share, number)
            stack.push_async_callback(member.kill)
            return await member.start()

        yield start


async def test_a_starting_picker_first_reads_all_that_the_others_sent(server, members):
    """A backlog takes several reads, even if all of it is recent."""
    await server.start()
    share = Share(url=server.url)
    other = Member(share, 1)  # sends only what this test sends
    await other.sharer.store.open(other.sharer.sharing.key, starting=True)
    for number in range(300):
        other.director.plugins.get(StoredObjects).note(f"resp-{number}", A, "")
        await other.sharer.store.send(other.sharer.sharing.batches(time.monotonic()))
    await other.sharer.store.close()
    starting = await members(2, lease_s=3.0)
    stored = starting.director.plugins.get(StoredObjects)
    assert stored.latest(1) == [("resp-299", A, "resp-299", "")]


@pytest.mark.parametrize("forbidden", ["time", "xtrim", "xrevrange", "xread", "xadd"])
async def test_a_store_that_forbids_a_command_is_considered_down_permanently(
    server, members, forbidden
):
    """Retries once came ten times a second, and each logged two lines and sent all loads again."""
    await server.start()
    await server.ask("ACL", "SETUSER", "default", f"-{forbidden}")
    p = await members()
    await eventually(lambda: "share" in p.problems, what="a problem")
    tries = p.problems.counts["share"]
    await eventually(lambda: p.problems.counts["share"] >= tries + 2, what="more attempts")
    assert f"'{forbidden}'" in p.problems["share"]
    assert p.sharer.sharing.lost["interruption"] == 0
    await server.ask("ACL", "SETUSER", "default", f"+{forbidden}")
    await eventually(lambda: not p.problems, what="the end of the problem")
    q = await members(2)
    await eventually(lambda: len(p.sharer.sharing.peers) == len(q.sharer.sharing.peers) == 1)


async def test_a_store_emptied_while_in_use_does_not_separate_pickers(
    server, members, snapshots_every
):
    """The hash key is lost, too; in the past, the next picker to start introduced its own."""
    snapshots_every(1.0)
    await server.start()
    p, q = [await members(n) for n in range(2)]
    await eventually(lambda: len(p.sharer.sharing.peers) == len(q.sharer.sharing.peers) == 1)
    await server.ask("FLUSHALL")
    r = await members(2)
    await eventually(
        lambda: len({each.sharer.sharing.key for each in (p, q, r)}) == 1, what="one key"
    )
    text = "what one was asked " * 40
    p.settle(p.decide(text))
    await eventually(
        lambda: q.held(text) > 0.9 and r.held(text) > 0.9, what="the prompt at the others"
    )


async def test_a_picker_that_starts_knows_the_snapshot_and_later_records(
    server, members, snapshots_every
):
    snapshots_every(1.0)
    await server.start()
    p = await members(1)
    early, late = "early words " * 60, "late words " * 60
    p.settle(p.decide(early))

    async def written():
        return await server.ask("EXISTS", "laar:{laar}:snapshot") == 1

    await eventually(written, what="a snapshot")
    snapshots_every(3600)
    p.settle(p.decide(late))
    await eventually(lambda: not p.sharer.sharing.outbox.waiting_bytes)
    q = await members(2)
    await eventually(lambda: q.held(late) > 0.9, what="the prompt from after the snapshot")
    assert q.held(early) > 0.9


async def test_outcomes_count_once_if_they_are_in_the_snapshot_and_among_the_records(
    server, members, snapshots_every
):
    snapshots_every(1.0)
    await server.start()
    p = await members(1)

    async def report():
        """Report an outcome, and wait until the store has it, and `p` has read up to it."""
        p.sharer.sharing.online.observe("m", Features("en", 1024, "qa"), True, time.monotonic())
        await eventually(lambda: not (p.sharer.sharing.outbox.waiting_bytes or p.sharer._unsent))
        ((sent, _),) = await server.ask("XREVRANGE", "laar:{laar}:records", "+", "-", "COUNT", 1)
        await eventually(lambda: p.sharer.store.position >= sent.decode())

    async def written():
        return await server.ask("EXISTS", "laar:{laar}:snapshot") == 1

    await report()
    await server.ask("DEL", "laar:{laar}:snapshot")  # may be from before the report
    await eventually(written, what="a snapshot")
    snapshots_every(3600)
    await report()
    q = await members(2)
    outcomes = [
        each.sharer.sharing.online.by_model(time.monotonic())["m"].outcomes for each in (p, q)
    ]
    assert outcomes == pytest.approx([2.0, 2.0], abs=0.01)


async def test_pickers_continue_alone_and_merge_when_the_store_returns(server, members):
    await server.start()
    p, q = await members(1), await members(2)
    server.stop()
    await eventually(lambda: "share" in p.problems and "share" in q.problems)
    assert "continues alone" in p.problems["share"]
    texts = [f"{n} was asked meanwhile " * 30 for n in range(20)]
    open_ones = [p.decide(text) for text in texts]
    for decision in open_ones[:10]:
        p.settle(decision)
    await server.start()  # a new store, without the stream and the key
    await eventually(lambda: q.in_flight == 10, what="the loads", timeout_s=5.0)
    await eventually(lambda: all(q.held(text) > 0.9 for text in texts), what="the prompts")
    await eventually(lambda: not p.problems, what="the end of the problem")
    assert not q.problems
    assert p.sharer.sharing.lost["interruption"] == 1
    for decision in open_ones[10:]:
        p.settle(decision)
    await eventually(lambda: q.in_flight == 0)


async def test_a_full_store_is_a_problem_until_it_has_room(server, members):
    await server.start()
    p, q = await members(1), await members(2)
    await server.ask("CONFIG", "SET", "maxmemory", "1")
    decision = p.decide()
    await eventually(lambda: "share" in p.problems, what="the problem")
    assert "memory" in p.problems["share"]
    await server.ask("CONFIG", "SET", "maxmemory", "0")
    await eventually(lambda: q.in_flight == 1, what="the load")
    p.settle(decision)
    await eventually(lambda: q.in_flight == 0)


@pytest.mark.parametrize("place", ["9" * 14 + "-0", "9" * 5000 + "-0", "{last_ms}-" + "9" * 25])
async def test_a_picker_receives_despite_a_wrong_position_in_a_snapshot(
    server, members, place, caplog
):
    await server.start()
    p = await members(1)
    ((last, _),) = await server.ask("XREVRANGE", "laar:{laar}:records", "+", "-", "COUNT", 1)
    place = place.format(last_ms=last.decode().partition("-")[0])
    write = snapshot(p.sharer.sharing, time.monotonic(), with_key=False, place=place)
    await server.ask("SET", "laar:{laar}:snapshot", write())
    q = await members(2)
    p.decide()
    await eventually(lambda: q.in_flight == 1, what="the load")
    assert not caplog.records


async def test_only_pickers_with_the_same_namespace_and_secret_share(server, members, tmp_path):
    await server.start()
    secret = tmp_path / "secret"
    secret.write_text("a secret that is long enough")
    p = await members(1, secret_file=secret)
    q = await members(2, namespace="other")
    r = await members(3, secret_file=secret)
    p.settle(p.decide("remember me " * 60))
    p.decide()
    await eventually(lambda: r.in_flight == 1)
    assert r.held("remember me " * 60) > 0.9
    assert q.in_flight == 0
    # The key comes from the secret, which is not in the store.
    assert await server.ask("EXISTS", "laar:{laar}:key") == 0
    assert r.sharer.sharing.key == p.sharer.sharing.key


async def test_an_idle_picker_sends_only_heartbeats(server, members):
    await server.start()
    p, q = await members(1), await members(2)
    await eventually(lambda: len(p.sharer.sharing.peers) == 1)
    made = []
    batches = p.sharer.sharing.batches
    p.sharer.sharing.batches = lambda now: made.append(now) or batches(now)
    await asyncio.sleep(1.5)
    assert 0 < len(made) < 20  # it checks four times a second if a batch is due
    assert len(q.sharer.sharing.peers) == 1
    assert q.sharer.sharing.lost["lease"] == 0


async def test_a_changed_password_is_read_again(server, members, tmp_path):
    await server.start()
    await server.ask("CONFIG", "SET", "requirepass", "open sesame")
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    p = await members(password_file=password)
    assert p.sharer.connected
    server.stop()
    await eventually(lambda: "share" in p.problems)
    await server.start()
    await server.ask("CONFIG", "SET", "requirepass", "close sesame")
    password.unlink()  # as happens while a volume is being mounted
    await eventually(lambda: "password_file" in p.problems.get("share", ""))
    password.write_text("close sesame\n")
    await eventually(lambda: p.sharer.connected)


class Wire:
    """The connection of one picker to the store, which can be cut."""

    def __init__(self, store, path):
        self.store, self.path, self.url = store, path, f"unix://{path}"
        self._open, self._server = set(), None

    async def heal(self):
        self._server = await asyncio.start_unix_server(self._join, self.path)

    async def cut(self):
        self._server.close()
        for writer in list(self._open):
            writer.close()
        self.path.unlink(missing_ok=True)

    async def _join(self, reader, writer):
        there, to_store = await asyncio.open_unix_connection(self.store)
        self._open |= {writer, to_store}
        await asyncio.gather(self._pass(reader, to_store), self._pass(there, writer))

    async def _pass(self, reader, writer):
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(await self._changed(data))
                await writer.drain()
        writer.close()
        self._open.discard(writer)

    async def _changed(self, data):
        return data


class Slow(Wire):
    """A connection with a limit of bytes per second in each direction."""

    bytes_s = 4 << 20

    async def _changed(self, data):
        await asyncio.sleep(len(data) / self.bytes_s)
        return data


async def test_a_backlog_arrives_over_a_slow_link(server, members, tmp_path):
    await server.start()
    wire = Slow(server.socket, tmp_path / "wire")
    await wire.heal()
    p, q = await members(1, url=wire.url), await members(2, url=wire.url)
    await eventually(lambda: p.sharer.connected and q.sharer.connected)
    await wire.cut()
    await eventually(lambda: not p.sharer.connected and not q.sharer.connected)
    for entry in range(1000):  # 8 MB, which take two seconds on this connection
        p.sharer.sharing.outbox.add(Entered(entry, A, ENDS[750], bytes(8 * 750)))
    await wire.heal()
    await eventually(lambda: q.sharer.sharing.taken["entered"] == 1000, timeout_s=15)
    assert p.sharer.connected
    assert p.sharer.sharing.lost["interruption"] == q.sharer.sharing.lost["interruption"] == 1
    for each in (p, q):
        await each.kill()
    await wire.cut()


async def test_while_a_lookup_of_the_stores_name_hangs_no_other_is_started(tmp_path, monkeypatch):
    port = free_port()
    server = StoreProcess(binary_of(SERVERS[0]), tmp_path, "--port", str(port))
    await server.start()
    loop, answered, asked = asyncio.get_running_loop(), asyncio.Event(), []
    look_up = loop.getaddrinfo

    async def hang(host, *given, **options):
        asked.append(asyncio.create_task(answered.wait()))
        await asyncio.shield(asked[-1])  # like the system's, it can't be stopped
        return await look_up("127.0.0.1", *given, **options)

    monkeypatch.setattr(loop, "getaddrinfo", hang)
    monkeypatch.setattr("laar.server.sharing.store._TIMEOUT_S", 0.05)
    monkeypatch.setattr("laar.server.sharing.store._OPEN_S", 0.05)
    share = Share(url=f"redis://store.example:{port}/0")
    store = Store(share, part(SharingSettings, share), origin="p", secret=b"s" * 16)
    for _ in range(5):
        with pytest.raises(StoreError, match=r"store\.example"):
            await store.open(b"k" * 16, starting=False)
    assert len(asked) == 1
    answered.set()
    monkeypatch.setattr("laar.server.sharing.store._OPEN_S", 20.0)
    await store.open(b"k" * 16, starting=False)
    await store.close()
    server.stop()


@pytest.mark.parametrize(("size_bytes", "is_fetched"), [(8 << 20, True), (40 << 20, False)])
async def test_a_large_snapshot_does_not_separate_a_picker_from_the_others(
    server, members, tmp_path, size_bytes, is_fetched, snapshots_every
):
    snapshots_every(3600)
    await server.start()
    p = await members(1)
    p.settle(p.decide("remember me " * 60))
    write = snapshot(p.sharer.sharing, time.monotonic(), with_key=False)
    body = write().partition(b"\n")[2].removesuffix(b"}") + b',"more":"' + b"x" * size_bytes + b'"}'
    digest = blake2b(body, digest_size=32).hexdigest().encode()
    await server.ask("SET", "laar:{laar}:snapshot", digest + b"\n" + body)
    wire = Slow(server.socket, tmp_path / "wire")
    await wire.heal()
    q = await members(2, url=wire.url)
    p.decide()
    await eventually(lambda: q.in_flight == 1, what="the others' loads")
    assert (q.sharer.restored == 1) == is_fetched
    for each in (p, q):
        await each.kill()
    await wire.cut()


class Ahead(Wire):
    """A store whose clock was ahead when the picker started, and was set right since then."""

    by_s = 3600

    async def _changed(self, data):
        return re.sub(rb"^(\*2\r\n\$10\r\n)(\d{10})\r", self._moved, data)

    def _moved(self, answer):
        return b"%b%d\r" % (answer[1], int(answer[2]) + self.by_s)


@pytest.mark.parametrize("by_s", [3600, -3600])
async def test_a_corrected_store_clock_does_not_separate_pickers(server, members, tmp_path, by_s):
    """Records could seem older than the lease, or older than the store's history."""
    await server.start()
    wire = Ahead(server.socket, tmp_path / "wire")
    wire.by_s = by_s
    await wire.heal()
    p, q = [await members(number, url=wire.url) for number in (1, 2)]
    decision = p.decide("remember me " * 60)
    await eventually(lambda: q.in_flight == 1, what="the load")
    p.settle(decision)
    await eventually(lambda: q.in_flight == 0 and q.held("remember me " * 60) > 0.9)
    await wire.cut()


async def test_a_snapshot_that_cannot_be_written_is_a_problem_until_it_can(
    tmp_path, snapshots_every
):
    snapshots_every(0.05)
    file = tmp_path / "missing" / "snapshot"
    p = await Member(Share(snapshot_file=file), 1).start()
    await eventually(lambda: "snapshot" in p.problems, what="a problem")
    assert f"{file} can't be written (No such file" in p.problems["snapshot"]
    file.parent.mkdir()
    await eventually(lambda: "snapshot" not in p.problems, what="its end")
    await p.kill()
    assert list(file.parent.iterdir()) == [file]


async def test_a_picker_that_never_knew_an_endpoint_overwrites_no_snapshot(tmp_path):
    share = Share(snapshot_file=tmp_path / "snapshot")
    p = await Member(share, 1).start()
    p.settle(p.decide("remember me " * 60))
    await p.sharer.stop()
    await p.kill()
    kept = (tmp_path / "snapshot").read_bytes()
    q = Member(share, 2)
    q.sharer.endpoints_known.clear()  # as if the cluster or the DNS did not answer
    await q.start()
    await q.sharer.stop()
    await q.kill()
    assert (tmp_path / "snapshot").read_bytes() == kept


async def test_a_changed_secret_applies_to_a_picker_with_a_snapshot(tmp_path, snapshots_every):
    snapshots_every(1.0)
    secret, file = tmp_path / "secret", tmp_path / "snapshot"
    share = Share(snapshot_file=file, secret_file=secret)
    text = "remember me " * 60
    for number, (content, is_warm) in enumerate((("a", False), ("a", True), ("b", False))):
        secret.write_text(content * 32)
        file.touch()
        before = file.stat().st_mtime_ns
        p = await Member(share, number).start()
        await eventually(lambda then=before: file.stat().st_mtime_ns > then, what="a snapshot")
        assert file.stat().st_mode & 0o077 == 0
        assert (p.held(text) > 0.9) is is_warm
        assert key_of(read_snapshot(file.read_bytes(), share.namespace)) == secret_of(share)
        p.settle(p.decide(text))
        await p.sharer.stop()
        await p.kill()


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("redis://store:6379/0", True),
        ("redis://store", True),
        ("rediss://[::1]:6379/", True),
        ("redis://store?db=3", True),
        ("unix:///run/store", True),
        ("unix:///run/store?db=3", True),
        ("redis://store:99999", False),
        ("redis://store/fleet", False),  # not a number: the client would use database 0
        ("redis://store?password=open", False),  # /config would show the password
        ("rediss://store?ssl_cert_reqs=none", False),
        ("redis://store?socket_timeout=x", False),
        ("unix://store", False),
        ("http://store", False),
    ],
)
def test_store_urls_are_validated(url, is_one):
    if is_one:
        assert Share(url=url).url == url
        return
    with pytest.raises(ValueError, match=r"redis://HOST|Port out of range"):
        Share(url=url)


def test_a_short_secret_is_refused(tmp_path):
    (tmp_path / "secret").write_text("short")
    with pytest.raises(SettingError, match="16 bytes"):
        secret_of(Share(secret_file=tmp_path / "secret"))

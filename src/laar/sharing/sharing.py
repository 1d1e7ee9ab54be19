"""One picker among several: send what it learns to the others, and apply what they send.

No I/O: `batches` returns the bytes to send, `take` reads the others' bytes, and `poll` is called
regularly. The caller transports the bytes, which may be lost, duplicated, late or corrupt.
`docs/decisions/0016-many-pickers.md` states the guarantees of each kind of record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.reports import OutcomeReports
from laar.core.director import Director
from laar.fleet.away import Away
from laar.health import Word
from laar.plugins.deadly import DEATHS, Case, DeadlyBodies
from laar.plugins.stored import StoredObjects
from laar.sharing.batches import Unreadable, read_batch, write_batch
from laar.sharing.outbox import Outbox
from laar.sharing.peers import TAG_CHARS, Peer, Peers, tag_of
from laar.sharing.prefixes import SharedPrefixes, key_id
from laar.sharing.records import (
    Ended,
    Entered,
    Heard,
    InDoubt,
    Judged,
    Learned,
    Leaving,
    Left,
    Moved,
    Record,
    Repeated,
    Reported,
    StoredAt,
    Turn,
)
from laar.sharing.settings import SharingSettings
from laar.sharing.unseen import Unseen
from laar.speeds.engine_model import Sample

if TYPE_CHECKING:
    from laar.context.memo import Memo

SAMPLES_A_S = 50.0
"""Maximum number of engine samples sent per second: an engine's fit remembers about 500, so more
would have no benefit."""

_ID_CHARS = 64  # longest decision id


@dataclass(eq=False, repr=False)
class Sharing:
    """Connects a director to other pickers' directors.

    The director's prefixes and learners report to this object from now on.

    Args:
        settings: what to share, and how soon.
        origin: name of this picker process; no other process ever uses it.
        key: secret that keys the hashes.
        wall_clock: seconds since 1970, to display the age of records.
        online: reported outcomes; None if they are not kept.
        reports: decisions for which outcomes may be reported; None if there are none.
    """

    director: Director
    settings: SharingSettings
    _: KW_ONLY
    origin: str
    key: bytes
    wall_clock: Callable[[], float]
    online: OnlineOutcomes | None = None
    reports: OutcomeReports | None = None

    def __post_init__(self) -> None:
        self.tag = tag_of(self.origin)  # prefix that this picker's decision ids must have
        self.orders: Memo | None = None  # set by the context hooks
        self.prefixes: SharedPrefixes | None = None
        if self.director.prefixes is not None:
            self.prefixes = SharedPrefixes(self, self.director.prefixes)
            self.director.prefixes.rekey(self.key)
        self.key_id = key_id(self.key)
        causes = ("missed", "doubled", "dropped", "lease", "interruption")
        self.lost = Counter(dict.fromkeys(causes, 0))
        """Losses: batches that never arrived (missed), or arrived twice or too late (doubled),
        records dropped unsent, expired leases (lease), and lost connections (interruption)."""
        self.outbox = Outbox(self)
        self.peers = Peers(self)
        self._unseen = Unseen(self)
        self.taken: Counter[str] = Counter()
        """Records received, by kind."""
        self.refused: Counter[str] = Counter()
        """Rejected batches and records, by reason."""
        self.age_s = 0.0
        """Age of the last batch when it was received, according to both wall clocks."""
        self.now = 0.0
        """The time passed in the last call, for `SharedPrefixes`, which is called without one."""
        self._samples, self._samples_at = SAMPLES_A_S, 0.0
        self._stored = self.director.plugins.get(StoredObjects)
        self._deadly = self.director.plugins.get(DeadlyBodies)
        self._listen()

    # -- out -----------------------------------------------------------------------------------

    def batches(self, now: float) -> list[bytes]:
        """Return the batches to send now. Call this every `flush_ms` while connected.

        A backlog takes several calls, until `outbox.waiting_bytes` is 0.
        """
        self.now = now
        return [write_batch(batch) for batch in self.outbox.batches(now)]

    def close(self) -> None:
        """Stop recording for other pickers, because there are none and never will be."""
        self.outbox.closed = True
        if self.prefixes is not None:
            self.prefixes.beliefs.watcher = None

    def leaving(self) -> None:
        """Announce the shutdown of this picker, so that the others need not wait for its lease."""
        self.outbox.add(Leaving())

    # -- in ------------------------------------------------------------------------------------

    def take(self, data: bytes, now: float, *, age_s: float = 0.0) -> None:
        """Apply a batch of another picker, counting unusable parts. Never raises."""
        for _ in self.taking(data, now, age_s=age_s):
            pass

    def taking(self, data: bytes, now: float, *, age_s: float = 0.0) -> Iterator[None]:
        """Apply a batch as `take` does, in steps of one record.

        Args:
            data: the batch as received.
            now: seconds, monotonic.
            age_s: time that the batch spent in the store; loads of old batches are ignored.
        """
        self.now = now
        try:
            batch, bad = read_batch(self.settings.namespace, data)
        except Unreadable as fault:
            self.refused[str(fault)] += 1
            return
        if batch.origin == self.origin:
            return
        if bad:
            self.refused["record"] += bad
        peer = self.peers.find(batch.origin, now)
        if batch.seq <= peer.seq:
            self.lost["doubled"] += 1
            return
        if peer.seq and batch.seq > peer.seq + 1:
            self.lost["missed"] += batch.seq - peer.seq - 1
            peer.synced = False
        if peer.gone or not peer.seq:  # it does not know this picker's loads
            self.outbox.send_all_loads()
        peer.seq, peer.heard_at, peer.gone = batch.seq, now - age_s, False
        self.age_s = max(0.0, self.wall_clock() - batch.sent_at_s)
        is_fresh = age_s <= self.settings.lease_s
        same_key = batch.key_id == self.key_id
        if not same_key:
            self.refused["key"] += 1
        self.taken["load"] += len(batch.loads)
        if is_fresh:
            try:
                self.peers.take(peer, batch.loads, now, full=batch.full)
            except Exception:  # noqa: BLE001 - another picker's data must not stop this one
                self.refused["fault"] += 1
        for record in batch.records:
            self.taken[record.kind] += 1
            try:
                self._take(record, peer, now, is_fresh=is_fresh, same_key=same_key)
            except Exception:  # noqa: BLE001 - as above
                self.refused["fault"] += 1
            yield
        if peer.entries is not None:
            peer.entries.end_before(batch.oldest_open)

    def poll(self, now: float) -> None:
        """Expire leases. Call this a few times a second, even while disconnected."""
        self.now = now
        self.director.table.away.look(now)
        self.lost["lease"] += self.peers.end_leases(now)
        self._unseen.expect(sorted(peer.origin for peer in self.peers.known()), now)

    def use_key(self, key: bytes) -> None:
        """Switch to the others' hash key; drop entries made with the old key."""
        if key == self.key:
            return
        self.key, self.key_id = key, key_id(key)
        if self.prefixes is not None:
            self.prefixes.beliefs.rekey(key)

    def _take(
        self, record: Record, peer: Peer, now: float, *, is_fresh: bool, same_key: bool
    ) -> None:
        director, entries = self.director, peer.entries
        slot_of = director.table.slot  # -1 for an endpoint that is unknown here
        match record:
            case Entered(_, address) if same_key and (slot := slot_of(address)) >= 0:
                if entries is not None:
                    entries.enter(record, slot, now)
            case Ended() if entries is not None:
                entries.end(record)
            case StoredAt(object_id, address, session, tenant):
                self._stored.heard(object_id, address, session, tenant)
            case Turn(entry, address, context) if (slot := slot_of(address)) >= 0:
                if entries is not None:
                    entries.turn(entry, slot, context)
            case Moved(key, changes) if same_key and self.orders is not None:
                self.orders.put(key, changes)
            case Heard(address, word) if is_fresh and (slot := slot_of(address)) >= 0:
                director.health.heard(slot, director.table.spec(slot).models[0], word, now)
            case Learned(address, sample) if (slot := slot_of(address)) >= 0:
                director.engines.heard(slot, sample)
            case Left(name, model, pools):
                director.table.away.hear(Away(name, model, pools, now), now)
            case InDoubt(digest, deaths, failures, addresses):
                places = [slot for slot in map(slot_of, addresses) if slot >= 0]
                self._deadly.heard(digest, places, deaths, failures, now)
            case Reported(outcome) if self.online is not None:
                self.online.heard(outcome, now)
            case Repeated(repeat) if self.online is not None:
                self.online.repeats.heard(repeat)
            case Judged(decision_id, correct) if (reports := self.reports) is not None:
                if reports.knows(decision_id):
                    reports.report(decision_id, correct, now)
            case Leaving():
                self.peers.leave(peer, now)

    # -- from this picker ----------------------------------------------------------------------

    def _listen(self) -> None:
        director = self.director
        add = self.outbox.add
        self._stored.on_note = lambda *noted: add(StoredAt(*noted))
        director.table.away.on_away = lambda away: add(Left(away.name, away.model, away.pools))
        director.engines.on_sample = self._sampled
        director.health.records.on_word = self._said
        self._deadly.on_case = self._doubts
        if self.online is not None:
            self.online.on_taken = lambda outcome: add(Reported(outcome))
            self.online.repeats.on_reported = lambda repeat: add(Repeated(repeat))
        if self.reports is not None:
            self.reports.pass_on = self._pass_on

    def _said(self, slot: int, word: Word) -> None:
        table = self.director.table
        if slot in table.active:
            self.outbox.add(Heard(table.spec(slot).key, word))

    def _doubts(self, digest: int, case: Case) -> None:
        by_slot = self.director.table.by_slot
        places = tuple(by_slot[slot].key for slot in case.places if slot in by_slot)
        self.outbox.add(InDoubt(digest, case.deaths, case.failures, places[:DEATHS]))

    def _sampled(self, slot: int, sample: Sample) -> None:
        passed_s = max(0.0, self.now - self._samples_at)
        self._samples = min(SAMPLES_A_S, self._samples + passed_s * SAMPLES_A_S)
        self._samples_at = self.now
        table = self.director.table
        if self._samples >= 1.0 and slot in table.active:
            self._samples -= 1.0
            self.outbox.add(Learned(table.spec(slot).key, sample))

    def _pass_on(self, decision_id: str, correct: bool) -> bool:
        """Send a report to the picker that made the decision; return False if it is absent."""
        if len(decision_id) > _ID_CHARS:
            return False
        tag = decision_id[:TAG_CHARS]
        if not any(peer.tag == tag for peer in self.peers.known()):
            return False
        self.outbox.add(Judged(decision_id, correct))
        return True

"""Pickers share what they learn, and correct lost records."""

import base64
import struct

import numpy as np
import orjson
import pytest

from laar.accuracy.features import Features
from laar.accuracy.online import HALF_LIFE_S
from laar.context.memo import Memo
from laar.core.decision import Completion
from laar.fleet.endpoints import COUNTED
from laar.health import Reply
from laar.health.breaker import State
from laar.plugins.stored import StoredObjects
from laar.request import Api
from laar.sharing.batches import SCHEMA
from laar.sharing.records import Moved
from laar.sharing.snapshot import SnapshotFault, read_snapshot, restore, snapshot
from support.pickers import Network, all_batches, request, sharing_picker, specs
from support.requests import request_of

A, B = "10.0.0.1:80", "10.0.0.2:80"
OK = Completion(status=200, cause="complete", latency_s=1.0)


def pair(*addresses, **options):
    made = [sharing_picker(name, addresses or (A, B), **options) for name in ("p/1", "q/1")]
    net = Network(made)
    for _ in range(2):
        net.exchange(0.0)
    return (*made, net)


def counted(picker):
    return {name: float(getattr(picker.director.table, name).sum()) for name in COUNTED}


def held(picker, text):
    prefixes = picker.director.prefixes
    return float(prefixes.match(prefixes.chain(request(text)))[0].max())


def test_the_reservations_of_a_killed_picker_end_with_its_lease():
    p, q, net = pair()
    p.director.decide(request(), 1.0)
    net.exchange(1.01)
    q.poll(3.9)
    assert counted(q)["in_flight"] == 1
    q.poll(4.2)
    assert not any(counted(q).values())
    assert not q.director.engines.traffic.ahead_s.any()
    assert q.lost["lease"] == 1


def test_a_miss_is_evidence_for_all_pickers():
    """Two misses of proven prompts clear a picker's beliefs, and those of the others."""
    p, q, net = pair(A)
    texts = ["gamma " * 1200, "alpha " * 1200, "beta " * 1200]
    for at, text in enumerate([*texts, *texts[1:]]):
        decision = p.director.decide(request(text), 1.0 + at)
        cached = None if at < 3 else 0
        end = Completion(
            status=200, cause="complete", latency_s=0.1, prompt_tokens=1500, cached_tokens=cached
        )
        p.director.settle(decision, end)
        net.exchange(1.5 + at)
    assert p.prefixes.beliefs.index.forgotten_blocks["disproved"] > 0
    assert (
        q.prefixes.beliefs.index.forgotten_blocks["disproved"]
        == p.prefixes.beliefs.index.forgotten_blocks["disproved"]
    )


def test_pickers_with_different_keys_share_loads_but_no_prefixes():
    p = sharing_picker("p/1", (A,), key=b"one")
    q = sharing_picker("q/1", (A,), key=b"two")
    net = Network([p, q])
    p.director.decide(request("words " * 100), 1.0)
    net.exchange(1.01)
    assert counted(q)["in_flight"] == 1
    assert q.prefixes.beliefs.index._segments.blocks == 0
    q.use_key(b"one")
    net.exchange(1.05)
    p.director.decide(request("words " * 100), 1.1)
    net.exchange(1.2)
    assert q.prefixes.beliefs.index._segments.blocks > 0


def test_failures_at_all_pickers_add_up_and_one_trial_is_enough():
    p, q, net = pair(A, B)
    for at, picker in enumerate((p, q, p)):
        decision = picker.director.decide(request(), 1.0 + at)
        picker.director.served_by(decision, A, 1.0 + at)
        picker.director.replied(decision, Reply(status=503), 1.1 + at)
        end = Completion(status=503, cause="complete", latency_s=0.1)
        picker.director.settle(decision, end)
        net.exchange(1.2 + at)
    breakers = [
        x.director.health.records.endpoints[x.director.table.slot(A)].breaker for x in (p, q)
    ]
    assert [breaker.state for breaker in breakers] == [State.OPEN, State.OPEN]
    due = max(breaker.trial_at for breaker in breakers) + 1.5
    trial = p.director.decide(request("other " * 40), due)
    assert trial.trial
    net.exchange(due + 0.01)
    assert not q.director.decide(request("third " * 40), due + 0.02).trial
    p.director.replied(trial, Reply(status=200), due + 0.1)
    p.director.settle(trial, OK)
    net.exchange(due + 0.2)
    assert not any(breaker.is_out for breaker in breakers)


def test_a_picker_that_was_cut_off_excludes_no_endpoint_for_the_others():
    p, q, net = pair()
    for at in range(6):  # it reaches neither the other pickers nor the endpoints
        decision = p.director.decide(request(), 2.0 + at)
        p.director.replied(decision, Reply(status=503), 2.1 + at)
        p.director.settle(decision, Completion(status=503, cause="complete", latency_s=0.1))
    assert p.outbox.waiting_bytes
    net.exchange(30.0)
    table, health = q.director.table, q.director.health
    states = [health.records.of(table.slot(each), "m", 30.0).breaker.state for each in (A, B)]
    assert states == [State.CLOSED, State.CLOSED]
    assert q.taken["entered"] == 6  # other records from the outage still count


def test_a_stored_answer_is_found_through_any_picker():
    p, q, net = pair()
    decision = p.director.decide(request(), 1.0)
    p.director.plugins.get(StoredObjects).keeps(decision, "resp_1")
    p.director.settle(decision, OK)
    net.exchange(1.2)
    follow = request_of("go on", api=Api.RESPONSES, response_id="resp_1")
    assert q.director.decide(follow, 1.3).address == decision.address


def test_engines_are_learned_from_the_answers_of_all_pickers():
    p, q, net = pair(A)
    for at in range(40):
        decision = p.director.decide(request("x" * 4000, f"{at}"), float(at))
        p.director.answering(decision, at + 0.4)
        end = Completion(status=200, cause="complete", latency_s=0.6, ttft_s=0.4)
        p.director.settle(decision, end)
        net.exchange(at + 0.7)
    mine, theirs = (x.director.engines._models["m"].constants() for x in (p, q))
    assert theirs == pytest.approx(mine, rel=0.05)


@pytest.mark.long
def test_a_backlog_is_bounded_and_its_loads_are_not_lost(monkeypatch):
    monkeypatch.setattr("laar.sharing.outbox.MAX_WAITING_BYTES", 1 << 16)
    p, q, net = pair()
    decisions = [p.director.decide(request(f"{n} " * 300), 1.0 + n / 1e3) for n in range(600)]
    assert p.lost["dropped"] > 0
    assert p.outbox.waiting_bytes <= 1 << 16
    net.exchange(2.0)
    assert counted(q)["in_flight"] == 600
    for decision in decisions:
        p.director.settle(decision, OK)
    net.exchange(2.1)
    assert not any(counted(q).values())


def test_a_picker_that_invents_endpoints_takes_a_limited_amount_of_memory():
    p, q, _ = pair()
    p.director.decide(request(), 1.0)
    batch = orjson.loads(all_batches(p, 1.01)[0]) | {"full": False}
    (load,) = batch["loads"].values()
    for number in range(1, 6):
        loads = {f"10.{number}.{n}:80": load for n in range(19_000)}
        q.take(orjson.dumps(batch | {"seq": batch["seq"] + number, "loads": loads}), 1.02)
    assert sum(len(peer.loads) for peer in q.peers.known()) <= 20_000
    assert q.refused["record"] >= 4 * 19_000 - 1000
    q.take(orjson.dumps(batch | {"seq": batch["seq"] + 6, "full": True}), 1.03)
    assert counted(q)["in_flight"] == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no-batch"),
        (b"\xff\x00", "no-batch"),
        (b"[]", "no-batch"),
        (b'{"\x88":1}', "no-batch"),
        (b'{"v":2,"ns":"laar"}', "schema"),
        (b'{"schema":%d,"namespace":"laar"}' % (SCHEMA - 1), "schema"),
        (b'{"schema":%d,"namespace":"other"}' % SCHEMA, "namespace"),
        (b'{"schema":%d,"namespace":"laar"}' % SCHEMA, "no-batch"),
        (b"[" * 100_000, "no-batch"),
        (b"x" * (5 << 20), "too-long"),
    ],
)
def test_invalid_batches_are_counted(data, reason):
    p, _, _ = pair()
    p.take(data, 1.0)
    assert p.refused[reason] == 1


def test_a_picker_signals_once_that_there_is_something_to_send():
    p, _, net = pair()
    net.exchange(0.9)
    news = []
    p.outbox.on_news = news.append
    decision = p.director.decide(request(), 1.0)
    p.director.answering(decision, 1.01)
    assert news == [True]
    net.exchange(1.02)
    assert p.batches(1.03) == []  # nothing more to send
    p.director.settle(decision, OK)
    assert news == [True, False], "the end of a request is less urgent"
    short = p.director.decide(request("hi"), 1.04)  # has almost no prefix to share
    assert news == [True, False, True], "a decision is urgent"
    assert p.batches(1.05)
    p.director.settle(short, OK)
    assert news == [True, False, True, False]


def test_records_that_affect_the_next_decision_are_urgent():
    p, _, net = pair()
    net.exchange(0.9)
    for tell in (
        lambda: p.director.plugins.get(StoredObjects).note("resp_1", A, "session"),
        p.leaving,
        p.outbox.send_all_loads,
    ):
        news = []
        p.batches(1.0)
        p.outbox.on_news = news.append
        tell()
        assert news == [True]


def batch(**fields):
    told = {"schema": SCHEMA, "namespace": "laar", "origin": "x/1", "seq": 1, "key_id": ""}
    told |= {"sent_at_s": 0.0, "oldest_open": 0, "full": False, "loads": {}, "records": []}
    return orjson.dumps(told | fields, option=orjson.OPT_NON_STR_KEYS)


@pytest.mark.long
@pytest.mark.parametrize(
    "fields",
    [
        {"loads": [A]},
        {"loads": None},
        {"loads": 7},
        {"records": None},
        {"records": [["?"]] * 513},
        {"records": [0, *[["?"]] * 513]},
        {"seq": -1},
        {"seq": 1 << 53},
        {"origin": None},
    ],
)
def test_a_malformed_batch_is_rejected(fields):
    p, _, _ = pair()
    p.take(batch(**fields), 1.0)
    assert p.refused["no-batch"] == 1
    assert len(p.peers) == 1


def test_invalid_records_are_skipped_individually():
    p, _, _ = pair()
    records = [
        ["p", 1, A, 100, "not base64"],
        ["p", 2, A, 64, "AAAAAAAAAAA=" * 9],
        ["p", 3, A, 64, "AAAAAAAAAAA="],  # the only valid one
        ["p", 5, A, 256, 3, 12345, "AAAAAAAAAAA="],
        ["h", A, ["bad", "no-kind", 1.0]],
        ["h", A, ["out", "status", 1e13]],
        ["h", A, ["out", "status", -1.0]],
        ["e", A, [True, [1.0], 1, 1, 1]],
        ["e", A, [False, [1.0], 1.0, 1.0, 0.0]],
        ["e", A, [False, [1e300], 1.0, 1.0, 1.0]],
        ["e", A, [False, [1.0], 1.0, 1.0, 1.5]],
        ["o", ["m", ["en", 1024, "qa"], True, 7.0, None, 0.0, "", ""]],
        ["o", ["m" * 1025, ["en", 1024, "qa"], True, 1.0, None, 0.0, "", ""]],
        ["o", ["m", ["en", 1024, "qa"], True, 1.0, 1.5, 0.0, "", ""]],
        ["r", ["m", 1.5, True]],
        ["r", ["m" * 1025, 0.5, True]],
        ["p", 4, A, 64, "AAAA"],
        ["?", A],
        ["x", A, A],
        ["j", "an id", "yes"],
        ["j", 7, True],
        ["zz"],
        [],
        "text",
        None,
        ["w", {"w": "x"}, 1.0],
    ]
    p.take(batch(key_id=p.key_id, loads={A: [1.0] * 9}, records=records), 1.0)
    assert p.refused["record"] == len(records) - 1
    assert counted(p)["in_flight"] == 1
    assert p.prefixes.beliefs.index._segments.blocks == 1
    p.director.decide(request(), 1.1)


def blocks(count):
    return base64.b64encode(struct.pack(f"<{count}Q", *range(count))).decode()


@pytest.mark.parametrize("took_s", [5e-324, 1e-9, 1.0, 9e11])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("weight", [5e-324, 1.0, 9e11])
@np.errstate(all="ignore")  # in production, too, an overflow is not an error
def test_no_sample_from_another_picker_breaks_the_prices(took_s, first, weight):
    p, _, _ = pair()
    features = [1.0] * 6 if first else [1.0]
    for seq in range(1, 4):
        sample = [first, features, took_s if seq < 3 else 1.0, took_s, weight]
        p.take(batch(seq=seq, records=[["e", A, sample]] * 100), 1.0)
    for number in range(40):
        decision = p.director.decide(request(f"{number} words " * 50), 1.1 + number)
        p.director.answering(decision, 1.2 + number)
        took = Completion(status=200, cause="complete", latency_s=0.5, ttft_s=0.1)
        p.director.settle(decision, took)
        assert decision.reason in ("laar", "try")
    assert np.isfinite(p.director.engines._models["m"].constants()).all()


def with_orders(picker):
    """Let a picker keep the orders of conversations, as with the context hook."""
    picker.orders = Memo(lambda: picker.key, lambda *told: picker.outbox.add(Moved(*told)))
    return picker


def test_document_orders_reach_pickers_with_the_same_key():
    made = {name: with_orders(sharing_picker(f"{name}/1", (A, B))) for name in ("p", "q", "late")}
    other = with_orders(sharing_picker("other/1", (A, B), key=b"another key"))
    p, q, late = made.values()
    net = Network([p, q, other, sharing_picker("unhooked/1", (A, B))])
    net.exchange(0.0)
    p.orders.tell(7, b"[]")
    net.exchange(1.0)
    told = read_snapshot(snapshot(q, 2.0, with_key=False)(), "laar")
    told["orders"] += [
        None,
        ["m", -1, "W10="],
        ["m", 9, "!"],
        ["m", 9, "W10=", 3],
        ["a", "", "", ""],
    ]
    for picker in (late, other):
        restore(picker, told, 3.0)
    kept = [list(picker.orders.latest()) for picker in (p, q, late, other)]
    assert kept == [[], [(7, b"[]")], [(7, b"[]")], []]
    assert q.taken["moved"] == 1


@pytest.mark.parametrize(("at_s", "kept"), [(None, 1.0), (1e9, 0.5), ("soon", 1.0), (10**400, 1.0)])
def test_reported_outcomes_in_a_snapshot_fade_while_no_picker_runs(at_s, kept):
    p, _, _ = pair()
    p.online.observe("m", Features("en", 1024, "qa"), True, 1.0)
    told = read_snapshot(snapshot(p, 1.0, with_key=True)(), "laar")
    fresh = sharing_picker("fresh/1", (B, A))
    fresh.wall_clock = lambda: 1e9 + HALF_LIFE_S
    told["at_s"] = at_s
    restore(fresh, told, 1.0)
    assert fresh.online.by_model(1.0)["m"].outcomes == pytest.approx(kept, abs=0.01)
    p.wall_clock = lambda: 1e9
    assert read_snapshot(snapshot(p, 1.0, with_key=True)(), "laar")["at_s"] == 1e9


@pytest.mark.parametrize("damage", [b"", b"x\n{}", "flip", "namespace"])
def test_a_damaged_snapshot_is_rejected(damage):
    p, _, _ = pair()
    data = snapshot(p, 1.0, with_key=False)()
    if damage == "flip":
        data = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
    elif damage != "namespace":
        data = damage
    with pytest.raises(SnapshotFault):
        read_snapshot(data, "other" if damage == "namespace" else "laar")


@pytest.mark.long
@pytest.mark.parametrize("invalid", [False, True])
def test_a_long_list_in_a_snapshot_does_not_hold_up_the_start(invalid):
    p, _, _ = pair()
    stored = [[f"resp_{n}", A, ""] for n in range(9000)]
    restore(p, {"stored": [0] * 2000 + stored if invalid else stored}, 1.0)
    assert len(p.director.plugins.get(StoredObjects).latest(9000)) == (0 if invalid else 8192)


def test_each_endpoint_is_owned_by_one_picker():
    addresses = [f"10.0.0.{n}:80" for n in range(1, 401)]
    pickers = [sharing_picker(f"p/{n}", addresses) for n in range(4)]
    net = Network(pickers)
    net.exchange(0.0)
    for picker in pickers:
        for n in range(200):
            decision = picker.director.decide(request(f"{picker.origin} {n}"), 0.1)
            picker.director.settle(decision, OK)
    net.exchange(0.2)
    unseen = np.array([each.director.table.unseen[: len(addresses)] for each in pickers])
    assert ((unseen > 0.0).sum(axis=0) == 3).all()
    assert ((unseen == 0.0).sum(axis=1) > 60).all()  # each owns about a quarter, a hundred
    # Some 27 requests per second by the three other pickers.
    assert (unseen.max(axis=1) > 0.5).all()


def test_another_pickers_endpoint_is_chosen_only_if_clearly_cheaper():
    p = sharing_picker("p/1", (A, B))
    table = p.director.table
    for theirs, own in ((A, B), (B, A)):
        table.unseen = np.zeros(table.capacity)
        table.unseen[table.slot(theirs)] = 0.1
        first = p.director.decide(request(f"to {own}"), 1.0)
        assert first.address == own
        assert p.director.decide(request(f"after {own}"), 1.0).address == theirs
        table.counted[:] = 0.0


def test_endpoints_that_join_are_priced_immediately():
    p, _, net = pair(A)
    net.exchange(1.0)
    p.director.table.replace("t", specs(*(f"10.0.1.{n}:80" for n in range(200))))
    decision = p.director.decide(request(), 1.01)
    assert decision.reason == "laar"

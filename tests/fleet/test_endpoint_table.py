"""The endpoint table: membership, slots, and counters that return to zero."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import POOL_LABEL, EndpointSpec, Served
from support.directors import table_of
from support.exploring import examples

ADDRESSES = [f"10.0.0.{i}:80" for i in range(30)]


def spec(address, *models):
    return EndpointSpec(address=address, models=models or ("m",))


def test_an_address_selects_one_endpoint_and_a_bare_ip_all_of_its_ports():
    table = table_of("10.0.0.1:80", "10.0.0.1:81", "[::1]:80")
    found = {item: len(table.named(item)) for item in ("10.0.0.1", "10.0.0.1:81", "::1", "[::1]")}
    assert found == {"10.0.0.1": 2, "10.0.0.1:81": 1, "::1": 1, "[::1]": 1}
    table.replace("t", [])
    assert not any(table.named(item) for item in found)


def test_endpoints_of_several_sources_are_combined():
    table = EndpointTable()
    table.replace("file", [spec("a:1"), spec("b:1")])
    table.replace("dns", [spec("b:1"), spec("c:1")])
    table.replace("file", [])
    assert {s.address for s in table.specs()} == {"b:1", "c:1"}


def test_a_new_endpoint_is_assumed_to_serve_the_names_of_the_others():
    """Otherwise its arrival would change the hashes of all prompts for models with two names."""
    specs = [spec(f"a:{n}", "m", "other", "tuned") for n in range(2)]
    table = table_of(specs[0])
    weights = {"m": "/m", "other": "/m", "tuned": "/tuned"}
    table.served({"a:0": Served(weights=weights)})
    assert [table.weights(name) for name in ("other", "tuned")] == ["", "tuned"]
    table.replace("t", specs)
    assert [table.weights(name) for name in ("other", "tuned")] == ["", "tuned"]
    table.served({"a:1": Served(weights={"m": "/m"}, adapters={"other": "m"})})
    assert table.weights("other") == "other"


def test_a_removed_endpoint_keeps_its_slot_until_its_requests_end():
    table = EndpointTable()
    freed = []
    table.on_free = freed.append
    table.replace("t", [spec("a:1")])
    old = table.slot("a:1")
    table.reserve(old, 100, 50)
    table.replace("t", [spec("b:1")])
    assert table.slot("b:1") != old
    assert table.slot("a:1") == -1
    assert freed == []
    table.release(old, 100, 50)
    assert freed == [old]
    table.replace("t", [spec("b:1"), spec("c:1")])
    assert table.slot("c:1") == old
    assert table.queued_tokens[old] == 0


class Membership(RuleBasedStateMachine):
    """Compare joins, leaves, reservations and releases in any order with a simple model."""

    def __init__(self):
        super().__init__()
        self.table = EndpointTable()
        self.members = set()
        self.open = []  # of (slot, address, tokens)

    @rule(members=st.sets(st.sampled_from(ADDRESSES), max_size=25))
    def change(self, members):
        self.table.replace("t", [spec(a) for a in sorted(members)])
        self.members = members

    @rule(data=st.data(), tokens=st.floats(0, 1e6))
    def reserve(self, data, tokens):
        if self.members:
            address = data.draw(st.sampled_from(sorted(self.members)))
            slot = self.table.slot(address)
            self.table.reserve(slot, tokens, tokens)
            self.open.append((slot, address, tokens))

    @rule(data=st.data())
    def release(self, data):
        if self.open:
            slot, _, tokens = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
            self.table.release_prefill(slot, tokens)
            self.table.release(slot, tokens, tokens)

    @invariant()
    def counts_are_those_of_the_open_requests(self):
        table = self.table
        assert {s.address for s in table.specs()} == self.members
        assert table.in_flight.sum() == len(self.open)
        for slot in range(table.capacity):
            mine = [tokens for s, _, tokens in self.open if s == slot]
            assert table.in_flight[slot] == len(mine)
            assert np.isclose(table.queued_tokens[slot], sum(mine), atol=1e-3)
            assert np.isclose(table.queued_uncached_tokens[slot], sum(mine), atol=1e-3)
            if not mine:
                assert table.queued_tokens[slot] == 0.0
                assert table.queued_uncached_tokens[slot] == 0.0
                assert table.prefill_tokens[slot] == 0.0
        owners = {}
        for slot, address, _ in self.open:
            assert owners.setdefault(slot, address) == address


TestMembership = pytest.mark.long(Membership.TestCase)
TestMembership.settings = settings(max_examples=examples(40), stateful_step_count=30)


def test_an_endpoint_that_several_pools_list_is_in_each_of_them():
    table = EndpointTable()

    def lists(pool, *addresses):
        of = {"models": ("m",), "labels": {POOL_LABEL: pool}}
        table.replace(f"pool {pool}", [EndpointSpec(address=a, **of) for a in addresses])

    def members(pool):
        return {table.spec(slot).address for slot in table.in_pool(pool)}

    lists("gold", "a:1")
    lists("all", "a:1", "b:1")
    table.replace("file", [EndpointSpec(address="b:1", models=("m",))])
    assert (members("gold"), members("all")) == ({"a:1"}, {"a:1", "b:1"})
    version = table.version
    lists("all", "a:1", "b:1")
    assert table.version == version
    lists("gold")
    assert (members("gold"), members("all")) == (set(), {"a:1", "b:1"})


@pytest.mark.parametrize(
    ("away_s", "change", "is_kept"),
    [
        (59.0, {}, True),
        (61.0, {}, False),
        (10.0, {"models": ("other",)}, False),
        (10.0, {"labels": {"laar.dev/pod": "its-successor"}}, False),
    ],
)
def test_an_endpoint_that_returns_soon_finds_what_was_learned(away_s, change, is_kept):
    table, freed = EndpointTable(), []
    table.on_free = freed.append
    first, other = (EndpointSpec(address=a, models=("m",)) for a in ("a:1", "b:1"))
    table.replace("t", [first, other])
    table.round_trip("a:1", 0.1, 5.0)
    table.replace("t", [other])
    assert table.slot("a:1") == -1
    table.round_trip("b:1", 0.1, 5.0 + away_s)
    table.replace("t", [replace(first, **change), other])
    assert (freed == []) is is_kept
    assert bool(table.rtt_s[table.slot("a:1")] == 0.1) is is_kept


def test_slots_of_removed_endpoints_are_used_before_the_table_grows():
    table, freed = EndpointTable(), []
    table.on_free = freed.append
    for batch in range(10):
        names = [f"{batch}.{n}:1" for n in range(8)]
        table.replace("t", [EndpointSpec(address=name, models=("m",)) for name in names])
        for name in names:
            table.round_trip(name, 0.1, float(batch))
    assert table.capacity == 16
    assert len(freed) == 64

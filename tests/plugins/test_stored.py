"""Stored answers are continued and fetched at the endpoint that stores them."""

from collections import Counter

import pytest

from laar.core.decision import Completion
from laar.errors import RequestError
from laar.fleet.membership import EndpointSpec
from laar.plugins import stored as module
from laar.plugins.apart import may_be_apart
from laar.plugins.stored import StoredObjects
from laar.request import Api, Request
from support.directors import director_of
from support.requests import request_of


def director(*endpoints, **given):
    specs = (EndpointSpec(address=address, models=tuple(names)) for address, *names in endpoints)
    return director_of(*specs, seed=7, **given)


def request(model="auto", text="hello " * 50, **fields):
    return request_of("\x1euser\x1f", text, model=model, chars=len(text), **fields)


FLEET = [(f"10.0.0.{n}:80", "m") for n in range(1, 6)]


def answered(d, name, session="", now=0.0):
    """Let an endpoint store an answer under an id; return the endpoint."""
    decision = d.decide(request("m", session=session), now)
    d.plugins.get(StoredObjects).keeps(decision, name)
    d.settle(decision, Completion(status=200, cause="complete", latency_s=1.0))
    return decision.address


def test_a_continuation_goes_back_to_the_engine_whatever_its_load():
    d = director(*FLEET)
    homes = {name: answered(d, name) for name in ("a", "b", "c", "d", "e", "f")}
    assert len(set(homes.values())) > 1
    for name, home in homes.items():
        for _ in range(5):
            assert d.decide(request("m", response_id=name), 1.0).address == home


def test_a_continuation_belongs_to_the_session_of_the_continued_answer():
    d = director(*FLEET)
    answered(d, "a", session="s")
    answered(d, "b")
    assert d.decide(request("m", response_id="a"), 1.0).request.session == "s"
    assert d.decide(request("m", response_id="b"), 1.0).request.session == "b"
    own = d.decide(request("m", response_id="a", session="mine"), 1.0)
    assert own.request.session == "mine"


def test_an_answer_is_fetched_only_from_the_endpoint_that_stored_it():
    d = director(*FLEET)
    home = answered(d, "a")

    def get(name, **fields):
        return d.decide(Request(id="r", api=Api.OPAQUE, response_id=name, **fields), 1.0)

    assert {get("a").address for _ in range(20)} == {home}
    for fields in ({"name": "never"}, {"name": "a", "subset": frozenset({"10.9.9.9:80"})}):
        with pytest.raises(RequestError) as refused:
            get(**fields)
        assert (refused.value.status, refused.value.reason) == (404, "unknown-response")


def test_a_request_goes_to_the_endpoint_that_stores_its_conversation():
    d = director(*FLEET)
    homes = {name: answered(d, name, session="s") for name in ("f", "g", "h", "i", "j")}
    assert len(set(homes.values())) > 1
    for name, home in homes.items():
        decision = d.decide(request("m", conversation_id=name), 1.0)
        assert (decision.address, decision.request.session) == (home, "")
        assert not may_be_apart(decision.request)


def test_a_tenants_files_stay_at_one_endpoint_while_it_is_there():
    d = director(*FLEET)

    def homes():
        def of(tenant):
            listed = Request(id="r", api=Api.OPAQUE, stays_as=tenant)
            [home] = {d.decide(listed, 1.0).address for _ in range(10)}
            return home

        return {tenant: of(tenant) for tenant in map(str, range(200))}

    before = homes()
    counts = Counter(before.values())
    assert set(counts) == {address for address, _ in FLEET}
    left = FLEET[0][0]
    d.table.replace("t", [spec for spec in d.table.specs() if spec.address != left])
    after = homes()
    moved = {tenant for tenant in before if before[tenant] != after[tenant]}
    assert moved == {tenant for tenant in before if before[tenant] == left}


def test_an_unknown_answer_is_requested_if_there_is_only_one_endpoint():
    d = director(("10.0.0.1:80", "m"))
    assert d.decide(request("m", response_id="never"), 0.0).address == "10.0.0.1:80"


def test_the_answers_of_a_removed_endpoint_are_forgotten():
    d = director(*FLEET)
    home = answered(d, "a")
    left = [spec for spec in d.table.specs() if spec.address != home]
    d.table.replace("t", left)
    with pytest.raises(RequestError) as refused:
        d.decide(request("m", response_id="a"), 1.0)
    assert refused.value.status in (404, 503)


def test_memory_is_bounded_and_the_oldest_entry_is_evicted_first(monkeypatch):
    monkeypatch.setattr(module, "MAX_STORED", 3)
    stored = module.StoredObjects()
    for name in "abc":
        stored.note(name, "10.0.0.1:80", "")
    stored.subset(Request(id="r", api=Api.CHAT, response_id="a"))
    stored.note("d", "10.0.0.1:80", "")
    kept = [n for n in "abcd" if stored.subset(Request(id="r", api=Api.CHAT, response_id=n))]
    assert kept == ["a", "c", "d"]
    assert len(stored.latest(9)) == 3

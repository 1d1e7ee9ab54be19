"""Names outlive endpoints: 404 is only for a name that nothing has ever served."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.errors import RequestError
from laar.fleet.away import KEPT_S, MAX_MODELS, MAX_OTHERS
from laar.fleet.catalog import catalog
from laar.fleet.membership import POOL_LABEL, EndpointSpec, Served
from laar.flow.admission import Admission
from laar.flow.settings import FlowSettings
from laar.request import Api, Request
from laar.sharing.snapshot import read_snapshot, restore, snapshot
from support.directors import director_of
from support.exploring import examples
from support.pickers import Network, sharing_picker

NAMES = st.sampled_from("abcd")
FLEETS = st.lists(st.tuples(NAMES, st.lists(NAMES, max_size=2)), max_size=3)


def spec(address, *models, pool=""):
    return EndpointSpec(address=address, models=models, labels={POOL_LABEL: pool})


def ask(director, model, now=0.0, **fields):
    """Return the status and the reason, which is empty if the request is sent."""
    try:
        director.decide(Request(id="r", api=Api.CHAT, model=model, **fields), now)
    except RequestError as error:
        return error.status, error.reason if error.status < 500 or error.retry_after_s else ""
    return 200, ""


@pytest.mark.long
@settings(max_examples=examples(200), deadline=None)
@given(
    steps=st.lists(st.tuples(FLEETS, st.floats(0.0, 0.5 * KEPT_S)), min_size=1, max_size=8),
    asked=st.sampled_from("abcde"),
)
def test_a_name_that_was_served_is_never_called_unknown(steps, asked):
    director, seen_at, now = director_of("x:1"), None, 0.0
    for fleet, passed_s in steps:
        director.table.replace("u", [spec(f"{at}:1", m, *o) for at, (m, o) in enumerate(fleet)])
        served = {name for model, others in fleet for name in (model, *others)}
        seen_at = now if asked in served else seen_at
        assert ask(director, "m", now)[0] == 200
        status, reason = ask(director, asked, now)
        if asked in served:
            assert status == 200
        elif seen_at is None:
            assert (status, reason) == (404, "unknown-model")
        elif now - seen_at < KEPT_S:
            assert (status, reason) == (503, "model-away")
        now += passed_s


def test_a_name_is_forgotten_after_a_day():
    director = director_of("x:1", spec("y:1", "gone"))
    director.table.replace("t", [spec("x:1", "m")])
    assert ask(director, "gone") == (503, "model-away")
    assert ask(director, "gone", KEPT_S - 1.0) == (503, "model-away")
    assert ask(director, "gone", KEPT_S + 1.0) == (404, "unknown-model")


def test_names_of_clients_are_never_remembered_or_counted():
    director = director_of("x:1")
    for number in range(200):
        assert ask(director, f"made-up-{number}", pool="p") == (404, "unknown-model")
    director.table.replace("t", [])
    for number in range(200):
        assert ask(director, f"made-up-{number}", pool=f"p{number}") == (503, "no-endpoints")
    assert [away.name for away in director.table.away] == ["m"]
    assert dict(director.table.away.requests) == {("", ""): 200}


@pytest.mark.long
def test_an_engine_that_lists_ever_new_names_displaces_no_model():
    director = director_of("x:1", spec("y:1", "gone"), spec("z:1", "base"))
    table = director.table
    table.replace("t", [spec("x:1", "m"), spec("z:1", "base")])
    tracemalloc.start()
    for version in range(60):
        adapters = {f"{version}-{number}": "base" for number in range(256)}
        table.served({"z:1": Served(weights={"base": "b"}, adapters=adapters)})
        ask(director, "m", float(version))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(list(table.away)) <= MAX_MODELS + MAX_OTHERS
    assert taken < 4_000_000
    assert ask(director, "gone", 99.0) == (503, "model-away")
    assert ask(director, "58-1", 99.0) == (503, "model-away")
    listed = [entry["id"] for entry in catalog(table)["data"]]
    assert "58-1" not in listed, "its model is there, without the adapter"
    assert "gone" in listed


def test_a_model_that_the_settings_name_is_not_unknown():
    director = director_of("x:1", aliases={"fast": ("planned",)})
    assert ask(director, "fast") == (503, "no-candidates")
    assert ask(director, "planned") == (503, "model-away")


def test_demand_for_what_has_no_endpoint_is_counted_once_for_each_request():
    director = director_of(spec("x:1", "m", pool="p"), spec("y:1", "n", pool="q"))
    gate = Admission(director, FlowSettings(max_requests=1))
    director.table.replace("t", [spec("x:1", "m", pool="p")])
    for model, pool in (("n", ""), ("n", "q"), ("m", "q"), ("m", "")):
        gate.ask(Request(id="r", api=Api.CHAT, model=model, pool=pool), 0.0)
    for _ in range(5):
        gate.dispatch(0.1)
    wanted = {("", "n"): 1, ("q", "n"): 1, ("", "m"): 1}
    assert dict(director.table.away.requests) == wanted


def test_the_list_of_a_pool_has_its_own_models_that_are_away():
    director = director_of(spec("x:1", "m", pool="p"), spec("y:1", "n", pool="q"))
    director.table.replace("t", [])
    for pool, names in (("p", {"m"}), ("q", {"n"}), ("", {"m", "n"}), ("r", set())):
        listed = {e["id"]: e.get("available") for e in catalog(director.table, pool)["data"]}
        assert {name for name, ready in listed.items() if ready is False} == names


@pytest.mark.parametrize("endpoints", [[], ["prefill"]])
def test_a_full_queue_without_endpoints_is_not_called_a_full_fleet(endpoints):
    specs = [
        EndpointSpec(address=f"{role}:1", models=("m",), labels={"llm-d.ai/role": role})
        for role in endpoints
    ]
    gate = Admission(director_of(*specs), FlowSettings(max_waiting=1))
    gate.ask(Request(id="1", api=Api.CHAT, model="m"), 0.0)
    with pytest.raises(RequestError) as refused:
        gate.ask(Request(id="2", api=Api.CHAT, model="m"), 0.0)
    assert (refused.value.status, refused.value.reason) == (503, "rejected-no-endpoint")
    assert refused.value.retry_after_s


# -- other pickers, and later ones -----------------------------------------------------------------


def knowing(name, **options):
    """Return a picker whose model `gone` is away, but for what it has not noticed yet."""
    picker = sharing_picker(name, ["x:1"], **options)
    picker.director.table.replace("u", [spec("y:1", "gone", "other", pool="p")])
    return picker


def test_other_pickers_hear_of_a_model_that_leaves():
    sees, hears = knowing("p/1"), sharing_picker("q/1", ["x:1"])
    net = Network([sees, hears])
    for now in (0.0, 1.0):
        net.exchange(now)
    assert ask(hears.director, "gone", 1.0) == (404, "unknown-model")
    sees.director.table.replace("u", [])
    for now in (2.0, 3.0):
        net.exchange(now)
    for name in ("gone", "other"):
        assert ask(hears.director, name, 3.0) == (503, "model-away")
    assert hears.taken["left"] == 2
    assert not sees.taken["left"], "nobody repeats what was heard"


@pytest.mark.parametrize("leaves", ["before the snapshot", "while no picker runs"])
def test_a_restarted_picker_knows_what_its_predecessor_served(leaves):
    before, after = knowing("p/1"), sharing_picker("q/1", ["x:1"], wall_clock=lambda: 100.0)
    if leaves == "before the snapshot":
        before.director.table.replace("u", [])
    document = read_snapshot(snapshot(before, 50.0, with_key=True)(), before.settings.namespace)
    restore(after, document, 5.0)
    assert ask(after.director, "gone", 6.0) == (503, "model-away")
    assert after.director.table.away.get("other").pools == ("p",)
    assert ask(after.director, "m", 6.0)[0] == 200
    assert ask(after.director, "gone", KEPT_S) == (404, "unknown-model")


@pytest.mark.parametrize(
    "names", [None, 7, [7], [["a"]], [["a", "a", "p", 0]], [["a", "a", [], -1]], [["a"] * 4] * 9]
)
def test_unusable_names_in_a_snapshot_are_skipped(names):
    picker = sharing_picker("p/1", ["x:1"])
    document = read_snapshot(snapshot(picker, 0.0, with_key=True)(), picker.settings.namespace)
    restore(picker, document | {"names": names}, 0.0)
    assert ask(picker.director, "a") == (404, "unknown-model")

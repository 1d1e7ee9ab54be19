"""The model list that clients get for the whole fleet."""

from laar.fleet.catalog import catalog
from laar.fleet.membership import POOL_LABEL, ROLE_LABEL, TASK_LABEL, EndpointSpec, Served
from support.directors import table_of


def spec(address, *models, **fields):
    return EndpointSpec(address=address, models=models, **fields)


def fleet_of(*specs, **aliases):
    fleet = table_of(*specs)
    fleet.use_aliases(aliases)
    return fleet


def ids(*args):
    return [entry["id"] for entry in catalog(*args)["data"]]


def lengths(fleet, pool=""):
    return {e["id"]: e.get("max_model_len") for e in catalog(fleet, pool)["data"]}


def test_the_list_has_every_name_once_with_aliases_last():
    specs = spec("a:1", "m2", "auto"), spec("b:1", "m1"), spec("c:1", "m1", "z")
    assert ids(fleet_of(*specs, auto=(), code=("m1",))) == ["m1", "m2", "z", "auto", "code"]


def test_the_order_is_independent_of_the_endpoints():
    one, other = spec("a:1", "m2"), spec("b:1", "m1")
    assert catalog(fleet_of(one, other, auto=())) == catalog(fleet_of(other, one, auto=()))


def test_an_adapter_names_its_model_and_the_longest_context_is_listed():
    fleet = table_of(spec("a:1", "m", max_model_len=10), spec("b:1", "m", max_model_len=20))
    fleet.served({"b:1": Served(weights={"m": "org"}, adapters={"lora": "m"})})
    listed = catalog(fleet)["data"]
    assert [(each["id"], each.get("parent")) for each in listed] == [("lora", "m"), ("m", None)]
    assert lengths(fleet) == {"lora": 20, "m": 20}


def test_models_that_an_engine_reports_are_listed():
    longer = spec("b:1", "m", max_model_len=20)
    fleet = table_of(spec("a:1", "m"), longer, spec("c:1", "z", "auto"))
    fleet.use_aliases({"virtual": ()})
    weights = dict.fromkeys(("m", "other", "virtual", "z"), "/m") | {"stranger": "/x"}
    fleet.served({"a:1": Served(weights=weights, stated=dict.fromkeys(weights, (0, 10)))})
    fleet.served({"b:1": Served(weights={"m": "/m"}, stated={"m": (0, 10)})})
    fleet.served({"c:1": Served(weights={"z": "/z"}, stated={"z": (0, 99)})})
    assert ids(fleet) == ["auto", "m", "other", "z", "virtual"]
    assert fleet.serving("other").tolist() == [fleet.slot("a:1")]
    assert fleet.weights("other") == ""
    assert fleet.serving("z").tolist() == [fleet.slot("c:1")]
    assert lengths(fleet) == {"auto": 99, "m": 20, "other": 10, "z": 99, "virtual": 99}


def test_each_pool_has_its_own_list():
    labels = {POOL_LABEL: "p"}
    fleet = fleet_of(spec("a:1", "m"), spec("b:1", "inside", labels=labels), auto=())
    assert ids(fleet, "p") == ["inside", "auto"]
    assert ids(fleet, "nowhere") == ids(fleet_of(auto=())) == []


def test_an_alias_lists_the_window_of_the_endpoints_that_its_chats_may_go_to():
    pool, embeds, prefills = {POOL_LABEL: "p"}, {TASK_LABEL: "embed"}, {ROLE_LABEL: "prefill"}
    fleet = fleet_of(
        spec("a:1", "m", max_model_len=10, labels=pool),
        spec("b:1", "n", max_model_len=20),
        spec("c:1", "n", max_model_len=70, labels=prefills),
        spec("d:1", "e", max_model_len=90, labels=embeds),
        spec("e:1", "unknown"),
        auto=(),
        fast=("m", "e"),
        vectors=("e",),
        none=("unknown",),
    )
    names = {"m": 10, "n": 20, "e": 90, "unknown": None}
    aliases = {"auto": 20, "fast": 10, "vectors": 90, "none": None}
    assert lengths(fleet) == names | aliases
    assert lengths(fleet, "p") == {"m": 10, "auto": 10, "fast": 10, "vectors": None, "none": None}

"""Pods whose models come from their own lists, not from settings."""

import pytest

from laar.datalayer import served_names
from laar.datalayer.served_names import OwnNames
from laar.fleet.membership import EndpointSpec, Served


def pod(address, name="", models=()):
    return EndpointSpec(address=address, models=models, labels={"laar.dev/pod": name or address})


def lists(*names):
    return Served(weights=dict.fromkeys(names, "org/m"))


def models(names, source="s", reserved=()):
    return {spec.address: spec.models for spec in names.named(source, reserved)}


def test_the_first_pods_are_added_together_and_later_ones_as_they_answer():
    names = OwnNames()
    names.replace("s", [pod("a"), pod("b"), pod("c", models=("given",))])
    assert models(names) == {"c": ("given",)}
    assert names.take({"a": lists("m")}) == {"s"}
    assert names.waits("s")
    assert models(names) == {"c": ("given",)}
    assert names.take({"b": Served()}) == {"s"}
    assert models(names) == {"a": ("m",), "c": ("given",)}
    names.replace("s", [pod("a"), pod("b"), pod("d")])
    assert models(names) == {"a": ("m",)}
    assert names.take({"d": lists("n")}) == {"s"}
    assert models(names) == {"a": ("m",), "d": ("n",)}
    assert names.take({"a": lists("m"), "b": Served(), "elsewhere": lists("m")}) == set()
    names.replace("s", [])
    names.replace("s", [pod("e"), pod("f")])
    names.take({"e": lists("m")})
    assert models(names) == {}


def test_the_main_name_is_no_alias_for_several_models_and_stays_the_same():
    names = OwnNames()
    names.replace("s", [pod("a")])
    names.take({"a": lists("auto", "m", "n")})
    assert models(names, reserved={"auto"}) == {"a": ("m", "n", "auto")}
    assert names.take({"a": lists("n", "m", "auto")}) == set()
    assert models(names, reserved={"auto"}) == {"a": ("m", "n", "auto")}


def test_a_new_pod_at_an_address_is_asked_for_its_own_names():
    names = OwnNames()
    names.replace("s", [pod("a", "one")])
    names.take({"a": lists("m")})
    names.replace("s", [pod("a", "two")])
    assert models(names) == {}
    names.replace("s", [pod("a", "one")])
    assert models(names) == {"a": ("m",)}


def test_no_more_names_are_kept_than_a_selector_may_match(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(served_names, "MAX_PODS", 2)
    names = OwnNames()
    for address in "abc":
        names.replace("s", [pod(address)])
        names.take({address: lists(address)})
    names.replace("s", [pod("a"), pod("b"), pod("c")])
    names.wait_no_longer("s")
    assert models(names) == {"b": ("b",), "c": ("c",)}

"""Malformed values of request headers are treated as absent."""

import pytest

from laar.protocol.headers import FAIRNESS, read_head, read_subset, retry_after_s


@pytest.mark.parametrize(
    ("items", "subset"),
    [
        (["10.0.0.1:80", "10.0.0.2"], {"10.0.0.1:80", "10.0.0.2"}),
        (["10.0.0.1:80, 10.0.0.2:80"], {"10.0.0.1:80", "10.0.0.2:80"}),
        ([" [::1]:80 ,10.0.0.2 "], {"[::1]:80", "10.0.0.2"}),
        ([], set()),
        ([""], set()),
        (["", "a:1"], {"a:1"}),
    ],
)
def test_items_of_a_subset_hint_may_hold_several_addresses(items, subset):
    assert read_subset(items) == subset


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("Mon, 99999999999999999999 Jan 2020 00:00:00 GMT", None),
        ("Mon, 1 Jan 99999999999 00:00:00 GMT", None),
        ("Sun, 06 Nov 1994 08:49:57 GMT", 20.0),
        ("Sunday, 06-Nov-94 08:49:57 GMT", 20.0),
        ("Sun Nov  6 08:49:57 1994", 20.0),
        ("Sun, 06 Nov 1994 08:49:07 GMT", 0.0),
        ("Sun, 66 Nov 1994 88:49:57 GMT", None),
        ("Sun, 06 Nov 99999 08:49:57 GMT", None),
        ("soon", None),
        ("-1", None),
        ("1e9", None),
        ("٣", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value, seconds):
    at_08_49_37 = 784111777.0
    assert retry_after_s(value, at_08_49_37) == seconds


@pytest.mark.parametrize("value", ["a\nb", "\x00", "x" * 300, " "])
def test_an_unprintable_or_overlong_name_is_ignored(value):
    head = read_head({"x-laar-task": value, "x-laar-session": value, "x-request-id": value})
    assert (head.task, head.named.session, head.id) == ("", "", "")


OLD = {
    "x-gateway-inference-fairness-id": "t",
    "x-gateway-inference-objective": "o",
    "x-gateway-model-name-rewrite": "m",
    "x-slo-ttft-ms": "2000",
}
NEW = {
    "x-llm-d-inference-fairness-id": "t",
    "x-llm-d-inference-objective": "o",
    "x-llm-d-model-name-rewrite": "m",
    "x-llm-d-slo-ttft-ms": "2000",
}


@pytest.mark.parametrize(
    "given", [OLD, NEW, {**dict.fromkeys(OLD, "7"), **NEW}], ids=["old", "new", "both"]
)
def test_names_used_by_llm_d_take_precedence_over_the_old_ones(given):
    head = read_head(given)
    assert (head.tenant, head.objective, head.rewrite) == ("t", "o", "m")
    assert head.ttft_objective_s == 2.0
    assert set(head.control) == set(given)  # Envoy removes all of them


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
def test_tenants_named_by_their_keys_are_distinguished_without_keeping_the_keys(name):
    found = [read_head({name: f"Bearer {key}"}, name).tenant for key in ("sk-1", "sk-2", "sk-1")]
    assert found[0] == found[2] != found[1]
    assert not any("sk-" in tenant for tenant in found)


def test_tenants_with_unprintable_names_are_still_distinguished():
    token = "Bearer " + "x" * 900
    given = ["Müller", "Møller", token + "1", token + "2", "a\tb"]
    found = [read_head({FAIRNESS: value}).tenant for value in given]
    assert len(set(found)) == len(given)
    assert all(value.isalnum() and len(value) == 32 for value in found)
    assert read_head({FAIRNESS: " Müller "}).tenant == found[0]
    assert read_head({FAIRNESS: "  "}).tenant == ""

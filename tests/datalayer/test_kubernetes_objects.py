from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from laar.datalayer.kubernetes.objects import (
    ModelRewrite,
    Objective,
    Rewrite,
    parse,
    pod_endpoints,
    rewrites_of,
)
from laar.datalayer.kubernetes.settings import KubernetesSource
from laar.datalayer.metrics_page import page_url
from laar.protocol.rules import GatewayRules
from support.kube_api_server import pod

RULES = KubernetesSource(selector={"app": "engine"}, ports=(8000,))


def test_each_port_of_a_ready_pod_is_an_endpoint() -> None:
    kept = pod_endpoints(pod("a", "10.0.0.9"), (8000, 8001), RULES)
    assert kept is not None
    assert [spec.address for spec in kept.specs] == ["10.0.0.9:8000", "10.0.0.9:8001"]
    assert [spec.labels["laar.dev/pod"] for spec in kept.specs] == ["ml/a-rank-0", "ml/a-rank-1"]
    assert kept.specs[0].models == ("org/tiny",)
    assert kept.specs[0].labels["app"] == "vllm"


@pytest.mark.parametrize(
    "item",
    [
        pod("a", ready=False),
        pod("a", ""),
        pod("a", deletionTimestamp="2026-01-01T00:00:00Z"),
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "a"}, "status": {"conditions": None, "podIP": "10.0.0.1"}},
    ],
)
def test_pods_that_are_unready_or_deleted_or_have_no_address_are_ignored(
    item: Any,
) -> None:
    assert pod_endpoints(item, (8000,), RULES) is None


@pytest.mark.parametrize(
    ("text", "ports", "fault"),
    [
        ("8001", ["10.0.0.1:8001"], ""),
        (" 8001 ,8000", ["10.0.0.1:8000", "10.0.0.1:8001"], ""),
        ("8000,9999", ["10.0.0.1:8000"], "'9999'"),
        ("eight,8001", ["10.0.0.1:8001"], "'eight'"),
        ("x" * 100_000, [], "x" * 40 + "'"),
        ("08000", [], "'08000'"),
        ("", [], ""),
    ],
)
@pytest.mark.parametrize(
    "key", ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"]
)
def test_the_active_ports_annotation_excludes_ranks(
    key: str, text: str, ports: list[str], fault: str
) -> None:
    item = pod("a", annotations={key: text, "laar.dev/model": "m"})
    kept = pod_endpoints(item, (8000, 8001), RULES)
    assert kept is not None
    assert [spec.address for spec in kept.specs] == ports
    assert fault in kept.fault
    assert bool(fault) == bool(kept.fault)
    assert len(kept.fault) < 200


def test_the_ranks_of_a_pod_publish_on_neighbouring_ports() -> None:
    """An engine adds the rank to the port of its KV events."""
    item = pod("a", annotations={"llm-d.ai/active-ports": "8000,8002", "laar.dev/model": "m"})
    item["metadata"]["labels"] |= {
        "laar.dev/kv-events": "5557",
        "laar.dev/kv-events-replay": "5657",
    }
    kept = pod_endpoints(item, (8000, 8001, 8002), RULES)
    assert kept is not None
    found = [
        (spec.address, spec.labels["laar.dev/kv-events"], spec.labels["laar.dev/kv-events-replay"])
        for spec in kept.specs
    ]
    assert found == [("10.0.0.1:8000", "5557", "5657"), ("10.0.0.1:8002", "5559", "5659")]


def test_pod_labels_take_precedence_over_the_settings() -> None:
    rules = RULES.model_copy(
        update={"models": ("default",), "engine": "sglang", "priority_field": True}
    )
    plain = pod_endpoints(pod("a", annotations={}), (8000,), rules)
    assert plain is not None
    spec = plain.specs[0]
    assert (spec.models, spec.region, spec.engine) == (("default",), "", "sglang")
    assert spec.priority_field
    item = pod(
        "a",
        labels={"laar.dev/model": "small", "topology.kubernetes.io/region": "eu"},
        annotations={"llm-d.ai/engine-type": "trtllm-serve"},
    )
    said = pod_endpoints(item, (8000,), rules)
    assert said is not None
    spec = said.specs[0]
    assert (spec.models, spec.region, spec.engine) == (("small",), "eu", "tensorrt-llm")
    both = pod("a", labels={"laar.dev/model": "small"}, annotations={"laar.dev/model": "a/b, auto"})
    kept = pod_endpoints(both, (8000,), rules)
    assert kept is not None
    assert kept.specs[0].models == ("a/b", "auto")


@pytest.mark.parametrize(
    ("label", "value", "engine"),
    [
        ("inference.networking.k8s.io/engine-type", "sglang", "sglang"),
        ("llm-d.ai/engine-type", "SGLang", "sglang"),
        ("llm-d.ai/engine-type", "of our own", "vllm"),
    ],
)
def test_a_pods_engine_is_read_from_gateway_labels(label: str, value: str, engine: str) -> None:
    known = pod_endpoints(pod("a", labels={label: value}), (8000,), RULES)
    assert known is not None
    assert known.specs[0].engine == engine


@pytest.mark.parametrize(
    ("path", "engine", "page"),
    [
        (None, "vllm", "http://10.0.0.1:8000/metrics"),
        (None, "trtllm-serve", "http://10.0.0.1:8000/prometheus/metrics"),
        ("/other", "trtllm-serve", "http://10.0.0.1:8000/other"),
        ("", "vllm", ""),
    ],
)
def test_the_metrics_page_of_a_pod_comes_from_its_engine_or_the_settings(
    path: str | None, engine: str, page: str
) -> None:
    rules = KubernetesSource(pool="fleet", metrics_path=path)
    item = pod("a", annotations={"llm-d.ai/engine-type": engine})
    kept = pod_endpoints(item, (8000,), rules)
    assert kept is not None
    assert page_url(kept.specs[0]) == page


def test_a_pod_without_a_model_has_to_report_it() -> None:
    kept = pod_endpoints(pod("a", annotations={}), (8000,), RULES)
    assert kept is not None
    assert [spec.models for spec in kept.specs] == [()]
    assert not kept.fault


@pytest.mark.parametrize(
    "part", [{"status": []}, {"status": {"podIP": 7}}, {"metadata": {"name": "a", "labels": [1]}}]
)
def test_an_invalid_pod_is_an_error(part: dict[str, Any]) -> None:
    kept = pod_endpoints({**pod("a"), **part}, (8000,), RULES)
    assert kept is not None
    assert kept.specs == ()
    assert kept.fault.startswith("a is ignored: ")


def rewrite(name: str, created: str, *rules: dict[str, Any]) -> ModelRewrite:
    made = parse(
        ModelRewrite,
        {
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": {"poolRef": {"name": "fleet"}, "rules": list(rules)},
        },
    )
    assert isinstance(made, ModelRewrite)
    return made


def rule(models: list[str], **targets: int | None) -> dict[str, Any]:
    return {
        "matches": [{"model": {"type": "Exact", "value": name}} for name in models],
        "targets": [
            {"modelRewrite": name} | ({} if weight is None else {"weight": weight})
            for name, weight in targets.items()
        ],
    }


def target(rules: Sequence[Rewrite], model: str, rng: random.Random) -> str | None:
    gateway = GatewayRules(rng)
    gateway.replace_rewrites("source", "fleet", rules)
    return gateway.rewrite(model, "fleet")


def test_an_exact_rule_precedes_a_generic_one_then_the_oldest_then_the_first() -> None:
    rules = rewrites_of(
        [
            rewrite("young", "2026-02-01T00:00:00Z", rule(["m"], young=None)),
            rewrite(
                "old",
                "2026-01-01T00:00:00Z",
                rule([], any=None),
                rule(["m", "n"], first=None),
                rule(["m"], second=None),
            ),
        ]
    )
    rng = random.Random(1)
    assert target(rules, "m", rng) == "first"
    assert target(rules, "other", rng) == "any"
    assert target((), "m", rng) is None
    assert target(rewrites_of([rewrite("r", "", rule(["m"]))]), "m", rng) is None


@pytest.mark.parametrize(
    ("pools", "mine"),
    [
        ({"poolRef": {"name": "fleet"}}, True),
        ({"poolRef": {"name": "fleet", "group": "inference.networking.k8s.io"}}, True),
        ({"poolRef": {"name": "fleet", "group": "llm-d.ai"}}, True),
        ({"poolRef": {"name": "fleet", "group": "example.org"}}, False),
        ({"poolRefs": [{"name": "a"}, {"name": "fleet"}]}, True),
        ({"poolRefs": [{"name": "a"}]}, False),
        ({"poolSelector": {"matchLabels": {"tier": "gold"}}}, True),
        ({"poolSelector": {"matchLabels": {"tier": "gold", "team": "b"}}}, False),
        ({"poolSelector": {}}, False),
        ({"poolRefs": [{"name": "a"}], "poolSelector": {"matchLabels": {"tier": "gold"}}}, True),
        *(
            ({"poolSelector": {"matchExpressions": [{"key": key, "operator": how, **values}]}}, is_)
            for key, how, values, is_ in (
                ("tier", "In", {"values": ["iron", "gold"]}, True),
                ("team", "In", {"values": ["a"]}, False),
                ("tier", "NotIn", {"values": ["gold"]}, False),
                ("team", "NotIn", {"values": ["a"]}, True),
                ("tier", "Exists", {}, True),
                ("team", "Exists", {}, False),
                ("tier", "DoesNotExist", {}, False),
                ("team", "DoesNotExist", {}, True),
            )
        ),
    ],
)
def test_an_object_may_name_its_pools_in_three_ways(pools: Any, mine: bool) -> None:
    found = parse(Objective, {"metadata": {"name": "o"}, "spec": pools})
    assert isinstance(found, Objective)
    assert found.spec.of("fleet", {"tier": "gold"}) is mine


@pytest.mark.parametrize(
    ("weights", "shares"), [((3, 1), (0.75, 0.25)), ((0, 0), (0.5, 0.5)), ((0, 5), (0.0, 1.0))]
)
def test_targets_are_chosen_in_proportion_to_their_weights(
    weights: tuple[int, int], shares: tuple[float, float]
) -> None:
    rules = (Rewrite(models=frozenset(), targets=("a", "b"), weights=weights),)
    rng = random.Random(1)
    seen = Counter(target(rules, "m", rng) for _ in range(4000))
    # 0.032 are four standard deviations of the share of heads in 4,000 throws of a fair coin.
    assert [seen[name] / 4000 for name in ("a", "b")] == pytest.approx(shares, abs=0.032)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, "needs `pool: name`, or `selector"),
        ({"pool": "p", "selector": {"a": "b"}, "ports": [1]}, "and not both"),
        ({"selector": {"a": "b"}}, "`selector` needs `ports: "),
        ({"pool": "p", "ports": [8000]}, "`ports` belong to `selector`"),
        ({"pool": "p", "color": "red"}, "color"),
        ({"pool": "p", "metrics_path": "metrics"}, "is not a path like /metrics"),
        ({"pool": "ml/p"}, "'ml/p' is not a valid name"),
        ({"pool": "p", "namespace": "a,b"}, "'a,b' is not a valid name"),
        ({"pool": "p", "api_server": "127.0.0.1:8001"}, "'127.0.0.1:8001' is not an http"),
        ({"selector": {"app in (a,b)": ""}, "ports": [1]}, "is not a label"),
        ({"selector": {"app": "a,b"}, "ports": [1]}, "is not a label"),
        ({"selector": {"a": "b"}, "ports": [1, 2, 1]}, "lists a port twice"),
    ],
)
def test_incomplete_and_contradictory_settings_are_refused(given: Any, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        KubernetesSource.model_validate(given)


def test_settings_are_converted_for_the_collector() -> None:
    source = KubernetesSource.model_validate(
        {"selector": {"a": "b"}, "ports": [1, 2], "models": ["m"], "api_server": "http://x:1/"}
    )
    assert (source.selector, source.ports) == ({"a": "b"}, (1, 2))
    assert source.access().url == "http://x:1"


def test_the_name_of_https_pods_is_certified_without_its_last_dot() -> None:
    source = KubernetesSource.model_validate(
        {"selector": {"a": "b"}, "ports": [1], "base_url": "https://engine.example./v1"}
    )
    assert source.way().name == "engine.example"


def test_an_authority_pasted_in_place_of_its_path_is_an_error_of_each_pod() -> None:
    rules = RULES.model_copy(update={"base_url": "https://a.example", "ca_file": Path("MIIB" * 99)})
    found = pod_endpoints(pod("a", "10.0.0.1"), (8000,), rules)
    assert found is not None
    assert "File name too long" in found.fault


def test_a_model_name_that_no_header_can_carry_is_an_error_of_its_pod() -> None:
    item = pod("a", "10.0.0.1")
    item["metadata"]["annotations"] = {"laar.dev/model": "one\ntwo"}
    found = pod_endpoints(item, (8000,), RULES)
    assert found is not None
    assert found.specs == ()
    assert "model names are sent in headers" in found.fault

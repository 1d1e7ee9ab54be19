"""An EndpointPickerConfig is converted to laar's settings; parts with no equivalent are listed."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from laar.cli import app
from laar.policies import build_policies
from laar.settings import load

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
WHOLE = (
    HEAD
    + """\
featureGates: [flowControl]
plugins:
  - {type: queue-scorer}
  - {type: prefix-cache-scorer, name: prefix}
  - {type: weighted-random-picker}
  - {type: label-selector-filter, name: gold, parameters: {matchLabels: {tier: gold}}}
  - {type: token-load-scorer, parameters: {queueThresholdTokens: 1000}}
  - {type: pd-profile-handler, parameters: {threshold: 10}}
  - {type: of-our-own}
  - {type: utilization-detector, parameters: {queueDepthThreshold: 5, kvCacheUtilThreshold: 0.8}}
  - {type: concurrency-detector, parameters: {maxConcurrency: 64}}
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: gold}
      - {pluginRef: prefix, weight: 4}
      - {pluginRef: queue-scorer}
      - {pluginRef: token-load-scorer}
      - {pluginRef: of-our-own, weight: 2}
      - {pluginRef: weighted-random-picker}
flowControl:
  maxBytes: 1Gi
  maxRequests: "5k"
  defaultRequestTTL: 1m30s
  priorityBands: [{priority: 10, fairnessPolicyRef: round-robin-fairness-policy}]
"""
)


def converted(tmp_path, text):
    (tmp_path / "theirs.yaml").write_text(text)
    return CliRunner().invoke(app, ["from-llm-d", str(tmp_path / "theirs.yaml"), "--pool", "p"])


def test_settings_with_the_same_meaning_are_converted_and_others_listed(tmp_path):
    got = converted(tmp_path, WHOLE)
    assert got.exit_code == 0, got.output
    assert yaml.safe_load(got.output) == {
        "kubernetes": [{"pool": "p"}],
        "routing": {
            "policies": {
                "profile-default": {
                    "filters": [
                        {"name": "label", "parameters": {"label": "tier", "value": "gold"}}
                    ],
                    "scorers": [
                        {
                            "name": "prefix-cache",
                            "weight": 4.0,
                        },
                        {"name": "queue", "weight": 1.0},
                        {
                            "name": "token-load",
                            "weight": 1.0,
                            "parameters": {"threshold_tokens": 1000},
                        },
                    ],
                    "picker": {"name": "weighted-random"},
                }
            },
            "max_waiting": 5,
        },
        "flow": {
            "max_requests": 64,
            "enabled": True,
            "max_waiting": 5000,
            "max_held_bytes": 1 << 30,
            "max_hold_s": 90.0,
            "min_hold_s": 5.0,
        },
    }
    done, absent = got.output.split("# No equivalent:")
    assert "policy `profile-default`" in done
    assert "utilization-detector.kvCacheUtilThreshold: fixed in laar" in done
    assert "`routing.apart_tokens` to its threshold" in done
    assert "of-our-own: not known" in absent
    assert "waiting prompts may take 1,024 MiB" in done
    assert "`laar envoy --longest-hold 90`" in done
    assert "individual priority bands" in absent
    (tmp_path / "laar.yaml").write_text(got.output)
    settings = load(tmp_path / "laar.yaml").settings
    assert settings.flow.enabled
    routing = settings.routing
    built = build_policies(routing.weights, routing.given, routing.policies)
    assert len(built["profile-default"].scorers) == 3


def test_the_default_configuration_yields_only_the_pool(tmp_path):
    got = converted(tmp_path, HEAD)
    assert yaml.safe_load(got.output) == {"kubernetes": [{"pool": "p"}]}
    assert "each pod is asked for /v1/models" in got.output


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: {"router": {"epp": {"pluginsCustomConfig": {"own.yaml": text}}}},
        lambda text: {"inferenceExtension": {"pluginsCustomConfig": {"own.yaml": text}}},
        lambda text: {"router": {"epp": {"pluginsConfig": yaml.safe_load(text)}}},
        lambda text: {"kind": "ConfigMap", "apiVersion": "v1", "data": {"own.yaml": text}},
        lambda text: {"kind": "List", "items": [{"data": {"own.yaml": text}}, {"data": {}}]},
        lambda text: {
            "data": {"own.yaml": text},
            "metadata": {"annotations": {"last-applied": json.dumps({"data": {"a": text}})}},
        },
    ],
)
def test_a_configuration_within_helm_values_or_a_config_map_is_found(tmp_path, wrap):
    got = converted(tmp_path, yaml.safe_dump(wrap(WHOLE)))
    assert got.output == converted(tmp_path, WHOLE).output


@pytest.mark.parametrize(
    ("plugin", "rule"),
    [
        ("always-disagg-pd-decider", "set `routing.apart` to always"),
        ("pd-profile-handler", "to its threshold, or if that is 0, `routing.apart` to always"),
        (
            "prefix-based-pd-decider",
            "to its nonCachedTokens, or if that is 0, `routing.apart` to never",
        ),
    ],
)
def test_the_remark_on_disaggregated_prefill_gives_the_plugins_rule(tmp_path, plugin, rule):
    got = converted(tmp_path, HEAD + f"plugins: [{{type: {plugin}}}]\n")
    assert rule in got.output


@pytest.mark.parametrize(
    ("parameters", "label"),
    [
        ("{matchExpressions: [{key: tier, operator: In, values: [gold]}]}", "gold"),
        ("{matchLabels: {tier: gold}}", "gold"),
        ("{matchExpressions: [{key: tier, operator: In, values: [gold, iron]}]}", None),
        ("{matchExpressions: [{key: tier, operator: NotIn, values: [gold]}]}", None),
        ("{matchExpressions: [{key: tier, operator: Exists}]}", None),
        ("{matchExpressions: [gold], matchLabels: [gold]}", None),
        ("{matchLabels: {tier: gold, team: a}}", None),
        ("{matchLabels: {team: a}, matchExpressions: [{key: tier, operator: In, values: [gold]}]}",
         None),
        ("{}", None),
    ],
)  # fmt: skip
def test_a_selector_of_one_label_with_one_value_is_converted(tmp_path, parameters, label):
    text = f"""plugins:
  - {{type: label-selector-filter, name: some, parameters: {parameters}}}
schedulingProfiles:
  - {{name: default, plugins: [{{pluginRef: some}}, {{pluginRef: queue-scorer}}]}}
"""
    got = converted(tmp_path, HEAD + text)
    policy = yaml.safe_load(got.output)["routing"]["policies"]["profile-default"]
    wanted = [{"name": "label", "parameters": {"label": "tier", "value": label}}]
    assert policy.get("filters") == (wanted if label else None)
    assert ("takes one label with one value" in got.output) == (label is None)


def test_detector_limits_are_converted_and_the_rest_listed(tmp_path):
    text = """\
plugins:
  - {type: utilization-detector, parameters: {headroom: 0.2}}
  - {type: concurrency-detector, parameters: {concurrencyMode: tokens, maxTokenConcurrency: 9}}
saturationDetector: {queueDepthThreshold: 7, metricsStalenessThreshold: 200ms}
dataLayer: {sources: []}
flowControl: {saturationDetector: {pluginRef: utilization-detector}, noEndpointRequestTTL: 5s}
"""
    got = converted(tmp_path, HEAD + text)
    assert yaml.safe_load(got.output)["routing"] == {"max_waiting": 7}
    for name in (
        "utilization-detector.headroom",
        "utilization-detector.metricsStalenessThreshold",
        "concurrency-detector.maxTokenConcurrency",
        "concurrency-detector.concurrencyMode",
        "dataLayer",
        "flowControl.noEndpointRequestTTL",
    ):
        assert f"# - {name}\n" in got.output.partition("# No equivalent:")[2], name
    plain = "plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 9, headroom: 0}}]"
    got = converted(tmp_path, HEAD + plain)
    assert yaml.safe_load(got.output)["flow"] == {"max_requests": 9}
    assert "No equal" not in got.output


def test_no_name_in_the_configuration_becomes_a_setting(tmp_path):
    text = 'plugins: [{type: "x\\nrouting: {mode: shadow}"}]\n"y\\nlisten: {}": 1\n'
    got = converted(tmp_path, HEAD + text)
    assert yaml.safe_load(got.output) == {"kubernetes": [{"pool": "p"}]}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kind: Pod\napiVersion: v1\n", "not an EndpointPickerConfig"),
        ("router: {epp: {replicas: 1}}\n", "has no EndpointPickerConfig"),
        (yaml.safe_dump({"a": HEAD, "b": [HEAD + "plugins: []\n"]}),
         "has several configurations: a, b[0]"),
        (yaml.safe_dump({"a": HEAD + "plugins: {"}), "a: not valid YAML"),
        (HEAD + "flowControl: {maxBytes: many}\n", "maxBytes: 'many' is not a quantity"),
        (HEAD + "flowControl: {defaultRequestTTL: soon}\n", "is not a duration"),
        (HEAD + "plugins: 7\n", "plugins"),
        (HEAD + "plugins: [{type: utilization-detector, parameters: {queueDepthThreshold: x}}]\n",
         "is not a number"),
        (HEAD + "plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 0}}]\n",
         "laar does not accept this flow.max_requests"),
        (HEAD + "plugins: [{type: concurrency-detector, parameters: {maxConcurrency: .inf}}]\n",
         "concurrency-detector.maxConcurrency: inf is not a number"),
    ],
)  # fmt: skip
def test_unreadable_parts_are_reported(tmp_path, text, fault):
    got = converted(tmp_path, text)
    assert got.exit_code != 0
    assert fault in got.output

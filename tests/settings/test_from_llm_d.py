"""An EndpointPickerConfig becomes settings that laar takes, with a list of the lost parts."""

import pytest
import yaml
from typer.testing import CliRunner

from laar.cli import app
from laar.policies import build_policies
from laar.settings import load_settings

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


def test_what_both_mean_alike_is_taken_over_and_the_rest_is_named(tmp_path):
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
            "max_kv_usage": 0.8,
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
    done, absent = got.output.split("# No equal:")
    assert "policy `profile-default`" in done
    assert "`routing: {apart: threshold, apart_tokens: 10}` is the old rule" in done
    assert "of-our-own: not known" in absent
    assert "single priority bands" in absent
    (tmp_path / "laar.yaml").write_text(got.output)
    settings = load_settings(tmp_path / "laar.yaml")
    assert settings.flow.enabled
    routing = settings.routing
    built = build_policies(routing.weights, routing.given, routing.policies)
    assert len(built["profile-default"].scorers) == 3


@pytest.mark.parametrize("version", ["llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1"])
def test_every_version_of_the_configuration_is_read_alike(tmp_path, version):
    text = WHOLE.replace("llm-d.ai/v1alpha1", version)
    assert text != WHOLE
    assert converted(tmp_path, text).output == converted(tmp_path, WHOLE).output


def test_the_default_configuration_needs_no_more_than_the_pool(tmp_path):
    got = converted(tmp_path, HEAD)
    assert yaml.safe_load(got.output) == {"kubernetes": [{"pool": "p"}]}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kind: Pod\napiVersion: v1\n", "not an EndpointPickerConfig"),
        (HEAD + "flowControl: {maxBytes: many}\n", "flowControl.maxBytes: 'many' is no quantity"),
        (HEAD + "flowControl: {defaultRequestTTL: soon}\n", "is no duration"),
        (HEAD + "plugins: 7\n", "plugins"),
        (HEAD + "plugins: [{type: utilization-detector, parameters: {queueDepthThreshold: x}}]\n",
         "is no number"),
        (HEAD + "plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 0}}]\n",
         "laar takes no such flow.max_requests"),
        (HEAD + "plugins: [{type: concurrency-detector, parameters: {maxConcurrency: .inf}}]\n",
         "concurrency-detector.maxConcurrency: inf is no number"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(tmp_path, text, fault):
    got = converted(tmp_path, text)
    assert got.exit_code != 0
    assert fault in got.output

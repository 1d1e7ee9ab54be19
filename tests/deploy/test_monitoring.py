"""Rules, dashboard and monitors use existing metrics, and Prometheus' own tool accepts them."""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.kustomized import documents, render

from laar.envoy.bootstrap import render as bootstrap
from laar.envoy.options import BootstrapOptions, Shape
from laar.server.admin.metrics import metrics_page
from laar.server.runner import Runner
from laar.settings import Settings
from support.scripts import module_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMPONENTS = ROOT / "deploy" / "components"
MODEL = "Qwen/Qwen2.5-7B-Instruct"
OF_THE_CLUSTER = {"laar_certificate_expires_timestamp_seconds"}  # exists only with listen.tls


@pytest.fixture(scope="module")
def groups() -> list[dict[str, Any]]:
    [rules] = documents(COMPONENTS / "rules" / "rules.yaml")
    found: list[dict[str, Any]] = rules["spec"]["groups"]
    return found


@pytest.fixture(scope="module")
def known(groups: list[dict[str, Any]]) -> set[str]:
    """Return every series: those the picker exports, and those the rules record."""
    settings = Settings.model_validate({"endpoints_file": "none.yaml", "flow": {"enabled": True}})
    page = metrics_page(Runner(settings).picker).decode()
    families = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    return (
        families
        | OF_THE_CLUSTER
        | {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    )


def series(expression: str) -> set[str]:
    found = re.findall(r"\blaar[_:][\w:]+", expression)
    return {re.sub("_(?:bucket|count|sum)$", "", name) for name in found}


def test_rules_use_existing_series(groups: list[dict[str, Any]], known: set[str]) -> None:
    for group in groups:
        for rule in group["rules"]:
            assert series(rule["expr"]) <= known, rule
            if "alert" in rule:
                assert {"summary", "remedy", "runbook_url"} == set(rule["annotations"])
                assert rule["labels"]["severity"] in {"critical", "warning"}


@pytest.mark.parametrize("shape", ["sidecar", "standalone", "gateway"])
def test_the_alert_on_bypassed_requests_reads_the_statistics_of_laars_envoys(
    shape: Shape, groups: list[dict[str, Any]]
) -> None:
    [rule] = [r for group in groups for r in group["rules"] if r.get("alert") == "LaarBypassed"]
    manager = bootstrap(shape, BootstrapOptions())["static_resources"]["listeners"][0]
    filters = manager["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    [prefix] = {
        of["typed_config"]["stat_prefix"] for of in filters if of["name"].endswith("ext_proc")
    }
    read = set(re.findall(r"envoy_http_ext_proc_(\w+?)_(?:streams|message)_", rule["expr"]))
    assert read == {prefix}


@pytest.mark.parametrize(
    ("model", "work_s", "requests", "late", "expected"),
    [
        (MODEL, "3x20", "0+60x20", "0+6x20", [3.0, 0.1]),
        (MODEL, "0x20", "60x20", "6x20", [0.0, None]),  # idle, so no value, and not NaN
        # Requests held by a picker that knows no model.
        ("", "0.06x20", "0x20", "0x20", [0.06, None]),
        ("other", "9x20", "0+60x20", "0+60x20", [None, None]),
    ],
)
def test_the_queries_of_the_scaled_object_return_usable_values(
    model: str, work_s: str, requests: str, late: str, expected: list[float], tmp_path: Path
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here (Debian: prometheus)")
    [one] = render(HERE.parents[1] / "deploy" / "examples" / "keda")
    values = {"work_seconds": work_s, "requests_total": requests, "expected_late_total": late}
    labels = f'{{pool="",model="{model}"}}'
    test = {
        "interval": "15s",
        "input_series": [
            {"series": f"laar_pool_{name}{labels}", "values": each} for name, each in values.items()
        ],
        "promql_expr_test": [
            {
                "expr": trigger["metadata"]["query"],
                "eval_time": "4m",
                "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
            }
            for trigger, value in zip(one["spec"]["triggers"], expected, strict=True)
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": [test]}))
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "test.yaml"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


BEFORE = 40  # scrapes, one in 15 s, before the fault
REQUESTS = "laar_completions_total"
FINE = {REQUESTS: {'cause="complete",status="2xx"': (750, 750)}}  # per scrape, before and after
FAULTS: dict[str, tuple[str | None, dict[str, dict[str, tuple[float, float]]]]] = {
    "every endpoint answers 500": (
        "LaarFails",
        {
            REQUESTS: {
                'cause="complete",status="2xx"': (750, 0),
                'cause="complete",status="5xx"': (0, 750),
            }
        },
    ),
    "every endpoint has always answered 500": (
        "LaarFails",
        {REQUESTS: {'cause="complete",status="5xx"': (750, 750)}},
    ),
    "a third of the answers break off": (
        "LaarFails",
        {
            REQUESTS: {
                'cause="complete",status="2xx"': (750, 500),
                'cause="reset",status="2xx"': (0, 250),
            }
        },
    ),
    "no endpoint answers": (
        "LaarFails",
        {
            REQUESTS: {
                'cause="complete",status="2xx"': (750, 0),
                'cause="error",status="none"': (0, 750),
            },
            "laar_refusals_total": {'status="503",reason="no-answer"': (0, 750)},
        },
    ),
    "one of five models has no endpoint": (
        "LaarFails",
        {
            REQUESTS: {'cause="complete",status="2xx"': (750, 600)},
            "laar_refusals_total": {'status="503",reason="model-away"': (0, 150)},
        },
    ),
    "no picker decides, and Envoy fails closed": (
        "LaarFails",
        {
            "envoy_http_downstream_rq_xx": {
                f'envoy_http_conn_manager_prefix="data",envoy_response_code_class="{n}"': rates
                for n, rates in ((2, (750, 0)), (5, (0, 750)))
            }
        },
    ),
    "pickers answer too late for a third of the requests": (
        "LaarBypassed",
        {
            "envoy_http_ext_proc_laar_streams_started": {"": (750, 750)},
            "envoy_http_ext_proc_laar_streams_failed": {"": (0, 0)},
            "envoy_http_ext_proc_laar_message_timeouts": {"": (0, 250)},
            "laar_endpoints": {"": (0, 0)},
        },
    ),
    "every endpoint answers 429": (
        "LaarFull",
        {
            REQUESTS: {
                'cause="complete",status="2xx"': (750, 0),
                'cause="complete",status="4xx"': (0, 750),
            },
            "laar_full_total": {"": (0, 750)},
        },
    ),
    "every endpoint answers 429, and no picker decides": (
        "LaarFull",
        {
            "envoy_cluster_upstream_rq": {
                f'envoy_cluster_name="endpoints",envoy_response_code="{code}"': rates
                for code, rates in ((200, (750, 0)), (429, (0, 750)))
            },
            "envoy_http_downstream_rq_xx": {
                f'envoy_http_conn_manager_prefix="data",envoy_response_code_class="{n}"': rates
                for n, rates in ((2, (750, 0)), (4, (0, 750)))
            },
        },
    ),
    "laar's queue is full": (
        "LaarFull",
        {
            REQUESTS: {'cause="complete",status="2xx"': (750, 250)},
            "laar_refusals_total": {'status="429",reason="rejected-saturated"': (0, 500)},
            "laar_full_total": {"": (0, 500)},
        },
    ),
    "an engine is slower than its siblings": (
        "LaarEndpointSlow",
        {
            REQUESTS: FINE[REQUESTS],
            "laar_endpoint_pace_ratio": {'endpoint="10.0.0.7:8000"': (1.0, 2.0)},
        },
    ),
    "first tokens take half a minute": (
        "LaarLate",
        {
            "laar_ttft_seconds_count": {"": (60, 60)},
            "laar_ttft_seconds_bucket": {'le="10.0"': (60, 0)},
        },
    ),
    "the endpoints are gone": ("LaarNoEndpoints", {"laar_endpoints": {"": (0, -1)}}),
    "the only picker is gone": ("LaarGone", {"laar_endpoints": {"": (0, math.nan)}}),
    "a few of many requests are refused for lack of room": (
        None,
        {REQUESTS: FINE[REQUESTS], "laar_full_total": {"": (3, 3)}},
    ),
    "a few of many requests fail": (
        None,
        {REQUESTS: {**FINE[REQUESTS], 'cause="complete",status="5xx"': (0, 3)}},
    ),
    "the only request fails": (None, {REQUESTS: {'cause="complete",status="5xx"': (0, 0.25)}}),
    "clients make mistakes, and leave": (
        None,
        {
            REQUESTS: {**FINE[REQUESTS], 'cause="disconnect",status="none"': (0, 750)},
            "laar_refusals_total": {'status="404",reason="unknown-model"': (0, 750)},
        },
    ),
}


def values(name: str, before: float, after: float) -> str:
    """Return a counter's values, or those of the gauge `laar_endpoints`, in promtool's notation."""
    if name == "laar_endpoint_pace_ratio":
        return f"{before}x{BEFORE} {after}x8"
    if name == "laar_endpoints":
        return f"1x{BEFORE} " + ("stale" if math.isnan(after) else f"{1 + after}x8")
    return f"0+{before}x{BEFORE} {before * BEFORE + after}+{after}x8"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: prometheus)")
def test_an_alert_says_within_a_minute_what_clients_feel(
    groups: list[dict[str, Any]], tmp_path: Path, figure: Any
) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    tests = []
    for fault, (alert, families) in FAULTS.items():
        firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
        series = [
            {"series": f'{name}{{job="laar",{labels}}}', "values": values(name, *rates)}
            for name, of in {"laar_endpoints": {"": (0, 0)}, **families}.items()
            for labels, rates in of.items()
        ]
        expected = {"expr": firing, "eval_time": "11m", "exp_samples": []}
        if alert is not None:
            expected["exp_samples"] = [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
        tests.append(
            {
                "name": fault,
                "interval": "15s",
                "input_series": series,
                "promql_expr_test": [expected],
            }
        )
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": tests}
    # Else promtool's order is random, and alerts may see records of the evaluation before.
    document["group_eval_order"] = [group["name"] for group in groups]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "test.yaml"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for fault, (alert, _) in FAULTS.items():
        figure(fault, alert or "no alert", alert or "no alert")


def test_panels_use_existing_series_and_do_not_overlap(known: set[str]) -> None:
    dashboard = json.loads((COMPONENTS / "rules" / "dashboard.json").read_text())
    taken = set()
    assert (COMPONENTS / "rules" / "dashboard.json").read_text() == generator().text()
    for panel in dashboard["panels"]:
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert series(target["expr"]) <= known, panel["title"]
            assert series(target["expr"]), panel["title"]
            assert 'job=~"$job"' in target["expr"], "the namespace is empty outside a cluster"
        place = (panel["gridPos"]["x"], panel["gridPos"]["y"])
        assert place not in taken
        taken.add(place)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def generator() -> Any:
    """Import the script that generates the dashboard."""
    return module_of(COMPONENTS / "rules" / "dashboard.py")


@pytest.mark.parametrize(
    ("folder", "kind", "listed"),
    [
        ("with_pod_monitor", "PodMonitor", "podMetricsEndpoints"),
        ("with_service_monitor", "ServiceMonitor", "endpoints"),
    ],
)
def test_monitors_scrape_existing_ports(folder: str, kind: str, listed: str) -> None:
    objects = render(HERE / folder)
    [monitor] = [one for one in objects if one["kind"] == kind]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    if kind == "PodMonitor":
        [template] = [one["spec"]["template"] for one in objects if one["kind"] == "Deployment"]
        selected = [template["metadata"]["labels"]]
        ports = {
            port["name"]
            for one in template["spec"]["initContainers"] + template["spec"]["containers"]
            for port in one.get("ports", ())
        }
    else:
        services = [one for one in objects if one["kind"] == "Service"]
        chosen = [one for one in services if wanted <= one["metadata"]["labels"].items()]
        selected = [one["metadata"]["labels"] for one in chosen]
        ports = {port["name"] for one in chosen for port in one["spec"]["ports"]}
    assert len(selected) == 1
    assert wanted <= selected[0].items()
    assert {one["port"] for one in monitor["spec"][listed]} <= ports


def test_promtool_accepts_the_rules(groups: list[dict[str, Any]], tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here (Debian: prometheus)")
    groups = copy.deepcopy(groups)
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        rule["annotations"] = {"summary": rule["annotations"]["summary"]}  # tests/test_faults.py
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    shutil.copy(HERE / "rules_test.yaml", tmp_path)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, timeout=240,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

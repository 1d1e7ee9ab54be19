"""Rules, dashboard and monitors: about metrics that exist, and right by Prometheus' own tool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kustomized import documents, render

from laar.server.runner import Runner
from laar.settings import Settings

HERE = Path(__file__).parent
COMPONENTS = HERE.parents[1] / "deploy" / "components"
OF_THE_CLUSTER = {"laar_certificate_expires_timestamp_seconds"}  # there with listen.tls only


@pytest.fixture(scope="module")
def groups() -> list[dict[str, Any]]:
    [rules] = documents(COMPONENTS / "rules" / "rules.yaml")
    found: list[dict[str, Any]] = rules["spec"]["groups"]
    return found


@pytest.fixture(scope="module")
def known(groups: list[dict[str, Any]]) -> set[str]:
    """Every series there is: what the picker exports, and what the rules record."""
    page = Runner(Settings(endpoints_file=Path("none.yaml"))).picker.metrics.page().decode()
    families = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    return (
        families
        | OF_THE_CLUSTER
        | {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    )


def series(expression: str) -> set[str]:
    found = re.findall(r"\blaar[_:][\w:]+", expression)
    return {name.removesuffix("_bucket") for name in found}


def test_rules_are_about_series_that_exist(groups: list[dict[str, Any]], known: set[str]) -> None:
    for group in groups:
        for rule in group["rules"]:
            assert series(rule["expr"]) <= known, rule
            if "alert" in rule:
                assert {"summary", "remedy"} <= set(rule["annotations"])
                assert rule["labels"]["severity"] in {"critical", "warning"}


def test_the_autoscaler_looks_at_a_series_that_exists(known: set[str]) -> None:
    text = (HERE.parents[1] / "deploy" / "examples" / "vllm" / "autoscaler.yaml").read_text()
    said = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    [rule] = yaml.safe_load(said[said.index("#   ext") :].replace("#   ", ""))["externalRules"]
    assert series(rule["metricsQuery"]) == {rule["seriesQuery"]} <= known
    assert f"name: {rule['name']['as']}\n" in text.split("spec:", 1)[1]


def test_panels_are_about_series_that_exist_and_do_not_overlap(known: set[str]) -> None:
    dashboard = json.loads((COMPONENTS / "rules" / "dashboard.json").read_text())
    taken = set()
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert series(target["expr"]) <= known, panel["title"]
            assert series(target["expr"]), panel["title"]
        place = (panel["gridPos"]["x"], panel["gridPos"]["y"])
        assert place not in taken
        taken.add(place)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.parametrize(
    ("folder", "kind", "listed"),
    [
        ("with_pod_monitor", "PodMonitor", "podMetricsEndpoints"),
        ("with_service_monitor", "ServiceMonitor", "endpoints"),
    ],
)
def test_monitors_scrape_ports_of_what_they_select(folder: str, kind: str, listed: str) -> None:
    objects = render(HERE / folder)
    [monitor] = [one for one in objects if one["kind"] == kind]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    if kind == "PodMonitor":
        [template] = [one["spec"]["template"] for one in objects if one["kind"] == "Deployment"]
        selected = [template["metadata"]["labels"]]
        ports = {port["name"] for one in template["spec"]["containers"] for port in one["ports"]}
    else:
        services = [one for one in objects if one["kind"] == "Service"]
        chosen = [one for one in services if wanted <= one["metadata"]["labels"].items()]
        selected = [one["metadata"]["labels"] for one in chosen]
        ports = {port["name"] for one in chosen for port in one["spec"]["ports"]}
    assert len(selected) == 1
    assert wanted <= selected[0].items()
    assert {one["port"] for one in monitor["spec"][listed]} <= ports


def test_the_dashboard_is_found_by_its_label() -> None:
    [found] = [
        one
        for one in render(HERE / "with_pod_monitor")
        if one["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
    ]
    assert found["metadata"]["name"] == "laar-dashboard"
    assert json.loads(found["data"]["dashboard.json"])["title"] == "laar"


def test_promtool_finds_the_rules_right(groups: list[dict[str, Any]], tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here (Debian: prometheus)")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    shutil.copy(HERE / "rules_test.yaml", tmp_path)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

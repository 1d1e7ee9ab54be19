"""The Helm chart, rendered by a real helm: by default what `kubectl apply -k` sends."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.chart import ROOT, SHAPES, pack
from deploy.kustomized import render

Object = dict[str, Any]
HELM = shutil.which("helm") or shutil.which("helm", path=str(Path(sys.executable).parent))


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    if HELM is None:
        pytest.skip("no helm here: the chart is not rendered")
    return pack(tmp_path)


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(HELM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def rendered(chart: Path, values: Object) -> dict[tuple[str, str], Object]:
    path = chart.with_name("values.yaml")
    path.write_text(yaml.safe_dump(values))
    done = helm("template", "laar", chart, "--values", path, "--namespace", "fleet")
    assert done.returncode == 0, done.stderr
    return by_name([each for each in yaml.safe_load_all(done.stdout) if each])


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def pod_of(objects: dict[tuple[str, str], Object]) -> Object:
    pod: Object = objects["Deployment", "laar"]["spec"]["template"]
    return pod


@pytest.mark.parametrize("shape", SHAPES)
def test_by_default_it_is_the_overlay(chart: Path, shape: str) -> None:
    overlay = by_name(render(ROOT / "deploy" / "overlays" / shape))
    assert rendered(chart, {"shape": shape, "tokens": {"create": False}}) == overlay
    made = rendered(chart, {"shape": shape})
    tokens = made.pop(("Secret", "laar-tokens"))["data"]
    assert made == overlay
    assert set(tokens) == {"viewers", "outcomes"}
    assert len(set(tokens.values())) == 2


def test_values_reach_the_objects(chart: Path) -> None:
    settings = {"kubernetes": [{"selector": {"app": "mine"}, "ports": [9000]}]}
    values = {
        "image": {"repository": "registry.example/laar", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "pull"}],
        "settings": settings,
        "replicas": 3,
        "resources": {"limits": {"memory": "2Gi"}},
        "podLabels": {"team": "a", "app.kubernetes.io/name": "other"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    }
    default, made = rendered(chart, {}), rendered(chart, values)
    pod = pod_of(made)
    images = {c["image"] for c in pod["spec"]["initContainers"] + pod["spec"]["containers"]}
    assert f"registry.example/laar@sha256:{'0' * 64}" in images
    assert not any(image.startswith("laar:") for image in images)
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert made["Deployment", "laar"]["spec"]["replicas"] == 3
    assert made["Service", "laar"]["spec"]["type"] == "LoadBalancer"
    [picker] = [c for c in pod["spec"]["containers"] if c["name"] == "laar"]
    assert picker["resources"]["limits"]["memory"] == "2Gi"
    assert picker["resources"]["requests"]["memory"] == "512Mi"
    selector = made["Deployment", "laar"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items(), "no value breaks the selector"
    assert pod["metadata"]["labels"]["team"] == "a"
    [name] = [name for kind, name in made if kind == "ConfigMap" and "settings" in name]
    text = yaml.safe_load(made["ConfigMap", name]["data"]["laar.yaml"])
    before = yaml.safe_load(default["ConfigMap", name]["data"]["laar.yaml"])
    assert text == {**before, **settings}
    annotations = pod["metadata"]["annotations"]
    assert annotations["laar.dev/settings"], "changed settings roll the pods"
    assert "laar.dev/settings" not in pod_of(default)["metadata"]["annotations"]


def test_an_unknown_shape_is_reported(chart: Path) -> None:
    done = helm("template", "laar", chart, "--set", "shape=gateway")
    assert done.returncode != 0
    assert "shape: gateway is none of standalone, shared, inference-pool" in done.stderr


def test_it_is_packed_reproducibly_and_has_the_version_of_laar(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    one, two = pack(tmp_path), pack(tmp_path / "again")
    assert one.read_bytes() == two.read_bytes()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((ROOT / "deploy" / "chart" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert one.name == f"laar-{version}.tgz"

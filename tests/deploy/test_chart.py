"""The Helm chart, rendered by a real helm, by default gives the objects of `kubectl apply -k`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from deploy.chart import ROOT, SHAPES, pack
from deploy.image import put_name
from deploy.kustomized import render
from manifest_schemas import VERSIONS, faults

from support.scripts import module_of

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
    path.write_text(
        yaml.safe_dump({"image": {"repository": "your-registry.invalid/laar"}, **values})
    )
    done = helm("template", "laar", chart, "--values", path, "--namespace", "fleet")
    assert done.returncode == 0, done.stderr
    return by_name([each for each in yaml.safe_load_all(done.stdout) if each])


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def pod_of(objects: dict[tuple[str, str], Object]) -> Object:
    pod: Object = objects["Deployment", "laar"]["spec"]["template"]
    return pod


@pytest.mark.parametrize("shape", SHAPES)
def test_by_default_the_chart_renders_the_overlay(chart: Path, shape: str) -> None:
    overlay = by_name(render(ROOT / "deploy" / "overlays" / shape))
    assert rendered(chart, {"shape": shape, "tokens": {"create": False}}) == overlay
    made = rendered(chart, {"shape": shape})
    tokens = made.pop(("Secret", "laar-tokens"))["data"]
    assert set(tokens) == {"viewers", "outcomes"}
    if shape == "shared":
        tokens |= made.pop(("Secret", "laar-share"))["data"]
        assert {"password", "secret"} < set(tokens)
    assert made == overlay
    assert len(set(tokens.values())) == len(tokens)


def test_chart_values_reach_the_objects(chart: Path) -> None:
    settings = {"kubernetes": [{"selector": {"app": "mine"}, "ports": [9000]}]}
    values = {
        "image": {"repository": "registry.example/laar", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "pull"}],
        "settings": settings,
        "replicas": 3,
        "resources": {"limits": {"memory": "2Gi"}},
        "podLabels": {"team": "a", "app.kubernetes.io/name": "other"},
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "extraVolumes": [{"name": "keys", "secret": {"secretName": "engine-keys"}}],
        "extraVolumeMounts": [{"name": "keys", "mountPath": "/etc/laar/keys"}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    }
    default, made = rendered(chart, {}), rendered(chart, values)
    pod = pod_of(made)
    images = {c["image"] for c in pod["spec"]["initContainers"] + pod["spec"]["containers"]}
    assert f"registry.example/laar@sha256:{'0' * 64}" in images
    assert not any(image.startswith("your-registry.invalid") for image in images)
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert made["Deployment", "laar"]["spec"]["replicas"] == 3
    assert made["Service", "laar"]["spec"]["type"] == "LoadBalancer"
    [picker] = [c for c in pod["spec"]["containers"] if c["name"] == "laar"]
    assert picker["resources"]["limits"]["memory"] == "2Gi"
    assert picker["resources"]["requests"]["memory"] == "512Mi"
    assert picker["env"] == values["extraEnv"]
    assert {"keys", "settings", "tmp"} <= {mount["name"] for mount in picker["volumeMounts"]}
    assert {"keys", "settings", "tmp"} <= {volume["name"] for volume in pod["spec"]["volumes"]}
    selector = made["Deployment", "laar"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items(), (
        "values do not change the selector"
    )
    assert pod["metadata"]["labels"]["team"] == "a"
    [name] = [name for kind, name in made if kind == "ConfigMap" and "settings" in name]
    text = yaml.safe_load(made["ConfigMap", name]["data"]["laar.yaml"])
    before = yaml.safe_load(default["ConfigMap", name]["data"]["laar.yaml"])
    assert text == {**before, **settings}
    annotations = pod["metadata"]["annotations"]
    assert annotations["laar.dev/settings"], "changed settings restart the pods"
    assert "laar.dev/settings" not in pod_of(default)["metadata"]["annotations"]


def sidecar_of(pod: Object) -> Object:
    [envoy] = [c for c in pod["spec"]["initContainers"] if c["name"] == "envoy"]
    found: Object = envoy
    return found


@pytest.mark.parametrize("shape", ["standalone", "shared"])
def test_what_platform_teams_ask_for_are_values(chart: Path, shape: str) -> None:
    user = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    values = {
        "shape": shape,
        "envoy": {
            "image": "registry.example/envoy:v1.40.0",
            "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "4"}},
            "concurrency": 4,
        },
        "valkey": {"image": "registry.example/valkey:8"},
        "podSecurityContext": user,
        "securityContext": {"runAsUser": 1000680000},
        "serviceAccount": {"create": False, "name": "pickers"},
        "monitoring": {
            "podMonitor": True,
            "rules": True,
            "dashboard": True,
            "labels": {"release": "prometheus"},
            "runbookUrl": "https://laar.example/runbook",
        },
    }
    made = rendered(chart, values)
    pods = [each["spec"]["template"] for (kind, _), each in made.items() if kind == "Deployment"]
    assert all(pod["spec"]["securityContext"] == user for pod in pods)
    containers = [
        c for pod in pods for c in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]
    ]
    assert {c["image"].partition("/")[0] for c in containers} == {
        "registry.example",
        "your-registry.invalid",
    }
    for container in containers:
        assert container["securityContext"]["runAsUser"] == 1000680000
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    envoy = sidecar_of(pod_of(made))
    assert envoy["resources"] == {
        "requests": {"cpu": "500m", "memory": "512Mi"},
        "limits": {"cpu": "4", "memory": "2Gi"},
    }
    assert envoy["args"][:4] == ["-c", "/etc/envoy/envoy.yaml", "--concurrency", "4"]
    assert pod_of(made)["spec"]["serviceAccountName"] == "pickers"
    assert made["RoleBinding", "laar"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "pickers"}
    ]
    assert not any(kind == "ServiceAccount" for kind, _ in made)
    for kind in ("PodMonitor", "PrometheusRule"):
        assert made[kind, "laar"]["metadata"]["labels"]["release"] == "prometheus"
    alerts = [
        r
        for g in made["PrometheusRule", "laar"]["spec"]["groups"]
        for r in g["rules"]
        if "alert" in r
    ]
    links = {r["annotations"]["runbook_url"].partition("#")[0] for r in alerts}
    assert links == {"https://laar.example/runbook"}
    assert "{{ $value | humanizePercentage }}" in json.dumps(alerts)
    assert "dashboard.json" in made["ConfigMap", "laar-dashboard"]["data"]


DIGEST = "sha256:" + "0" * 64
PINNED: Object = {
    "image": {"repository": "registry.example/laar", "digest": DIGEST},
    "envoy": {"image": f"registry.example/envoy@{DIGEST}"},
    "valkey": {"image": f"registry.example/valkey@{DIGEST}"},
    "application": {"image": f"registry.example/app@{DIGEST}", "command": ["serve"]},
    "autoscaling": {"minReplicas": 2, "maxReplicas": 6, "cpu": "600m"},
    "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}, {"to": [{"podSelector": {}}]}],
    "monitoring": {"podMonitor": True, "rules": True, "dashboard": True},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pinned_chart_passes_strict_checks_of_schema_and_policy(chart: Path, shape: str) -> None:
    made = rendered(chart, {"shape": shape, "tokens": {"create": False}, **PINNED})
    for version in VERSIONS:
        assert [fault for one in made.values() for fault in faults(one, version)] == []
    for (kind, _), one in made.items():
        if kind == "Deployment":
            pod = one["spec"]["template"]["spec"]
            started = [c for c in pod.get("initContainers", []) if "restartPolicy" in c]
            running = [c for c in started + pod["containers"] if c["name"] != "application"]
            assert all("livenessProbe" in c and "readinessProbe" in c for c in running), running
            every = pod.get("initContainers", []) + pod["containers"]
            assert all(c["image"].endswith(f"@{DIGEST}") for c in every), every
    assert "replicas" not in made["Deployment", "laar"]["spec"]
    target = made["HorizontalPodAutoscaler", "laar"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) in made
    policy = made["NetworkPolicy", "laar"]["spec"]
    assert (policy["policyTypes"], policy["egress"]) == (["Ingress", "Egress"], PINNED["egress"])
    if shape == "sidecar":
        [own] = [c for c in pod_of(made)["spec"]["containers"] if c["name"] == "application"]
        assert own["command"] == ["serve"]


def test_images_are_named_in_overlays_and_chart(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    named = {"laar:1", f"envoy@{DIGEST}", f"valkey@{DIGEST}"}
    for each in named:
        put_name(f"registry.example:5000/x/{each}", tmp_path)
    objects = render(tmp_path / "deploy" / "overlays" / "shared")
    pods = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    containers = [c for pod in pods for c in pod.get("initContainers", []) + pod["containers"]]
    assert {c["image"].removeprefix("registry.example:5000/x/") for c in containers} == named
    with pytest.raises(SystemExit):
        put_name("registry.example/other:1", tmp_path)


def test_one_command_builds_pushes_and_names_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    tool = module_of(tmp_path / "deploy" / "image.py")
    monkeypatch.setattr(tool, "make_context", lambda *_: None)  # which downloads wheels
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    said = (
        f'echo "$@" >> {tmp_path}/asked; [ $1 != inspect ] || echo "registry.example/laar@{DIGEST}"'
    )
    docker.write_text(f"#!/bin/sh\n{said}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    named = tool.publish("registry.example/laar:1", tmp_path / "dist")
    asked = [line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()]
    assert (named, asked) == (f"registry.example/laar@{DIGEST}", ["build", "push", "inspect"])
    [chart] = (tmp_path / "dist").glob("laar-*.tgz")
    with tarfile.open(chart) as archive:
        values = yaml.safe_load(archive.extractfile("laar/values.yaml") or b"")
    assert (values["image"]["repository"], values["image"]["digest"]) == tuple(named.split("@"))


def test_chart_image_and_package_have_one_version() -> None:
    about = yaml.safe_load((ROOT / "deploy" / "chart" / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"].replace(".dev", "-dev")
    overlay = (ROOT / "deploy" / "overlays" / "shared" / "kustomization.yaml").read_text()
    assert (about["version"], about["appVersion"]) == (version, version)
    assert f"newTag: {version}\n" in overlay


def test_an_image_is_required(chart: Path) -> None:
    done = helm("template", "laar", chart)
    assert done.returncode != 0
    assert "image.repository" in done.stderr


def test_existing_secrets_are_kept_and_foreign_ones_unchanged(chart: Path) -> None:
    key = "a2VwdA=="

    class Cluster(BaseHTTPRequestHandler):
        owner = ""

        def do_GET(self) -> None:
            path, kind = self.path.partition("?")[0], {"name": "secrets", "kind": "Secret"}
            answers: Object = {
                "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
                "/api": {"kind": "APIVersions", "versions": ["v1"]},
                "/apis": {"kind": "APIGroupList", "groups": []},
                "/api/v1": {"groupVersion": "v1", "resources": [{**kind, "namespaced": True}]},
                "/api/v1/namespaces/fleet/secrets/laar-tokens": {
                    "kind": "Secret",
                    "apiVersion": "v1",
                    "metadata": {
                        "name": "laar-tokens",
                        "labels": {"app.kubernetes.io/managed-by": self.owner},
                    },
                    "data": {"viewers": key, "outcomes": key},
                },
            }
            body = json.dumps(answers.get(path, {})).encode()
            self.send_response(200 if path in answers else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Cluster) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        options = ("--namespace", "fleet", "--dry-run=server", "--kube-apiserver", url)

        def secrets(owner: str) -> list[Object]:
            Cluster.owner = owner
            done = helm(
                "template",
                "laar",
                chart,
                *options,
                "--disable-openapi-validation",
                "--set",
                "image.repository=laar",
            )
            assert done.returncode == 0, done.stderr
            objects = [each for each in yaml.safe_load_all(done.stdout) if each]
            return [each["data"] for each in objects if each["kind"] == "Secret"]

        assert secrets("Helm") == [{"viewers": key, "outcomes": key}]
        assert secrets("kubectl") == []
        server.shutdown()


@pytest.mark.parametrize("wrong", ["replica=3", "image.name=laar", "replicas=many"])
def test_unknown_values_are_refused(chart: Path, wrong: str) -> None:
    done = helm("template", "laar", chart, "--set", wrong)
    assert done.returncode != 0
    assert wrong.partition("=")[0].rpartition(".")[2] in done.stderr

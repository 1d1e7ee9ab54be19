"""What `kubectl apply -k` would send, held to the cluster's schemas, the code and good manners."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from kustomized import documents, render

from laar.config import Settings
from laar.datalayer.kubernetes import PERMISSIONS, KubernetesSource
from laar.datalayer.kubernetes.objects import Pool, parse, pod_endpoints
from laar.server.runner import Runner

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("standalone", "sidecar", "inference-pool")
FOLDERS = [*(DEPLOY / "overlays" / name for name in OVERLAYS), DEPLOY / "examples" / "vllm"]
CRDS = {"InferencePool", "PodMonitor", "PrometheusRule"}


def overlay(name: str) -> list[dict[str, Any]]:
    return render(DEPLOY / "overlays" / name)


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [one] = [one for one in objects if one["kind"] == kind]
    return one


def pod_template(objects: list[dict[str, Any]]) -> dict[str, Any]:
    template: dict[str, Any] = of_kind(objects, "Deployment")["spec"]["template"]
    return template


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_our_rendering_is_kubectls(folder: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl here")
    done = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr

    def comparable(objects: list[dict[str, Any]]) -> list[Any]:
        text = json.dumps(sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"])))
        return json.loads(re.sub(r'"(laar-(?:settings|envoy))-[a-z0-9]{10}"', r'"\1"', text))

    assert comparable(render(folder)) == comparable(list(yaml.safe_load_all(done.stdout)))


@pytest.mark.parametrize("version", ["1.30", "1.34"])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_object_fits_the_clusters_schema(folder: Path, version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for one in render(folder):
        if one["kind"] not in CRDS:
            schemas.validate(one, version, strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_containers_are_locked_down_and_bounded(name: str) -> None:
    spec = pod_template(overlay(name))["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    for volume in spec["volumes"]:
        assert "hostPath" not in volume
        assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_everything_that_is_referred_to_exists(folder: Path) -> None:
    objects = render(folder)
    template = pod_template(objects)
    labels = template["metadata"]["labels"].items()
    spec = template["spec"]
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    volumes = {volume["name"] for volume in spec["volumes"]}
    ports = {
        port["name"] for container in spec["containers"] for port in container.get("ports", [])
    }
    for container in spec["containers"]:
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
    for volume in spec["volumes"]:
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in names
    if "serviceAccountName" in spec:
        assert ("ServiceAccount", spec["serviceAccountName"]) in names
    for one in objects:
        match one["kind"]:
            case "Service":
                assert one["spec"]["selector"].items() <= labels
                assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
            case "PodDisruptionBudget" | "Deployment":
                assert one["spec"]["selector"]["matchLabels"].items() <= labels
            case "NetworkPolicy":
                assert one["spec"]["podSelector"]["matchLabels"].items() <= labels
            case "RoleBinding":
                assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in names
                assert all((who["kind"], who["name"]) in names for who in one["subjects"])


@pytest.mark.parametrize("name", OVERLAYS)
def test_permissions_are_those_of_the_calls_made_and_no_more(name: str) -> None:
    role = of_kind(overlay(name), "Role")
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    called = PERMISSIONS if name == "inference-pool" else PERMISSIONS[:1]
    assert granted == {
        (kind.group, kind.plural, verb) for kind in called for verb in ("list", "watch")
    }


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_settings_are_ones_that_laar_takes(name: str) -> None:
    content = yaml.safe_load((DEPLOY / "overlays" / name / "laar.yaml").read_text())
    [source] = [KubernetesSource.model_validate(one) for one in content.pop("kubernetes")]
    settings = Settings.model_validate({**content, "endpoints_file": "stand-in.yaml"})
    objects = overlay(name)
    [picker] = [one for one in pod_template(objects)["spec"]["containers"] if one["name"] == "laar"]
    ports = {port["name"]: port["containerPort"] for port in picker["ports"]}
    assert settings.listen.ext_proc.endswith(f":{ports['ext-proc']}")
    assert settings.listen.health == f"0.0.0.0:{ports['health']}"
    assert settings.listen.admin == f"0.0.0.0:{ports['metrics']}"
    if name == "inference-pool":
        assert source.pool == of_kind(objects, "InferencePool")["metadata"]["name"]
        assert settings.listen.ext_proc.startswith("0.0.0.0:")
    else:
        envoy = (DEPLOY / "overlays" / name / "envoy.yaml").read_text()
        assert str(settings.envoy.eds_file) in envoy
        assert settings.listen.ext_proc.startswith("127.0.0.1:")
    grace_s = pod_template(objects)["spec"]["terminationGracePeriodSeconds"]
    held_s = 125 if name != "inference-pool" else 0
    assert held_s + settings.shutdown.drain_s + settings.shutdown.grace_s < grace_s


@pytest.mark.parametrize("name", ["standalone", "sidecar"])
def test_envoys_configuration_is_the_one_that_laar_envoy_renders(name: str) -> None:
    copy = DEPLOY / "overlays" / name / "envoy.yaml"
    assert copy.read_text() == (ROOT / "envoy" / f"{name}.yaml").read_text()


def test_the_example_engines_are_found_by_the_gateways_settings() -> None:
    content = yaml.safe_load((DEPLOY / "overlays" / "standalone" / "laar.yaml").read_text())
    [source] = [KubernetesSource.model_validate(one) for one in content["kubernetes"]]
    template = pod_template(render(DEPLOY / "examples" / "vllm"))
    assert source.selector.items() <= template["metadata"]["labels"].items()
    pod = {
        "metadata": {"name": "vllm-1", "namespace": "ml", **template["metadata"]},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    kept = pod_endpoints(pod, source.ports, source.rules)
    assert kept is not None
    assert [spec.address for spec in kept.specs] == ["10.0.0.1:8000"]
    assert kept.specs[0].models == ("Qwen/Qwen2.5-7B-Instruct", "auto")
    served = [container["ports"] for container in template["spec"]["containers"]]
    assert served == [[{"name": "http", "containerPort": 8000}]]


def test_the_pool_is_one_that_the_collector_reads_and_points_at_the_picker() -> None:
    objects = overlay("inference-pool")
    pool = of_kind(objects, "InferencePool")
    assert isinstance(parse(Pool, pool), Pool)
    service = of_kind(objects, "Service")
    reference = pool["spec"]["endpointPickerRef"]
    assert reference["name"] == service["metadata"]["name"]
    assert reference["port"]["number"] in {port["port"] for port in service["spec"]["ports"]}
    assert reference["failureMode"] in {"FailOpen", "FailClose"}


def test_alerts_are_about_metrics_that_exist() -> None:
    [rules] = documents(DEPLOY / "components" / "monitoring" / "rules.yaml")
    page = Runner(Settings(endpoints_file=Path("none.yaml"))).metrics.page().decode()
    families = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    for rule in rules["spec"]["groups"][0]["rules"]:
        for name in re.findall(r"\blaar_\w+", rule["expr"]):
            assert name.removesuffix("_bucket") in families, rule["alert"]
        assert {"summary", "remedy"} <= set(rule["annotations"])


def test_monitors_scrape_ports_that_pods_have() -> None:
    [monitor] = documents(DEPLOY / "components" / "monitoring" / "podmonitor.yaml")
    template = pod_template(overlay("standalone"))
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    )
    ports = {port["name"] for one in template["spec"]["containers"] for port in one["ports"]}
    assert {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]} <= ports


@pytest.mark.parametrize("name", OVERLAYS)
def test_each_overlay_has_a_readme_of_one_screen(name: str) -> None:
    text = (DEPLOY / "overlays" / name / "README.md").read_text()
    assert len(text.splitlines()) <= 50
    for heading in ("Creates", "## Change", "## Apply and check", "## Remove"):
        assert heading in text
    assert f"kubectl apply -k deploy/overlays/{name}" in text


def test_the_dockerfile_copies_what_exists_and_ends_unprivileged() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists(), name
    final = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM ")) :]
    [user] = [line.split()[1] for line in final if line.startswith("USER ")]
    assert all(int(part) > 0 for part in user.split(":"))
    spec = pod_template(overlay("standalone"))["spec"]
    assert user == "{runAsUser}:{runAsGroup}".format_map(spec["securityContext"])
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    [entry] = [json.loads(line.split(" ", 1)[1]) for line in final if line.startswith("ENTRYPOINT")]
    assert entry[0] in scripts
    base = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert all(re.search(r":\S*\d", image) for image in base), "pin the base image"

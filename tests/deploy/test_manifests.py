"""The objects that `kubectl apply -k` sends match the schemas and the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.kustomized import render
from manifest_schemas import VERSIONS, faults

from laar.datalayer.kubernetes.objects import pod_endpoints
from laar.datalayer.kubernetes.resources import OBJECTIVES, PODS, POOLS, REWRITES
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import validate
from laar.settings import load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("standalone", "sidecar", "inference-pool", "shared")
FOLDERS = [
    *(DEPLOY / "overlays" / name for name in OVERLAYS),
    DEPLOY / "examples" / "vllm",
    *sorted(path.parent for path in Path(__file__).parent.glob("*/kustomization.yaml")),
]


def overlay(name: str) -> list[dict[str, Any]]:
    return render(DEPLOY / "overlays" / name)


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the picker's object of a kind, not the store's."""
    [one] = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] != "laar-valkey"]
    return one


def pod_template(objects: list[dict[str, Any]]) -> dict[str, Any]:
    template: dict[str, Any] = of_kind(objects, "Deployment")["spec"]["template"]
    return template


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_rendering_equals_kubectls(folder: Path) -> None:
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


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_object_matches_the_schema_of_the_cluster(folder: Path, version: str) -> None:
    assert [fault for one in render(folder) for fault in faults(one, version)] == []


@pytest.mark.envoy
@pytest.mark.parametrize("name", ["standalone", "sidecar"])
def test_a_real_envoy_accepts_the_configuration_in_the_config_map(
    name: str, envoy_binary: Path, tmp_path: Path
) -> None:
    [content] = [
        one["data"]["envoy.yaml"]
        for one in overlay(name)
        if one["kind"] == "ConfigMap" and "envoy.yaml" in one["data"]
    ]
    spec = pod_template(overlay(name))["spec"]
    first, envoy = spec["initContainers"]
    assert envoy["restartPolicy"] == "Always"
    directory = next(one["mountPath"] for one in first["volumeMounts"])
    assert directory in content
    script = first["command"][-1].replace(directory, str(tmp_path))
    subprocess.run([sys.executable, *first["command"][1:-1], script], check=True, timeout=60)
    written = tmp_path / "endpoints.json"
    assert written.exists()
    validate(yaml.safe_load(content.replace(directory, str(tmp_path))), written)


@pytest.mark.parametrize("name", OVERLAYS)
def test_containers_are_locked_down_and_bounded(name: str) -> None:
    spec = pod_template(overlay(name))["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec.get("initContainers", []) + spec["containers"]:
        assert ":" in container["image"]
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
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    of_store = [one for one in objects if one["metadata"]["name"] == "laar-valkey"]
    refers_to_what_exists([one for one in objects if one not in of_store], names)
    if of_store:
        refers_to_what_exists(of_store, names)


def refers_to_what_exists(objects: list[dict[str, Any]], names: set[tuple[str, str]]) -> None:
    [template] = [o["spec"]["template"] for o in objects if o["kind"] == "Deployment"]
    labels = template["metadata"]["labels"].items()
    spec = template["spec"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    containers = spec.get("initContainers", []) + spec["containers"]
    of_containers = [port for container in containers for port in container.get("ports", [])]
    ports = {port[key] for port in of_containers for key in ("name", "containerPort")}
    for container in containers:
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
                wanted = {port["targetPort"] for port in one["spec"]["ports"]}
                # A headless Service leaves out ports that a pod lacks.
                if one["spec"].get("clusterIP") == "None":
                    wanted.discard(19001)
                assert wanted <= ports
            case "HorizontalPodAutoscaler":
                target = one["spec"]["scaleTargetRef"]
                assert (target["kind"], target["name"]) in names
            case "PodDisruptionBudget" | "Deployment":
                assert one["spec"]["selector"]["matchLabels"].items() <= labels
            case "NetworkPolicy":
                assert one["spec"]["podSelector"]["matchLabels"].items() <= labels
            case "RoleBinding":
                assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in names
                assert all((who["kind"], who["name"]) in names for who in one["subjects"])


@pytest.mark.parametrize("name", OVERLAYS)
def test_permissions_are_exactly_what_the_calls_need(name: str) -> None:
    role = of_kind(overlay(name), "Role")
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    called = [PODS]
    if name == "inference-pool":
        called += [POOLS, *OBJECTIVES, *REWRITES]
    assert granted == {
        (kind.group, kind.plural, verb) for kind in called for verb in ("list", "watch")
    }


@pytest.mark.parametrize("name", OVERLAYS)
def test_laar_accepts_the_settings(name: str) -> None:
    settings = load(DEPLOY / "overlays" / name / "laar.yaml").settings
    [source] = settings.kubernetes
    objects = overlay(name)
    [picker] = [one for one in pod_template(objects)["spec"]["containers"] if one["name"] == "laar"]
    ports = {port["name"]: port["containerPort"] for port in picker["ports"]}
    assert settings.listen.ext_proc.endswith(f":{ports['ext-proc']}")
    assert settings.listen.health == f"0.0.0.0:{ports['health']}"
    assert settings.listen.admin == f"0.0.0.0:{ports['metrics']}"
    if name == "inference-pool":
        assert source.pool == of_kind(objects, "InferencePool")["metadata"]["name"]
        assert settings.listen.ext_proc.startswith("0.0.0.0:")
        assert settings.listen.tls is not None
    else:
        envoy = (DEPLOY / "overlays" / name / "envoy.yaml").read_text()
        assert str(settings.envoy.eds_file) in envoy
        assert settings.listen.ext_proc.startswith("127.0.0.1:")
    grace_s = pod_template(objects)["spec"]["terminationGracePeriodSeconds"]
    held_s = 135 if name != "inference-pool" else 0
    assert held_s + settings.shutdown.drain_s + settings.shutdown.grace_s < grace_s


@pytest.mark.parametrize(
    ("name", "shape"),
    [("standalone", "standalone"), ("sidecar", "sidecar"), ("shared", "standalone")],
)
def test_envoys_configuration_equals_the_output_of_laar_envoy(name: str, shape: str) -> None:
    copy = DEPLOY / "overlays" / name / "envoy.yaml"
    assert copy.read_text() == (ROOT / "envoy" / f"{shape}.yaml").read_text()
    sidecars = pod_template(overlay(name))["spec"]["initContainers"]
    [envoy] = [one for one in sidecars if one["name"] == "envoy"]
    gib = int(envoy["resources"]["limits"]["memory"].removesuffix("Gi"))
    assert gib << 30 == BootstrapOptions().memory_bytes


def test_the_settings_of_the_gateway_find_the_example_engines() -> None:
    [source] = load(DEPLOY / "overlays" / "standalone" / "laar.yaml").settings.kubernetes
    template = pod_template(render(DEPLOY / "examples" / "vllm"))
    assert source.selector.items() <= template["metadata"]["labels"].items()
    pod = {
        "metadata": {"name": "vllm-1", "namespace": "ml", **template["metadata"]},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    kept = pod_endpoints(pod, source.ports, source)
    assert kept is not None
    assert [spec.address for spec in kept.specs] == ["10.0.0.1:8000"]
    assert kept.specs[0].models == ("Qwen/Qwen2.5-7B-Instruct", "auto")
    served = [container["ports"] for container in template["spec"]["containers"]]
    assert served == [[{"name": "http", "containerPort": 8000}]]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_admin_port_requires_tokens_that_the_installation_creates(name: str) -> None:
    settings = load(DEPLOY / "overlays" / name / "laar.yaml").settings
    assert settings.listen.admin.startswith("0.0.0.0:")
    files = {settings.decisions.viewers_token_file, settings.accuracy.outcomes_token_file}
    spec = pod_template(overlay(name))["spec"]
    [laar] = [one for one in spec["containers"] if one["name"] == "laar"]
    [mount] = [m for m in laar["volumeMounts"] if m["name"] == "tokens"]
    assert {str(file.parent) for file in files if file} == {mount["mountPath"]}
    [secret] = [v["secret"]["secretName"] for v in spec["volumes"] if v["name"] == "tokens"]
    readme = (DEPLOY / "overlays" / name / "README.md").read_text()
    assert f"kubectl create secret generic {secret}" in readme
    for file in files:
        assert file is not None
        assert f"--from-literal={file.name}=" in readme


@pytest.mark.parametrize("name", OVERLAYS)
def test_only_ports_for_requests_and_probes_are_open_to_all(name: str) -> None:
    opened: dict[int, list[Any]] = {}
    for rule in of_kind(overlay(name), "NetworkPolicy")["spec"]["ingress"]:
        for port in rule["ports"]:
            opened[port["port"]] = rule.get("from", [])
    assert {port for port, sources in opened.items() if not sources} <= {8080, 9003}
    assert {9003, 9090} <= set(opened)
    for sources in opened.values():
        # An empty namespace selector matches all of them.
        assert all(one.get("namespaceSelector", {"of": "this one"}) for one in sources)

"""The subset of kustomize that deploy/ uses, so that the chart and the tests need no binary.

If kubectl is installed, a test compares the results with kubectl's.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
# The keys by which Kubernetes merges lists of objects; other lists are replaced.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
KNOWN = {"apiVersion", "kind", "resources", "components", "patches", "labels", "images"}
KNOWN |= {"configMapGenerator"}


def render(folder: Path) -> list[Object]:
    """Render a kustomization into its objects, with hash suffixes for generated ConfigMaps."""
    objects = _build(folder, [])
    renamed = {}
    for one in objects:
        if one.pop("generated", False):
            content = json.dumps(one["data"], sort_keys=True).encode()
            name = one["metadata"]["name"]
            renamed[name] = f"{name}-{hashlib.sha256(content).hexdigest()[:10]}"
            one["metadata"]["name"] = renamed[name]
    for one in objects:
        for volume in _pod_spec(one).get("volumes", []):
            if "configMap" in volume:
                name = volume["configMap"]["name"]
                volume["configMap"]["name"] = renamed.get(name, name)
    return objects


def _build(folder: Path, objects: list[Object]) -> list[Object]:
    spec = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(spec) <= KNOWN, f"{folder}: teach this renderer {set(spec) - KNOWN}"
    for name in spec.get("resources", []):
        path = folder / name
        objects += _build(path, []) if path.is_dir() else documents(path)
    for one in spec.get("configMapGenerator", []):
        data = {name: (folder / name).read_text() for name in one["files"]}
        metadata = {"name": one["name"]}
        options = one.get("options", {})
        assert set(options) <= {"labels", "disableNameSuffixHash"}, options
        if "labels" in options:
            metadata["labels"] = dict(options["labels"])
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        objects.append(config_map | {"generated": not options.get("disableNameSuffixHash")})
    for name in spec.get("components", []):
        objects = _build(folder / name, objects)
    for patch in spec.get("patches", []):
        for change in documents(folder / patch["path"]):
            key = (change["kind"], change["metadata"]["name"])
            [target] = [one for one in objects if (one["kind"], one["metadata"]["name"]) == key]
            _merge(target, change)
    for one in objects:
        for label in spec.get("labels", []):
            one["metadata"].setdefault("labels", {}).update(label["pairs"])
        pod = _pod_spec(one)
        for container in pod.get("initContainers", []) + pod.get("containers", []):
            for image in spec.get("images", []):
                if re.split(r"[:@]", container["image"])[0] == image["name"]:
                    how = f"@{image['digest']}" if "digest" in image else f":{image['newTag']}"
                    container["image"] = image["newName"] + how
    return objects


def documents(path: Path) -> list[Object]:
    """Return the objects in a YAML file."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def _pod_spec(one: Object) -> Object:
    spec: Object = one.get("spec", {}).get("template", {}).get("spec", {})
    return spec


def _merge(target: Object, change: Object) -> None:
    for name, value in change.items():
        old = target.get(name)
        if value is None:
            target.pop(name, None)
        elif isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        elif isinstance(old, list) and (key := MERGE_KEYS.get(name)) and key in value[0]:
            rest = {item[key]: item for item in old}
            merged = []
            for item in value:
                merged.append(rest.pop(item[key], {}))
                _merge(merged[-1], item)
            target[name] = merged + list(rest.values())
        else:
            target[name] = value

"""Schemas for checking the manifests.

`schemas/kubernetes-*.json` has the names and types of fields from Kubernetes' OpenAPI definitions,
for the kinds used here and without descriptions; no other fields are allowed. The operators' kinds
are defined here, as far as deploy/ uses them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

VERSIONS = ("1.30", "1.34")


def faults(one: dict[str, Any], version: str) -> list[str]:
    """Return the errors in an object as text."""
    kind, group = one["kind"], one["apiVersion"]
    if kind in CRDS and group != CRDS[kind][0]:
        return [f"{kind} is of {CRDS[kind][0]}, not of {group}"]
    found = _validator(kind, version).iter_errors(one)
    return [f"{kind} {error.json_path}: {error.message}" for error in found]


@cache
def _validator(kind: str, version: str) -> Draft202012Validator:
    if kind in CRDS:
        _, spec = CRDS[kind]
        schema = {
            "type": "object",
            "required": ["apiVersion", "kind", "metadata", "spec"],
            "additionalProperties": False,
            "properties": {"apiVersion": {}, "kind": {}, "metadata": METADATA, "spec": spec},
        }
    else:
        path = Path(__file__).parent / "schemas" / f"kubernetes-{version}.json"
        schema = json.loads(path.read_text()) | {"$ref": f"#/$defs/{kind}"}
    return Draft202012Validator(schema)


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def listed(items: dict[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


TEXT = {"type": "string", "minLength": 1}
DURATION = {"type": "string", "pattern": r"^(\d+(ms|s|m|h|d))+$"}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
METADATA = closed(("name",), name=TEXT, labels=TEXTS, annotations=TEXTS)
MATCH = closed(("matchLabels",), matchLabels=TEXTS)
SCRAPE = closed(port=TEXT, path=TEXT, interval=DURATION, scrapeTimeout=DURATION)
RULE = closed(
    ("expr",), record=TEXT, alert=TEXT, expr=TEXT, labels=TEXTS, annotations=TEXTS,
    **{"for": DURATION},
) | {"oneOf": [{"required": ["record"]}, {"required": ["alert"]}]}  # fmt: skip
CRDS = {
    "InferencePool": (
        "inference.networking.k8s.io/v1",
        closed(
            ("selector", "targetPorts", "endpointPickerRef"),
            selector=closed(
                ("matchLabels",), matchLabels=TEXTS | {"minProperties": 1, "maxProperties": 64}
            ),
            targetPorts=listed(
                closed(("number",), number=PORT), minItems=1, maxItems=8, uniqueItems=True
            ),
            appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
            endpointPickerRef=closed(
                ("name",),
                group={"type": "string"},
                kind=TEXT,
                name=TEXT,
                port=closed(("number",), number=PORT),
                failureMode={"enum": ["FailOpen", "FailClose"]},
            ),
        ),
    ),
    "PodMonitor": (
        "monitoring.coreos.com/v1",
        closed(("selector", "podMetricsEndpoints"), selector=MATCH,
               podMetricsEndpoints=listed(SCRAPE, minItems=1)),
    ),
    "ServiceMonitor": (
        "monitoring.coreos.com/v1",
        closed(("selector", "endpoints"), selector=MATCH, endpoints=listed(SCRAPE, minItems=1)),
    ),
    "PrometheusRule": (
        "monitoring.coreos.com/v1",
        closed(groups=listed(
            closed(("name",), name=TEXT, interval=DURATION, rules=listed(RULE, minItems=1))
        )),
    ),
}  # fmt: skip
"""API group and version, and the spec's schema, by kind."""

"""Another valid value for every setting, for tests that change it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

BASE: dict[str, Any] = {"endpoints": [{"address": "10.0.0.1:80", "model": "m"}]}
OTHER: dict[str, Any] = {
    "endpoints": [{"address": "10.0.0.2:80", "model": "m", "labels": {"a": "b\nc"}}],
    "endpoints_file": "endpoints.yaml",
    "kubernetes": [{"pool": "fleet", "api_server": "http://127.0.0.1:1"}],
    "listen.ext_proc": "127.0.0.1:1",
    "listen.health": "127.0.0.1:2",
    "listen.admin": "127.0.0.1:3",
    "listen.tls": {"self_signed": True},
    "routing.mode": "shadow",
    "routing.enforce_share": 0.5,
    "routing.policy": "random",
    "routing.plugins": {"pulls": {}},
    "routing.allow_policy_header": True,
    "routing.aliases": {"auto": [], "fast": ["m"]},
    "routing.fallbacks": 1,
    "routing.modes": {"m": {"fast": {"chat": {"reasoning_effort": "low"}}}},
    "routing.aim": "first-token",
    "routing.list_models": False,
    "routing.restore_names": False,
    "routing.conformance_headers": True,
    "routing.gateway_lists": True,
    "routing.policies": {"own": {"scorers": [{"name": "queue", "weight": 2.0}]}},
    "routing.baselines": {"load-aware": {"threshold": 4}},
    "routing.apart": "threshold",
    "routing.apart_tokens": 700,
    "routing.retries": "new-model",
    "routing.wrong_answer_s": 60.0,
    "routing.max_waiting": 7,
    "accuracy.capability": "capability.json",
    "accuracy.outcomes_token_file": "token",
    "prefix.max_bytes": 1 << 20,
    "readings.scrape_interval_s": 7,
    "readings.probe_interval_s": 7,
    "bodies.max_body_bytes": 4096,
    "bodies.max_held_bytes": 2 << 20,
    "bodies.opaque_paths": ["/a line\nand another/"],
    "bodies.any_model_paths": ["/version"],
    "bodies.sample_answers": 0.5,
    "bodies.sample_every_s": 7,
    "bodies.denied_paths": ["/only/this"],
    "headers.answers": "none",
    "prefix.by_tenant": True,
    "listen.admin_hosts": ["admin.example"],
    "health.enabled": False,
    "health.consecutive_failures": 7,
    "health.probe": False,
    "health.longest_trial_s": 77,
    "flow.enabled": True,
    "flow.objectives_s": {"chat": 1},
    "flow.objective_base_s": 7,
    "flow.objective_factor": 7,
    "flow.tenant_header": "x-team",
    "flow.long_tokens": 7,
    "flow.order": "fcfs",
    "flow.max_waiting": 7,
    "flow.max_held_bytes": 7,
    "flow.patience": 7,
    "flow.min_hold_s": 7,
    "flow.max_hold_s": 77,
    "flow.max_prefill_s": 7,
    "flow.max_requests": 7,
    "context.routes": [{"name": "rag", "mode": "observe"}],
    "decisions.log": "decisions.jsonl",
    "decisions.viewers_token_file": "token",
    "share.url": "redis://127.0.0.1:1/0",
    "share.username": "somebody",
    "share.password_file": "password",
    "share.ca_file": "ca.pem",
    "share.cert_file": "cert.pem",
    "share.key_file": "key.pem",
    "share.secret_file": "secret",
    "share.snapshot_file": "snapshot",
    "share.namespace": "other",
    "share.lease_s": 7,
    "envoy.eds_file": "eds.json",
    "shutdown.drain_s": 7,
    "shutdown.grace_s": 7,
}
"""Another value by path of the setting; a test fails if one is missing."""


def document(paths: Iterable[str]) -> dict[str, Any]:
    """Return a settings document with the other values of some settings."""
    made = {**BASE}
    for path in paths:
        section, _, name = path.rpartition(".")
        if section:
            made[section] = {**made.get(section, {}), name: OTHER[path]}
        else:
            made[name] = OTHER[path]
    return made

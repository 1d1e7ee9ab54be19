"""Settings that earlier releases had: what `laar check` says of a file that still has one."""

from __future__ import annotations

REMOVED_IN_0_3 = {
    "accuracy.cap_per_hour": "delete it; a cell takes 200 outcomes an hour",
    "accuracy.half_life_s": "delete it; outcomes fade with a half-life of a day",
    "accuracy.signs": "report outcomes of answers (POST /outcomes)",
    "accuracy.state_file": "`share.snapshot_file` keeps reported outcomes",
    "context.routes[].delimiters": "write tags around documents; others are learned (`recurring`)",
    "context.routes[].half_life_s": "delete it; it is 600",
    "context.routes[].last_lines": "move them in the client",
    "context.routes[].max_body_bytes": "delete it; it is 2 MiB",
    "context.routes[].sample_answers": "`bodies.sample_answers` and `bodies.sample_every_s`",
    "context.routes[].sort_tools": "sort tools in the client",
    "flow.together": "delete it; it is always on",
    "kubernetes[].model_key": "the annotation or label `laar.dev/model`",
    "kubernetes[].region": "the annotation or label `laar.dev/region`",
    "otlp.logs": "`decisions.log`, which a collector can read",
    "otlp.service_name": "the environment variable OTEL_SERVICE_NAME",
    "prefix.ask_engines": "delete it; KV events of vLLM 0.32 need no tokenizer",
    "prefix.tokenizers": "delete it; KV events of vLLM 0.32 need no tokenizer",
    "routing.answer_value_s": "delete it; `x-laar-exhausted` is always sent",
    "routing.quadratic_tokens": "delete it; it is learned",
    "routing.retry_penalty": "delete it; models that were tried rank last",
    "routing.weights_file": "`k_rtt`, `k_queue` and `k_delay`; `laar tune` prints them",
    "tuner.bounds": "delete it",
    "tuner.enabled": "`laar tune` on a trace prints `k_rtt`, `k_queue` and `k_delay`",
    "tuner.max_windows": "`laar tune --windows`",
    "tuner.objective": "`laar tune --objective`",
    "tuner.state_file": "`k_rtt`, `k_queue` and `k_delay` in `routing`",
    "tuner.window": "`laar tune --window`",
}
REMOVED_IN_0_4 = {
    "accuracy.compare": "a second picker with the artifact and `routing.mode: shadow`",
    "accuracy.online": "delete it; outcomes are learned from whoever has the token to report them",
    "accuracy.tasks": "delete it; clients may name any task",
    "context.routes[].relabel": "delete it; numbered documents move where ids can replace numbers",
    "context.routes[].roles": "delete it; all messages but the assistant's may be changed",
    "decisions.remember": "delete it; it is 2000, and `decisions.log` keeps more",
    "listen.tls.certificate": "`listen.tls.cert_file`",
    "listen.tls.client_ca": "`listen.tls.client_ca_file`",
    "listen.tls.key": "`listen.tls.key_file`",
    "prefix.enabled": "delete it; engines that reuse no prefixes are found by their answers",
    "routing.compare": "a second picker with `routing.mode: shadow`, or `laar lab replay`",
    "routing.compare_share": "delete it, with `routing.compare`",
    "routing.tpot_objectives_s": "delete it; `x-slo-ttft-ms` is the objective that is priced",
}
"""What replaces each setting."""

REMOVED = {
    name: f"removed in {release}: {text}"
    for release, gone in (("0.3", REMOVED_IN_0_3), ("0.4", REMOVED_IN_0_4))
    for name, text in gone.items()
}

"""Settings that the last release had: what `laar check` says of a file that still has one."""

from __future__ import annotations

REMOVED_IN_0_4 = {
    "accuracy.compare": "a second picker with the artifact and `routing.mode: shadow`",
    "accuracy.online": "delete it; outcomes are learned from whoever has the token to report them",
    "accuracy.tasks": "delete it; clients may name any task",
    "context.routes[].capacity_docs": "delete it; it is 30000",
    "context.routes[].formats": "delete it; all are looked for",
    "context.routes[].opt_in": "delete it; `x-laar-context: off` leaves a request as it is",
    "context.routes[].relabel": "delete it; numbered documents move where ids can replace numbers",
    "context.routes[].roles": "delete it; all messages but the assistant's may be changed",
    "decisions.remember": "delete it; it is 2000, and `decisions.log` keeps more",
    "listen.tls.certificate": "`listen.tls.cert_file`",
    "listen.tls.client_ca": "`listen.tls.client_ca_file`",
    "listen.tls.key": "`listen.tls.key_file`",
    "listen.transport": "delete it; laar's own HTTP/2 serves all callers",
    "otlp.traces": "delete it; Envoy traces requests, and its access log links them to decisions",
    "prefix.enabled": "delete it; engines that reuse no prefixes are found by their answers",
    "routing.compare": "a second picker with `routing.mode: shadow`, or `laar lab replay`",
    "routing.compare_share": "delete it, with `routing.compare`",
    "share.history_s": "delete it; it is 60 s, three times the interval of snapshots",
    "routing.k_delay": "delete it; a second of others counts as a second of one's own",
    "routing.k_queue": "delete it; a second of waiting counts as a second",
    "routing.k_rtt": "delete it; a second on the network counts as a second",
    "routing.tpot_objectives_s": "delete it; `x-slo-ttft-ms` is the objective that is priced",
}
"""What replaces each setting; of earlier releases the changelog says it."""

REMOVED = {name: f"removed in 0.4: {text}" for name, text in REMOVED_IN_0_4.items()}

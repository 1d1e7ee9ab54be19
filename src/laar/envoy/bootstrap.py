"""Render Envoy bootstraps, one for each way of running laar.

Every shape has an ext_proc filter that calls the picker, the endpoints in an ``override_host``
cluster, retries on the endpoints that the picker names next (`laar.envoy.routes`), errors in
OpenAI's format, removal of headers that clients may not set before anything reads them, a JSON
access log, and a second listener with ``/ready`` and ``/stats/prometheus`` for kubelet and
Prometheus: the admin port can stop Envoy, so it is on loopback only.

========== ======================= ===================================== ====================
shape      listens on              its clients                           bodies
========== ======================= ===================================== ====================
sidecar    127.0.0.1               one trusted application next to it:   native
                                   x-forwarded-for passes as it is
standalone all addresses           anyone: x-forwarded-for gets their    native
                                   address, paths are normalized, slow
                                   headers refused, and those with
                                   underscores dropped
gateway    all addresses           as standalone                         streamed
========== ======================= ===================================== ====================

*Native* sends the picker the request body in one message and only the headers of the answer: three
messages each way, however long the answer is. *Streamed* also sends the answer's body piece by
piece; Envoy keeps each until the picker replies, so nothing is lost if the picker fails. Gateway
API gateways send every chunk of both bodies and receive it back, in *full duplex*; laar renders no
such bootstrap.

Failing open, the default, keeps requests flowing while the picker is down: Envoy's least-request
balancing takes over. It ignores models, so it suits endpoints that all accept the requested model
names; with ``fail_open=False`` such requests get 503 instead.

Out of scope: TLS towards clients, authentication and rate limits. Put a gateway in front for them.
"""

from __future__ import annotations

from typing import Any

import orjson
import yaml

from laar.envoy.clusters import admin_cluster, endpoints_cluster, picker_cluster
from laar.envoy.listeners import data_listener, probe_listener
from laar.envoy.options import BootstrapOptions, Shape
from laar.envoy.parts import Json, extension, socket_address

_HEADING = "# Rendered by `laar envoy`; change the options it was rendered with, not this file.\n"

_MAX_CLIENT_CONNECTIONS = 20_000
"""Maximum client connections: below the usual limit of open files, even with an upstream each."""

_RUNTIME: Json = {
    # The single expression for all denied paths exceeds the default of 100.
    "re2.max_program_size.error_level": 2000,
}


def render(shape: Shape, options: BootstrapOptions | None = None) -> dict[str, Any]:
    """Return a bootstrap as plain JSON values, with Envoy's field names."""
    options = options or BootstrapOptions()
    bootstrap = {
        "node": {"id": f"laar-{shape}", "cluster": "laar"},
        "admin": {"address": socket_address("127.0.0.1", options.admin_port)},
        "static_resources": {
            "listeners": [data_listener(shape, options), probe_listener(options)],
            "clusters": [
                endpoints_cluster(options),
                picker_cluster(options, streamed=shape == "gateway"),
                admin_cluster(options.admin_port),
            ],
        },
        "layered_runtime": {"layers": [{"name": "laar", "static_layer": _RUNTIME}]},
        "overload_manager": {
            "resource_monitors": [
                extension(
                    "resource_monitors.global_downstream_max_connections",
                    "extensions.resource_monitors.downstream_connections.v3"
                    ".DownstreamConnectionsConfig",
                    max_active_downstream_connections=_MAX_CLIENT_CONNECTIONS,
                )
            ]
        },
    }
    # Copy, so that no values are shared: callers may modify it, and YAML would have anchors.
    rendered: dict[str, Any] = orjson.loads(orjson.dumps(bootstrap))
    return rendered


def to_yaml(bootstrap: dict[str, Any]) -> str:
    """Return a bootstrap as YAML, the usual format for Envoy."""
    return _HEADING + yaml.safe_dump(bootstrap, sort_keys=False, width=100)

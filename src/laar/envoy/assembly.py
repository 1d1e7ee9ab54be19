"""Puts a bootstrap together from its listeners and clusters."""

from __future__ import annotations

from pathlib import PurePath

from betterproto2 import Casing
from envoy_data_plane.envoy.config.bootstrap.v3 import (
    Admin,
    Bootstrap,
    BootstrapStaticResources,
    LayeredRuntime,
    RuntimeLayer,
)
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.config.overload.v3 import OverloadManager, ResourceMonitor
from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections.v3 import (
    DownstreamConnectionsConfig,
)
from envoy_data_plane.google.protobuf import Any, Struct

from laar.envoy.clusters import admin_cluster, endpoints_cluster, picker_cluster, socket_address
from laar.envoy.listeners import body_mode, data_listener, probe_listener
from laar.envoy.options import BootstrapOptions, Shape

_MAX_CLIENT_CONNECTIONS = 20_000
"""Below the usual limit of open files even when each connection has one to an endpoint as well."""

_RUNTIME = {
    # One expression for all denied paths is longer than the default of 100 allows.
    "re2.max_program_size.error_level": 2000,
}


def bootstrap(shape: Shape, options: BootstrapOptions) -> dict[str, object]:
    """The bootstrap as plain JSON values."""
    message = Bootstrap(
        node=Node(id=f"laar-{shape}", cluster="laar"),
        admin=Admin(address=socket_address("127.0.0.1", options.admin_port)),
        static_resources=BootstrapStaticResources(
            listeners=[data_listener(shape, options), probe_listener(options)],
            clusters=[
                endpoints_cluster(options.eds_path, str(PurePath(options.eds_path).parent)),
                picker_cluster(options, body_mode(shape, options)),
                admin_cluster(options.admin_port),
            ],
        ),
        layered_runtime=LayeredRuntime(
            layers=[RuntimeLayer(name="laar", static_layer=Struct.from_dict(_RUNTIME))]
        ),
        overload_manager=OverloadManager(
            resource_monitors=[
                ResourceMonitor(
                    name="envoy.resource_monitors.global_downstream_max_connections",
                    typed_config=Any.pack(
                        DownstreamConnectionsConfig(
                            max_active_downstream_connections=_MAX_CLIENT_CONNECTIONS
                        )
                    ),
                )
            ]
        ),
    )
    rendered: dict[str, object] = message.to_dict(casing=Casing.SNAKE)
    return rendered

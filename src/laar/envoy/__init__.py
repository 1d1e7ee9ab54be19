"""Envoy beside laar: bootstraps, the endpoints file, and a real Envoy as a child process."""

from laar.envoy.bootstrap import render, to_yaml
from laar.envoy.endpoints_file import ENDPOINTS_CLUSTER, EndpointAddress, write_eds
from laar.envoy.options import BodyMode, BootstrapOptions, Shape
from laar.envoy.process import EnvoyProcess, dying_with_us, find_binary, validate

__all__ = [
    "ENDPOINTS_CLUSTER",
    "BodyMode",
    "BootstrapOptions",
    "EndpointAddress",
    "EnvoyProcess",
    "Shape",
    "dying_with_us",
    "find_binary",
    "render",
    "to_yaml",
    "validate",
    "write_eds",
]

"""A simulated vLLM endpoint: the lab's engine model behind an HTTP server that speaks vLLM."""

from laar.lab.endpoint.faults import Fault, FaultKind, parse_fault
from laar.lab.endpoint.server import SimulatedEndpoint, run, serve
from laar.lab.endpoint.settings import EndpointSettings, KvEventSettings

__all__ = [
    "EndpointSettings",
    "Fault",
    "FaultKind",
    "KvEventSettings",
    "SimulatedEndpoint",
    "parse_fault",
    "run",
    "serve",
]

"""A simulated vLLM endpoint: the lab's engine model behind an HTTP server that speaks vLLM."""

from laar.sim.endpoint.faults import Fault, FaultKind, parse_fault
from laar.sim.endpoint.server import SimulatedEndpoint, run, serve
from laar.sim.endpoint.settings import EndpointSettings, KvEventSettings

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

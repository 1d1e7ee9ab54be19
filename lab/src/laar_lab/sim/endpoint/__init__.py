"""A simulated vLLM endpoint: the lab's engine model behind an HTTP server with vLLM's API."""

from laar_lab.sim.endpoint.faults import Fault, FaultKind, parse_fault
from laar_lab.sim.endpoint.server import SimulatedEndpoint, run
from laar_lab.sim.endpoint.settings import EndpointSettings, KvEventSettings

__all__ = [
    "EndpointSettings",
    "Fault",
    "FaultKind",
    "KvEventSettings",
    "SimulatedEndpoint",
    "parse_fault",
    "run",
]

"""Collectors: find endpoints, read their metrics and measure their round trips.

Each is an object with an endless ``run``; the runner connects them to the endpoint table.
"""

from laar.datalayer.dns import Resolver
from laar.datalayer.document import read_document
from laar.datalayer.endpoints_file import (
    Endpoint,
    EndpointsDocument,
    EndpointsFile,
    join_address,
    load_endpoints,
    split_address,
)
from laar.datalayer.interface import (
    Clock,
    EndpointSink,
    KvEventSink,
    ProblemSink,
    ReadingSink,
    Targets,
)
from laar.datalayer.probe import Prober
from laar.datalayer.scrape import Scraper
from laar.datalayer.served_names import ServedNames

__all__ = [
    "Clock",
    "Endpoint",
    "EndpointSink",
    "EndpointsDocument",
    "EndpointsFile",
    "KvEventSink",
    "Prober",
    "ProblemSink",
    "ReadingSink",
    "Resolver",
    "Scraper",
    "ServedNames",
    "Targets",
    "join_address",
    "load_endpoints",
    "read_document",
    "split_address",
]

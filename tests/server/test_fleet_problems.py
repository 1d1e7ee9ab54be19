"""What the sink says of problems, and how often."""

import logging
import random

from laar.core.endpoints import EndpointTable
from laar.core.interfaces import NoPrefixes
from laar.server.cluster_rules import ClusterRules
from laar.server.fleet import FleetSink
from laar.telemetry.metrics import Metrics


def test_a_fleet_that_vanishes_does_not_flood_the_log(caplog):
    rules = ClusterRules(random.Random(1))
    sink = FleetSink(EndpointTable(), NoPrefixes(), Metrics(), rules, eds_file=None)
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        for number in range(2000):
            sink.problem(f"probe 10.0.{number // 256}.{number % 256}:80", "no answer")
    assert 0 < len(caplog.records) <= 1000
